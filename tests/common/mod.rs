//! What tests through the built binary share: running it, and a small data set and model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The binary, without input.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoreg"));
    command.stdin(Stdio::null()).env_remove("AUTOREG_ISA");
    command
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Runs the binary with these words.
pub fn autoreg<S: AsRef<OsStr>>(words: &[S]) -> Ran {
    finish(program().args(words))
}

/// Runs it and expects success.
#[track_caller]
pub fn works<S: AsRef<OsStr> + std::fmt::Debug>(words: &[S]) -> Ran {
    let ran = autoreg(words);
    assert_eq!(ran.code, Some(0), "{words:?}: {}", ran.err);
    ran
}

/// Runs it with `--json` and reads what it prints.
#[track_caller]
pub fn json(words: &[&str]) -> Value {
    let ran = works(&[words, &["--json"]].concat());
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", ran.out))
}

/// The mean of a score: `low <= mean <= high`.
#[track_caller]
pub fn mean(score: &Value) -> f64 {
    let [low, mean, high] = ["low", "mean", "high"].map(|part| score[part].as_f64());
    let (Some(low), Some(mean), Some(high)) = (low, mean, high) else {
        panic!("expected low, mean and high: {score}");
    };
    assert!(low <= mean && mean <= high, "{score}");
    mean
}

impl Ran {
    /// This exit code, nothing on standard output, and one line on standard error with these words.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        assert_eq!(self.err.lines().count(), 1, "one line: {}", self.err);
        assert!(self.err.starts_with("error: ") && self.err.ends_with('\n'), "{}", self.err);
        assert!(
            !self.err.contains("panicked") && !self.err.contains(['\r', '\x1b']),
            "{}",
            self.err
        );
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        assert!(self.out.is_empty(), "{}", self.out);
    }
}

/// A folder for what is made once in this test program.
fn once(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
    folder
}

/// A generated data set of 400 messages with 200 entries, capped at 24 tokens; made once.
pub fn data() -> &'static str {
    static DATA: OnceLock<String> = OnceLock::new();
    DATA.get_or_init(|| {
        let folder = once("data").to_str().unwrap().to_owned();
        let mut words = vec!["data", "prepare", "--messages", "400", "--vocab-size", "200"];
        words.extend(["--max-len", "24", "--group-by", "thread", "--out", &folder]);
        works(&words);
        folder
    })
}

/// A model small enough for any test, as `--config` reads it.
pub const SMALL: &str = "[model]\nkind = 'transformer'\nhidden_size = 16\nnum_hidden_layers = 1\n\
    num_attention_heads = 2\nintermediate_size = 32\nmax_position_embeddings = 24\n\
    [train]\nepochs = 1\nbatch = 16\nmicro_batch = 16\nwarmup_steps = 4\nlearning_rate = 1e-2\n";

/// A run folder of [`SMALL`] on [`data`]; made once.
pub fn model() -> &'static str {
    static MODEL: OnceLock<String> = OnceLock::new();
    MODEL.get_or_init(|| {
        let folder = once("model");
        let config = folder.with_extension("toml");
        std::fs::write(&config, SMALL).unwrap();
        let (folder, config) = (folder.to_str().unwrap(), config.to_str().unwrap());
        works(&["train", "--data", data(), "--config", config, "--out", folder, "--quiet"]);
        folder.to_owned()
    })
}

/// Copies a folder of files.
pub fn copy(from: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Invented conversations, one a line, as `train --chat` takes them.
pub fn chats() -> String {
    let line = |i: u32| {
        let (ask, say) = (format!("and {i}?"), format!("it is {}.", i * i));
        let messages = serde_json::json!({"messages": [
            {"role": "user", "content": ask}, {"role": "assistant", "content": say}
        ]});
        format!("{messages}\n")
    };
    (0..24).map(line).collect()
}
