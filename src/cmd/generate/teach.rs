//! `generate --teacher TEXT`: the true continuation beside the model's own.

use super::pictures::{self, picture};
use super::record::{Record, SequenceRecord};
use crate::cmd::json;
use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term;
use engine::{Forced, Generator, Request, Source, Teacher};
use explain::{Predicted, TeacherRecord, TeacherStep, teacher_terminal};
use serde::Serialize;
use std::path::Path;

/// What `generate --teacher --json` prints: the record of the free side with the true one beside it.
#[derive(Debug, Serialize)]
struct Answer {
    /// The true text.
    teacher: String,
    #[serde(flatten)]
    sides: TeacherRecord,
    /// The free side, which `autoreg replay` can repeat.
    free: Record,
}

/// What is to be shown.
pub struct Asked<'a> {
    /// The prompt's text.
    pub prompt: &'a str,
    /// The true text.
    pub truth: &'a str,
    /// As JSON.
    pub json: bool,
    /// As a page, too.
    pub page: Option<&'a Path>,
}

/// Sets the two sides against each other and shows them.
pub fn teach<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
    opened: &Opened,
    asked: &Asked<'_>,
) -> Result<(), CliError> {
    let ids = opened.tokenizer.encode(asked.truth);
    if ids.is_empty() {
        return Err(CliError::input(
            "--teacher: the text has no token; give what should follow the prompt",
        ));
    }
    let alone = Request { sequences: 1, max_tokens: ids.len(), ..request.clone() };
    let mut steps = pictures::Steps::new(&alone, opened);
    let told = generator
        .teach(&alone, &ids, &mut |event| {
            if asked.page.is_some() {
                steps.note(event)
            }
        })
        .map_err(engine_error)?;
    let sides = sides(&told, opened);
    if let Some(page) = asked.page {
        pictures::write(page, generator, steps, Some(sides.clone()))?;
    }
    if asked.json {
        let mut free = Record::new(opened, &alone, None, asked.prompt)?;
        free.sequences = vec![SequenceRecord::new(told.free, &alone.stops)];
        let teacher = asked.truth.to_owned();
        term::print(&json(&Answer { teacher, sides, free })?);
    } else {
        term::print(&teacher_terminal(&sides, picture()));
    }
    Ok(())
}

fn sides(told: &Teacher, opened: &Opened) -> TeacherRecord {
    let predicted = |id: u32, logprob: f64| Predicted { id, text: opened.label(id), logprob };
    let step = |(place, one): (usize, &Forced)| TeacherStep {
        truth: predicted(one.truth.id, one.truth.logprob),
        truth_rank: one.truth.rank,
        forced: predicted(one.choice.id, one.choice.logprob),
        free: told
            .free
            .tokens
            .get(place)
            .map(|token| predicted(token.choice.id, token.choice.logprob)),
    };
    TeacherRecord {
        first_divergence: told.first_divergence,
        truth_logprob: told.truth_logprob(),
        steps: told.forced.iter().enumerate().map(step).collect(),
    }
}
