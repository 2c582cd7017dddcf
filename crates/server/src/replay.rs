//! `POST /replay`: repeats the answer of a receipt, and says whether it is the same tokens.

use crate::answer::whole;
use crate::app::{App, UnderWay};
use crate::call::{Call, Update, reason};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use axum::Json;
use axum::response::{IntoResponse, Response};
use decoding::Rules;
use engine::Request;
use engine::serving::Asked;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Fields of `POST /replay`.
pub const REPLAY: &[Field] = &[
    field("receipt", Kind::Object, "What an answer asked for with `receipt`: true carried"),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// What of a receipt is needed to repeat it.
#[derive(Debug, Deserialize)]
struct Receipt {
    model: Identity,
    rules: Rules,
    seed: u64,
    stop: Vec<String>,
    end_token_ids: Vec<u32>,
    sequences: usize,
    max_tokens: usize,
    prompt_token_ids: Vec<Vec<u32>>,
    #[serde(default)]
    answer_token_ids: Vec<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
struct Identity {
    digest: String,
    tokenizer: String,
}

/// Sequences that a receipt may ask for: as many as any other way to ask.
const MOST_SEQUENCES: usize = 128;
const MOST_PROMPTS: usize = 256;

/// Answers a body.
///
/// # Errors
/// A receipt that is none, or of another model.
pub async fn replay(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let fields = Fields::read(body, &[REPLAY])?;
    let wrong = |what: String| ApiError::field("receipt", format!("receipt: {what}"));
    let value = fields.value("receipt").ok_or_else(|| wrong("missing".to_owned()))?;
    let receipt = Receipt::deserialize(value).map_err(|error| wrong(error.to_string()))?;
    let own = [
        ("model", &receipt.model.digest, app.model.digest.as_str()),
        ("tokenizer", &receipt.model.tokenizer, app.model.tokenizer.sha256()),
    ];
    for (what, found, served) in own {
        if found != served {
            return Err(wrong(format!(
                "its {what} has the digest {found}, the one served has {served}"
            )));
        }
    }
    let prompts = receipt.prompt_token_ids.len();
    if !(1..=MOST_SEQUENCES).contains(&receipt.sequences) || !(1..=MOST_PROMPTS).contains(&prompts)
    {
        return Err(wrong(format!(
            "found {prompts} prompts with {} sequences each; expected 1 to {MOST_PROMPTS} with 1 to {MOST_SEQUENCES}",
            receipt.sequences
        )));
    }
    let asked = |prompt: &Vec<u32>| {
        Asked::plain(Request {
            prompt: prompt.clone(),
            rules: receipt.rules.clone(),
            seed: receipt.seed,
            first_sequence: 0,
            sequences: receipt.sequences,
            max_tokens: receipt.max_tokens,
            end: receipt.end_token_ids.clone(),
            stops: receipt.stop.clone(),
        })
    };
    let all = receipt.prompt_token_ids.iter().map(asked).collect();
    let mut call = Call::start(&app, under_way, arrived, all)?;
    let updates = whole(&mut call).await?;
    let mut choices: Vec<(String, Option<&str>)> = vec![Default::default(); call.choices()];
    for update in updates {
        match update {
            Update::Token(at, chosen) => {
                choices[at].0.push_str(&chosen.text);
                choices[at].1 = chosen.finish.map(reason);
            }
            Update::Ended(at, finish) => choices[at].1 = Some(reason(finish)),
            Update::Prompt(..) => {}
        }
    }
    let told = |(index, (text, finish)): (usize, (String, Option<&str>))| json!({ "index": index, "text": text, "finish_reason": finish, "token_ids": call.ids()[index] });
    let told: Vec<Value> = choices.into_iter().enumerate().map(told).collect();
    let recorded = !receipt.answer_token_ids.is_empty();
    let same = recorded.then(|| receipt.answer_token_ids == call.ids());
    let body = json!({
        "same": same, "choices": told, "usage": call.usage(), "timings": call.timings(),
        "warnings": fields.warnings,
    });
    Ok(Json(body).into_response())
}
