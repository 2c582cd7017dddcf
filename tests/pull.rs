//! `autoreg pull` against a small server that behaves like the hub: what is fetched, resumed, kept,
//! refused, and what happens without a network.
#![cfg(feature = "hub")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub of one repository, `owner/tiny`.
#[derive(Default)]
struct State {
    files: Vec<(String, Vec<u8>)>,
    /// The token without which nobody is answered.
    token: Option<String>,
    /// The next answer with content breaks off after so many bytes.
    break_after: Option<usize>,
    /// Content is sent with one byte changed.
    corrupt: bool,
    /// (path, range, token) of each request.
    log: Vec<(String, String, String)>,
}

struct FakeHub {
    address: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    fn start(files: &[(&str, &[u8])]) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let files =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let (shared, own) = (Arc::clone(&state), address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, own) = (Arc::clone(&shared), own.clone());
                // A client that goes away is no matter of ours.
                std::thread::spawn(move || drop(answer(stream, &state, &own)));
            }
        });
        FakeHub { address, state }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// (path, range, token) of requests for content since the last call.
    fn requests(&self) -> Vec<(String, String, String)> {
        let all = std::mem::take(&mut self.state.lock().unwrap().log);
        all.into_iter()
            .filter(|(path, range, _)| path.starts_with("/blob/") && range != "bytes=0-0")
            .collect()
    }
}

fn answer(stream: TcpStream, state: &Mutex<State>, own: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/").to_owned();
    let header = |name: &str| {
        let value = lines.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        value.unwrap_or_default()
    };
    let (range, token) = (header("range"), header("authorization"));
    let mut state = state.lock().unwrap();
    state.log.push((path.clone(), range.clone(), token.clone()));
    let open = state.token.as_ref().is_none_or(|wanted| token == format!("Bearer {wanted}"));
    let (head, body) = if let Some(name) = path.strip_prefix("/blob/") {
        content(&mut state, name, &range)
    } else if !open {
        (status("401 Unauthorized"), b"{}".to_vec())
    } else if path == "/api/models/owner/tiny/revision/main" {
        let names = state.files.iter().map(|(name, _)| json!({"rfilename": name}));
        let info = json!({"sha": COMMIT, "siblings": names.collect::<Vec<_>>()});
        (status("200 OK"), info.to_string().into_bytes())
    } else if let Some(name) = path.strip_prefix("/owner/tiny/resolve/main/") {
        resolve(&state, name, own)
    } else {
        (status("404 Not Found"), b"{}".to_vec())
    };
    let cut = if path.starts_with("/blob/") && range != "bytes=0-0" {
        state.break_after.take()
    } else {
        None
    };
    drop(state);
    let mut stream = stream;
    write!(stream, "{head}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body[..cut.map_or(body.len(), |cut| cut.min(body.len()))])
}

fn status(line: &str) -> String {
    format!("HTTP/1.1 {line}\r\nContent-Type: application/json\r\n")
}

/// As the hub does for large files: elsewhere, with the hash as its name.
fn resolve(state: &State, name: &str, own: &str) -> (String, Vec<u8>) {
    let Some((_, bytes)) = state.files.iter().find(|(other, _)| other == name) else {
        return (status("404 Not Found"), Vec::new());
    };
    let hash: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    let head = format!(
        "{}X-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{hash}\"\r\nETag: \"x\"\r\n\
         Location: http://{own}/blob/{name}\r\n",
        status("302 Found")
    );
    (head, Vec::new())
}

fn content(state: &mut State, name: &str, range: &str) -> (String, Vec<u8>) {
    let Some((_, bytes)) = state.files.iter().find(|(other, _)| other == name) else {
        return (status("404 Not Found"), Vec::new());
    };
    let (from, to) = range.trim_start_matches("bytes=").split_once('-').unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap_or(0);
    let to = to.parse::<usize>().map_or(bytes.len(), |to| to + 1).min(bytes.len());
    if from >= bytes.len() {
        return (status("416 Range Not Satisfiable"), Vec::new());
    }
    let mut part = bytes[from..to].to_vec();
    if state.corrupt {
        part[0] ^= 1;
    }
    let range = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, bytes.len());
    (status("206 Partial Content") + &range, part)
}

fn pull(hub: &FakeHub, home: &Path, more: &[&str]) -> Output {
    autoreg(hub, home, &[&["pull"], more].concat())
}

fn autoreg(hub: &FakeHub, home: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoreg"));
    for name in [
        "HF_HUB_CACHE",
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(name);
    }
    command.env("HF_HOME", home).env("HF_ENDPOINT", format!("http://{}", hub.address));
    command.args(words).output().unwrap()
}

fn good(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap().trim().to_owned()
}

/// The one line of an error.
fn bad(out: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{text}");
    assert_eq!(text.trim().lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn noise(count: usize) -> Vec<u8> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_file_comes_once_and_then_from_the_cache() {
    let bytes = noise(300_000);
    let hub = FakeHub::start(&[("m-Q8_0.gguf", &bytes), ("README.md", b"words")]);
    let home = tempfile::tempdir().unwrap();
    let path = good(&pull(&hub, home.path(), &["owner/tiny:q8_0"]));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert!(path.contains("models--owner--tiny/snapshots/") && path.ends_with("m-Q8_0.gguf"));
    assert_eq!(hub.requests().len(), 1);
    let again = good(&pull(&hub, home.path(), &["owner/tiny", "--json"]));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["model"], path.as_str());
    assert_eq!((&again["fetched_bytes"], &again["commit"]), (&json!(0), &json!(COMMIT)));
    assert!(hub.requests().is_empty());
    // Offline by the flag, and when nobody answers.
    let gone = FakeHub { address: "127.0.0.1:9".to_owned(), state: Arc::default() };
    for (hub, more) in
        [(&hub, &["owner/tiny:q8_0", "--offline"][..]), (&gone, &["owner/tiny:q8_0"])]
    {
        let out = pull(hub, home.path(), more);
        assert_eq!(good(&out), path);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("the cache has") && said.contains(COMMIT), "{said}");
    }
    bad(&pull(&gone, home.path(), &["owner/other"]), 2, &["owner/other", "not in the cache"]);
}

#[test]
fn what_breaks_off_goes_on_where_it_was() {
    let bytes = noise(400_000);
    let hub = FakeHub::start(&[("m.gguf", &bytes)]);
    let home = tempfile::tempdir().unwrap();
    hub.set(|state| state.break_after = Some(150_000));
    bad(&pull(&hub, home.path(), &["owner/tiny"]), 1, &["m.gguf", "is kept"]);
    assert_eq!(hub.requests()[0].1, "bytes=0-");
    let json = good(&pull(&hub, home.path(), &["owner/tiny", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(std::fs::read(json["model"].as_str().unwrap()).unwrap(), bytes);
    assert_eq!(hub.requests()[0].1, "bytes=150000-");
    assert_eq!(json["fetched_bytes"], 250_000);
    // All there, but the program was killed before it was taken over.
    let blobs = home.path().join("hub/models--owner--tiny/blobs");
    let whole = std::fs::read_dir(&blobs)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_none());
    let whole = whole.unwrap();
    std::fs::remove_file(json["model"].as_str().unwrap()).unwrap();
    std::fs::rename(&whole, whole.with_extension("part")).unwrap();
    let path = good(&pull(&hub, home.path(), &["owner/tiny"]));
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_eq!(hub.requests()[0].1, "bytes=399999-");
}

#[test]
fn content_is_held_against_its_hash() {
    let hub = FakeHub::start(&[("m.gguf", &noise(50_000))]);
    let home = tempfile::tempdir().unwrap();
    hub.set(|state| state.corrupt = true);
    bad(&pull(&hub, home.path(), &["owner/tiny"]), 1, &["SHA-256", "thrown away"]);
    bad(&pull(&hub, home.path(), &["owner/tiny", "--offline"]), 2, &["not in the cache"]);
    hub.set(|state| state.corrupt = false);
    good(&pull(&hub, home.path(), &["owner/tiny"]));
}

#[test]
fn refusals_say_what_to_try() {
    let hub = FakeHub::start(&[("a.gguf", b"a"), ("b.gguf", b"b"), ("../../evil.gguf", b"e")]);
    let home = tempfile::tempdir().unwrap();
    let refused = |words: &[&str], more: &[&str]| bad(&pull(&hub, home.path(), more), 2, words);
    refused(&["404", "check the name"], &["owner/none"]);
    refused(&["several GGUF files", "a.gguf, b.gguf"], &["owner/tiny"]);
    refused(&["no such file"], &["owner/tiny:c.gguf"]);
    refused(&["no such file"], &["owner/tiny:evil"]);
    refused(&["owner/name"], &["https://hub.example/owner/tiny"]);
    refused(&["no branch"], &["owner/tiny", "--revision", "../x"]);
    hub.set(|state| state.token = Some("hf_secret".to_owned()));
    refused(&["401", "HF_TOKEN"], &["owner/tiny:a.gguf"]);
    std::fs::write(home.path().join("token"), "hf_wrong\n").unwrap();
    refused(&["401", "token is not accepted"], &["owner/tiny:a.gguf"]);
    std::fs::write(home.path().join("token"), "hf_secret\n").unwrap();
    hub.requests();
    assert_eq!(
        std::fs::read(good(&pull(&hub, home.path(), &["owner/tiny:a.gguf"]))).unwrap(),
        b"a"
    );
}

#[test]
fn a_folder_of_a_family_is_pulled_and_can_be_looked_into() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/families/tests/fixtures/qwen3");
    let names = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let files: Vec<(&str, Vec<u8>)> =
        names.iter().map(|name| (*name, std::fs::read(fixture.join(name)).unwrap())).collect();
    let mut lent: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    lent.push(("onnx/model.onnx", b"no"));
    let hub = FakeHub::start(&lent);
    let home = tempfile::tempdir().unwrap();
    let path = good(&pull(&hub, home.path(), &["owner/tiny"]));
    assert!(!Path::new(&path).join("onnx").exists());
    let out =
        Command::new(env!("CARGO_BIN_EXE_autoreg")).args(["inspect", &path]).output().unwrap();
    assert!(good(&out).contains("qwen3"));
}

#[test]
fn a_repository_in_the_cache_is_a_model_argument() {
    let folder = Path::new("crates/families/tests/fixtures/llama");
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let files: Vec<(&str, Vec<u8>)> =
        names.map(|name| (name, std::fs::read(folder.join(name)).unwrap())).into();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let hub = FakeHub::start(&files);
    let home = tempfile::tempdir().unwrap();
    let words = ["generate", "owner/tiny", "a", "--max-tokens", "3", "--greedy"];
    bad(&autoreg(&hub, home.path(), &words), 2, &["owner/tiny", "autoreg pull owner/tiny"]);
    let path = good(&pull(&hub, home.path(), &["owner/tiny"]));
    hub.requests();
    let by_name = good(&autoreg(&hub, home.path(), &words));
    let by_path = good(&autoreg(&hub, home.path(), &[&["generate", &path], &words[2..]].concat()));
    assert_eq!(by_name, by_path);
    assert!(good(&autoreg(&hub, home.path(), &["inspect", "owner/tiny"])).contains("llama"));
    assert!(hub.requests().is_empty(), "nobody asks the hub where the cache has it");
}
