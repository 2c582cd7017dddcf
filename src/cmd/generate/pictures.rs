//! `generate --explain`: each choice drawn in the terminal, or all of them on a page.

use super::summary;
use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term;
use decoding::{Counter, DecodeError, Draw, History, Row};
use engine::{Event, Generator, Request, Source};
use explain::{
    Colour, Continuation, MAX_EXACT, MAX_SHOWN, Picture, Record, StepRecord, TeacherRecord,
    at_temperature, terminal,
};
use std::path::Path;

/// Generates one sequence and draws it.
pub fn explain<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
    opened: &Opened,
    page: Option<&Path>,
) -> Result<(), CliError> {
    let mut steps = Steps::new(request, opened, Detail::of(page));
    let done = generator.run(request, &mut |event| steps.note(event)).map_err(engine_error)?;
    match page {
        Some(path) => write(path, generator, steps, None)?,
        None => {
            for step in steps.all()?.1 {
                term::print(&(terminal(&step, picture()) + "\n"));
            }
        }
    }
    for sequence in &done {
        term::print(&format!("{}\n", sequence.text));
        term::note(&summary(sequence));
    }
    Ok(())
}

/// How much is kept of each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Detail {
    /// What a table shows.
    Table,
    /// What a page needs to choose again: other temperatures, and every logit where there is room.
    Page,
}

impl Detail {
    /// What this output needs.
    pub fn of(page: Option<&Path>) -> Self {
        page.map_or(Self::Table, |_| Self::Page)
    }
}

/// The choices of one sequence, told in full as they come.
pub struct Steps<'a> {
    request: &'a Request,
    opened: &'a Opened,
    steps: Vec<StepRecord>,
    detail: Detail,
    /// Single logits that may still be recorded.
    room: usize,
    failed: Option<DecodeError>,
}

impl<'a> Steps<'a> {
    /// None yet.
    pub fn new(request: &'a Request, opened: &'a Opened, detail: Detail) -> Self {
        Self { request, opened, steps: Vec::new(), detail, room: MAX_EXACT, failed: None }
    }

    /// Tells one more choice, by the code that made it.
    pub fn note(&mut self, event: &Event<'_>) {
        let history = History::new(&self.request.prompt, event.before);
        let draw = Draw::Counter(Counter { seed: self.request.seed, stream: event.sequence });
        let row = Row::Logits(event.logits);
        let (rules, opened) = (&self.request.rules, self.opened);
        let label = |id| opened.label(id);
        let step = decoding::explain(rules, row, &history, draw, event.step).and_then(|told| {
            let step = StepRecord::new(event.step, &told, MAX_SHOWN, label);
            match self.detail {
                Detail::Table => Ok(step),
                Detail::Page => {
                    step.exact(&told, &mut self.room).beside(rules, row, &history, label)
                }
            }
        });
        match step {
            Ok(step) => self.steps.push(step),
            Err(error) => self.failed = Some(error),
        }
    }

    fn all(self) -> Result<(&'a Request, Vec<StepRecord>, &'a Opened), CliError> {
        match self.failed {
            Some(error) => Err(CliError::failed(error)),
            None => Ok((self.request, self.steps, self.opened)),
        }
    }
}

/// Text of every token, where a step holds its whole row.
pub fn texts(steps: &[StepRecord], text: impl Fn(u32) -> String) -> Vec<String> {
    let width = steps.iter().map(|step| step.row.len()).max().unwrap_or(0);
    (0..).take(width).map(text).collect()
}

/// Refuses a page that is none, before anything runs: it is most likely a prompt.
pub fn check_page(page: Option<&Path>) -> Result<(), CliError> {
    let is_page = |path: &Path| path.extension().is_some_and(|end| end == "html" || end == "htm");
    match page.filter(|path| !is_page(path)) {
        None => Ok(()),
        Some(path) => Err(CliError::input(format!(
            "--explain {}: expected a file that ends in .html; a prompt stands before --explain",
            path.display()
        ))),
    }
}

/// Writes the page, with the same prompt continued by other settings.
pub fn write<S: Source>(
    path: &Path,
    generator: &mut Generator<'_, S>,
    steps: Steps<'_>,
    teacher: Option<TeacherRecord>,
) -> Result<(), CliError> {
    let (request, steps, opened) = steps.all()?;
    let record = Record {
        title: opened.dir.display().to_string(),
        prompt: request.prompt.iter().map(|&id| opened.label(id)).collect(),
        rules: request.rules.chain().to_vec(),
        texts: texts(&steps, |id| opened.label(id)),
        steps,
        continuations: continuations(generator, request)?,
        teacher,
    };
    std::fs::write(path, explain::page(&record))
        .map_err(|e| CliError::failed(format!("{}: {e}", path.display())))
}

/// The same prompt and draws at other temperatures, and greedy.
fn continuations<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
) -> Result<Vec<Continuation>, CliError> {
    let mut all = Vec::new();
    for (label, t) in [("greedy", 0.0), ("T = 0.5", 0.5), ("T = 1", 1.0), ("T = 2", 2.0)] {
        let rules = at_temperature(&request.rules, t).map_err(CliError::input)?;
        let request = Request { rules, ..request.clone() };
        let done = generator.run(&request, &mut |_| {}).map_err(engine_error)?;
        all.extend(done.into_iter().map(|one| Continuation {
            label: label.to_owned(),
            logprob: one.logprob(),
            tokens: one.tokens.into_iter().map(|token| token.text).collect(),
        }));
    }
    Ok(all)
}

/// 80 columns, and colours on a terminal.
pub fn picture() -> Picture {
    let colour = if term::colours() { Colour::On } else { Colour::Off };
    Picture { colour, ..Picture::default() }
}
