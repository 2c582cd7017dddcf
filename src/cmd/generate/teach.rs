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
use tokenizer::Utf8Stream;

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
    let mut steps = pictures::Steps::new(&alone, opened, pictures::Detail::of(asked.page));
    let told = generator
        .teach(&alone, &ids, &mut |event| {
            if asked.page.is_some() {
                steps.note(event)
            }
        })
        .map_err(engine_error)?;
    let shown = sides(&told, |_, id| opened.label(id), |_, id| opened.label(id));
    if let Some(page) = asked.page {
        pictures::write(page, generator, steps, Some(shown.clone()))?;
    }
    if asked.json {
        let sides = added(&told, &alone, opened);
        let mut free = Record::new(opened, &alone, None, asked.prompt)?;
        free.sequences = vec![SequenceRecord::new(told.free, &alone.stops)];
        let teacher = asked.truth.to_owned();
        term::print(&json(&Answer { teacher, sides, free })?);
    } else {
        term::print(&teacher_terminal(&shown, picture()));
    }
    Ok(())
}

/// Both sides with the text that each token adds, as `generate --json` tells it.
fn added(told: &Teacher, request: &Request, opened: &Opened) -> TeacherRecord {
    let mut stream = Utf8Stream::new(&opened.tokenizer);
    let mut pieces = Vec::new();
    for one in &told.forced {
        let [truth, chosen] = [one.truth.id, one.choice.id].map(|id| {
            let ends = request.end.contains(&id);
            if ends { String::new() } else { stream.clone().push(id) }
        });
        stream.push(one.truth.id);
        pieces.push((truth, chosen));
    }
    let forced = |place: usize, id: u32| {
        let (truth, chosen) = &pieces[place];
        if id == told.forced[place].truth.id { truth.clone() } else { chosen.clone() }
    };
    sides(told, forced, |place, _| told.free.tokens[place].text.clone())
}

/// Both sides with texts: of a place and its token after the true prefix, and after its own.
fn sides(
    told: &Teacher,
    forced: impl Fn(usize, u32) -> String,
    free: impl Fn(usize, u32) -> String,
) -> TeacherRecord {
    let step = |(place, one): (usize, &Forced)| {
        let forced = |id, logprob| Predicted { id, text: forced(place, id), logprob };
        let own = told.free.tokens.get(place).map(|token| token.choice);
        TeacherStep {
            truth: forced(one.truth.id, one.truth.logprob),
            truth_rank: one.truth.rank,
            forced: forced(one.choice.id, one.choice.logprob),
            free: own.map(|choice| Predicted {
                id: choice.id,
                text: free(place, choice.id),
                logprob: choice.logprob,
            }),
        }
    };
    TeacherRecord {
        first_divergence: told.first_divergence,
        truth_logprob: told.truth_logprob(),
        steps: told.forced.iter().enumerate().map(step).collect(),
    }
}
