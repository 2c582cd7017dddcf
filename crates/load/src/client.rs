//! One streamed request and what its client saw.

use crate::plan::Work;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest that a request may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Why a request has no figures.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The address is none that this client can use.
    #[error("{url}: expected http://HOST[:PORT]; this client speaks no TLS")]
    Address {
        /// As given.
        url: String,
    },
    /// No connection, or it broke.
    #[error("the connection failed: {0}")]
    Connection(String),
    /// The server answered with an error.
    #[error("status {status}: {message}")]
    Status {
        /// The status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The stream is not what the interface says.
    #[error("the stream is no stream of completions: {0}")]
    Stream(String),
    /// It took too long.
    #[error("no end after {} s", PATIENCE.as_secs())]
    Late,
}

/// What a client saw of one request, in seconds from the first byte sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// When it was sent, from the beginning of the load.
    pub sent: f64,
    /// Until each piece of text came.
    pub pieces: Vec<f64>,
    /// Until the end of the stream.
    pub end: f64,
    /// Tokens of the prompt, as the server counts.
    pub prompt_tokens: u64,
    /// Tokens of the answer, as the server counts.
    pub completion_tokens: u64,
    /// Tokens that the server had in its cache.
    pub cached_tokens: u64,
}

impl Seen {
    /// Time to the first piece.
    #[must_use]
    pub fn first(&self) -> Option<f64> {
        self.pieces.first().copied()
    }

    /// Time a token after the first.
    #[must_use]
    pub fn per_token(&self) -> Option<f64> {
        let (first, last) = (self.pieces.first()?, self.pieces.last()?);
        let after_first = self.completion_tokens.checked_sub(1).filter(|&n| n > 0)?;
        Some((last - first) / after_first as f64)
    }

    /// Gaps between neighbouring pieces.
    pub fn gaps(&self) -> impl Iterator<Item = f64> {
        self.pieces.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// `host:port` of a URL.
fn address(url: &str) -> Result<String, Failure> {
    let rest = url.strip_prefix("http://").map(|rest| rest.split('/').next().unwrap_or(rest));
    match rest.filter(|host| !host.is_empty()) {
        Some(host) if host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) => {
            Ok(host.to_owned())
        }
        Some(host) => Ok(format!("{host}:80")),
        None => Err(Failure::Address { url: url.to_owned() }),
    }
}

/// Sends request `i` and watches its answer.
pub(crate) async fn ask(work: &Work, i: usize, began: Instant) -> Result<Seen, Failure> {
    timeout(PATIENCE, asked(work, i, began)).await.unwrap_or(Err(Failure::Late))
}

/// The name of the first model that a server tells of.
pub(crate) async fn first_model(url: &str, api_key: Option<&str>) -> Result<String, Failure> {
    let address = address(url)?;
    let stream = TcpStream::connect(&address).await.map_err(broken)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder().uri("/v1/models").header(HOST, &address);
    if let Some(key) = api_key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Full::new(Bytes::new())).map_err(broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
    driver.abort();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match value["data"][0]["id"].as_str() {
        Some(name) => Ok(name.to_owned()),
        None => {
            let message = value["error"]["message"].as_str().unwrap_or("/v1/models names none");
            Err(Failure::Status { status, message: message.to_owned() })
        }
    }
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::Connection(error.to_string())
}

async fn asked(work: &Work, i: usize, began: Instant) -> Result<Seen, Failure> {
    let address = address(&work.url)?;
    let body = work.body(i).to_string();
    let sent = Instant::now();
    let stream = TcpStream::connect(&address).await.map_err(broken)?;
    drop(stream.set_nodelay(true));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri("/v1/completions")
        .header(HOST, &address)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "text/event-stream");
    if let Some(key) = &work.api_key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let mut body = response.into_body();
    let mut seen = Seen { sent: (sent - began).as_secs_f64(), ..Seen::default() };
    let (mut pending, mut whole) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(broken)?;
        let Some(data) = frame.data_ref() else { continue };
        pending.extend_from_slice(data);
        if status.is_success() {
            whole |= events(&mut pending, &mut seen, sent.elapsed().as_secs_f64())?;
        }
    }
    seen.end = sent.elapsed().as_secs_f64();
    driver.abort();
    if !status.is_success() {
        let value: Value = serde_json::from_slice(&pending).unwrap_or_default();
        let message = value["error"]["message"].as_str().unwrap_or("no message").to_owned();
        return Err(Failure::Status { status: status.as_u16(), message });
    }
    if whole { Ok(seen) } else { Err(Failure::Stream("it ended without [DONE]".to_owned())) }
}

/// Takes whole events off the front; says whether the last one came.
fn events(pending: &mut Vec<u8>, seen: &mut Seen, now: f64) -> Result<bool, Failure> {
    let mut done = false;
    while let Some(end) = pending.windows(2).position(|two| two == b"\n\n") {
        let event: Vec<u8> = pending.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&event);
        let Some(data) = text.lines().find_map(|line| line.strip_prefix("data:")) else { continue };
        if data.trim() == "[DONE]" {
            done = true;
            continue;
        }
        let value: Value =
            serde_json::from_str(data).map_err(|e| Failure::Stream(format!("{e}: {data}")))?;
        if let Some(message) = value["error"]["message"].as_str() {
            return Err(Failure::Stream(message.to_owned()));
        }
        if let Some(count) = value["usage"]["completion_tokens"].as_u64() {
            seen.completion_tokens = count;
            seen.prompt_tokens = value["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
            let details = &value["usage"]["prompt_tokens_details"];
            seen.cached_tokens = details["cached_tokens"].as_u64().unwrap_or(0);
        }
        if value["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
            seen.pieces.push(now);
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_any_pieces() {
        let text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: ping\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        for size in [1, 7, 400] {
            let (mut pending, mut seen, mut done) = (Vec::new(), Seen::default(), false);
            for (i, chunk) in text.as_bytes().chunks(size).enumerate() {
                pending.extend_from_slice(chunk);
                done |= events(&mut pending, &mut seen, i as f64).unwrap();
            }
            assert!(done && pending.is_empty());
            assert_eq!((seen.pieces.len(), seen.completion_tokens, seen.prompt_tokens), (2, 2, 3));
        }
        let mut pending = b"data: {\"error\":{\"message\":\"no\"}}\n\n".to_vec();
        assert!(events(&mut pending, &mut Seen::default(), 0.0).is_err());
    }

    #[test]
    fn addresses() {
        assert_eq!(address("http://127.0.0.1:8080/v1").unwrap(), "127.0.0.1:8080");
        assert_eq!(address("http://localhost").unwrap(), "localhost:80");
        assert!(address("https://localhost").is_err() && address("http://").is_err());
    }

    #[test]
    fn figures_of_one_request() {
        let seen = Seen { pieces: vec![0.5, 0.75, 1.5], completion_tokens: 3, ..Seen::default() };
        assert_eq!((seen.first(), seen.per_token()), (Some(0.5), Some(0.5)));
        assert_eq!(seen.gaps().collect::<Vec<_>>(), [0.25, 0.75]);
    }
}
