//! The whole way on small input in real formats: files, data set, four models, scores, comparison,
//! report; and the same bits whatever the number of threads.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod common;

use common::{SMALL, data, finish, json, mean, names, program, works};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::tempdir;

/// One message, invented from numbers.
fn message(owner: &str, number: usize) -> String {
    const VERBS: [&str; 5] = ["send", "review", "print", "sign", "file"];
    const THINGS: [&str; 6] =
        ["the report", "the contract", "my notes", "an offer", "it", "the plan"];
    const DAYS: [&str; 4] = ["today", "on monday", "before friday", "next week"];
    let mut text = String::new();
    for line in 0..4 {
        let at = number * 7 + line * 3 + 1000 * usize::from(owner.as_bytes()[0]);
        let (verb, thing) = (VERBS[at % 5], THINGS[(at / 2) % 6]);
        text += &format!("please {verb} {thing} {} or call {at}.\n", DAYS[(at / 3) % 4]);
    }
    format!(
        "From: {owner}@example.com\nTo: office@example.com\nSubject: note {number}\n\
         Message-ID: <{owner}.{number}@example.com>\nContent-Type: text/plain; charset=utf-8\n\n\
         {text}\n> quoted line that is not theirs\n"
    )
}

/// Four mailboxes: two mbox files, a Maildir, a folder of `.eml`.
fn mailboxes(folder: &Path) {
    for owner in ["ann", "bob"] {
        let messages = (0..30).map(|n| {
            format!("From {owner}@example.com Mon Jan  5 10:00:00 2026\n{}\n", message(owner, n))
        });
        fs::write(folder.join(format!("{owner}.mbox")), messages.collect::<String>()).unwrap();
    }
    let maildir = folder.join("cid");
    for part in ["cur", "new", "tmp"] {
        fs::create_dir_all(maildir.join(part)).unwrap();
    }
    for n in 0..30 {
        let (part, flags) = if n % 3 == 0 { ("new", "") } else { ("cur", ":2,S") };
        fs::write(maildir.join(part).join(format!("{n}.host{flags}")), message("cid", n)).unwrap();
    }
    fs::create_dir(folder.join("dan")).unwrap();
    for n in 0..30 {
        fs::write(folder.join("dan").join(format!("{n}.eml")), message("dan", n)).unwrap();
    }
}

/// The real samples: one mailbox as mbox, one as Maildir.
fn shared() -> Option<PathBuf> {
    let named = std::env::var_os("AUTOREG_SHARED").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"));
    let sample = folder.join("data/email/sample");
    if !sample.is_dir() {
        println!("skipped: {} is not there; AUTOREG_SHARED names the folder", sample.display());
        return None;
    }
    Some(sample)
}

/// From mail to a report, with everything in between looked at.
fn walk(mail: &Path, group_by: &str, vocab_size: &str) -> Value {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let set = at("data");
    let mail = mail.to_str().unwrap();
    let mut words = vec!["data", "prepare", mail, "--out", &set, "--group-by", group_by];
    words.extend(["--vocab-size", vocab_size, "--max-len", "24"]);
    let manifest = json(&words);
    assert_eq!(manifest["synthetic"], false);
    assert_eq!(manifest["messages"]["unreadable"], 0);
    let shown = works(&["data", "inspect", &set, "--verify"]).out;
    assert!(shown.contains("train") && !shown.contains("SYNTHETIC"), "{shown}");

    let uniform = vocab_size.parse::<f64>().unwrap().ln();
    for model in ["transformer", "rnn", "bigram", "ngram"] {
        let run = at(model);
        let mut words = vec!["train", "--data", &set, "--model", model, "--out", &run];
        words.extend([
            "--epochs",
            "2",
            "--batch",
            "8",
            "--micro-batch",
            "8",
            "--warmup-steps",
            "2",
        ]);
        let trained = json(&words);
        assert_eq!(trained["model"], model);
        let scored = json(&["eval", &run, "--data", &set]);
        let loss = mean(&scored["test_loss_nats"]);
        assert!(loss < uniform, "{model}: {loss} nats/token, all alike gives {uniform}");
        assert_eq!(scored["tokens"], manifest["sides"]["test"]["target_tokens"]);
    }
    let experiment = "name = 'walk'\nseeds = [1, 2]\nepochs = 1\ndraws = 200\n[train]\nbatch = 8\n\
        warmup_steps = 2\n[[arm]]\nname = 'bigram'\nkind = 'bigram'\n[[arm]]\nname = 'rnn'\n\
        kind = 'rnn'\n[[arm]]\nname = 'transformer'\nkind = 'transformer'\n";
    fs::write(folder.path().join("e.toml"), experiment).unwrap();
    let (file, out) = (at("e.toml"), at("compared"));
    let results =
        json(&["compare", "--quiet", "--data", &set, "--experiment", &file, "--out", &out]);
    let kept = fs::read(folder.path().join("compared/results.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&kept).unwrap(), results);
    check_results(&results);
    let page = fs::read_to_string(folder.path().join("compared/report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("please send the"));
    // Nothing is fetched: links to other places are only the names of XML spaces.
    let fetched = ["src=\"http", "href=\"http", "@import", "url(http", "<link", "<iframe"];
    assert!(fetched.iter().all(|word| !page.contains(word)), "the page is self-contained");
    manifest
}

/// The keys that others build on.
fn check_results(results: &Value) {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let rows = list(&results["rows"]);
    let models: Vec<&str> = rows.iter().map(|row| row["model"].as_str().unwrap()).collect();
    assert_eq!(models, ["bigram", "rnn", "transformer"]);
    for row in &rows {
        assert!(mean(&row["test_loss_nats"]) > 0.0);
        assert!((0.0..1.0).contains(&mean(&row["test_accuracy"])));
        for key in ["parameters", "parameter_bytes", "peak_process_bytes"] {
            assert!(row[key].as_u64().unwrap() > 0, "{key} of {row}");
        }
        for key in ["train_seconds", "tokens_per_second"] {
            let number = row[key].as_f64().or_else(|| row[key]["mean"].as_f64());
            assert!(number.unwrap() > 0.0, "{key} of {row}");
        }
    }
    let pairs = list(&results["pairs"]);
    assert_eq!(pairs.len(), 3);
    for pair in &pairs {
        assert!(mean(&pair["loss_difference_nats"]).is_finite());
        let names = ["a", "b"].map(|key| pair[key].as_str().unwrap());
        assert!(names.iter().all(|name| models.contains(name)) && names[0] != names[1]);
        assert!(!pair["verdict"].as_str().unwrap().is_empty());
    }
    for model in models {
        let next = list(&results["top_next"]["please send the"][model]);
        let sum: f64 = next.iter().map(|pair| pair[1].as_f64().unwrap()).sum();
        assert!(next.iter().all(|pair| pair[0].is_string()) && sum > 0.0 && sum <= 1.0 + 1e-9);
    }
}

#[test]
fn from_mailboxes_to_a_report() {
    let folder = tempdir().unwrap();
    mailboxes(folder.path());
    let manifest = walk(folder.path(), "mailbox", "60");
    assert_eq!(manifest["messages"]["read"], 120);
    assert_eq!(manifest["groups"], 4);
    assert!(manifest["stripped"]["quoted_lines"].as_u64().unwrap() > 0);
    let formats: Vec<&str> = manifest["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| source["format"].as_str().unwrap())
        .collect();
    for format in ["mbox", "maildir", "eml"] {
        assert!(formats.contains(&format), "{formats:?}");
    }
}

#[test]
fn from_real_mail_to_a_report() {
    let Some(sample) = shared() else { return };
    let manifest = walk(&sample, "thread", "200");
    let mbox = fs::read(sample.join("keavey-p.mbox")).unwrap();
    let separators = mbox.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"From "));
    let files = ["cur", "new"].map(|part| names(&sample.join("maildir").join(part)).len());
    let messages = separators.count() + files.iter().sum::<usize>();
    assert_eq!(manifest["messages"]["read"], messages, "none is lost");
}

/// The same seed gives the same bits, whatever the number of threads; another seed does not.
#[test]
fn threads_do_not_change_a_bit() {
    let folder = tempdir().unwrap();
    let rnn = "[model]\nkind = 'rnn'\nembedding_size = 12\nhidden_size = 20\n[train]\nepochs = 1\n\
        batch = 16\nmicro_batch = 16\n";
    for (kind, config) in [("transformer", SMALL), ("rnn", rnn)] {
        let file = folder.path().join(format!("{kind}.toml"));
        fs::write(&file, config).unwrap();
        let weights = |name: &str, words: &[&str]| {
            let out = folder.path().join(format!("{kind}-{name}"));
            let mut command = program();
            command.args(["train", "--quiet", "--dropout", "0.2", "--data", data(), "--config"]);
            let ran = finish(command.arg(&file).arg("--out").arg(&out).args(words));
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            assert!(!names(&out).is_empty());
            fs::read(out.join("model.safetensors")).unwrap()
        };
        let one = weights("one", &["--threads", "1", "--seed", "3"]);
        assert!(one == weights("two", &["--threads", "2", "--seed", "3"]), "{kind}: 2 threads");
        assert!(one == weights("five", &["--threads", "5", "--seed", "3"]), "{kind}: 5 threads");
        assert!(one != weights("other", &["--threads", "1", "--seed", "4"]), "{kind}: seed 4");
    }
}

/// Every instruction set that the machine has walks the same way.
#[test]
fn instruction_sets_agree() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(&file, SMALL).unwrap();
    for words in [vec!["--config", file.to_str().unwrap()], vec!["--model", "rnn"]] {
        let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
        for isa in ["plain", "avx2", "avx512", "neon"] {
            let out = folder.path().join(format!("{}-{isa}", words[1].len()));
            let mut command = program();
            command.args(["train", "--quiet", "--isa", isa, "--max-steps", "8", "--data", data()]);
            let ran = finish(command.args(&words).arg("--out").arg(&out));
            if ran.code == Some(2) && ran.err.contains("this processor offers") {
                println!("skipped {isa}: {}", ran.err.trim());
                continue;
            }
            assert_eq!(ran.code, Some(0), "{isa}: {}", ran.err);
            let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
            let losses: Vec<f64> = text
                .lines()
                .filter_map(|line| {
                    serde_json::from_str::<Value>(line).unwrap()["loss_nats"].as_f64()
                })
                .collect();
            assert_eq!(losses.len(), 8);
            all.push((isa, losses));
        }
        for (isa, losses) in &all {
            for (step, (a, b)) in all[0].1.iter().zip(losses).enumerate() {
                assert!((a - b).abs() < 1e-4, "{isa}, step {}: {b}, plain {a}", step + 1);
            }
        }
        if all.len() == 1 {
            println!("skipped: this processor has the plain level only");
        }
    }
}
