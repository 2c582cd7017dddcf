//! `POST /replay`: repeats the answer of a receipt, and says whether it is the same tokens.
//! `POST /explain`: repeats one sequence of it and shows, as a page, how each token was chosen.

use crate::answer::whole;
use crate::app::{App, UnderWay};
use crate::call::{Call, Update, reason};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::grammar::Grammar;
use axum::Json;
use axum::response::{Html, IntoResponse, Response};
use decoding::Rules;
use engine::Request;
use engine::serving::Asked;
use explain::{Record, StepRecord};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::block_in_place;

/// Fields of `POST /replay`.
pub const REPLAY: &[Field] = &[
    field("receipt", Kind::Object, "What an answer asked for with `receipt`: true carried"),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// Fields of `POST /explain`.
pub const EXPLAIN: &[Field] = &[
    field("receipt", Kind::Object, "What an answer asked for with `receipt`: true carried"),
    field("index", Kind::Integer(0, 32_767), "Which of its answers, from 0"),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// Candidates shown of each step.
const MOST_SHOWN: usize = 64;
/// Tokens explained, at most.
const MOST_EXPLAINED: usize = 512;

/// What of a receipt is needed to repeat it.
#[derive(Debug, Deserialize)]
struct Receipt {
    model: Identity,
    rules: Rules,
    seed: u64,
    #[serde(default)]
    grammar: Option<Grammar>,
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
    let receipt = Receipt::read(&app, &fields)?;
    let every = |prompt: &Vec<u32>| receipt.asked(&app, prompt, 0, receipt.sequences);
    let every = || receipt.prompt_token_ids.iter().map(every).collect::<Result<_, _>>();
    let all = block_in_place(every)?;
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
            Update::Prompt(..) | Update::Pooled(..) => {}
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

/// Answers a body with a page.
///
/// # Errors
/// As [`replay`], and an index that no answer has.
pub async fn explained(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let fields = Fields::read(body, &[EXPLAIN])?;
    let receipt = Receipt::read(&app, &fields)?;
    let index = fields.count("index").unwrap_or(0);
    let Some(prompt) = receipt.prompt_token_ids.get(index / receipt.sequences) else {
        let most = receipt.prompt_token_ids.len() * receipt.sequences - 1;
        return Err(ApiError::field(
            "index",
            format!("index: found {index}, expected 0 to {most}"),
        ));
    };
    let sequence = (index % receipt.sequences) as u64;
    let mut asked = block_in_place(|| receipt.asked(&app, prompt, sequence, 1))?;
    asked.request.max_tokens = asked.request.max_tokens.min(MOST_EXPLAINED);
    asked.explain = true;
    let mut call = Call::start(&app, under_way, arrived, vec![asked])?;
    let tokenizer = &app.model.tokenizer;
    let label = |id: u32| explain::shown(id, &tokenizer.token_bytes(id), tokenizer.token(id));
    let mut steps = Vec::new();
    while let Some(update) = call.next().await? {
        if let Update::Token(_, chosen) = update
            && let Some(told) = &chosen.explanation
        {
            steps.push(StepRecord::new(steps.len() as u64, told, MOST_SHOWN, label));
        }
    }
    let record = Record {
        title: app.model.name.clone(),
        prompt: prompt.iter().map(|&id| label(id)).collect(),
        rules: receipt.rules.chain().to_vec(),
        steps,
        texts: Vec::new(),
        continuations: Vec::new(),
        teacher: None,
    };
    Ok(Html(explain::page(&record)).into_response())
}

impl Receipt {
    /// Reads a receipt of the model served.
    fn read(app: &App, fields: &Fields) -> Result<Self, ApiError> {
        let wrong = |what: String| ApiError::field("receipt", format!("receipt: {what}"));
        let value = fields.value("receipt").ok_or_else(|| wrong("missing".to_owned()))?;
        let receipt = Self::deserialize(value).map_err(|error| wrong(error.to_string()))?;
        let own = [
            ("model", &receipt.model.digest, app.model.digest.as_str()),
            ("tokenizer", &receipt.model.tokenizer, app.model.tokenizer.sha256()),
        ];
        if let Some((what, found, served)) =
            own.into_iter().find(|(_, found, served)| found != served)
        {
            return Err(wrong(format!(
                "its {what} has the digest {found}, the one served has {served}"
            )));
        }
        let (prompts, sequences) = (receipt.prompt_token_ids.len(), receipt.sequences);
        if (1..=MOST_SEQUENCES).contains(&sequences) && (1..=MOST_PROMPTS).contains(&prompts) {
            return Ok(receipt);
        }
        Err(wrong(format!(
            "found {prompts} prompts with {sequences} sequences each; expected 1 to \
             {MOST_PROMPTS} with 1 to {MOST_SEQUENCES}"
        )))
    }

    fn asked(
        &self,
        app: &App,
        prompt: &[u32],
        first_sequence: u64,
        sequences: usize,
    ) -> Result<Asked, ApiError> {
        let constraints = app.constraints(self.grammar.as_ref(), sequences)?;
        let request = Request {
            prompt: prompt.to_vec(),
            rules: self.rules.clone(),
            seed: self.seed,
            first_sequence,
            sequences,
            max_tokens: self.max_tokens,
            end: self.end_token_ids.clone(),
            stops: self.stop.clone(),
        };
        Ok(Asked { constraints, ..Asked::plain(request) })
    }
}
