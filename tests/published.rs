//! GGUF files and Hugging Face folders as MODEL, through the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/families/tests/fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

fn autoreg(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoreg"));
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn good(args: &[&str]) -> String {
    let done = autoreg(args);
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[track_caller]
fn value(args: &[&str]) -> Value {
    serde_json::from_str(&good(args)).unwrap()
}

/// Exit code 2, one line with these words, soon.
#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let started = Instant::now();
    let done = autoreg(args);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!((said.trim().lines().count(), done.stdout.len()), (1, 0), "{said}");
    assert!(started.elapsed() < Duration::from_secs(5), "{args:?} took {:?}", started.elapsed());
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[test]
fn a_hugging_face_folder_is_a_model() {
    for name in ["llama", "gemma3", "gpt2"] {
        let folder = fixture(name);
        let score = value(&["score", &folder, "some text to score", "--check", "--json"]);
        assert_eq!(score["checked"], true, "{name}");
        let record = value(&["generate", &folder, "Hello", "--max-tokens", "8", "--json"]);
        let first = record["prompt_ids"][0].as_u64().unwrap();
        assert_eq!(first == 256, name == "llama", "{name} begins with its token or not: {record}");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-record.json"));
        std::fs::write(&path, record.to_string()).unwrap();
        assert!(good(&["replay", path.to_str().unwrap()]).contains("the same"), "{name}");
        let text = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.txt"));
        std::fs::write(&text, "words of a text ".repeat(30)).unwrap();
        let eval =
            value(&["eval", &folder, "--text", text.to_str().unwrap(), "--window", "64", "--json"]);
        let tokens = eval["tokens"].as_u64().unwrap();
        // 480 bytes, in windows of 64 tokens, of which the first has nothing before it.
        let predicted = if name == "llama" { 480 } else { 480 - 8 };
        assert_eq!(tokens, predicted, "{name}: {eval}");
        assert!(eval["nats_per_token"].as_f64().unwrap() > 1.0, "{name}: {eval}");
    }
}

#[test]
fn control_tokens_in_a_prompt_are_text_unless_asked_otherwise() {
    let folder = fixture("qwen2");
    let ids = |extra: &[&str]| {
        let base = ["generate", &folder, "<|user|>a", "--max-tokens", "0", "--json"];
        value(&[&base[..], extra].concat())["prompt_ids"].clone()
    };
    assert_eq!(ids(&[]).as_array().unwrap().len(), 9);
    assert_eq!(ids(&["--control-tokens"]), serde_json::json!([259, 64]));
}

#[test]
fn inspect_tells_shape_types_tokenizer_and_memory() {
    let facts = value(&["inspect", &fixture("gemma3"), "--json", "--context", "50"]);
    assert_eq!(facts["family"], "gemma3");
    assert_eq!(facts["parameters"], facts["tensor_types"][0]["values"]);
    assert_eq!(facts["tensor_types"][0]["type"], "BF16");
    assert_eq!(facts["tokenizer"]["tokens"], 260);
    assert_eq!(facts["tokenizer"]["ends_with"], serde_json::json!([257]));
    assert_eq!(facts["config"]["sliding_window"]["layers"], serde_json::json!([0, 1, 3]));
    // Keys and values: 2 × 4 layers × 64 tokens (50 in sixteens) × 2 heads × 12 values of 4 bytes.
    assert_eq!(facts["memory"]["accounts"]["K/V cache"], 2 * 4 * 64 * 2 * 12 * 4);
    let text = good(&["inspect", &fixture("llama")]);
    for word in ["llama", "2 layers of 24", "untied heads", "F32", "<|begin|>", "K/V cache"] {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn what_is_no_model_is_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut absurd = b"GGUF\x03\0\0\0".to_vec();
    absurd.extend((1u64 << 60).to_le_bytes());
    absurd.extend(0u64.to_le_bytes());
    let absurd = path("absurd.gguf", &absurd);
    let no_keys = path("empty.gguf", b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let cut = path("cut.gguf", b"GGUF\x03");
    let text = path("text.txt", b"just some words");
    for command in ["generate", "inspect", "score"] {
        let run = |path: &str, words: &[&str]| match command {
            "inspect" => refused(&[command, path], words),
            _ => refused(&[command, path, "hello"], words),
        };
        run(&absurd, &["absurd.gguf", "tensor count", "1152921504606846976"]);
        run(&no_keys, &["empty.gguf", "general.architecture"]);
        run(&cut, &["cut.gguf", "cut short"]);
        run(&text, &["text.txt", "not a model", ".gguf"]);
        run(folder.path().to_str().unwrap(), &["not a model", "config.json"]);
        run(folder.path().join("none").to_str().unwrap(), &["not a model"]);
    }
    let config = br#"{"model_type": "mamba"}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    refused(&["inspect", folder.path().to_str().unwrap()], &["mamba", "llama", "gemma3_text"]);
}

/// What `chat` says to some lines of input: (standard output, standard error).
fn talk(args: &[&str], input: &str) -> (String, String) {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_autoreg"))
        .arg("chat")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{}", text(&done.stderr));
    (text(&done.stdout), text(&done.stderr))
}

#[test]
fn a_conversation_goes_on_and_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("said.json");
    let save = format!("/save {}\n", saved.display());
    let input = format!("hello\nagain <|end|>\n{save}/explain\n/nonsense\n/reset\nhello\n");
    let model = fixture("qwen2");
    let (out, notes) = talk(&[&model, "--max-tokens", "5", "--temperature", "0"], &input);
    let said: Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    let roles: Vec<&str> =
        said.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(said[2]["content"], "again <|end|>");
    assert!(out.contains(" %\n"), "{out}");
    assert!(notes.contains("4 messages in") && notes.contains("/nonsense"), "{notes}");
    // Three answers; "hello" between the user's mark and the end is seven tokens.
    let lines: Vec<&str> = notes.lines().filter(|line| line.contains("tokens read at")).collect();
    assert_eq!(lines.len(), 3, "{notes}");
    assert!(lines[0].starts_with("[7 tokens read") && lines[2].starts_with("[7 tokens"), "{notes}");
    refused(&["chat", &fixture("none")], &["not a model"]);
}
