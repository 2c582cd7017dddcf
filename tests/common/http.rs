//! A server of the built binary, and a client of bare sockets: what is sent is what is written here.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where completions are asked for.
pub const COMPLETIONS: &str = "/v1/completions";
/// Where chats are.
pub const CHAT: &str = "/v1/chat/completions";

/// A server of the small llama.
pub fn llama(more: &[&str]) -> Server {
    Server::start(&fixture("llama"), more)
}

/// A chat of one line.
pub fn said(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// A server; it ends with the test.
pub struct Server {
    child: Child,
    /// `127.0.0.1:port`.
    pub address: String,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The pieces of a stream, which must end as streams do.
    pub fn pieces(&self) -> Vec<Value> {
        let mut events: Vec<&str> =
            self.body.split("\n\n").filter_map(|e| e.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{self:?}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &&str| line.to_lowercase().starts_with(&format!("{name}:"));
        self.head.lines().find(line).and_then(|line| line.split_once(": ")).map(|(_, v)| v)
    }
}

/// A model of a fixture of the families.
pub fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/families/tests/fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

impl Server {
    pub fn start(model: &str, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_autoreg"))
            .args(["serve", model, "--port", "0", "--name", "tiny"])
            .args(more)
            .env_remove("AUTOREG_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once("://").expect("an address");
        Self { child, address: address.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// The exit code, once it has ended, which it does within two minutes.
    pub fn ended(mut self) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_up(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Opens a connection and sends a request.
    pub fn send(&self, method: &str, path: &str, head: &str, body: &[u8]) -> TcpStream {
        send(&self.address, method, path, head, body)
    }

    pub fn ask(&self, method: &str, path: &str, head: &str, body: &[u8]) -> Answer {
        read(self.send(method, path, head, body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "", body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn good(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        answer.json()
    }

    /// A figure of `/metrics`: the sum over its labels.
    pub fn figure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = |line: &str| {
            let (full, value) = line.rsplit_once(' ')?;
            let bare = full.split('{').next()?;
            (bare == name).then(|| value.parse::<f64>().unwrap())
        };
        let found: Vec<f64> = text.lines().filter_map(line).collect();
        assert!(!found.is_empty(), "no figure {name} in {text}");
        found.iter().sum()
    }

    /// Waits until nothing runs, waits or holds a page.
    pub fn rest(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let names =
                ["vllm:num_requests_running", "vllm:num_requests_waiting", "autoreg_kv_pages_held"];
            let left: Vec<f64> = names.iter().map(|name| self.figure(name)).collect();
            if left == [0.0; 3] {
                return;
            }
            assert!(Instant::now() < until, "running, waiting, pages: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn send(address: &str, method: &str, path: &str, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n{head}\r\n",
        body.len()
    );
    // A server that refuses a large body answers before it has read all of it.
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)));
    stream
}

/// Reads an answer to its end.
pub fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    drop(stream.read_to_end(&mut bytes));
    let end = bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let rest = &bytes[end + 4..];
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(rest) } else { rest.to_vec() };
    Answer { status, head, body: String::from_utf8(body).unwrap() }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[end + 2..];
        if size == 0 || rest.len() < size {
            break;
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
    body
}
