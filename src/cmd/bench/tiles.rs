//! Attention that stores its scores beside attention in tiles: bytes moved, workspace, equal outputs.
//!
//! The one with stored scores is the textbook's three steps, each over whole matrices; it is here to
//! be compared with and nowhere else.

use crate::cmd::recording::LedgerArgs;
use crate::cmd::{json, team};
use crate::error::CliError;
use crate::term::{self, mib};
use clap::Args;
use kernels::{
    AttentionShape, Init, Kv, Mat, Segment, Team, attention_forward, attention_workspace,
};
use ledger::{Account, Buffer, Plan, Spec};
use serde::Serialize;

/// Arguments of `bench attention-memory`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg bench attention-memory
  autoreg bench attention-memory --length 512,1024 --head-dim 128 --json

Stored: S = Q·Kᵀ is written, read, turned into P by a softmax, written, and read again for P·V. Tiled: 64
queries meet 64 keys at a time, with a running maximum and sum, and nothing of size L×L exists. Bytes moved
are counted as if no cache held anything between steps; workspace is counted by the list that allocates and
measured as what the process grew by.")]
pub struct Tiles {
    /// Tokens of the one sequence; several, one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512,1024,2048,4096,8192",
          value_parser = clap::value_parser!(u32).range(1..=32_768))]
    length: Vec<u32>,
    /// Numbers of a head; one head is computed
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    head_dim: u16,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Queries that read the keys and values before them together.
const QUERIES: u64 = 64;

/// One way to compute attention.
#[derive(Debug, Serialize)]
struct Way {
    /// Bytes read and written, counted.
    moved_bytes: u64,
    /// Bytes beside inputs and outputs, counted.
    workspace_bytes: u64,
    /// What the process grew by, measured.
    measured_bytes: u64,
}

/// Both ways at one length.
#[derive(Debug, Serialize)]
struct Row {
    length: usize,
    stored: Way,
    tiled: Way,
    /// The largest difference of two outputs, as a share of the largest output.
    largest_difference: f64,
}

/// Compares as told.
pub fn run(args: &Tiles) -> Result<(), CliError> {
    let team = team(args.threads)?;
    let recording = args.ledger.start()?;
    let d = usize::from(args.head_dim);
    let mut rows = Vec::new();
    let mut largest = Plan::default();
    for &length in &args.length {
        let n = length as usize;
        let plan = plan(n, d);
        crate::cmd::fit(&plan, &format!("storing the scores of {n} tokens"), "give shorter ones")?;
        recording.iter().for_each(|r| r.recorder.begin_step(&format!("{n} tokens, both ways")));
        rows.push(row(&team, n, d)?);
        if let Some(r) = &recording {
            r.recorder.end_step();
            r.recorder.mark(&format!("{n} tokens"));
        }
        if plan.total() > largest.total() {
            largest = plan;
        }
    }
    if let Some(recording) = recording {
        recording.finish("bench attention-memory", &largest, None)?;
    }
    if args.json {
        term::print(&json(&rows)?);
    } else {
        term::print(&text(&rows, d));
    }
    Ok(())
}

fn allocate(spec: &Spec) -> Result<Buffer<f32>, CliError> {
    Buffer::new(spec).map_err(CliError::failed)
}

/// What the two ways hold at once: three inputs, two outputs, and the scores, beside which tiles have been
/// given back.
fn plan(n: usize, d: usize) -> Plan {
    let mut plan = Plan::default();
    ["queries", "keys", "values", "outputs", "outputs"]
        .iter()
        .for_each(|what| plan.add(&Spec::new(*what, Account::Data, n * d)));
    stored_specs(n, d).iter().for_each(|spec| plan.add(spec));
    plan
}

/// What storing the scores takes: keys as the product reads them, and L×L scores.
fn stored_specs(n: usize, d: usize) -> [Spec; 2] {
    let spec = |what: &str, len| Spec::new(what, Account::Workspace, len);
    [spec("packed keys", kernels::packed_len(n, d)), spec("scores", n * n)]
}

/// Runs a way and answers with what the process grew by.
fn grown(work: impl FnOnce() -> Result<u64, CliError>) -> Result<u64, CliError> {
    let before = ledger::anonymous_bytes();
    Ok(work()?.saturating_sub(before))
}

fn row(team: &Team, n: usize, d: usize) -> Result<Row, CliError> {
    let input = |what: &str, key: u64| -> Result<Buffer<f32>, CliError> {
        let mut x = allocate(&Spec::new(what, Account::Data, n * d))?;
        x.iter_mut().enumerate().for_each(|(i, x)| *x = kernels::normal(key, i as u64));
        Ok(x)
    };
    let (q, k, v) = (input("queries", 1)?, input("keys", 2)?, input("values", 3)?);
    let output = || allocate(&Spec::new("outputs", Account::Data, n * d));
    let (mut a, mut b) = (output()?, output()?);
    // Touched now, so that they are not what a way grows by.
    a.fill(1.0);
    b.fill(1.0);
    let scale = 1.0 / (d as f32).sqrt();
    let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: d, scale, window: None };
    let tiles =
        Spec::new("tiles", Account::Workspace, attention_workspace(&shape, team.threads(), 0));
    let tiled_measured = grown(|| {
        let mut work = allocate(&tiles)?;
        let segment = [Segment { row: 0, queries: n, past: 0, kv: Kv::whole(&k, &v, d) }];
        attention_forward(team, &shape, &segment, &q, d, &mut b, &mut [], &mut work);
        Ok(ledger::anonymous_bytes())
    })?;
    let specs = stored_specs(n, d);
    let stored_measured = grown(|| {
        let (mut packed, mut scores) = (allocate(&specs[0])?, allocate(&specs[1])?);
        stored(team, (n, d, scale), [&q, &k, &v], &mut packed, &mut scores, &mut a);
        Ok(ledger::anonymous_bytes())
    })?;
    let largest = a.iter().fold(0f32, |m, x| m.max(x.abs()));
    let apart = a.iter().zip(b.iter()).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
    let bytes = |specs: &[Spec]| specs.iter().map(|spec| 4 * spec.len as u64).sum();
    let (long, wide) = (n as u64, d as u64);
    let blocks = long.div_ceil(QUERIES);
    Ok(Row {
        length: n,
        stored: Way {
            moved_bytes: 4 * (4 * long * wide + 4 * long * long),
            workspace_bytes: bytes(&specs),
            measured_bytes: stored_measured,
        },
        tiled: Way {
            // Each block of queries reads the keys and values up to its own.
            moved_bytes: 4 * (2 * long * wide + QUERIES * wide * blocks * (blocks + 1)),
            workspace_bytes: bytes(&[tiles]),
            measured_bytes: tiled_measured,
        },
        largest_difference: f64::from(apart) / f64::from(largest),
    })
}

/// S = Q·Kᵀ, P = softmax(S) where a query sees what is before it, O = P·V.
fn stored(
    team: &Team,
    (n, d, scale): (usize, usize, f32),
    [q, k, v]: [&[f32]; 3],
    packed: &mut [f32],
    scores: &mut [f32],
    out: &mut [f32],
) {
    kernels::pack_transposed(team, k, n, d, packed);
    let keys = Mat { row_stride: 0, ..Mat::new(packed, d, n) };
    kernels::matmul(team, Mat::new(q, n, d), keys, Init::Zero, scores, n, 0);
    for (i, row) in scores.chunks_exact_mut(n).enumerate() {
        let (seen, unseen) = row.split_at_mut(i + 1);
        let most = seen.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(scale * s));
        seen.iter_mut().for_each(|s| *s = (scale * *s - most).exp());
        let sum: f32 = seen.iter().sum();
        seen.iter_mut().for_each(|s| *s /= sum);
        unseen.fill(0.0);
    }
    kernels::matmul(team, Mat::new(scores, n, n), Mat::new(v, n, d), Init::Zero, out, d, 0);
}

fn text(rows: &[Row], d: usize) -> String {
    let mut out = format!(
        "one head of {d}, f32: bytes moved and workspace with stored scores, and in tiles\n\
         {:>6}{:>12}{:>11}{:>12}{:>12}{:>10}{:>10}{:>7}\n",
        "length", "moved", "in tiles", "workspace", "measured", "in tiles", "measured", "apart"
    );
    for r in rows {
        out += &format!(
            "{:>6}{:>12}{:>11}{:>12}{:>12}{:>10}{:>10}{:>7.0e}\n",
            r.length,
            mib(r.stored.moved_bytes),
            mib(r.tiled.moved_bytes),
            mib(r.stored.workspace_bytes),
            mib(r.stored.measured_bytes),
            mib(r.tiled.workspace_bytes),
            mib(r.tiled.measured_bytes),
            r.largest_difference
        );
    }
    out
}
