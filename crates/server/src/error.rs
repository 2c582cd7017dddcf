//! What a client is told when it gets no answer, in OpenAI's shape.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use decoding::RulesError;
use engine::serving::Refusal;
use serde_json::{Value, json};

/// An answer that is none: status, message, and the field at fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// One line: what, expected, found, what to try.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// Seconds until it is worth another try.
    pub retry_after: Option<u32>,
    /// Numbers behind the message.
    pub details: Option<Box<Value>>,
}

impl ApiError {
    /// An error with a status.
    pub fn new(status: StatusCode, message: impl ToString) -> Self {
        let message = message.to_string();
        Self { status, message, param: None, code: None, retry_after: None, details: None }
    }

    /// The request is at fault: 400, with the field.
    pub fn field(param: impl ToString, message: impl ToString) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, message);
        Self { param: Some(param.to_string()), ..error }
    }

    /// The request is at fault as a whole: 400.
    pub fn request(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The same with a word for programs.
    #[must_use]
    pub fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The body of the answer, which streams send as well: OpenAI's shape, within Anthropic's.
    #[must_use]
    pub fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 | 403 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let mut error = json!({
            "message": self.message, "type": kind, "param": self.param, "code": self.code,
        });
        if let Some(details) = &self.details {
            error["details"] = (**details).clone();
        }
        json!({ "type": "error", "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<RulesError> for ApiError {
    fn from(error: RulesError) -> Self {
        let param = match &error {
            RulesError::Value { rule, .. } => rule,
            RulesError::Rejected { setting, .. } | RulesError::Unsupported { setting, .. } => {
                setting
            }
            RulesError::Order { edit, .. } => edit,
            _ => &"rules",
        };
        // Rules have shorter names than the fields that they come from.
        let param = match *param {
            "repetition" => "repetition_penalty",
            "presence" => "presence_penalty",
            "frequency" => "frequency_penalty",
            "bias" => "logit_bias",
            other => other,
        };
        Self::field(param, &error)
    }
}

impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> Self {
        use engine::Error as E;
        // What a client's grammar leads to is the client's.
        if let E::Constraint(_) = error {
            return Self::request(error).code("invalid_grammar");
        }
        if error.is_failure() {
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, error).code("failed");
        }
        let refused = Self::field("prompt", &error);
        match error {
            E::PromptTooLong { found, limit } => Self {
                message: format!(
                    "the prompt has {found} tokens; this model sees {limit} at most: shorten it"
                ),
                code: Some("context_length_exceeded"),
                details: Some(Box::new(json!({ "prompt_tokens": found, "limit_tokens": limit }))),
                ..refused
            },
            E::Misfit(misfit) => Self {
                code: Some("cache_too_small"),
                details: Some(Box::new(json!({
                    "prompt_tokens": misfit.tokens, "needed_pages": misfit.needed,
                    "pages": misfit.pages, "page_tokens": misfit.page_tokens,
                    "limit_tokens": misfit.largest,
                }))),
                ..refused
            },
            E::Stop(_) => Self { param: Some("stop".to_owned()), ..refused },
            E::Decode { .. } => Self { param: None, ..refused },
            _ => refused,
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Never(error) => error.into(),
            Refusal::Busy { waiting, asked, most, retry_after } => Self {
                code: Some("queue_full"),
                retry_after: Some(retry_after.as_secs() as u32),
                details: Some(Box::new(json!({
                    "waiting": waiting, "asked": asked, "limit": most,
                    "predicted_wait_s": retry_after.as_secs(),
                }))),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
            },
            Refusal::TooMany { asked, requests, most } => Self {
                code: Some("too_many_sequences"),
                details: Some(Box::new(json!({
                    "asked": asked, "prompts": requests, "limit": most,
                }))),
                ..Self::request(message)
            },
            Refusal::Gone => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}
