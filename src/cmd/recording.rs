//! `--ledger`: what a command holds by term, recorded while it runs; told at its end and written as
//! `ledger.json` and, with plots over the run and over a step, as `ledger.html`.

use crate::cmd::json;
use crate::cmd::model::AnySource;
use crate::error::CliError;
use crate::term::{self, mib};
use clap::Args;
use engine::serving::{Executor, Piece, SequenceId};
use engine::{Ahead, Each, Error, Room, Source};
use ledger::{Plan, Recorder, Report};
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
    pub fn finish(self, title: &str, plan: &Plan) -> Result<Report, CliError> {
        let record = self.recorder.finish();
        let books = ledger::snapshot();
        let report = Report::new(plan, &books, self.runtime, ledger::peak_bytes());
        let report = report.recorded(record);
        write(&self.dir, title, &report)?;
        term::note(table(&report).trim_end());
        Ok(report)
    }
}

/// Writes a report as JSON and as a page.
pub fn write(dir: &Path, title: &str, report: &Report) -> Result<(), CliError> {
    let page = plan::ledger_page(title, report);
    for (name, text) in [("ledger.json", json(report)?), ("ledger.html", page)] {
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
            [row.predicted_bytes, row.peak_bytes, row.in_use_bytes, row.resident_bytes].map(mib);
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
        mib(report.predicted_process_bytes),
        "",
        "",
        mib(report.peak_process_bytes)
    );
    if report.reclaimable_bytes > 0 {
        out += &format!(
            "of it mapped files, which can be reclaimed and are not predicted: {}\n",
            mib(report.reclaimable_bytes)
        );
    }
    out + &format!(
        "unexplained: {:.1} MiB at the moment of the peak ({:.1} %)\n",
        report.unexplained_bytes as f64 / (1 << 20) as f64,
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
