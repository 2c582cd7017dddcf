//! `--ledger`: what a command holds by term, recorded while it runs; told at its end and written as
//! `ledger.json` and, with plots over the run and over a step, as `ledger.html`.

use crate::cmd::json;
use crate::cmd::model::AnySource;
use crate::error::CliError;
use crate::term;
use clap::Args;
use engine::serving::{Executor, Piece, SequenceId};
use engine::{Ahead, Each, Error, Room, Source};
use ledger::{Account, Plan, Recorder, Report};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether and where bytes are told.
#[derive(Debug, Clone, Default, Args)]
pub struct LedgerArgs {
    /// Tell bytes by term at the end, predicted and measured, and write ledger.json and ledger.html (with
    /// plots over the run and over a step) into this folder [default folder: the current one]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    pub ledger: Option<PathBuf>,
}

impl LedgerArgs {
    /// Begins to record, where that was asked for.
    pub fn start(&self) -> Result<Option<Recording>, CliError> {
        let Some(dir) = &self.ledger else { return Ok(None) };
        if !dir.is_dir() {
            let dir = dir.display();
            return Err(CliError::input(format!("--ledger={dir}: no such folder; make it first")));
        }
        Ok(Some(Recording::start(dir)))
    }
}

/// A recording and where it goes.
pub struct Recording {
    /// Takes the samples.
    pub recorder: Arc<Recorder>,
    runtime: u64,
    dir: PathBuf,
}

impl Recording {
    /// Begins; what is there now is the runtime's.
    pub fn start(dir: &Path) -> Recording {
        let (runtime, dir) = (ledger::resident_bytes(), dir.to_owned());
        Recording { recorder: Arc::new(Recorder::start()), runtime, dir }
    }

    /// A model was opened: what it holds beside its weights, its tokenizer, is the runtime's too.
    pub fn opened(&mut self) {
        self.recorder.mark("weights read");
        self.runtime = ledger::rest().map_or(self.runtime, |rest| rest.runtime());
    }

    /// Ends it: the report of a plan, written and told on standard error.
    pub fn finish(
        self,
        title: &str,
        plan: &Plan,
        parameters: Option<u64>,
    ) -> Result<Report, CliError> {
        self.finish_knowing(title, plan, Known { parameters, ..Known::default() })
    }

    /// The same with whatever is known beside the bytes.
    pub fn finish_knowing(
        self,
        title: &str,
        plan: &Plan,
        known: Known,
    ) -> Result<Report, CliError> {
        let record = self.recorder.finish();
        let books = ledger::snapshot();
        let report = Report::new(plan, &books, self.runtime, ledger::peak_bytes());
        let report = report.recorded(record);
        write(&self.dir, title, &report, known)?;
        term::note(table(&report).trim_end());
        Ok(report)
    }
}

/// What is known of a ledger beside its bytes.
#[derive(Default)]
pub struct Known {
    /// The model's parameters.
    pub parameters: Option<u64>,
    /// What the process may take; where nothing is said, what it holds and what is free beside.
    pub budget: Option<u64>,
    /// Of a training over ranks, each rank's terms, and bytes that each sends an optimizer step.
    pub ranks: Option<(Vec<plan::Rank>, u64)>,
    /// What other settings are worked out from.
    pub what_if: Option<Value>,
}

/// A report with every key that ledgers, plans and diagnoses have.
pub fn keyed(report: &Report, known: Known) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(report).map_err(CliError::failed)?;
    let own = report.peak_process_bytes.saturating_sub(report.reclaimable_bytes);
    if let Some(budget) = known.budget.or_else(ledger::budget_bytes) {
        value["budget_bytes"] = budget.into();
        value["fits"] = (own <= budget).into();
    }
    let trains = report.rows.iter().any(|row| row.term == Account::Gradients.name());
    if let Some((ranks, sent)) = known.ranks.or(trains.then(|| (vec![as_rank(report)], 0))) {
        value["ranks"] = serde_json::to_value(ranks).map_err(CliError::failed)?;
        value["communication_bytes_per_step"] = sent.into();
    }
    plan::diagnose::complete(&mut value, known.parameters).map_err(CliError::failed)?;
    if let Some(what_if) = known.what_if {
        value["what_if"] = what_if;
    }
    Ok(value)
}

/// Terms of a report as one rank's.
fn as_rank(report: &Report) -> plan::Rank {
    let mut terms = plan::Terms::default();
    report.rows.iter().for_each(|row| terms.add(row.term, row.measured_bytes));
    plan::Rank { rank: 0, terms, total_bytes: report.total_bytes }
}

/// Writes a report as JSON and as a page.
pub fn write(dir: &Path, title: &str, report: &Report, known: Known) -> Result<(), CliError> {
    let page = plan::ledger_page(title, report);
    let text = json(&keyed(report, known)?)?;
    for (name, text) in [("ledger.json", text), ("ledger.html", page)] {
        let path = dir.join(name);
        formats::replace_file(&path, |file| file.write_all(text.as_bytes())).map_err(|e| {
            CliError::failed(format!("{}: {e}{}", path.display(), formats::hint(&e)))
        })?;
    }
    Ok(())
}

/// Predicted and measured bytes, term by term.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "{:<16}{:>13}{:>13}{:>13}{:>13}{:>9}\n",
        "term", "predicted", "reserved", "in use", "at the peak", "ratio"
    );
    for row in &report.rows {
        let ratio = match row.predicted_bytes {
            0 => "-".to_owned(),
            predicted => format!("{:.3}", row.peak_bytes as f64 / predicted as f64),
        };
        let [predicted, reserved, there, most] =
            [row.predicted_bytes, row.peak_bytes, row.in_use_bytes, row.resident_bytes]
                .map(plan::binary);
        out += &format!(
            "{:<16}{predicted:>13}{reserved:>13}{there:>13}{most:>13}{ratio:>9}\n",
            row.term
        );
    }
    let own = report.peak_process_bytes.saturating_sub(report.reclaimable_bytes);
    let ratio = own as f64 / report.predicted_process_bytes.max(1) as f64;
    out += &format!(
        "{:<16}{:>13}{:>13}{:>13}{:>13}{ratio:>9.3}\n",
        "whole process",
        plan::binary(report.predicted_process_bytes),
        "",
        "",
        plan::binary(report.peak_process_bytes)
    );
    if report.reclaimable_bytes > 0 {
        out += &format!(
            "of it mapped files, which can be reclaimed and are not predicted: {}\n",
            plan::binary(report.reclaimable_bytes)
        );
    }
    out + &format!(
        "unexplained: {}{} at the moment of the peak ({:.1} %)\n",
        if report.unexplained_bytes < 0 { "-" } else { "" },
        plan::binary(report.unexplained_bytes.unsigned_abs()),
        100.0 * report.unexplained_share
    )
}

/// A source whose first pass, which reads the prompt, is looked at closely.
pub struct Watched<'a> {
    source: AnySource<'a>,
    recorder: Option<Arc<Recorder>>,
}

impl<'a> Watched<'a> {
    /// A source, watched where a recording is under way.
    pub fn new(source: AnySource<'a>, recording: Option<&Recording>) -> Watched<'a> {
        Watched { source, recorder: recording.map(|r| Arc::clone(&r.recorder)) }
    }

    fn closely<T>(&mut self, what: &str, work: impl FnOnce(&mut AnySource<'a>) -> T) -> T {
        let recorder = self.recorder.clone();
        recorder.iter().for_each(|r| r.begin_step(what));
        let done = work(&mut self.source);
        recorder.iter().for_each(|r| r.end_step());
        done
    }
}

impl Source for Watched<'_> {
    fn vocab_size(&self) -> usize {
        self.source.vocab_size()
    }
    fn context_limit(&self) -> Option<usize> {
        self.source.context_limit()
    }
    fn plan(&self, prompt: usize, room: Room) -> Result<Plan, Error> {
        self.source.plan(prompt, room)
    }
    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        let what = format!("reading the {} tokens of the prompt", prompt.len());
        self.closely(&what, |source| source.begin(prompt, room, logits))
    }
    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        self.source.step(tokens, logits);
    }
    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        self.source.select(parents)
    }
    fn pass(&mut self, ids: &[u32], each: &mut Each<'_>) -> Result<(), Error> {
        let what = format!("a pass over {} tokens", ids.len());
        self.closely(&what, |source| source.pass(ids, each))
    }
}

impl Ahead for Watched<'_> {
    fn read_ahead(&mut self, tokens: usize) {
        self.source.read_ahead(tokens);
    }
    fn read_on(&mut self, tokens: &[u32], logits: &mut [f32]) {
        self.source.read_on(tokens, logits);
    }
    fn rewind(&mut self, read: usize) {
        self.source.rewind(read);
    }
}

/// An executor whose first step is looked at closely.
pub struct WatchedExecutor {
    executor: Box<dyn Executor>,
    recorder: Arc<Recorder>,
}

impl WatchedExecutor {
    /// An executor, watched where a recording is under way.
    pub fn boxed(executor: Box<dyn Executor>, recording: Option<&Recording>) -> Box<dyn Executor> {
        match recording {
            None => executor,
            Some(r) => Box::new(WatchedExecutor { executor, recorder: Arc::clone(&r.recorder) }),
        }
    }
}

impl Executor for WatchedExecutor {
    fn vocab_size(&self) -> usize {
        self.executor.vocab_size()
    }
    fn context_limit(&self) -> Option<usize> {
        self.executor.context_limit()
    }
    fn run(&mut self, pieces: &[Piece<'_>], logits: &mut [f32]) -> Result<(), Error> {
        let rows: usize = pieces.iter().map(|piece| piece.known.len() - piece.from).sum();
        self.recorder.begin_step(&format!("{rows} tokens of {} sequences", pieces.len()));
        let done = self.executor.run(pieces, logits);
        self.recorder.end_step();
        done
    }
    fn width(&self) -> usize {
        self.executor.width()
    }
    fn hidden(&mut self) -> &[f32] {
        self.executor.hidden()
    }
    fn forget(&mut self, id: SequenceId) {
        self.executor.forget(id);
    }
}
