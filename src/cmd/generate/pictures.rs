//! `generate --explain`: each choice drawn in the terminal, or all of them on a page.

use super::summary;
use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term;
use decoding::{Counter, DecodeError, Draw, History, Row, Rule, Rules};
use engine::{Event, Generator, Request, Source};
use explain::{Colour, Continuation, MAX_SHOWN, Picture, Record, StepRecord, terminal};
use std::io::IsTerminal;
use std::path::Path;

/// Generates one sequence and draws it.
pub fn explain<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
    opened: &Opened,
    page: Option<&Path>,
) -> Result<(), CliError> {
    if let Some(path) = page.filter(|path| !is_page(path)) {
        return Err(CliError::input(format!(
            "--explain {}: expected a file that ends in .html; a prompt stands before --explain",
            path.display()
        )));
    }
    let (mut steps, mut failed) = (Vec::new(), None);
    let mut note = |event: &Event<'_>| match tell(request, opened, event) {
        Ok(step) => steps.push(step),
        Err(error) => failed = Some(error),
    };
    let done = generator.run(request, &mut note).map_err(engine_error)?;
    if let Some(error) = failed {
        return Err(CliError::failed(error));
    }
    match page {
        Some(path) => {
            let record = Record {
                title: opened.dir.display().to_string(),
                prompt: request.prompt.iter().map(|&id| opened.label(id)).collect(),
                rules: request.rules.chain().to_vec(),
                steps,
                continuations: continuations(generator, request)?,
            };
            std::fs::write(path, explain::page(&record))
                .map_err(|e| CliError::failed(format!("{}: {e}", path.display())))?;
        }
        None => steps.iter().for_each(|step| term::print(&(terminal(step, picture()) + "\n"))),
    }
    for sequence in &done {
        term::print(&format!("{}\n", sequence.text));
        term::note(&summary(sequence));
    }
    Ok(())
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "html" || end == "htm")
}

/// The same choice told in full, by the code that made it.
fn tell(request: &Request, opened: &Opened, event: &Event<'_>) -> Result<StepRecord, DecodeError> {
    let history = History::new(&request.prompt, event.before);
    let draw = Draw::Counter(Counter { seed: request.seed, stream: event.sequence });
    let row = Row::Logits(event.logits);
    let told = decoding::explain(&request.rules, row, &history, draw, event.step)?;
    Ok(StepRecord::new(event.step, &told, MAX_SHOWN, |id| opened.label(id)))
}

/// The same prompt and draws at other temperatures, and greedy.
fn continuations<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
) -> Result<Vec<Continuation>, CliError> {
    let mut all = Vec::new();
    for (label, t) in [("greedy", 0.0), ("T = 0.5", 0.5), ("T = 1", 1.0), ("T = 2", 2.0)] {
        let rules = at_temperature(&request.rules, t)?;
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

/// The chain with this temperature where its own stood, or before its filters.
fn at_temperature(rules: &Rules, t: f64) -> Result<Rules, CliError> {
    let mut chain = rules.chain().to_vec();
    let is_temperature = |rule: &Rule| matches!(rule, Rule::Temperature { .. });
    let place = chain.iter().position(is_temperature).unwrap_or_else(|| {
        chain.iter().position(|rule| !rule.edits_logits()).unwrap_or(chain.len())
    });
    chain.retain(|rule| !is_temperature(rule));
    chain.insert(place.min(chain.len()), Rule::Temperature { t });
    Rules::new(chain).map_err(CliError::input)
}

fn picture() -> Picture {
    let colour = match std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        true => Colour::On,
        false => Colour::Off,
    };
    Picture { colour, ..Picture::default() }
}
