//! `autoreg convert` as a program: files, reports, refusals.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/families/tests/fixtures").join(name)
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoreg")).args(words).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn report(words: &[&str]) -> Value {
    let out = run(words);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn refused(words: &[&str], facts: &[&str]) {
    let out = run(words);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    for fact in facts {
        assert!(said.contains(fact), "{fact:?} is not in: {said}");
    }
}

#[test]
fn a_folder_becomes_gguf_and_a_folder_again_with_a_report() {
    let place = tempfile::tempdir().unwrap();
    let (gguf, folder) = (place.path().join("m.gguf"), place.path().join("m"));
    let words = place.path().join("words.txt");
    std::fs::write(&words, "The report is due on Friday; please send the figures. ".repeat(8))
        .unwrap();
    let (source, out) = (fixture("qwen2"), gguf.clone());
    let made = report(&[
        "convert",
        text(&source),
        text(&out),
        "--to",
        "bf16",
        "--quality",
        text(&words),
        "--json",
        "--window",
        "64",
    ]);
    // The source is BF16: nothing is lost.
    let quality = &made["quality"];
    assert!(quality["mean_kl_nats"].as_f64().unwrap() < 1e-9, "{made}");
    assert_eq!(quality["perplexity_before"], quality["perplexity_after"]);
    assert_eq!(quality["same_most_likely_token"], 1.0);
    assert!(quality["tokens"].as_u64().unwrap() > 300 && made["values"].as_u64().unwrap() > 0);
    let back = report(&["convert", text(&gguf), text(&folder), "--to", "safetensors", "--json"]);
    assert_eq!(back["tensor_types"][0]["type"], "BF16");
    let (old, new) = (source.join("model.safetensors"), folder.join("model.safetensors"));
    assert!(
        std::fs::metadata(old).unwrap().len().abs_diff(std::fs::metadata(new).unwrap().len())
            < 4096
    );
    for path in [&gguf, &folder] {
        let out = run(&["generate", text(path), "the", "--max-tokens", "4", "--temperature", "0"]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_coarser_type_shows_in_the_report() {
    let place = tempfile::tempdir().unwrap();
    let words = place.path().join("words.txt");
    std::fs::write(&words, "one two three four five six seven eight ".repeat(4)).unwrap();
    let out = place.path().join("m.gguf");
    let told = run(&[
        "convert",
        text(&fixture("llama")),
        text(&out),
        "--to",
        "f16",
        "--quality",
        text(&words),
    ]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("mean KL") && told.contains("perplexity") && told.contains("F16"),
        "{told}"
    );
}

#[test]
fn mistakes_are_told_before_anything_is_written() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("m.gguf");
    let source = fixture("llama");
    let source = text(&source);
    refused(&["convert", source, text(&out), "--to", "q9"], &["q9", "q4_k_m"]);
    refused(&["convert", source, text(&out), "--to", "f16", "--dtype", "bf16"], &["--dtype"]);
    refused(&["convert", "/none", text(&out), "--to", "f16"], &["/none"]);
    refused(&["convert", source, "/none/m.gguf", "--to", "f16"], &["/none", "does not exist"]);
    refused(&["convert", source, text(place.path()), "--to", "f16", "--force"], &["a folder"]);
    refused(&["convert", source, source, "--to", "safetensors", "--force"], &["the model itself"]);
    let other = place.path().join("other");
    refused(&["convert", source, text(&other), "--to", "safetensors"], &["already"]);
    refused(
        &["convert", source, text(&out), "--to", "f16", "--quality", "/none.txt"],
        &["/none.txt"],
    );
    let words = place.path().join("words.txt");
    for (content, more, facts) in [
        ("", &[][..], &["words.txt", "no token to predict"][..]),
        ("some words", &["--window", "1"], &["--window 1", "at least"]),
    ] {
        std::fs::write(&words, content).unwrap();
        let all = ["convert", source, text(&out), "--to", "f16", "--quality", text(&words)];
        refused(&[&all[..], more].concat(), facts);
    }
    std::fs::remove_file(words).unwrap();
    assert!(!out.exists());
    std::fs::write(&out, "something").unwrap();
    refused(&["convert", source, text(&out), "--to", "f16"], &["--force"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"something");
    let mail = place.path().join("mail");
    std::fs::create_dir(&mail).unwrap();
    std::fs::write(mail.join("a.txt"), "mine").unwrap();
    let made = run(&["convert", source, text(&out), "--to", "f16", "--force"]);
    assert_eq!(made.status.code(), Some(0));
    refused(&["convert", text(&out), text(&mail), "--to", "safetensors", "--force"], &["no model"]);
    assert!(mail.join("a.txt").exists());
    // A file that was cut short leaves no output.
    let whole = std::fs::read(&out).unwrap();
    let cut = place.path().join("cut.gguf");
    std::fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let next = place.path().join("next.gguf");
    refused(&["convert", text(&cut), text(&next), "--to", "q8_0"], &["cut short"]);
    assert!(!next.exists());
}

/// llama.cpp reads what is written here and goes on as this program does. `AUTOREG_LLAMA` names the
/// folder with its `llama-completion`.
#[test]
fn its_files_load_in_llama_cpp() {
    let Some(llama) = std::env::var_os("AUTOREG_LLAMA").map(PathBuf::from) else {
        println!("AUTOREG_LLAMA is not set: no llama.cpp to load the files in");
        return;
    };
    let models = std::env::var_os("AUTOREG_MODELS").map(PathBuf::from);
    let models = models.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("models"));
    let source = models.join("smollm2-135m-q4_1.gguf");
    let place = tempfile::tempdir().unwrap();
    for to in ["f16", "bf16", "q8_0", "q4_0", "q4_k_m"] {
        let file = place.path().join(format!("{to}.gguf"));
        report(&["convert", text(&source), text(&file), "--to", to, "--json"]);
        let prompt = "The capital of France is";
        let ours = run(&["generate", text(&file), prompt, "--greedy", "--max-tokens", "8"]);
        let ours = String::from_utf8(ours.stdout).unwrap();
        let theirs = Command::new(llama.join("llama-completion"))
            .args(["-m", text(&file), "-p", prompt, "-n", "8", "--temp", "0", "-no-cnv"])
            .output()
            .unwrap();
        let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
        let continued = theirs.trim_start().strip_prefix(prompt);
        assert!(continued.is_some_and(|text| !text.trim().is_empty()), "{to}: {theirs}");
        // Where nothing is rounded but activations, the first words are the same.
        if ["f16", "bf16"].contains(&to) {
            let first = ours.split_whitespace().next().unwrap().to_owned();
            assert!(
                continued.is_some_and(|text| text.trim().starts_with(&first)),
                "{ours} {theirs}"
            );
        }
    }
}
