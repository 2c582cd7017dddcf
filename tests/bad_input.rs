//! Whatever is wrong with the input: one line, exit code 2 (1 for a failure), nothing half-written.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod common;

use common::{Ran, SMALL, autoreg, copy, data, finish, model, names, program, works};
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// `data prepare` on some files; the output is `out` beside them.
struct Prepare {
    folder: TempDir,
}

impl Prepare {
    fn new(files: &[(&str, &str)]) -> Prepare {
        let folder = tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join("in").join(name), text).unwrap();
        }
        Prepare { folder }
    }

    fn run(&self, words: &[&str]) -> Ran {
        let out = self.folder.path().join("out");
        let mut command = program();
        command.args(["data", "prepare"]).arg(self.folder.path().join("in"));
        finish(command.arg("--out").arg(out).args(words))
    }

    /// Refused, and nothing is left beside the input.
    #[track_caller]
    fn refused(&self, words: &[&str], said: &[&str]) {
        self.run(words).refused(2, said);
        assert_eq!(names(self.folder.path()), ["in"], "{words:?} left something");
    }
}

fn message(from: &str, text: &str) -> String {
    format!(
        "From {from} Mon Jan  5 10:00:00 2026\nFrom: {from}\nTo: you@example.com\n\
         Subject: {from}\nMessage-ID: <{from}>\n\n{text}\n\n"
    )
}

/// An mbox of `count` messages, all different.
fn mbox(owner: &str, count: usize) -> String {
    const WORDS: [&str; 7] = ["send", "the", "report", "before", "friday", "please", "again"];
    let text = |i: usize| -> String {
        let word = |k: usize| format!("{} {owner}{} ", WORDS[(i * 3 + k * k) % 7], i * 31 + k);
        (0..12).map(word).collect()
    };
    (0..count).map(|i| message(&format!("{owner}{i}@example.com"), &text(i))).collect()
}

#[test]
fn prepare_refuses_what_it_cannot_use() {
    let three = [mbox("ann", 9), mbox("bob", 9), mbox("cid", 9)];
    let good = Prepare::new(&[("a.mbox", &three[0]), ("b.mbox", &three[1]), ("c.mbox", &three[2])]);
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--max-len", "1"], &["max-len", "1 is not possible", "from 2"]),
        (&["--max-len", "0"], &["max-len", "from 2"]),
        (&["--split", "50/50/0"], &["split", "50/50/0", "80/10/10"]),
        (&["--split", "80/10/20"], &["split", "80/10/20", "100"]),
        (&["--vocab-size", "90000"], &["90000 entries", "at most", "add text"]),
        (&["--vocab-size", "4"], &["4 entries is too small", "at least 5"]),
        (&["--vocab-size", "100", "--vocab", "bpe"], &["100 entries is too small", "at least"]),
        (&["--vocab", "bpe", "--vocab-size", "90000"], &["90000 entries", "at most"]),
        (&["--group-by", "field:X-None", "--vocab-size", "20"], &["no group", "field:X-None"]),
    ];
    for (words, said) in cases {
        good.refused(words, said);
    }
    let small = ["--vocab-size", "20"];
    Prepare::new(&[("one.mbox", &three[0])])
        .refused(&small, &["no group", "1 group(s) by mailbox", "thread"]);
    Prepare::new(&[("two.mbox", &three[0]), ("b.mbox", &three[1])])
        .refused(&small, &["no group", "2 group(s)"]);
    Prepare::new(&[]).refused(&small, &["/in", "no input here", "give a file or a folder"]);
    Prepare::new(&[("a.mbox", &message("a@example.com", ""))])
        .refused(&small, &["empty data set", "1 messages read", "1 without text"]);
    let table = Prepare::new(&[("a.csv", "file,words\na/1,hello\n")]);
    table.refused(&small, &["a.csv", "column", "words"]);
    table.refused(&["--column", "text"], &["a.csv", "no column `text`", "file, words"]);
}

#[test]
fn prepare_without_such_a_path() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out");
    let none = folder.path().join("none.mbox");
    let ran = finish(program().args(["data", "prepare"]).arg(&none).arg("--out").arg(&out));
    ran.refused(2, &["none.mbox", "no input here"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_output_folder_is_replaced_only_when_told_and_only_a_data_set() {
    let three = [mbox("ann", 9), mbox("bob", 9), mbox("cid", 9)];
    let source =
        Prepare::new(&[("a.mbox", &three[0]), ("b.mbox", &three[1]), ("c.mbox", &three[2])]);
    let out = source.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("diary.txt"), "mine").unwrap();
    let small = ["--vocab-size", "20"];
    source.run(&small).refused(2, &["/out", "exists", "force"]);
    source.run(&["--vocab-size", "20", "--force"]).refused(2, &["/out", "not a data set"]);
    assert_eq!(fs::read_to_string(out.join("diary.txt")).unwrap(), "mine");
    fs::remove_dir_all(&out).unwrap();

    assert_eq!(source.run(&small).code, Some(0));
    let first = fs::read(out.join("manifest.json")).unwrap();
    source.run(&small).refused(2, &["/out", "exists"]);
    source.run(&["--force", "--vocab-size", "90000"]).refused(2, &["90000"]);
    assert_eq!(fs::read(out.join("manifest.json")).unwrap(), first, "the old one stays whole");
    assert_eq!(source.run(&["--vocab-size", "21", "--force"]).code, Some(0));
    assert_ne!(fs::read(out.join("manifest.json")).unwrap(), first);
    assert_eq!(names(source.folder.path()), ["in", "out"]);
}

/// A copy of the data set with one file changed.
fn changed(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let folder = tempdir().unwrap();
    copy(data(), folder.path());
    let path = folder.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    folder
}

#[test]
fn damaged_and_foreign_data_is_refused_by_every_command() {
    let cases: [(TempDir, &[&str]); 7] = [
        (
            changed("train.tokens", |bytes| *bytes = b"From: me\n\nhello\n".repeat(20)),
            &["train.tokens", "ARTOKENS", "prepare the data again"],
        ),
        (
            changed("train.tokens", |bytes| bytes.truncate(bytes.len() / 2)),
            &["train.tokens", "cut or damaged", "prepare the data again"],
        ),
        (
            changed("train.tokens", |bytes| bytes.clear()),
            &["train.tokens", "0 bytes", "prepare the data again"],
        ),
        (
            changed("train.tokens", |bytes| bytes[40] ^= 1),
            &["train.tokens", "damaged", "prepare the data again"],
        ),
        (changed("tokenizer.json", |bytes| bytes.truncate(40)), &["tokenizer.json"]),
        (changed("manifest.json", |bytes| *bytes = b"{}".to_vec()), &["manifest.json", "format"]),
        (changed("groups.tsv", |bytes| bytes.truncate(20)), &["groups"]),
    ];
    for (folder, said) in &cases {
        every_command_refuses(folder.path(), said);
    }
    let empty = tempdir().unwrap();
    every_command_refuses(empty.path(), &["manifest.json"]);
    every_command_refuses(&empty.path().join("none"), &["manifest.json"]);
}

/// Ids are read without a hash: a damaged id must not become an index.
#[test]
fn damaged_ids_are_found_before_they_are_used() {
    let said: &[&str] = &[".tokens", "damaged", "prepare the data again"];
    let folder = changed("train.tokens", |bytes| bytes[200..1200].fill(0xff));
    let path = folder.path().to_str().unwrap();
    autoreg(&["eval", model(), "--data", path, "--split", "train"]).refused(2, said);
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for name in ["transformer", "bigram"] {
        autoreg(&["train", "--model", name, "--data", path, "--out", out]).refused(2, said);
    }
    autoreg(&["compare", "--quiet", "--data", path, "--out", out]).refused(2, said);
    assert!(!Path::new(out).exists());
    autoreg(&["data", "inspect", path, "--verify"]).refused(2, said);
    assert_eq!(
        autoreg(&["data", "inspect", path]).code,
        Some(0),
        "unless asked, the header is enough"
    );
}

#[track_caller]
fn every_command_refuses(folder: &Path, said: &[&str]) {
    let out = tempdir().unwrap();
    let (path, to) = (folder.to_str().unwrap(), out.path().join("run"));
    let to = to.to_str().unwrap();
    autoreg(&["data", "inspect", path]).refused(2, said);
    autoreg(&["train", "--data", path, "--out", to]).refused(2, said);
    autoreg(&["eval", model(), "--data", path]).refused(2, said);
    autoreg(&["compare", "--quiet", "--data", path, "--out", to]).refused(2, said);
    assert!(names(out.path()).is_empty(), "{said:?}");
}

#[test]
fn damaged_and_foreign_models_are_refused() {
    let broken = |file: &str, change: &dyn Fn(&mut Vec<u8>)| -> TempDir {
        let folder = tempdir().unwrap();
        copy(model(), folder.path());
        let path = folder.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        folder
    };
    let replace = |from: &'static str, to: &'static str| {
        move |bytes: &mut Vec<u8>| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{text}");
            *bytes = text.replace(from, to).into_bytes();
        }
    };
    let cases: [(TempDir, &[&str]); 9] = [
        (broken("config.json", &|b| b.truncate(20)), &["config.json"]),
        (broken("config.json", &replace("\"transformer\"", "\"gpt9\"")), &["config.json", "gpt9"]),
        (
            broken("config.json", &replace("\"hidden_size\": 16", "\"hidden_size\": 32")),
            &["model.safetensors", "32", "16"],
        ),
        (
            broken("config.json", &replace("\"hidden_size\": 16", "\"hidden_size\": 0")),
            &["hidden_size is 0"],
        ),
        (
            broken("config.json", &replace("\"vocab_size\": 200", "\"vocab_size\": 201")),
            &["201", "200"],
        ),
        (broken("model.safetensors", &|b| b.truncate(b.len() - 8)), &["model.safetensors"]),
        (broken("model.safetensors", &|b| b.truncate(4)), &["model.safetensors"]),
        (broken("model.safetensors", &|b| b[..8].fill(0xff)), &["model.safetensors"]),
        (broken("tokenizer.json", &|b| b.truncate(30)), &["tokenizer.json"]),
    ];
    for (folder, said) in &cases {
        let path = folder.path().to_str().unwrap();
        autoreg(&["eval", path, "--data", data()]).refused(2, said);
    }
    let empty = tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    autoreg(&["eval", path, "--data", data()]).refused(2, &[path, "not a model", "run folder"]);
    let none = empty.path().join("none");
    let none = none.to_str().unwrap();
    autoreg(&["eval", none, "--data", data()]).refused(2, &[none, "not a model"]);
    autoreg(&["eval", data(), "--data", data()]).refused(2, &["not a model"]);
}

#[test]
fn another_tokenizer_is_another_language() {
    let folder = tempdir().unwrap();
    let other = folder.path().join("other");
    let other = other.to_str().unwrap();
    let mut words = vec!["data", "prepare", "--messages", "400", "--vocab-size", "180"];
    words.extend(["--max-len", "24", "--group-by", "thread", "--out", other]);
    works(&words);
    autoreg(&["eval", model(), "--data", other]).refused(2, &[model(), other, "tokenizer"]);
}

/// `train` with a configuration file.
fn train(config: &str, words: &[&str]) -> (Ran, TempDir) {
    let folder = tempdir().unwrap();
    let (file, out) = (folder.path().join("c.toml"), folder.path().join("run"));
    fs::write(&file, config).unwrap();
    let mut command = program();
    command.args(["train", "--quiet", "--threads", "1", "--data", data(), "--config"]);
    (finish(command.arg(file).arg("--out").arg(out).args(words)), folder)
}

#[test]
fn impossible_configurations_are_named() {
    let swap = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        SMALL.replace(from, to)
    };
    let cases: [(String, &[&str], &[&str]); 21] = [
        (
            swap("warmup_steps", "warm_steps"),
            &[],
            &["c.toml", "line", "`warm_steps`", "`warmup_steps`"],
        ),
        (swap("hidden_size", "hiden_size"), &[], &["c.toml", "`hiden_size`", "`hidden_size`"]),
        (swap("[train]", "[trian]"), &[], &["c.toml", "`trian`", "`train`"]),
        (swap("'transformer'", "'transfomer'"), &[], &["c.toml", "`transfomer`", "`transformer`"]),
        (swap("batch = 16", "batch = 'x'"), &[], &["c.toml", "line"]),
        (swap("[model]", "[model"), &[], &["c.toml", "line 1"]),
        (swap("num_hidden_layers = 1", ""), &[], &["c.toml", "num_hidden_layers"]),
        (
            swap("num_attention_heads = 2", "num_attention_heads = 3"),
            &[],
            &["num_attention_heads is 3"],
        ),
        (swap("hidden_size = 16", "hidden_size = 0"), &[], &["hidden_size is 0"]),
        (swap("num_hidden_layers = 1", "num_hidden_layers = 0"), &[], &["num_hidden_layers is 0"]),
        (
            swap("max_position_embeddings = 24", "max_position_embeddings = 8"),
            &[],
            &["max_position_embeddings is 8", "--max-len"],
        ),
        (swap("[model]", "[model]\nvocab_size = 7"), &[], &["vocab_size is 7", "200"]),
        (swap("batch = 16", "batch = 0"), &[], &["batch is 0", "at least 1"]),
        (SMALL.into(), &["--epochs", "0"], &["epochs is 0"]),
        (SMALL.into(), &["--micro-batch", "0"], &["micro_batch is 0"]),
        (SMALL.into(), &["--dropout", "1"], &["dropout is 1"]),
        (SMALL.into(), &["--learning-rate", "0"], &["learning_rate is 0"]),
        (SMALL.into(), &["--learning-rate", "nan"], &["learning_rate is NaN"]),
        (SMALL.into(), &["--clip=-1"], &["clip is -1"]),
        (SMALL.into(), &["--clip", "nan"], &["clip is NaN"]),
        (SMALL.into(), &["--threads=0"], &["--threads 0", "at least one"]),
    ];
    for (config, words, said) in cases {
        let words: Vec<&str> = words.to_vec();
        let (ran, folder) = match words.first() {
            Some(&"--threads=0") => no_threads(&config),
            _ => train(&config, &words),
        };
        ran.refused(2, said);
        assert_eq!(names(folder.path()), ["c.toml"], "{said:?} left something");
    }
}

fn no_threads(config: &str) -> (Ran, TempDir) {
    let folder = tempdir().unwrap();
    let (file, out) = (folder.path().join("c.toml"), folder.path().join("run"));
    fs::write(&file, config).unwrap();
    let mut command = program();
    command.args(["train", "--threads", "0", "--data", data(), "--config"]);
    (finish(command.arg(file).arg("--out").arg(out)), folder)
}

/// More memory than there is, and sizes whose product is beyond any machine.
#[test]
fn models_beyond_memory_are_refused() {
    for size in ["16777216", "1000000000000", "9000000000000000000"] {
        let wide = format!("intermediate_size = {size}");
        let (ran, folder) = train(&SMALL.replace("intermediate_size = 32", &wide), &[]);
        ran.refused(2, &["intermediate_size", size]);
        assert_eq!(names(folder.path()), ["c.toml"]);
        let rnn = format!("[model]\nkind = 'rnn'\nembedding_size = 8\nhidden_size = {size}\n");
        let (ran, folder) = train(&rnn, &[]);
        ran.refused(2, &["hidden_size", size]);
        assert_eq!(names(folder.path()), ["c.toml"]);
    }
    // 2^17 squared: 64 GiB of weights alone, times four for training; and many such layers.
    let wide = SMALL
        .replace("hidden_size = 16", "hidden_size = 131072")
        .replace("num_hidden_layers = 1", "num_hidden_layers = 1024")
        .replace("num_attention_heads = 2", "num_attention_heads = 1024");
    let (ran, folder) = train(&wide, &[]);
    ran.refused(2, &["training this transformer needs", "MiB", "are free", "smaller"]);
    assert_eq!(names(folder.path()), ["c.toml"]);
    let (ran, folder) =
        train(SMALL, &["--batch", "1000000000000000000", "--micro-batch", "1000000000000000000"]);
    ran.refused(2, &["micro_batch smaller"]);
    assert_eq!(names(folder.path()), ["c.toml"]);
}

/// What is below 0 is told by the check of its own option.
#[test]
fn numbers_below_0_are_told_by_their_option() {
    for (word, said) in [
        ("--learning-rate", "learning_rate is -1; it must be above 0"),
        ("--clip", "clip is -1; it must be at least 0"),
        ("--dropout", "dropout is -1; it must be at least 0 and below 1"),
        ("--epochs", "invalid value '-1' for '--epochs <N>': expected a whole number, not below 0"),
    ] {
        let (ran, folder) = train(SMALL, &[word, "-1"]);
        ran.refused(2, &[said]);
        assert_eq!(names(folder.path()), ["c.toml"]);
    }
    autoreg(&["plan", "fleet", "smollm2-135m", "--machine", "epyc-9654", "--rate", "-1"])
        .refused(2, &["--rate is -1"]);
    autoreg(&["plan", "train", "100M", "--by", "formula", "--jitter", "-1"])
        .refused(2, &["'-1' for '--jitter", "at least 0"]);
    autoreg(&["generate", model(), "a", "--temperature", "-1"]).refused(2, &["temperature", "-1"]);
}

#[test]
fn threads_and_instruction_sets_that_are_none() {
    let zero = ["--threads 0", "at least one"];
    autoreg(&["eval", model(), "--data", data(), "--threads", "0"]).refused(2, &zero);
    let out = tempdir().unwrap();
    let to = out.path().join("c");
    let to = to.to_str().unwrap();
    autoreg(&["compare", "--quiet", "--data", data(), "--out", to, "--threads", "0"])
        .refused(2, &zero);
    autoreg(&["bench", "train-memory", "--threads", "0"]).refused(2, &zero);
    autoreg(&["bench", "train-speed", "--threads", "0"]).refused(2, &zero);
    // Far more than processors, by whatever command; a plan may be for another machine.
    let far = ["--threads 1000", "this process may use", "give at most"];
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/families/tests/fixtures/llama");
    let gguf = out.path().join("m.gguf");
    for words in [
        &["bench", "decode", model()][..],
        &["bench", "attention"],
        &["eval", model(), "--data", data()],
        &["generate", model(), "please"],
        &["compare", "--quiet", "--data", data(), "--out", to],
        &["convert", llama, gguf.to_str().unwrap(), "--to", "f16"],
        &["train", "--model", "rnn", "--data", data(), "--out", to],
    ] {
        autoreg(&[words, &["--threads", "1000"]].concat()).refused(2, &far);
    }
    works(&["plan", "serve", llama, "--threads", "128"]);
    autoreg(&["eval", model(), "--data", data(), "--isa", "sse9"])
        .refused(2, &["--isa sse9", "plain, avx2, avx512, amx or neon"]);
    let elsewhere = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    autoreg(&["eval", model(), "--data", data(), "--isa", elsewhere])
        .refused(2, &[elsewhere, "this processor offers plain"]);
    let ran = finish(program().args(["bench", "train-memory"]).env("AUTOREG_ISA", "mmx"));
    ran.refused(2, &["mmx", "plain, avx2, avx512, amx or neon"]);
    assert!(names(out.path()).is_empty());
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state() {
    let (ran, folder) = train(SMALL, &["--learning-rate", "1e30", "--clip", "0"]);
    ran.refused(1, &["step 2", "not finite", "step 0", "--learning-rate", "--warmup-steps"]);
    let run = folder.path().join("run");
    assert!(names(&run).iter().all(|name| !name.ends_with(".tmp")), "{:?}", names(&run));
    assert_eq!(names(&run.join("checkpoints")), ["step-000000000"]);
    // What is kept can be scored: close to ln V before any step.
    let scored = common::json(&["eval", run.to_str().unwrap(), "--data", data()]);
    let loss = common::mean(&scored["test_loss_nats"]);
    assert!((loss - 200f64.ln()).abs() < 0.3, "{loss}");
}

/// Other data is no damage, whatever tensors its vocabulary would make.
#[test]
fn a_run_goes_on_with_its_own_data_alone() {
    let (ran, folder) = train(SMALL, &["--max-steps", "2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (run, config) = (place("run"), place("c.toml"));
    let before = fs::read(folder.path().join("run/metrics.jsonl")).unwrap();
    let resumed = |data: &str| {
        let words = ["train", "--quiet", "--resume", "--max-steps", "2", "--config", &config];
        autoreg(&[&words[..], &["--data", data, "--out", &run]].concat())
    };
    // Another vocabulary, and the same tokenizer over other text.
    let sizes: [&[&str]; 2] = [&["--vocab-size", "150"], &["--tokenizer", &run]];
    for (i, words) in sizes.iter().enumerate() {
        let other = place(&format!("other{i}"));
        let all =
            ["data", "prepare", "--messages", "300", "--max-len", "24", "--group-by", "thread"];
        works(&[&all[..], words, &["--out", &other]].concat());
        let said = [&run, "trains on", data(), "(hash ", &other, "other data", "--out"];
        resumed(&other).refused(2, &said);
    }
    assert!(fs::read(folder.path().join("run/metrics.jsonl")).unwrap() == before);
    assert_eq!(resumed(data()).code, Some(0));
}

/// What is needed at the end is looked at before the beginning.
#[test]
fn weights_that_are_missing_or_damaged_are_told_before_anything_is_done() {
    let often = ["--max-steps", "4", "--eval-every", "2", "--checkpoint-every", "1"];
    let (ran, folder) = train(SMALL, &often);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (run, config) = (place("run"), place("c.toml"));
    let newest = folder.path().join("run/checkpoints/step-000000004");
    fs::remove_dir_all(newest).unwrap();
    let weights = folder.path().join("run/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let resumed = || {
        let words = ["train", "--quiet", "--resume", "--config", &config, "--data", data()];
        autoreg(&[&words[..], &often, &["--out", &run]].concat())
    };
    // Another run's folder, which --force would replace.
    let (ran, beside) = train(SMALL, &["--max-steps", "2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let old = beside.path().join("run");
    let from = || {
        let words = ["train", "--quiet", "--force", "--init", &run, "--data", data(), "--out"];
        autoreg(&[&words[..], &[old.to_str().unwrap()]].concat())
    };
    let before = fs::read(old.join("model.safetensors")).unwrap();
    let damages: [(&dyn Fn(), &str); 3] = [
        (&|| fs::remove_file(&weights).unwrap(), "No such file"),
        (&|| fs::write(&weights, &whole[..whole.len() / 2]).unwrap(), "cut short"),
        (&|| drop(fs::copy(data().to_owned() + "/manifest.json", &weights)), "cut short"),
    ];
    for (damage, said) in damages {
        damage();
        resumed().refused(2, &["model.safetensors", said, "best weights", "--force"]);
        from().refused(2, &["model.safetensors", said]);
    }
    assert!(fs::read(old.join("model.safetensors")).unwrap() == before);
    fs::write(&weights, &whole).unwrap();
    assert_eq!(resumed().code, Some(0));
}

#[test]
fn a_run_folder_is_replaced_only_when_told_and_only_a_run() {
    let (ran, folder) = train(SMALL, &["--max-steps", "2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let run = folder.path().join("run");
    let (file, out) = (folder.path().join("c.toml"), run.to_str().unwrap());
    let again = |words: &[&str]| {
        let mut command = program();
        command.args(["train", "--quiet", "--data", data(), "--out", out, "--config"]);
        finish(command.arg(&file).args(words))
    };
    let before = fs::read(run.join("model.safetensors")).unwrap();
    again(&[]).refused(2, &[out, "exists", "--resume", "--force"]);
    again(&["--resume", "--seed", "5"])
        .refused(2, &[out, "other settings", "train.seed was 0 and is 5"]);
    // What is refused must not have cost the old run.
    again(&["--force", "--threads", "0"]).refused(2, &["--threads 0"]);
    again(&["--force", "--epochs", "0"]).refused(2, &["epochs is 0"]);
    fs::write(&file, SMALL.replace("embeddings = 24", "embeddings = 8")).unwrap();
    again(&["--force"]).refused(2, &["max_position_embeddings is 8"]);
    let wide = SMALL.replace("hidden_size = 16", "hidden_size = 131072");
    let wide = wide.replace("num_hidden_layers = 1", "num_hidden_layers = 1024");
    fs::write(&file, wide.replace("heads = 2", "heads = 1024")).unwrap();
    again(&["--force"]).refused(2, &["are free"]);
    assert!(fs::read(run.join("model.safetensors")).unwrap() == before);
    fs::write(&file, SMALL).unwrap();
    assert_eq!(again(&["--force", "--max-steps", "3"]).code, Some(0));
    assert!(fs::read(run.join("model.safetensors")).unwrap() != before);

    let mine = folder.path().join("mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("diary.txt"), "mine").unwrap();
    let to = mine.to_str().unwrap();
    autoreg(&["train", "--force", "--model", "bigram", "--data", data(), "--out", to])
        .refused(2, &[to, "not a run", "another --out"]);
    assert_eq!(names(&mine), ["diary.txt"]);
    // A folder of Hugging Face's, and a run into which somebody put something.
    fs::write(mine.join("config.json"), "{}").unwrap();
    autoreg(&["train", "--force", "--model", "bigram", "--data", data(), "--out", to])
        .refused(2, &[to, "not a run", "another --out"]);
    assert_eq!(names(&mine), ["config.json", "diary.txt"]);
    fs::write(run.join("diary.txt"), "mine").unwrap();
    again(&["--force"]).refused(2, &[out, "diary.txt", "another --out"]);
    fs::remove_file(run.join("diary.txt")).unwrap();
    fs::copy(&file, run.join("metrics.jsonl")).unwrap();
    let inside = run.join("metrics.jsonl");
    autoreg(&[
        "train",
        "--force",
        "--data",
        data(),
        "--out",
        out,
        "--config",
        inside.to_str().unwrap(),
    ])
    .refused(2, &[out, "metrics.jsonl", "reads"]);
    again(&["--lora", "rank=4"]).refused(2, &["--lora", "--init"]);
    again(&["--force", "--max-steps", "3", "--warmup-steps", "900"])
        .refused(2, &["--warmup-steps 900", "the data gives"]);
    let none = folder.path().join("none");
    let none = none.to_str().unwrap();
    autoreg(&["train", "--resume", "--data", data(), "--out", none])
        .refused(2, &[none, "no checkpoint", "--resume"]);
    assert!(!Path::new(none).exists());
}

/// Runs the binary with a disk of its own, mounted at `disk` in a private namespace; then lists it.
/// None where that is not allowed.
fn on_a_small_disk(size: &str, command: &str) -> Option<(Ran, TempDir)> {
    let folder = tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size={size} tmpfs {disk} || exit 99\n\
         AUTOREG={program}\n{command}\ncode=$?\nls -A {disk}\nexit $code",
        disk = disk.display(),
        program = env!("CARGO_BIN_EXE_autoreg"),
        command = command.replace("DISK", disk.to_str().unwrap()),
    );
    let ran = finish(std::process::Command::new("unshare").args(["-rm", "sh", "-c", &script]));
    if ran.code == Some(99) || ran.err.starts_with("unshare:") {
        println!("skipped: no disk can be mounted here: {}", ran.err.trim());
        return None;
    }
    Some((ran, folder))
}

#[test]
fn a_full_disk_leaves_nothing_or_the_last_whole_state() {
    let prepare = "$AUTOREG data prepare --messages 3000 --vocab-size 200 --out DISK/data";
    let Some((ran, _)) = on_a_small_disk("128k", prepare) else { return };
    ran.refused(2, &["No space left", "free some space"]);

    let config = tempdir().unwrap();
    let file = config.path().join("c.toml");
    fs::write(&file, SMALL).unwrap();
    let train =
        |model: &str| format!("$AUTOREG train --quiet --data {} {model} --out DISK/run", data());
    let network = train(&format!("--config {}", file.display()));
    for (size, command) in [
        ("8k", &network),
        ("64k", &network),
        ("128k", &network),
        ("8k", &train("--model bigram")),
        ("24k", &train("--model ngram")),
    ] {
        let (ran, _) = on_a_small_disk(size, command).unwrap();
        ran.refused(2, &["/run", "No space left", "free some space"]);
    }
    // Room for the run's start, not for its first new checkpoint: the first stays.
    let later = format!("{network}; code=$?; ls DISK/run/checkpoints; (exit $code)");
    let (ran, _) = on_a_small_disk("260k", &later).unwrap();
    assert_eq!(ran.code, Some(2), "{} {}", ran.out, ran.err);
    assert!(ran.err.contains("free some space") && ran.err.lines().count() == 1, "{}", ran.err);
    assert_eq!(ran.out.lines().next(), Some("step-000000000"), "{}", ran.out);
}

#[test]
fn output_that_cannot_be_written_is_said() {
    if !Path::new("/dev/full").exists() {
        println!("skipped: no /dev/full");
        return;
    }
    for words in [vec!["data", "inspect", data()], vec!["eval", model(), "--data", data()]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = program()
            .args(words)
            .stdout(full)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("standard output") && said.contains("No space"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
