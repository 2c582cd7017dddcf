//! What is not generation: the model's name, health, figures, tokens.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::prompt;
use crate::tools::{Tools, Written};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use decoding::{Preset, Rules, Settings};
use serde_json::{Value, json};
use std::sync::Arc;

/// Fields of `POST /tokenize`.
pub const TOKENIZE: &[Field] = &[
    field("model", Kind::Text, "The name that /v1/models gives"),
    field("prompt", Kind::Text, "The text"),
    field("content", Kind::Text, "The text, by another name"),
    field("messages", Kind::List, "A conversation instead of a text"),
    field("tools", Kind::List, "Tools of the conversation"),
    field("add_special_tokens", Kind::Flag, "Put what begins a text before it; true where absent"),
    field(
        "add_generation_prompt",
        Kind::Flag,
        "End a conversation where the answer begins; true where absent",
    ),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// Fields of `POST /detokenize`.
pub const DETOKENIZE: &[Field] = &[
    field("model", Kind::Text, "The name that /v1/models gives"),
    field("tokens", Kind::Ids, "The tokens"),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&app)] }))
}

/// `GET /v1/models/{name}`.
pub async fn model(
    State(app): State<Arc<App>>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.is_model(Some(&name))?;
    Ok(Json(card(&app)))
}

fn card(app: &App) -> Value {
    json!({
        "id": app.model.name, "object": "model", "created": app.created, "owned_by": "autoreg",
        "max_model_len": app.engine.limit(), "kind": app.model.kind,
        "vocab_size": app.engine.vocab_size(), "digest": app.model.digest,
        "chat_template": app.model.template.is_some(),
    })
}

/// `GET /defaults`: what a body without sampling fields comes to, under every preset.
pub async fn defaults(State(app): State<Arc<App>>) -> Json<Value> {
    let chain = |preset: Preset| {
        let settings = Settings { preset, ..Settings::default() };
        let rules = Rules::from_settings(&settings).map(|rules| json!(rules.chain()));
        (preset.name().to_owned(), rules.unwrap_or(Value::Null))
    };
    let limit = app.engine.limit();
    Json(json!({
        "preset": Preset::default().name(),
        "rules": Preset::ALL.into_iter().map(chain).collect::<serde_json::Map<_, _>>(),
        "never_token_ids": app.model.never, "end_token_ids": app.model.ends,
        "n": 1, "seed": "drawn, and told in the receipt",
        "max_tokens": { "completions": 16, "chat": limit, "responses": limit },
        "logprobs": "log-softmax of the model's logits, before any rule",
        "draft_tokens": app.engine.limits().drafts, "kv": app.model.kv,
    }))
}

/// `GET /health`: the process is alive.
pub async fn health(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "status": "ok", "up_s": app.up().as_secs() }))
}

/// `GET /ready`: requests are taken.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_draining() {
        let body = json!({ "status": "draining", "under_way": app.under_way() });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    Json(json!({ "status": "ready" })).into_response()
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], app.metrics.text(&app.model.plan)).into_response()
}

/// `POST /tokenize`.
///
/// # Errors
/// What is neither a text nor a conversation.
pub fn tokenize(app: &App, body: &[u8]) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::read(body, &[TOKENIZE])?;
    app.is_model(fields.text("model"))?;
    let tokenizer = &app.model.tokenizer;
    let all = fields.all().clone();
    let asked = |name: &str| !matches!(all.get(name), Some(Value::Bool(false)));
    let text = fields.text("prompt").or(fields.text("content"));
    let ids = match (text, fields.value("messages").cloned()) {
        (Some(text), None) => {
            let begin = tokenizer.specials().bos.filter(|_| asked("add_special_tokens"));
            begin.into_iter().chain(tokenizer.encode(text)).collect()
        }
        (None, Some(messages)) => {
            let tools = Tools::read(app, &mut fields, Written::Chat)?.told();
            let turns = prompt::turns(Some(&messages))?;
            prompt::conversation(app, &turns, &tools, asked("add_generation_prompt"))?
        }
        _ => {
            let message = "prompt: expected a text in `prompt`, or a conversation in `messages`";
            return Err(ApiError::field("prompt", message));
        }
    };
    let texts: Vec<String> =
        ids.iter().map(|&id| crate::completions::label(tokenizer, id)).collect();
    Ok(Json(json!({
        "count": ids.len(), "max_model_len": app.engine.limit(), "tokens": ids,
        "token_strs": texts, "warnings": fields.warnings,
    })))
}

/// `POST /detokenize`.
///
/// # Errors
/// Tokens that are none.
pub fn detokenize(app: &App, body: &[u8]) -> Result<Json<Value>, ApiError> {
    let fields = Fields::read(body, &[DETOKENIZE])?;
    app.is_model(fields.text("model"))?;
    if fields.value("tokens").is_none() {
        return Err(ApiError::field("tokens", "tokens: missing; expected a list of token ids"));
    }
    let ids = fields.ids("tokens");
    let vocabulary = app.engine.vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        let message =
            format!("tokens: found {id}; the vocabulary has the ids 0 to {}", vocabulary - 1);
        return Err(ApiError::field("tokens", message));
    }
    let prompt = app.model.tokenizer.decode(&ids);
    Ok(Json(json!({ "prompt": prompt, "warnings": fields.warnings })))
}
