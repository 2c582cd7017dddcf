//! `autoreg doctor`: what this machine can do, measured with the kernels that run here.

use crate::cmd::{json, team};
use crate::error::CliError;
use crate::term::{self, Progress};
use clap::Args;
use kernels::{Init, Isa, Mat, QuantKind, QuantMatrix, Team};
use ledger::{Account, Buffer, Spec};
use plan::{Machine, both};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg doctor
  autoreg doctor --json --out here.json
  autoreg plan serve qwen3-0.6b --machine measured

What is measured: bytes/s of plain reads of 256 MiB by all workers; additions and multiplications a
second of the f32 product and of the quantised product (4 bits) with 256 rows; bytes/s at which one row
reads a quantised matrix of 64 MiB. Each is the best of several runs, since others on the machine can
only slow it down. The figures are saved for `--machine measured`.")]
pub struct DoctorArgs {
    /// Where to save the figures [default: autoreg/machine.json in the folder for caches]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Workers [default: the processors this process may use]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where `--machine measured` looks.
pub fn saved_at() -> PathBuf {
    let named = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("autoreg").join("machine.json")
}

/// Bytes that are read for the bandwidth.
const READ_BYTES: usize = 256 << 20;
/// Rows, columns and depth of the products.
const PRODUCT: (usize, usize, usize) = (256, 2048, 2048);
/// Rows and columns of the matrix that a single row reads: 64 MiB of four-bit blocks and more.
const LONG: (usize, usize) = (32_768, 4096);
/// The kind of blocks that is measured.
const KIND: QuantKind = QuantKind::Q4_0;

/// Measures as told.
pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    let team = team(args.threads)?;
    let mut progress = Progress::new(4, args.quiet || args.json);
    let runs = usize::from(args.runs);
    let mut at = |done: u64, what: &str| progress.at(done, 4, || what.to_owned());
    at(0, "bandwidth");
    let bandwidth = bandwidth(&team, runs)?;
    at(1, "f32 product");
    let flops = product(&team, runs)?;
    at(2, "quantised product");
    let quantised = quantised(&team, runs, PRODUCT)?;
    at(3, "quantised row");
    let (columns, depth) = LONG;
    let row = quantised_row(&team, runs, columns, depth)?;
    at(4, "done");
    progress.finish();
    let processor = processor();
    let isa = Isa::current().name();
    let machine = Machine {
        name: processor.clone(),
        bandwidth_bytes_per_second: bandwidth,
        flops_per_second: flops,
        quantised_flops_per_second: Some(quantised),
        quantised_row_bytes_per_second: Some(row),
        memory_bytes: ledger::machine_bytes(),
        source: format!("measured by autoreg doctor, {} threads, {isa}", team.threads()),
    };
    let mut value = serde_json::to_value(&machine).map_err(CliError::failed)?;
    value["processor"] = processor.into();
    value["threads"] = team.threads().into();
    value["isa"] = isa.into();
    value["kernel_levels"] = Isa::available().map(Isa::name).collect::<Vec<_>>().into();
    value["processors"] = std::thread::available_parallelism().map_or(1, |n| n.get()).into();
    value["available_bytes"] = ledger::available_bytes().into();
    let path = args.out.clone().unwrap_or_else(saved_at);
    save(&path, &json(&value)?)?;
    if args.json {
        term::print(&json(&value)?);
    } else {
        term::print(&text(&machine, row, &team, &path));
    }
    Ok(())
}

fn text(machine: &Machine, row: f64, team: &Team, path: &Path) -> String {
    let levels: Vec<&str> = Isa::available().map(Isa::name).collect();
    let gb = |x: f64| format!("{:.1} GB/s", x / 1e9);
    let giga = |x: f64| format!("{:.1} GFLOP/s", x / 1e9);
    let memory = |bytes: Option<u64>| bytes.map_or("not told".to_owned(), both);
    let knee = machine.flops_per_second / machine.bandwidth_bytes_per_second;
    format!(
        "processor          {}\n\
         kernel levels      {} (in use: {})\n\
         workers            {}\n\
         memory             {}\n\
         of it free         {}\n\
         plain reads        {}\n\
         f32 products       {} ({knee:.1} FLOP a byte read)\n\
         quantised products {}\n\
         one quantised row  {} of blocks read\n\
         saved to           {}\n",
        machine.name,
        levels.join(", "),
        Isa::current().name(),
        team.threads(),
        memory(machine.memory_bytes),
        memory(ledger::available_bytes()),
        gb(machine.bandwidth_bytes_per_second),
        giga(machine.flops_per_second),
        giga(machine.quantised_flops_per_second.unwrap_or(0.0)),
        gb(row),
        path.display()
    )
}

fn save(path: &Path, text: &str) -> Result<(), CliError> {
    let fail =
        |e: std::io::Error| CliError::input(format!("{}: {e}; give another --out", path.display()));
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    formats::replace_file(path, |file| file.write_all(text.as_bytes())).map_err(fail)
}

/// The processor's name as the system tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"));
    let name = line.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

fn buffer(name: &str, len: usize) -> Result<Buffer<f32>, CliError> {
    Buffer::new(&Spec::new(name, Account::Workspace, len)).map_err(CliError::failed)
}

/// Seconds of the quickest of `runs` runs, after one that does not count.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..=runs).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    seconds.skip(1).fold(f64::INFINITY, f64::min).max(1e-9)
}

/// Bytes/s of plain reads by all workers.
pub fn bandwidth(team: &Team, runs: usize) -> Result<f64, CliError> {
    let mut x = buffer("bandwidth", READ_BYTES / 4)?;
    x.fill(1.0);
    let seconds = best(runs, || kernels::read_all(team, &x));
    Ok(READ_BYTES as f64 / seconds)
}

/// FLOP/s of the f32 product.
fn product(team: &Team, runs: usize) -> Result<f64, CliError> {
    let (m, n, k) = PRODUCT;
    let (mut a, mut w) = (buffer("rows", m * k)?, buffer("matrix", n * k)?);
    let (mut packed, mut c) =
        (buffer("packed", kernels::packed_len(n, k))?, buffer("product", m * n)?);
    a.fill(0.5);
    w.fill(0.25);
    kernels::pack_transposed(team, &w, n, k, &mut packed);
    let seconds = best(runs, || {
        let b = Mat { data: &packed, rows: k, cols: n, row_stride: 0, col_stride: 1 };
        kernels::matmul(team, Mat::new(&a, m, k), b, Init::Zero, &mut c, n, 0);
    });
    Ok(2.0 * (m * n * k) as f64 / seconds)
}

/// FLOP/s of the quantised product, its rows' rounding included.
fn quantised(team: &Team, runs: usize, (m, n, k): (usize, usize, usize)) -> Result<f64, CliError> {
    let panels = vec![0x11u8; KIND.matrix_bytes(n, k)];
    let matrix = QuantMatrix { kind: KIND, rows: n, cols: k, panels: &panels };
    let (mut x, mut y) = (buffer("rows", m * k)?, buffer("product", m * n)?);
    let mut rounded = buffer("rounded rows", kernels::quant_rows_len(m, k))?;
    x.iter_mut().enumerate().for_each(|(i, x)| *x = kernels::normal(1, i as u64));
    let seconds = best(runs, || {
        let rows = kernels::quantise_rows(team, &x, k, &mut rounded);
        kernels::quant_matmul(team, &rows, &matrix, &[], &mut y, n, 0);
    });
    Ok(2.0 * (m * n * k) as f64 / seconds)
}

/// Bytes/s at which one row reads a quantised matrix.
fn quantised_row(team: &Team, runs: usize, n: usize, k: usize) -> Result<f64, CliError> {
    let flops = quantised(team, runs, (1, n, k))?;
    Ok(flops / (2.0 * (n * k) as f64) * KIND.matrix_bytes(n, k) as f64)
}
