//! The ways in which an answer travels: whole, or in pieces as server-sent events.

use crate::call::{Call, Update};
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// How long a stream may be silent.
const SILENCE: Duration = Duration::from_secs(15);

/// The pieces of a streamed answer.
pub trait Pieces: Send + 'static {
    /// Before anything came.
    fn open(&mut self, call: &Call) -> Vec<Value>;
    /// What an update comes to.
    fn update(&mut self, update: Update) -> Vec<Value>;
    /// When all has ended.
    fn close(&mut self, call: &Call) -> Vec<Value>;
    /// What ended it early.
    fn error(&mut self, error: &ApiError) -> Value {
        error.body()
    }
    /// The name of the event that a piece is, where the interface has such names.
    fn event(&self, _piece: &Value) -> Option<String> {
        None
    }
    /// Fields without effect; the first piece tells them.
    fn warnings(&self) -> &[String];
    /// What ends the stream, beside its end.
    fn last(&self) -> Option<&'static str> {
        Some("[DONE]")
    }
}

struct Stream<P> {
    call: Call,
    pieces: P,
    ready: VecDeque<String>,
    warned: bool,
    ended: bool,
}

/// Sends an answer in pieces. When the client goes away the call ends with the stream.
pub fn stream<P: Pieces>(call: Call, mut pieces: P) -> Response {
    let opening = pieces.open(&call);
    let mut state = Stream { call, pieces, ready: VecDeque::new(), warned: false, ended: false };
    state.push(opening);
    let body = stream::unfold(state, |mut state| async move {
        let text = state.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), state))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl<P: Pieces> Stream<P> {
    fn push(&mut self, all: Vec<Value>) {
        for mut piece in all {
            if !std::mem::replace(&mut self.warned, true) && !self.pieces.warnings().is_empty() {
                piece["warnings"] = serde_json::json!(self.pieces.warnings());
            }
            let event = self.pieces.event(&piece);
            let event = event.map_or(String::new(), |name| format!("event: {name}\n"));
            self.ready.push_back(format!("{event}data: {piece}\n\n"));
        }
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            // What is ready goes out in one piece.
            if !self.ready.is_empty() {
                return Some(self.ready.drain(..).collect());
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(SILENCE, self.call.next()).await {
                Err(_) => return Some(": still at it\n\n".to_owned()),
                Ok(Ok(Some(update))) => {
                    let pieces = self.pieces.update(update);
                    self.push(pieces);
                }
                Ok(Ok(None)) => {
                    let pieces = self.pieces.close(&self.call);
                    self.push(pieces);
                    if let Some(last) = self.pieces.last() {
                        self.ready.push_back(format!("data: {last}\n\n"));
                    }
                    self.ended = true;
                }
                Ok(Err(error)) => {
                    let piece = self.pieces.error(&error);
                    self.push(vec![piece]);
                    self.ended = true;
                }
            }
        }
    }
}

/// Waits for the whole of an answer.
///
/// # Errors
/// What ended the call.
pub async fn whole(call: &mut Call) -> Result<Vec<Update>, ApiError> {
    let mut all = Vec::new();
    while let Some(update) = call.next().await? {
        all.push(update);
    }
    Ok(all)
}
