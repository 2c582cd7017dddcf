//! `train` over ranks through the binary: threads of one process, and with the feature `mpi` processes
//! under `mpirun`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod common;

use common::{SMALL, autoreg, data, json, names, works};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A folder with a configuration in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new(precision: &str) -> Place {
        let place = tempfile::tempdir().unwrap();
        let text = format!("{SMALL}precision = '{precision}'\n");
        std::fs::write(place.path().join("c.toml"), text).unwrap();
        Place(place)
    }

    fn out(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The words that train into `name`.
    fn words(&self, name: &str, more: &[&str]) -> Vec<String> {
        let (config, out) = (self.out("c.toml"), self.out(name));
        let paths = [config.to_str().unwrap(), out.to_str().unwrap()];
        let mut words = vec!["train", "--data", data(), "--config", paths[0], "--out", paths[1]];
        words.extend(["--eval-every", "5", "--checkpoint-every", "3", "--quiet"]);
        words.extend(more);
        words.into_iter().map(str::to_owned).collect()
    }

    fn train(&self, name: &str, more: &[&str]) -> Value {
        let words = self.words(name, more);
        json(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The loss of each step.
fn losses(run: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss_nats"].as_f64()).collect()
}

#[track_caller]
fn near(found: &[f64], right: &[f64]) {
    assert_eq!(found.len(), right.len());
    for (step, (a, b)) in found.iter().zip(right).enumerate() {
        assert!((a - b).abs() < 1e-6 * b, "step {}: {a} and {b}", 1 + step);
    }
}

/// A term's predicted and measured bytes on a rank.
fn bytes(done: &Value, rank: usize, term: &str) -> (f64, f64) {
    let terms = done["ranks"]["memory"][rank].as_array().unwrap();
    let found = terms.iter().find(|t| t["term"] == term);
    let number = |key: &str| found.map_or(0.0, |t| t[key].as_f64().unwrap());
    (number("predicted_bytes"), number("measured_bytes"))
}

/// Bytes of weights, master weights, gradients and moments on a rank.
fn state(done: &Value, rank: usize) -> f64 {
    let terms = ["weights", "master weights", "gradients", "optimizer"];
    terms.iter().map(|term| bytes(done, rank, term).1).sum()
}

#[track_caller]
fn as_predicted(done: &Value) {
    for rank in done["ranks"]["memory"].as_array().unwrap() {
        for term in rank.as_array().unwrap() {
            let number = |key: &str| term[key].as_f64().unwrap();
            let (predicted, measured) = (number("predicted_bytes"), number("measured_bytes"));
            assert!((measured / predicted - 1.0).abs() < 0.03, "{term}");
        }
    }
}

#[test]
fn threads_train_as_one_process_does_and_hold_a_share() {
    let place = Place::new("f32");
    place.train("alone", &["--threads", "1"]);
    let right = losses(&place.out("alone"));
    let mut whole = 0.0;
    for stage in ["0", "1", "2", "3"] {
        let name = format!("zero-{stage}");
        let done = place.train(&name, &["--ranks", "4", "--zero", stage]);
        near(&losses(&place.out(&name)), &right);
        as_predicted(&done);
        assert_eq!(
            (&done["ranks"]["ranks"], &done["ranks"]["stage"]),
            (&Value::from(4), &Value::from(stage.parse::<u8>().unwrap()))
        );
        whole = if stage == "0" { state(&done, 0) } else { whole };
        if stage == "3" {
            for rank in 0..4 {
                let share = state(&done, rank) / whole;
                assert!((0.20..0.27).contains(&share), "rank {rank}: {share}");
            }
        }
        // A model, without another step.
        works(&["generate", place.out(&name).to_str().unwrap(), "please", "--max-tokens", "2"]);
        let first = std::fs::read_to_string(place.out(&name).join("metrics.jsonl")).unwrap();
        let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        let sent = first["collectives"].as_object().unwrap();
        assert!(sent.values().all(|c| {
            let overlap = c["overlap"].as_f64().unwrap();
            c["bytes"].as_u64().unwrap() > 0 && (0.0..=1.0).contains(&overlap)
        }));
    }
}

#[test]
fn in_pieces_one_process_and_ranks_give_the_same_bits() {
    let place = Place::new("bf16");
    let pieces = ["--pieces", "4", "--max-steps", "5"];
    place.train("alone", &[&pieces[..], &["--threads", "2"]].concat());
    let right = losses(&place.out("alone"));
    for (ranks, stage) in [("2", "3"), ("4", "1"), ("4", "0")] {
        let name = format!("{ranks}-{stage}");
        let more = [&pieces[..], &["--ranks", ranks, "--zero", stage]].concat();
        let done = place.train(&name, &more);
        assert_eq!(losses(&place.out(&name)), right, "{name}");
        as_predicted(&done);
        // Bytes sent are those of the formula, but for norms and for what is still in its place.
        let sent = |key: &str| done["ranks"][key].as_f64().unwrap();
        let rounds = 4.0 / ranks.parse::<f64>().unwrap();
        let each = match stage {
            "0" => 4.0 * rounds + 4.0,
            "1" => 4.0 * rounds + 2.0,
            _ => 8.0 * rounds,
        };
        assert_eq!(sent("formula_bytes_per_parameter"), each, "{name}");
    }
    let run = place.out("alone");
    let told = json(&["verify", run.to_str().unwrap(), "--requests", "2", "--max-tokens", "2"]);
    let rows = told["training"].as_array().unwrap();
    let ranks = rows.iter().filter(|row| row["check"].as_str().unwrap().contains("ranks"));
    let found: Vec<&str> = ranks.map(|row| row["found"].as_str().unwrap()).collect();
    assert!(found.len() == 8 && found.iter().all(|found| found.contains(" 0.0e0 off")), "{told}");
    assert!(rows.iter().all(|row| row["good"] == true), "{told}");
}

#[test]
fn averages_layers_in_a_cycle_and_batches_of_a_piece_go_over_ranks() {
    let cycle = "num_hidden_layers = 4\ndistinct_layers = 2";
    for (layers, more) in [
        ("num_hidden_layers = 1", &["--average", "0.9"][..]),
        (cycle, &["--micro-batch", "3"]),
        (cycle, &["--average", "0.9", "--micro-batch", "5", "--optimizer", "muon"]),
    ] {
        let place = Place::new("bf16");
        let text = std::fs::read_to_string(place.out("c.toml")).unwrap();
        let text = text.replace("num_hidden_layers = 1", layers);
        std::fs::write(place.out("c.toml"), text).unwrap();
        let train = |name: &str, how: &[&str]| {
            let done = place.train(name, &[more, how, &["--max-steps", "7"]].concat());
            let curve = done["curve"].as_array().unwrap();
            assert!(curve.len() == 2 && losses(&place.out(name)).len() == 7);
            if done["ranks"].is_object() {
                as_predicted(&done);
            }
            works(&["score", place.out(name).to_str().unwrap(), "please"]);
            (losses(&place.out(name)), done["curve"].clone())
        };
        let share = |ranks, stage| ["--ranks", ranks, "--zero", stage, "--threads", "1"];
        // A rank's share at once, unless it is a cycle: stages 2 and 3 then add up as 0 and 1 do.
        let stages = train("zero-0", &share("2", "0"));
        for stage in ["1", "2", "3"] {
            assert_eq!(train(&format!("zero-{stage}"), &share("2", stage)), stages, "{more:?}");
        }
        let pieces = |how: &[&'static str]| [&["--pieces", "4"][..], how].concat();
        let right = train("pieces", &pieces(&["--threads", "2"]));
        assert_ne!(right, stages);
        for (ranks, stage) in [("2", "3"), ("4", "1"), ("4", "0"), ("2", "2")] {
            let found = train(&format!("{ranks}-{stage}"), &pieces(&share(ranks, stage)));
            assert_eq!(found, right, "{more:?} {ranks} {stage}");
        }
        // Another number of ranks goes on from what is left.
        let run = place.out("2-3");
        let checkpoints = run.join("checkpoints");
        std::fs::remove_dir_all(checkpoints.join(names(&checkpoints).last().unwrap())).unwrap();
        let resumed = [&share("4", "2")[..], &["--resume"]].concat();
        assert_eq!(train("2-3", &pieces(&resumed)), right, "{more:?}");
        let run = place.out("zero-2");
        let words = ["plan", "train", run.to_str().unwrap(), "--ranks", "2", "--zero", "2"];
        let planned = json(&words)["notes"].to_string();
        assert_eq!(planned.contains("stage 2 holds what stage 1 does"), layers == cycle);
        if more.contains(&"muon") {
            let run = place.out("2-3");
            let words = ["verify", run.to_str().unwrap(), "--requests", "2", "--max-tokens", "2"];
            let told = json(&words);
            let rows = told["training"].as_array().unwrap();
            assert!(rows.len() > 10 && rows.iter().all(|row| row["good"] == true), "{told}");
        }
    }
}

#[test]
fn what_ranks_cannot_do_is_refused_in_one_line_and_nothing_is_left() {
    let place = Place::new("f32");
    let refused = |more: &[&str], facts: &[&str]| {
        autoreg(&place.words("run", more)).refused(2, facts);
        assert!(!place.out("run").exists(), "{more:?}");
    };
    refused(&["--ranks", "3", "--zero", "1"], &["batch is 16", "3 ranks", "15"]);
    refused(&["--pieces", "3"], &["pieces is 3", "batch of 16", "15"]);
    refused(&["--pieces", "2", "--ranks", "4"], &["pieces is 2", "4 ranks", "multiple of 4"]);
    refused(&["--expect-ranks", "4"], &["--expect-ranks 4: 1 came up"]);
    refused(&["--ranks", "2", "--expect-ranks", "4"], &["2 came up"]);
    #[cfg(not(feature = "mpi"))]
    refused(&["--zero", "3"], &["--zero 3", "--ranks N", "mpirun"]);
    refused(
        &["--ranks", "2", "--zero", "3", "--sample-every", "2"],
        &["--sample-every", "--zero 2"],
    );
    refused(&["--ranks", "2", "--zero", "4"], &["0, 1, 2 or 3"]);
}

/// One of several that a launcher has started does not train as if it were alone.
#[cfg(not(feature = "mpi"))]
#[test]
fn a_program_without_mpi_is_not_one_of_several() {
    let place = Place::new("f32");
    let run = |name: &str, said: &[(&str, &str)], more: &[&str]| {
        let mut command = common::program();
        command.args(place.words(name, more)).envs(said.iter().copied());
        common::finish(&mut command)
    };
    let several: [&[(&str, &str)]; 4] = [
        &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")],
        &[("PMI_SIZE", "2"), ("PMI_RANK", "1")],
        &[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "0")],
        &[("PMIX_RANK", "1")],
    ];
    for said in several {
        let facts = ["one of 2 processes", "without MPI", "--features mpi", "--expect-ranks 1"];
        run("run", said, &[]).refused(2, &facts);
        assert!(!place.out("run").exists(), "{said:?}");
    }
    // A batch script of two tasks is one process, and so is one that is told to be.
    let batch = [("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0")];
    assert_eq!(run("batch", &batch, &[]).code, Some(0));
    assert_eq!(run("told", several[2], &["--expect-ranks", "1"]).code, Some(0));
}

#[test]
fn ranks_go_on_from_what_other_numbers_of_ranks_have_left() {
    let place = Place::new("bf16");
    place.train("whole", &["--ranks", "2", "--zero", "2"]);
    place.train("cut", &["--ranks", "2", "--zero", "3"]);
    // Of the newest checkpoint one rank's file is gone.
    let checkpoints = place.out("cut").join("checkpoints");
    let kept = names(&checkpoints);
    let newest = checkpoints.join(&kept[1]);
    assert!(names(&newest).contains(&"shard-00001-of-00002.safetensors".to_owned()));
    std::fs::remove_file(newest.join("shard-00001-of-00002.safetensors")).unwrap();
    place.train("cut", &["--ranks", "2", "--zero", "1", "--resume"]);
    assert!(losses(&place.out("cut")) == losses(&place.out("whole")));
    let weights = |name: &str| std::fs::read(place.out(name).join("model.safetensors")).unwrap();
    assert!(weights("cut") == weights("whole"));
    std::fs::remove_dir_all(&newest).unwrap();
    place.train("cut", &["--threads", "1", "--resume"]);
    assert_eq!(losses(&place.out("cut")).len(), losses(&place.out("whole")).len());
}

#[test]
fn a_published_model_goes_on_over_ranks_and_is_exported() {
    let place = Place::new("f32");
    let chat = place.out("talks.jsonl");
    std::fs::write(&chat, common::chats()).unwrap();
    let init = format!("{}/crates/families/tests/fixtures/gemma3", env!("CARGO_MANIFEST_DIR"));
    let tune = |name: &str, more: &[&str]| {
        let out = place.out(name);
        let mut words = vec!["train", "--init", &init, "--chat", chat.to_str().unwrap(), "--out"];
        words.extend([out.to_str().unwrap(), "--epochs", "2", "--batch", "4", "--max-len", "40"]);
        words.extend(["--learning-rate", "0.01", "--warmup-steps", "2", "--precision", "bf16"]);
        words.extend(more);
        json(&words)
    };
    let right = tune("alone", &["--threads", "1"]);
    let found = tune("zero", &["--ranks", "2", "--zero", "3", "--recompute", "block"]);
    let loss = |done: &Value| done["valid_loss_nats"].as_f64().unwrap();
    assert!((loss(&found) - loss(&right)).abs() < 2e-3 * loss(&right), "{found}");
    let exported = place.out("zero").join("huggingface");
    assert_eq!(found["huggingface"], exported.to_str().unwrap());
    for model in [&exported, &place.out("zero")] {
        works(&["score", model.to_str().unwrap(), "it is 4."]);
    }
}

#[test]
fn adapters_are_shared_out_beside_a_base_that_is_not() {
    let place = Place::new("f32");
    let text = place.out("words.txt");
    std::fs::write(&text, "please send the figures to the office by noon. ".repeat(30)).unwrap();
    let text = text.to_str().unwrap();
    for base in ["qwen3", "gpt2"] {
        let init = format!("{}/crates/families/tests/fixtures/{base}", env!("CARGO_MANIFEST_DIR"));
        let tune = |name: &str, more: &[&str]| {
            let out = place.out(&format!("{base}-{name}"));
            let mut words = vec!["train", "--init", &init, "--text", text, "--valid", text];
            words.extend(["--out", out.to_str().unwrap(), "--max-len", "40", "--batch", "4"]);
            words.extend(["--lora", "rank=4,targets=o,up,down", "--learning-rate", "0.02"]);
            words.extend(["--epochs", "2", "--warmup-steps", "2", "--checkpoint-every", "1"]);
            words.extend(more);
            let done = json(&words);
            let file = out.join("adapter/adapter_model.safetensors");
            (losses(&out), std::fs::read(file).unwrap(), done)
        };
        let ranks = |stage: &str| {
            let share = ["--ranks", "4", "--zero", stage, "--threads", "1"];
            tune(&format!("zero-{stage}"), &share)
        };
        let (loss, adapter, whole) = ranks("0");
        let learn = whole["trained_parameters"].as_f64().unwrap();
        for (stage, sent) in [("1", 8.0), ("2", 8.0), ("3", 12.0)] {
            let found = ranks(stage);
            assert!(found.0 == loss && found.1 == adapter, "{base} {stage}");
            for term in ["weights", "gradients", "optimizer", "communication", "activations"] {
                // Blocks of so few values are not alike, and threads have their books in common.
                let of = |rank| bytes(&found.2, rank, term);
                let both = (0..4).map(of).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
                assert!((both.1 / both.0 - 1.0).abs() < 0.01, "{base} {stage} {term}: {both:?}");
            }
            assert_eq!(found.2["ranks"]["formula_bytes_per_step"], sent * learn * 3.0 / 4.0);
            // Moments of a quarter of the adapters a rank, but for what is rounded up.
            let moments = bytes(&found.2, 0, "optimizer").1 / bytes(&whole, 0, "optimizer").1;
            assert!((0.2..0.35).contains(&moments), "{moments}");
            // Its own quarter of the adapters, and those of one layer of two, beside the base.
            let saved = bytes(&whole, 1, "weights").1 - bytes(&found.2, 1, "weights").1;
            let share = if stage == "3" { 0.25 } else { 0.0 };
            assert!((saved / (4.0 * learn) - share).abs() < 0.05, "{base} {stage}: {saved}");
        }
        let pieces = ["--pieces", "4", "--threads", "1"];
        let (loss, adapter, _) = tune("pieces", &pieces);
        let more = [&pieces[..], &["--ranks", "4", "--zero", "3"]].concat();
        let found = tune("pieces-4", &more);
        assert!(found.0 == loss && found.1 == adapter, "{base} in pieces");
        // Of the newest checkpoint one rank's file is gone; another number of ranks goes on.
        let run = place.out(&format!("{base}-pieces-4"));
        let checkpoints = run.join("checkpoints");
        let newest = checkpoints.join(names(&checkpoints).last().unwrap());
        std::fs::remove_file(newest.join("shard-00002-of-00004.safetensors")).unwrap();
        let more = [&pieces[..], &["--ranks", "2", "--zero", "1", "--resume"]].concat();
        assert!(tune("pieces-4", &more).1 == adapter, "{base} resumed");
        let with = ["--adapter", run.join("adapter").to_str().unwrap()].map(str::to_owned);
        works(&["score", &init, "it is", &with[0], &with[1]]);
    }
}

/// Both a signal to all ranks and its exit code.
#[test]
fn a_signal_lets_all_ranks_save_and_stop() {
    let place = Place::new("f32");
    let more = ["--ranks", "2", "--zero", "2", "--epochs", "40", "--threads", "1"];
    let out = place.out("run");
    let child = common::program()
        .args(place.words("run", &more))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let metrics = out.join("metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) < 1000 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(100), "it never began");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("stopped at step") && told.matches("error: ").count() == 1, "{told}");
    let step: u64 =
        told.split("stopped at step ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(losses(&out).len() as u64, step);
    assert_eq!(names(&out.join("checkpoints")).last().unwrap(), &format!("step-{step:09}"));
}

#[test]
fn a_run_is_verified_and_a_damaged_one_is_told() {
    let place = Place::new("bf16");
    place.train("run", &["--ranks", "2", "--zero", "3", "--max-steps", "4"]);
    let run = place.out("run");
    let before = names(&run);
    let told = json(&["verify", run.to_str().unwrap(), "--requests", "2", "--max-tokens", "2"]);
    let checks = |told: &Value| -> Vec<(String, bool)> {
        let rows = told["training"].as_array().unwrap().iter();
        rows.map(|row| (row["check"].as_str().unwrap().to_owned(), row["good"] == true)).collect()
    };
    let found = checks(&told);
    assert!(found.len() == 2 + 1 + 8 && found.iter().all(|(_, good)| *good), "{told}");
    assert!(found[2].0.contains("resumed") && found[6].0.contains("2 ranks, ZeRO stage 3"));
    assert_eq!(names(&run), before, "the run was changed");
    let newest = run.join("checkpoints/step-000000004");
    let shard = newest.join("shard-00001-of-00002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let ran = autoreg(&["verify", run.to_str().unwrap(), "--requests", "2", "--max-tokens", "2"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let wrong: Vec<&str> = ran.out.lines().filter(|line| line.ends_with("WRONG")).collect();
    assert!(wrong.len() == 1 && wrong[0].contains("shard-00001-of-00002"), "{}", ran.out);
}

/// Processes under `mpirun`; skipped with a line where there is none.
#[cfg(feature = "mpi")]
mod processes {
    use super::*;
    use common::finish;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// `mpirun` (or what `MPIRUN` names) with words before the program's; more ranks than processors are fine, and waiting ranks
    /// give way.
    fn mpirun(words: &[&str]) -> Option<Command> {
        let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
        if Command::new(&launcher).arg("--version").output().is_err() {
            println!("skipped: there is no {launcher} here");
            return None;
        }
        let mut command = Command::new(&launcher);
        command.stdin(Stdio::null()).args(words);
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        Some(command)
    }

    fn under(ranks: &str, place: &Place, name: &str, more: &[&str]) -> Option<Command> {
        let mut command = mpirun(&["-n", ranks, env!("CARGO_BIN_EXE_autoreg")])?;
        command.args(place.words(name, more));
        Some(command)
    }

    /// Lines of the program's own on standard error.
    fn told(err: &str) -> Vec<&str> {
        err.lines().filter(|line| line.starts_with("error: ")).collect()
    }

    #[test]
    fn processes_train_as_one_does_and_as_threads_to_the_bit() {
        let place = Place::new("f32");
        place.train("alone", &["--threads", "1"]);
        place.train("threads", &["--ranks", "4", "--zero", "2"]);
        let more = ["--zero", "3", "--expect-ranks", "4", "--json"];
        let Some(mut command) = under("4", &place, "zero", &more) else { return };
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let found = losses(&place.out("zero"));
        near(&found, &losses(&place.out("alone")));
        assert!(found == losses(&place.out("threads")), "threads and processes differ");
        let done: Value = serde_json::from_str(&ran.out).unwrap();
        as_predicted(&done);
        let mut zero = under("4", &place, "whole", &["--zero", "0", "--json"]).unwrap();
        let whole: Value = serde_json::from_str(&finish(&mut zero).out).unwrap();
        for rank in 0..4 {
            let share = state(&done, rank) / state(&whole, rank);
            assert!((0.20..0.27).contains(&share), "rank {rank}: {share}");
        }
    }

    /// The process of a rank, by what Open MPI or MPICH tells it.
    fn process_of(rank: &str, out: &Path) -> Option<u32> {
        let is_rank = |pid: u32| {
            let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).ok();
            let words = read("cmdline")?;
            let named = String::from_utf8_lossy(&words).contains(out.to_str()?);
            let places = String::from_utf8_lossy(&read("environ")?).into_owned();
            let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
            (named && places.split('\0').any(|v| names.iter().any(|n| n == v))).then_some(pid)
        };
        let pids = std::fs::read_dir("/proc").ok()?.flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(is_rank)
    }

    fn newest(out: &Path) -> Option<u64> {
        let folder = out.join("checkpoints");
        let all = if folder.is_dir() { names(&folder) } else { Vec::new() };
        all.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max()
    }

    fn wait_for(child: &mut Child, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(child.try_wait().unwrap().is_none(), "the run ended early");
            assert!(begun.elapsed() < Duration::from_secs(200), "it never came");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_killed_rank_costs_at_most_what_was_since_the_last_checkpoint() {
        let place = Place::new("bf16");
        let more = ["--zero", "3", "--epochs", "6"];
        let Some(mut whole) = under("3", &place, "whole", &["--batch", "15"]) else { return };
        let ran = finish(whole.args(more));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let right = losses(&place.out("whole"));
        // At different moments of a step, an evaluation, a checkpoint.
        for (after, moment) in [(3, 0), (9, 7), (12, 13)] {
            let name = format!("cut-{after}");
            let out = place.out(&name);
            let mut command = under("3", &place, &name, &["--batch", "15"]).unwrap();
            command.args(more).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            wait_for(&mut child, || newest(&out) >= Some(after));
            std::thread::sleep(Duration::from_millis(moment));
            let victim = process_of("1", &out).unwrap().to_string();
            let kept = newest(&out).unwrap();
            assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
            let begun = Instant::now();
            while child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(60), "the others hang");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(!child.wait().unwrap().success());
            assert!(newest(&out).unwrap() >= kept, "a checkpoint was lost");
            let mut again = under("3", &place, &name, &["--batch", "15", "--resume"]).unwrap();
            let ran = finish(again.args(more));
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            assert!(losses(&out) == right, "killed after step {after}: another run");
        }
    }

    #[test]
    fn one_rank_tells_what_is_wrong_and_all_end() {
        let place = Place::new("f32");
        let Some(mut command) = under("3", &place, "run", &["--zero", "1"]) else { return };
        let ran = finish(&mut command);
        assert!(ran.code != Some(0) && !place.out("run").exists());
        assert!(told(&ran.err).len() == 1 && ran.err.contains("3 ranks"), "{}", ran.err);
        let program = env!("CARGO_BIN_EXE_autoreg");
        let (first, second) = (place.words("run", &[]), place.words("run", &["--seed", "5"]));
        let mut command = mpirun(&["-n", "1", program]).unwrap();
        command.args(first).args([":", "-n", "1", program]).args(second);
        let ran = finish(&mut command);
        assert!(ran.code != Some(0) && !place.out("run").exists());
        assert!(told(&ran.err).len() == 1, "{}", ran.err);
        assert!(ran.err.contains("rank 1") && ran.err.contains("configuration"), "{}", ran.err);
        // Alone under no launcher.
        autoreg(&place.words("run", &["--expect-ranks", "4"])).refused(2, &["1 came up"]);
    }
}
