//! Paths to handlers, and what stands before each: keys, limits, origins, one line of log.

use crate::app::{App, UnderWay};
use crate::error::ApiError;
use crate::{
    books, chat_completions, completions, embeddings, messages, openapi, other, replay, responses,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{self, AUTHORIZATION, CONTENT_SECURITY_POLICY, HeaderName};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use std::time::Instant;
use subtle::ConstantTimeEq;

type Received = Result<Bytes, BytesRejection>;

/// All paths of a server.
pub fn router(app: Arc<App>) -> Router {
    let limit = DefaultBodyLimit::max(app.options.body_bytes);
    let keyed = Router::new()
        .route("/v1/models", get(other::models))
        .route("/v1/models/{name}", get(other::model))
        .route("/v1/completions", post(answer_completions))
        .route("/v1/chat/completions", post(answer_chat))
        .route("/v1/embeddings", post(answer_embeddings))
        .route("/v1/responses", post(answer_responses))
        .route("/v1/messages", post(answer_messages))
        .route("/v1/messages/count_tokens", post(answer_count_tokens))
        .route("/replay", post(answer_replay))
        .route("/explain", post(answer_explain))
        .route("/tokenize", post(answer_tokenize))
        .route("/detokenize", post(answer_detokenize))
        .route("/ledger", get(books::ledger))
        .route("/defaults", get(other::defaults))
        .layer(from_fn_with_state(Arc::clone(&app), check_key));
    Router::new()
        .merge(keyed)
        .route("/", get(playground))
        .route("/health", get(other::health))
        .route("/ready", get(other::ready))
        .route("/metrics", get(other::metrics))
        .route("/openapi.json", get(document))
        .fallback(async |request: Request| {
            let (method, path) = (request.method(), request.uri().path());
            ApiError::new(StatusCode::NOT_FOUND, format!("{method} {path}: there is no such path"))
        })
        .method_not_allowed_fallback(async |request: Request| {
            let (method, path) = (request.method(), request.uri().path());
            let message = format!("{method} {path}: the path takes another method");
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(limit)
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

fn received(app: &App, body: Received) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| {
        let status = rejection.status();
        let message = match status {
            StatusCode::PAYLOAD_TOO_LARGE => {
                format!("the body is larger than {} bytes", app.options.body_bytes)
            }
            _ => format!("the body cannot be read: {}", rejection.body_text()),
        };
        ApiError::new(status, message)
    })
}

/// Reads the body of a request that counts as under way.
fn begin(app: &Arc<App>, body: Received) -> Result<(UnderWay, Bytes, Instant), ApiError> {
    let under_way = app.enter()?;
    Ok((under_way, received(app, body)?, Instant::now()))
}

/// A handler of a body that may take long.
macro_rules! answers {
    ($($name:ident => $answer:path;)*) => {$(
        async fn $name(State(app): State<Arc<App>>, body: Received) -> Response {
            let done = match begin(&app, body) {
                Ok((guard, body, at)) => $answer(Arc::clone(&app), guard, at, &body).await,
                Err(error) => Err(error),
            };
            told(&app, done)
        }
    )*};
}

answers! {
    answer_completions => completions::completions;
    answer_chat => chat_completions::chat_completions;
    answer_embeddings => embeddings::embeddings;
    answer_responses => responses::responses;
    answer_messages => messages::messages;
    answer_replay => replay::replay;
    answer_explain => replay::explained;
}

async fn answer_count_tokens(State(app): State<Arc<App>>, body: Received) -> Response {
    let done = begin(&app, body).and_then(|(_guard, body, _)| messages::count_tokens(&app, &body));
    told(&app, done)
}

/// The playground may run its own script and ask this server, nothing else.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn document(State(app): State<Arc<App>>) -> axum::Json<serde_json::Value> {
    axum::Json(openapi::document(&app.model.name))
}

async fn playground() -> Response {
    let headers = [(CONTENT_SECURITY_POLICY, POLICY)];
    (headers, axum::response::Html(include_str!("playground.html"))).into_response()
}

async fn answer_tokenize(State(app): State<Arc<App>>, body: Received) -> Response {
    let done = begin(&app, body).and_then(|(_guard, body, _)| other::tokenize(&app, &body));
    told(&app, done)
}

async fn answer_detokenize(State(app): State<Arc<App>>, body: Received) -> Response {
    let done = begin(&app, body).and_then(|(_guard, body, _)| other::detokenize(&app, &body));
    told(&app, done)
}

fn told<T: IntoResponse>(app: &App, done: Result<T, ApiError>) -> Response {
    done.map_or_else(
        |error| {
            app.metrics.error(error.status.as_u16());
            error.into_response()
        },
        IntoResponse::into_response,
    )
}

/// Lets in who gives one of the keys. Every key is compared, each in the same time.
async fn check_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.options.api_keys.is_empty() {
        return next.run(request).await;
    }
    let bearer = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = bearer
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim())
        .or_else(|| request.headers().get("x-api-key").and_then(|value| value.to_str().ok()));
    let given = given.unwrap_or_default().as_bytes();
    let fits = app
        .options
        .api_keys
        .iter()
        .fold(0, |fits, key| fits | key.as_bytes().ct_eq(given).unwrap_u8());
    if fits == 1 && !given.is_empty() {
        return next.run(request).await;
    }
    let message = "no valid key; send one as `Authorization: Bearer KEY`";
    ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key").into_response()
}

/// Origins of other pages, and a line of log without any text of the request.
async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let preflight = method == Method::OPTIONS && app.options.cors_origin.is_some();
    let packed = request.headers().get(header::CONTENT_ENCODING).filter(|how| *how != "identity");
    let mut response = match packed {
        _ if preflight => StatusCode::NO_CONTENT.into_response(),
        Some(how) => {
            let message = format!("content-encoding {how:?}: bodies are read as they are sent");
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response()
        }
        None => next.run(request).await,
    };
    if let Some(origin) = &app.options.cors_origin {
        let headers: [(HeaderName, &str); 3] = [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin),
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-api-key"),
        ];
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        }
    }
    if app.options.log {
        log(&method, &path, &response, began);
    }
    response
}

#[expect(clippy::print_stderr, reason = "the request log goes to standard error")]
fn log(method: &Method, path: &str, response: &Response<Body>, began: Instant) {
    let status = response.status().as_u16();
    let ms = began.elapsed().as_secs_f64() * 1e3;
    // A path is the client's text: nothing in it may look like another line.
    eprintln!("{method} {path:?} {status} {ms:.1} ms to the head of the answer");
}
