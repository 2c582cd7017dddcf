//! `autoreg compare` through the built binary, on a small generated data set.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn autoreg(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_autoreg");
    Command::new(program).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A data set of 600 messages, made once.
fn data() -> &'static str {
    static DATA: OnceLock<String> = OnceLock::new();
    DATA.get_or_init(|| {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compare-data");
        let dir = dir.to_str().unwrap().to_owned();
        let _ = std::fs::remove_dir_all(&dir);
        let done = autoreg(&[
            "data",
            "prepare",
            "--messages",
            "600",
            "--vocab-size",
            "200",
            "--max-len",
            "24",
            "--group-by",
            "thread",
            "--out",
            &dir,
        ]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        dir
    })
}

const SMALL: &str = "name = 'small'\nseeds = [1, 2]\nepochs = 1\ndraws = 500\nprompts = ['please']\n\
    [train]\nbatch = 16\nlearning_rate = 1e-2\nwarmup_steps = 5\n\
    [[arm]]\nname = 'uniform'\nkind = 'uniform'\n[[arm]]\nname = 'unigram'\nkind = 'unigram'\n\
    [[arm]]\nname = 'bigram'\nkind = 'bigram'\n\
    [[arm]]\nname = 'rnn'\nkind = 'rnn'\nmodel = { embedding_size = 8, hidden_size = 16 }\n\
    [[arm]]\nname = 'small one'\nkind = 'transformer'\n\
    model = { hidden_size = 16, num_attention_heads = 2, intermediate_size = 32 }\n";

fn start(folder: &Path, experiment: &str) -> Command {
    let file = folder.join("experiment.toml");
    std::fs::write(&file, experiment).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_autoreg"));
    command.args(["compare", "--quiet", "--json", "--threads", "1", "--data", data()]);
    command.arg("--experiment").arg(file).arg("--out").arg(folder.join("out"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn lines(folder: &Path) -> usize {
    let records = std::fs::read_to_string(folder.join("out/records.jsonl")).unwrap_or_default();
    records.lines().count()
}

#[test]
fn one_command_gives_rows_pairs_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let done = start(folder.path(), SMALL).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results: Value = serde_json::from_slice(&done.stdout).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    let loss = |at: usize| rows[at]["test_loss_nats"]["mean"].as_f64().unwrap();
    assert!((loss(0) - 200f64.ln()).abs() < 1e-9, "uniform is ln V: {}", loss(0));
    assert!(loss(1) < loss(0) && loss(2) < loss(1), "{} {} {}", loss(0), loss(1), loss(2));
    assert!(loss(3) < loss(0) && loss(4) < loss(0), "networks learn: {} {}", loss(3), loss(4));
    for row in rows {
        assert!(row["peak_process_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        assert!(row["tokens_per_second"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Embedding 200·8, tanh layer 16·8 + 16·16 + 2·16, output 200·16 + 200.
    assert_eq!(rows[3]["parameters"], 1600 + 128 + 256 + 32 + 3400);
    assert_eq!(rows[3]["parameters_non_embedding"], 128 + 256 + 32 + 3400);
    assert_eq!(results["pairs"].as_array().unwrap().len(), 3);
    let next = results["top_next"]["please"]["rnn"].as_array().unwrap();
    let chances: Vec<f64> = next.iter().map(|pair| pair[1].as_f64().unwrap()).collect();
    assert!(chances.is_sorted_by(|a, b| a >= b) && chances[0] < 1.0, "{chances:?}");
    assert_eq!(results["synthetic"], true);
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(page.contains("synthetic data") && page.contains("small one"));

    // A second time nothing is trained, and the report of the records alone is the same.
    let before = std::fs::read(folder.path().join("out/records.jsonl")).unwrap();
    let again = start(folder.path(), SMALL).output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(before == std::fs::read(folder.path().join("out/records.jsonl")).unwrap());
    let out = folder.path().join("out");
    let only = autoreg(&["compare", "--report-only", "--json", "--out", out.to_str().unwrap()]);
    assert_eq!(text(&only.stdout), text(&again.stdout));
}

#[test]
fn a_stopped_comparison_goes_on_and_ends_alike() {
    let whole = tempfile::tempdir().unwrap();
    assert!(start(whole.path(), SMALL).status().unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path(), SMALL).spawn().unwrap();
    let begun = Instant::now();
    while lines(folder.path()) < 3 && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The hardest way to stop: the process it had started stops when its input ends.
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = lines(folder.path());
    assert!(kept < 7, "it was stopped before the end");
    std::thread::sleep(Duration::from_millis(500));
    let done = start(folder.path(), SMALL).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let scores = |folder: &Path| -> Vec<(Value, Value, Value)> {
        let records = std::fs::read_to_string(folder.join("out/records.jsonl")).unwrap();
        let read = |line: &str| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            (record["arm"].take(), record["seed"].take(), record["test"].take())
        };
        records.lines().map(read).collect()
    };
    assert!(scores(folder.path()) == scores(whole.path()), "same seeds, same bits");
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    let cases = [
        (SMALL.replace("epochs = 1", "epoch = 1"), "the nearest known is `epochs`"),
        (SMALL.replace("kind = 'rnn'", "kind = 'rn'"), "the nearest known is `rnn`"),
        (SMALL.replace("embedding_size", "embeding_size"), "`embedding_size`"),
        (SMALL.replace("batch = 16", "bach = 16"), "`batch`"),
        (SMALL.replace("batch = 16", "seed = 16"), "belongs at the top"),
        (SMALL.replace("seeds = [1, 2]", "seeds = []"), "seeds is empty"),
        (SMALL.replace("num_attention_heads = 2", "num_attention_heads = 3"), "arm `small one`"),
        (
            SMALL.replace("['please']", "['a b c d e f g h i j k l m n o p q r s t u v w x y z']"),
            "tokens",
        ),
    ];
    for (experiment, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let done = start(folder.path(), &experiment).output().unwrap();
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.trim().lines().count() == 1, "{words}: {said}");
        assert!(!folder.path().join("out").exists(), "{words}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let none = autoreg(&["compare", "--report-only", "--out", out.to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stderr));
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("keep"), "mine").unwrap();
    let forced = start(folder.path(), SMALL).arg("--force").output().unwrap();
    assert_eq!(forced.status.code(), Some(2), "{}", text(&forced.stderr));
    assert_eq!(std::fs::read_to_string(out.join("keep")).unwrap(), "mine");
}
