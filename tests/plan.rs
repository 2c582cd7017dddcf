//! `plan`, `doctor` and `diagnose` through the binary: predictions against measured peaks, and whatever is
//! wrong with the input. Their pages are in `plan_pages.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod common;
#[path = "common/http.rs"]
mod http;

use common::{autoreg, json, works};
use http::{Server, fixture, read};
use serde_json::{Value, json};
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/smollm2-135m-q4_1.gguf");

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Within 3 % of what was measured.
#[track_caller]
fn near(predicted: f64, measured: f64) {
    let share = predicted / measured;
    println!("predicted {predicted}, measured {measured}: {share:.4}");
    assert!((share - 1.0).abs() <= 0.03, "predicted {predicted}, measured {measured}");
}

/// A line `key: N kB` of a process, in bytes.
fn status(pid: u32, key: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    1024.0 * line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
}

#[test]
fn the_five_step_probe_takes_what_was_predicted() {
    let measured = json(&["bench", "train-memory", "--threads", "2"]);
    for (row, name) in
        measured["rows"].as_array().unwrap().iter().zip(["email-rnn", "email-transformer"])
    {
        let words = ["plan", "train", name, "--batch", "64", "--length", "64", "--threads", "2"];
        let plan = json(&words);
        assert_eq!(plan["parameters"], row["parameters"]);
        near(number(&plan["total_bytes"]), number(&row["peak_process_bytes"]));
    }
}

#[test]
fn serving_takes_what_was_predicted() {
    if !Path::new(MODEL).is_file() {
        println!("skipped: no {MODEL}; scripts/fetch-test-models fetches it");
        return;
    }
    let (prompt, requests) = (520usize, 4usize);
    let words = [
        "plan",
        "serve",
        MODEL,
        "--context",
        "544",
        "--requests",
        "4",
        "--threads",
        "2",
        "--step-tokens",
        "128",
    ];
    let plan = json(&words);
    let server = Server::start(
        MODEL,
        &["--kv-tokens", "2176", "--max-sequences", "4", "--threads", "2", "--step-tokens", "128"],
    );
    // Nothing is shared, and every page gets used.
    let asked: Vec<_> = (0..requests)
        .map(|r| {
            let prompt: Vec<usize> =
                (0..prompt).map(|i| 100 + (i * 7 + r * 1009) % 40_000).collect();
            let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true});
            server.send("POST", "/v1/completions", "", body.to_string().as_bytes())
        })
        .collect();
    for stream in asked {
        assert_eq!(read(stream).status, 200);
    }
    let kv = server.get("/ledger").json()["kv"].clone();
    let pages = number(&kv["pages_held"]) + number(&kv["pages_kept"]);
    assert!(pages >= 4.0 * 32.0, "{pages} pages were filled");
    near(number(&plan["peak_bytes"]), status(server.pid(), "VmHWM"));
    // The same with the file's pages given back, which is what the terms are.
    near(number(&plan["total_bytes"]), status(server.pid(), "VmRSS"));
    let ledger = server.get("/ledger").json();
    for term in ledger["terms"].as_array().unwrap() {
        let of = |row: &&Value| row["name"] == term["name"];
        let own = plan["terms"].as_array().unwrap().iter().find(of).unwrap();
        if term["name"] != "runtime" {
            assert_eq!(own["bytes"], term["bytes"], "{term}");
        }
    }
    // And the live server's figures are read.
    let url = format!("http://{}", server.address);
    let found = json(&["diagnose", &url]);
    let limiting = found["limiting_term"].as_str().unwrap();
    assert!(["queue", "prefill compute"].contains(&limiting), "{found}");
    assert_eq!(found["terms"][0]["name"], "weights");
}

/// Bytes of every term of a server are those of the plan, however it keeps keys and values and whoever
/// guesses ahead.
#[test]
fn a_server_of_every_kind_allocates_its_plan() {
    let (model, draft) = (fixture("mistral"), fixture("llama"));
    for (own, more) in [
        (&model, &["--kv", "q8"][..]),
        (&model, &["--kv", "f16", "--page-tokens", "8", "--draft-tokens", "3"]),
        (&draft, &["--draft", &draft, "--kv", "q8"]),
    ] {
        let both = [more, &["--threads", "2", "--step-tokens", "64"]].concat();
        let words = ["plan", "serve", own, "--context", "48", "--requests", "3"];
        let plan = json(&[&words[..], &both].concat());
        let server = Server::start(
            own,
            &[&["--kv-tokens", "144", "--max-sequences", "3"][..], &both].concat(),
        );
        let ledger = server.get("/ledger").json();
        let rows = ledger["terms"].as_array().unwrap();
        for row in
            rows.iter().filter(|row| row["name"] != "runtime" && row["name"] != "mapped files")
        {
            let of = |term: &&Value| term["name"] == row["name"];
            let term = plan["terms"].as_array().unwrap().iter().find(of);
            assert_eq!(term.unwrap()["bytes"], row["bytes"], "{more:?}: {row}");
        }
    }
}

#[test]
fn keys_stay() {
    let plan = json(&["plan", "serve", "qwen3-8b", "--budget", "48GiB", "--machine", "rtx-4090"]);
    for key in ["terms", "total_bytes", "fits", "limiting_term", "levers", "parameters", "times"] {
        assert!(!plan[key].is_null(), "{key}: {plan}");
    }
    // Where no budget is given, a machine's memory is one.
    let on = |machine: &str| json(&["plan", "serve", "qwen3-8b", "--machine", machine]);
    assert_eq!(
        (on("rtx-4090")["fits"].clone(), on("t4")["fits"].clone()),
        (json!(true), json!(false))
    );
    assert_eq!(on("t4")["budget_bytes"], 16_000_000_000u64);
    assert_eq!(on("epyc-9654")["fits"], Value::Null);
    assert_eq!(plan["parameters"], 8_190_735_360u64);
    assert_eq!(plan["terms"][0], json!({"name": "weights", "bytes": 16_381_470_720u64}));
    assert_eq!(plan["kv_bytes_per_token"], 147_456);
    let words = ["plan", "train", "qwen3-8b", "--zero", "3", "--ranks", "4", "--budget", "64GB"];
    let plan = json(&words);
    assert_eq!(plan["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(plan["ranks"][3]["terms"], plan["terms"]);
    assert!(number(&plan["communication_bytes_per_step"]) > 4e10);
    for list in ["fit", "fail"] {
        for way in plan[list].as_array().unwrap() {
            let over = number(&way["total_bytes"]) > 64e9;
            assert_eq!(over, list == "fail", "{way}");
            assert!(!way["reason"].as_str().unwrap().is_empty());
        }
    }
    // Where this program runs the training, what is found is by the same lists as the plan.
    let words = ["plan", "train", "email-transformer", "--batch", "64", "--budget", "96MiB"];
    let own = json(&words);
    assert_eq!(own["fit"][0]["flags"], "--batch 64 --recompute none");
    assert_eq!(own["fit"][0]["total_bytes"], own["total_bytes"]);
    let states =
        json(&["plan", "train", "7.5e9", "--as", "zero-paper", "--zero", "1", "--ranks", "64"]);
    assert_eq!(states["total_bytes"], 31_406_250_000u64);
}

/// The keys that every plan, ledger and diagnosis has.
#[track_caller]
fn balanced(found: &Value) {
    let terms = found["terms"].as_array().unwrap();
    assert!(terms.iter().all(|term| term["name"].is_string()), "{found}");
    let sum: f64 = terms.iter().map(|term| number(&term["bytes"])).sum();
    assert_eq!(sum, number(&found["total_bytes"]), "{found}");
    assert!(!found["limiting_term"].as_str().unwrap().is_empty(), "{found}");
    assert!(found["levers"].is_array(), "{found}");
    for key in ["fits", "parameters"] {
        assert!(found.get(key).is_some(), "{key}: {found}");
    }
    for lever in found["levers"].as_array().unwrap() {
        for key in ["change", "term", "costs", "recheck"] {
            assert!(!lever[key].as_str().unwrap().is_empty(), "{key}: {lever}");
        }
        assert!(lever["saves_bytes"].is_u64() || lever["saves_seconds"].is_f64(), "{lever}");
    }
}

#[test]
fn every_answer_has_the_same_keys() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama");
    let plans = [
        "plan serve qwen3-8b",
        "plan train qwen3-8b --ranks 2 --zero 1",
        "plan train email-transformer --ranks 2 --zero 2",
        "plan train qwen3-8b --as deepspeed --zero 2 --ranks 4",
        "plan train 7.5e9 --as zero-paper --zero 2 --ranks 64",
        "plan fleet qwen3-8b --machine t4 --requests 20",
    ];
    let mut found: Vec<Value> = Vec::new();
    for plan in plans {
        found.push(json(&plan.split(' ').collect::<Vec<_>>()));
    }
    let fleet = ["plan", "fleet", &model, "--calibrate", "--requests", "8", "--kv-tokens", "512"];
    let fleet = json(&[&fleet[..], &["--prompt-tokens", "8", "--max-tokens", "4"]].concat());
    assert_eq!(number(&fleet["fleet_bytes"]), number(&fleet["total_bytes"]));
    found.push(fleet);
    let ledger = folder.path().join("ledger");
    std::fs::create_dir(&ledger).unwrap();
    let flag = format!("--ledger={}", ledger.display());
    works(&["generate", &model, "some text", "--max-tokens", "4", &flag]);
    let path = ledger.join("ledger.json");
    found.push(serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap());
    assert_eq!(found.last().unwrap()["fits"], true);
    let path = path.to_str().unwrap();
    found.push(json(&["diagnose", path]));
    found.push(json(&["diagnose", path, "--after", path]));
    // A diagnosis of a plan goes by its levers.
    let plan = folder.path().join("plan.json");
    std::fs::write(&plan, found[1].to_string()).unwrap();
    let read = json(&["diagnose", plan.to_str().unwrap()]);
    assert_eq!(read["ranks"], found[1]["ranks"]);
    assert!(read["levers"].to_string().contains("--zero 3"), "{read}");
    found.push(read);
    found.iter().for_each(balanced);
    for training in &found[1..3] {
        assert_eq!(training["ranks"].as_array().unwrap().len(), 2);
        assert!(number(&training["communication_bytes_per_step"]) > 0.0);
    }
}

#[test]
fn ranks_are_counted_by_the_lists_that_they_allocate() {
    let base =
        "plan train email-transformer --batch 8 --length 64 --precision f32 --ranks 4 --zero 2";
    let words: Vec<&str> = base.split(' ').collect();
    let own = json(&words);
    assert_eq!(own["counted_by"], "the trainer's lists");
    let formula = json(&[&words[..], &["--by", "formula"]].concat());
    assert_eq!(formula["counted_by"], "formulas");
    // What four threads of one process allocate together, as the run itself measured it.
    for (zero, trained, planned) in
        [("2", &[][..], &[][..]), ("0", &["--pieces", "4"][..], &["--pieces"][..])]
    {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let (config, out) = (folder.path().join("small.toml"), out.to_str().unwrap());
        std::fs::write(&config, common::SMALL).unwrap();
        let config = config.to_str().unwrap();
        let words =
            ["train", "--data", common::data(), "--config", config, "--out", out, "--quiet"];
        let ranks = ["--ranks", "4", "--zero", zero];
        works(&[&words[..], &ranks, &["--max-steps", "2"], trained].concat());
        let text = std::fs::read_to_string(Path::new(out).join("ledger.json")).unwrap();
        let ledger: Value = serde_json::from_str(&text).unwrap();
        balanced(&ledger);
        assert_eq!(ledger["ranks"].as_array().unwrap().len(), 4);
        assert!(number(&ledger["communication_bytes_per_step"]) > 0.0);
        let words = ["plan", "train", out, "--batch", "4", "--length", "23", "--precision", "f32"];
        let plan = json(&[&words[..], &ranks, planned].concat());
        let of_all = |found: &Value, name: &str| -> f64 {
            let ranks = found["ranks"].as_array().unwrap().iter();
            let terms = ranks.flat_map(|rank| rank["terms"].as_array().unwrap());
            terms.filter(|term| term["name"] == name).map(|term| number(&term["bytes"])).sum()
        };
        for term in ["weights", "gradients", "optimizer", "communication", "activations"] {
            let (predicted, measured) = (of_all(&plan, term), of_all(&ledger, term));
            assert!((predicted / measured - 1.0).abs() < 0.03, "{term}: {predicted} {measured}");
        }
    }
    let words =
        ["plan", "train", "email-transformer", "--by", "engine", "--ranks", "2", "--zero", "1"];
    // 4·(2·(64 + 64) + 2·(64 + 64) + 2·(64 + 256)) a layer learn, of two layers.
    const LEARN: f64 = 9216.0;
    let base = number(&json(&words)["parameters"]);
    for (stage, sent, weights, gradients, optimizer) in
        [("1", 8.0, 4.0, 4.0, 4.0), ("2", 8.0, 4.0, 2.0, 4.0), ("3", 12.0, 4.0, 2.0, 4.0)]
    {
        let found = json(&[&words[..6], &["2", "--zero", stage, "--lora", "4"]].concat());
        let term = |name: &str| {
            let terms = found["terms"].as_array().unwrap();
            terms
                .iter()
                .find(|term| term["name"] == name)
                .map_or(0.0, |term| number(&term["bytes"]))
        };
        // Half of each by two ranks; at stage 3 the layers take turns beside the frozen weights.
        assert_eq!(term("weights"), 4.0 * base + weights * LEARN, "{found}");
        assert_eq!(term("gradients"), gradients * LEARN, "{found}");
        assert_eq!(term("optimizer"), optimizer * LEARN, "{found}");
        assert_eq!(number(&found["communication_bytes_per_step"]), sent * LEARN / 2.0);
    }
    // Matrices are whole under Muon: the plan is of the rank that holds most.
    let found = json(&[&words[..], &["--ranks", "4", "--optimizer", "muon"][2..]].concat());
    let all: Vec<f64> =
        found["ranks"].as_array().unwrap().iter().map(|r| number(&r["total_bytes"])).collect();
    assert_eq!(number(&found["total_bytes"]), all.iter().copied().fold(0.0, f64::max));
}

#[test]
fn what_is_found_backwards_fits_and_one_more_does_not() {
    let plan = json(&["plan", "serve", "qwen3-8b", "--requests", "4", "--budget", "24GiB"]);
    let context = plan["largest_context"].as_u64().unwrap();
    let fits = |context: u64| {
        let context = context.to_string();
        let words =
            ["plan", "serve", "qwen3-8b", "--requests", "4", "--budget", "24GiB", "--context"];
        json(&[&words[..], &[&context]].concat())["fits"].clone()
    };
    assert_eq!((fits(context), fits(context + 1)), (json!(true), json!(false)));
}

#[test]
fn fewer_bits_are_advised_with_their_measured_cost_only() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("mine.txt");
    std::fs::write(&text, "hello there, this is a text of one's own. ".repeat(8)).unwrap();
    let page =
        concat!(env!("CARGO_MANIFEST_DIR"), "/crates/plan/tests/situations/small-batch.prom");
    let (original, instead) = (fixture("qwen3"), fixture("mistral"));
    let ask = |other: &str| {
        let text = text.to_str().unwrap();
        json(&["diagnose", page, "--original", &original, "--instead", other, "--text", text])
    };
    // The same weights save nothing.
    let same = ask(&original);
    let refused = same["refused"].as_array().unwrap();
    assert!(
        refused.iter().any(|r| r["why"].as_str().unwrap().contains("no fewer bytes")),
        "{same}"
    );
    // Others are advised if they save anything, cost beside gain.
    let bytes =
        |model: &str| json(&["plan", "serve", model])["terms"][0]["bytes"].as_u64().unwrap();
    let other = ask(&instead);
    let of = |list: &str| {
        let all = other[list].as_array().unwrap().iter();
        all.filter(|l| l["change"].as_str().unwrap().contains("mistral")).count()
    };
    let saves = bytes(&instead) < bytes(&original);
    assert_eq!((of("levers"), of("refused")), if saves { (1, 0) } else { (0, 1) }, "{other}");
    let llama = fixture("llama");
    let words = ["diagnose", page, "--original", &original, "--instead", &llama, "--text"];
    autoreg(&[&words[..], &[text.to_str().unwrap()]].concat())
        .refused(2, &["different tokenizers"]);
    let lone = autoreg(&["diagnose", page, "--original", &original]);
    lone.refused(2, &["--instead", "--text"]);
    // Keys and values in fewer bits, measured on the text, with and without a change that was made.
    let pool = page.replace("small-batch", "small-pool");
    let words = ["diagnose", &pool, "--original", &original, "--text", text.to_str().unwrap()];
    let kv = json(&[&words[..], &["--kv", "q8"]].concat());
    let lever = kv["levers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["change"].as_str().unwrap().contains("--kv q8"));
    assert!(lever.unwrap()["costs"].as_str().unwrap().contains("nats a token"), "{kv}");
    let both = json(&[&words[..], &["--kv", "q8", "--after", &pool]].concat());
    assert!(number(&both["quality"]["divergence_nats"]) > 0.0, "{both}");
    assert!(number(&both["perplexity"]["before"]) > 1.0);
}

#[test]
fn eighty_columns_are_enough() {
    for words in [
        "plan serve qwen3-8b --context 32768 --requests 16 --budget 48GiB --machine h100-sxm",
        "plan train llama-3-70b --ranks 64 --zero 2 --accumulate 8 --budget 80GB --batch 8",
        "plan train qwen3-8b --as deepspeed --zero 3 --ranks 8",
        "plan train gemma-2-2b --recompute attention --machine a100-80gb --network 25GB --ranks 2",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let ran = works(&words);
        let wide = ran.out.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{words:?}");
        assert!(ran.out.contains("GB (") || ran.out.contains("TB ("), "{}", ran.out);
    }
}

#[test]
fn a_fleet_is_as_large_as_its_objective_needs() {
    let base = "plan fleet llama-3-8b --machine h100-sxm --rate 20 --requests 400 --prompt-tokens \
                64-512 --max-tokens 128 --max-sequences 32 --objective 500,50";
    let words: Vec<&str> = base.split_whitespace().collect();
    let found = json(&words);
    let needed = found["replicas_needed"].as_u64().unwrap();
    assert!((1..=64).contains(&needed), "{found}");
    assert!(number(&found["seen"]["first_token"]["p90_ms"]) <= 500.0);
    let again = json(&words);
    assert_eq!(found, again, "the same seed gives the same");
    let fewer = json(&[
        "plan",
        "fleet",
        "llama-3-8b",
        "--machine",
        "t4",
        "--rate",
        "1",
        "--requests",
        "20",
    ]);
    assert!(number(&fewer["seen"]["whole"]["p50_ms"]) > number(&found["seen"]["whole"]["p50_ms"]));
}

#[test]
fn training_steps_over_ranks_are_simulated() {
    let base = "plan fleet train qwen3-8b --zero 3 --ranks 8 --machine h100-sxm --network 25GB";
    let words: Vec<&str> = base.split(' ').collect();
    let found = json(&words);
    let rows = found["steps_over_ranks"].as_array().unwrap();
    let of = |i: usize, key: &str| number(&rows[i][key]);
    assert_eq!(rows.iter().map(|r| number(&r["ranks"])).collect::<Vec<_>>(), [1.0, 2.0, 4.0, 8.0]);
    assert_eq!((of(0, "network_ms"), of(0, "efficiency")), (0.0, 1.0));
    // Communication as counted, at so many bytes a second; latency comes on top.
    let sent = number(&found["communication_bytes_per_step"]) / 25e9 * 1e3;
    assert!(of(3, "network_ms") >= sent && of(3, "network_ms") < 1.2 * sent, "{sent}: {found}");
    let beside = json(&[&words[..], &["--overlap"]].concat());
    let step = |found: &Value| number(&found["steps_over_ranks"][3]["step"]["p50_ms"]);
    assert!(step(&beside) < step(&found));
    assert!(number(&found["total_bytes"]) > 1e9, "bytes are told as by `plan train`");
}

#[test]
fn a_simulation_is_held_against_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama");
    let server = Server::start(&model, &["--threads", "1"]);
    let url = format!("http://{}", server.address);
    let load =
        ["--clients", "1,3", "--requests", "6", "--prompt-tokens", "20", "--max-tokens", "5"];
    let seen = json(&[&["bench", "serve", &url, "--vocabulary", "60"][..], &load].concat());
    let path = folder.path().join("seen.json");
    std::fs::write(&path, seen.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let found =
        json(&["plan", "fleet", &model, "--calibrate", "--threads", "1", "--against", path]);
    let rows = found.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, load) in rows.iter().zip(seen.as_array().unwrap()) {
        assert_eq!(row["arrivals"], load["arrivals"]);
        let first = &row["first_token"];
        assert_eq!(first["measured_ms"], load["time_to_first_token"]["p50_ms"]);
        let ratio = number(&first["predicted_ms"]) / number(&first["measured_ms"]);
        assert!((number(&first["ratio"]) - ratio).abs() < 1e-9 && ratio > 0.0, "{row}");
    }
    std::fs::write(path, "[]").unwrap();
    autoreg(&["plan", "fleet", &model, "--calibrate", "--against", path]).refused(2, &["no load"]);
}

#[test]
fn tiles_give_the_same_outputs_in_memory_that_does_not_grow() {
    let rows = json(&["bench", "attention-memory"]);
    let rows = rows.as_array().unwrap();
    let lengths: Vec<f64> = rows.iter().map(|row| number(&row["length"])).collect();
    assert_eq!(lengths, [512.0, 1024.0, 2048.0, 4096.0, 8192.0]);
    let of = |i: usize, way: &str, key: &str| number(&rows[i][way][key]);
    for (i, row) in rows.iter().enumerate() {
        assert!(number(&row["largest_difference"]) < 1e-5, "{row}");
        let (counted, measured) =
            (of(i, "stored", "workspace_bytes"), of(i, "stored", "measured_bytes"));
        // Pages of 2 MiB may round up what is measured.
        assert!((measured - counted).abs() < 0.1 * counted + 5e6, "{row}");
        assert!(
            of(i, "tiled", "measured_bytes") < of(i, "tiled", "workspace_bytes") + 3e6,
            "{row}"
        );
    }
    for (i, length) in lengths.iter().enumerate() {
        assert_eq!(of(i, "tiled", "workspace_bytes"), of(0, "tiled", "workspace_bytes"));
        let scores = length * length * 4.0;
        assert!(of(i, "stored", "workspace_bytes") >= scores);
        assert!(of(i, "stored", "moved_bytes") > 4.0 * scores);
        assert!(of(i, "tiled", "moved_bytes") < of(i, "stored", "moved_bytes") / 3.0);
    }
}

#[test]
fn steps_that_were_timed_here_drive_a_fleet() {
    let model = fixture("llama");
    let words = ["plan", "fleet", &model, "--calibrate", "--clients", "3", "--requests", "30"];
    let more =
        ["--prompt-tokens", "~20", "--max-tokens", "4-9", "--threads", "1", "--turnaround", "0"];
    let found = json(&[&words[..], &more[..]].concat());
    assert_eq!(found["seen"]["requests"], 30);
    let steps = found["steps"]["by_rows"].as_array().unwrap();
    assert!(steps.len() > 4 && steps.iter().all(|s| number(&s[1]) > 0.0), "{found}");
    assert!(number(&found["seen"]["busy_share"]) > 0.99, "clients leave no server idle");
    // What was seen of a server beside steps; a request's way is no negative time.
    let beside = &found["steps"]["beside"];
    let tokens: Vec<f64> =
        beside["steps"].as_array().unwrap().iter().map(|step| number(&step[0])).collect();
    assert_eq!(tokens, [1.0, 2.0, 4.0, 8.0, 16.0]);
    assert!(number(&beside["request_s"]) > 0.0 && number(&beside["turnaround_s"]) > 0.0, "{found}");
    let words = ["plan", "fleet", &model, "--calibrate", "--clients", "2", "--requests", "6"];
    let told = works(&[&words[..], &["--prompt-tokens", "8", "--max-tokens", "4"]].concat()).out;
    assert!(told.contains("beside a step: ") && told.contains("clients on this machine"), "{told}");
    assert_eq!(found["replicas_needed"], Value::Null);
}

#[test]
fn a_recurrent_network_is_timed_without_a_past() {
    let folder = tempfile::tempdir().unwrap();
    let (run, page) = (folder.path().join("run"), folder.path().join("page.html"));
    let (run, page) = (run.to_str().unwrap(), page.to_str().unwrap());
    let words = ["train", "--data", common::data(), "--model", "rnn", "--max-steps", "1"];
    works(&[&words[..], &["--out", run, "--quiet"]].concat());
    let words = ["plan", "fleet", run, "--calibrate", "--requests", "8", "--prompt-tokens", "8"];
    let found = json(&[&words[..], &["--max-tokens", "4", "--html", page]].concat());
    assert_eq!(found["steps"]["past_s"], 0.0);
    assert!(number(&found["seen"]["whole"]["p50_ms"]) > 0.0 && number(&found["total_bytes"]) > 0.0);
}

#[test]
fn every_model_and_machine_has_its_figures() {
    let models = json(&["plan", "models"]);
    assert!(models.as_array().unwrap().len() >= 22);
    let machines = json(&["plan", "machines"]);
    for machine in machines.as_array().unwrap() {
        let name = machine["name"].as_str().unwrap();
        let plan = json(&["plan", "serve", "llama-3.2-1b", "--machine", name]);
        assert!(number(&plan["times"]["token_s"]) > 0.0);
        assert!(machine["source"].as_str().unwrap().contains("peak"));
    }
}

#[test]
fn doctors_file_is_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/machine.json");
    let path = path.to_str().unwrap();
    let told = json(&["doctor", "--runs", "1", "--threads", "1", "--out", path]);
    for key in ["bandwidth_bytes_per_second", "flops_per_second", "quantised_flops_per_second"] {
        assert!(number(&told[key]) > 1e6, "{key}: {told}");
    }
    let plan = json(&["plan", "serve", "gpt2", "--machine", path]);
    assert!(plan["times"]["source"].as_str().unwrap().contains("measured"));
    // A step cannot be quicker than what it reads.
    let read = 2.0 * 124_439_808.0 / number(&told["bandwidth_bytes_per_second"]);
    assert!(number(&plan["times"]["token_s"]) > 0.9 * read);
}

#[test]
fn what_makes_no_plan_is_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let lacking = file("config.json", r#"{"model_type": "llama", "hidden_size": 64}"#);
    let page = file("page.html", "<html>\n<body>404</body>");
    let odd = file("odd.prom", "vllm:num_requests_running NaN\n");
    let figures = file("some.prom", "vllm:e2e_request_latency_seconds_count 1\n");
    let ledger = file("run.json", r#"{"terms": [{"name": "gradients", "bytes": 4}]}"#);
    let machine = file("machine.json", r#"{"name": "x"}"#);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (asked, said) in [
        (words("plan serve qwen3-9b"), &["qwen3-9b", "qwen3-8b"][..]),
        (words(&format!("plan serve {lacking}")), &["num_attention_heads", "missing"]),
        (words("plan serve nowhere.gguf"), &["nowhere.gguf", "No such file"]),
        (words("plan serve qwen3-8b --budget 24G"), &["24GB (10^9)", "24GiB (2^30)"]),
        (words("plan train qwen3-8b --budget 24gb"), &["bits or bytes"]),
        (words("plan serve qwen3-8b --context 18446744073709551615"), &["overflows 64 bits"]),
        (words("plan serve qwen3-8b --context 0"), &["--context is 0"]),
        (words("plan serve qwen3-8b --requests 0"), &["--requests is 0"]),
        (words("plan train qwen3-8b --zero 4"), &["--zero is 4"]),
        (words("plan train qwen3-8b --lora 99999"), &["--lora is 99999", "4096"]),
        (words("plan train qwen3-8b --as deepspeed"), &["stages 2 and 3"]),
        (words("plan train qwen3-8b --as zero-papers"), &["zero-paper"]),
        (words("plan serve qwen3-8b --weights q3"), &["q4_0"]),
        (words("plan serve qwen3-8b --machine rtx-4091"), &["rtx-4090"]),
        (words(&format!("plan serve gpt2 --machine {machine}")), &["autoreg doctor"]),
        (words("plan train email-rnn --by formula"), &["rnn"]),
        (words("plan train email-rnn --by engine --precision bf16"), &["--by engine", "bf16"]),
        (words("plan train mixtral-8x7b --by engine"), &["mixture of experts"]),
        (words("plan fleet gpt2 --machine t4 --rate 0"), &["--rate"]),
        (words("plan fleet gpt2 --machine t4 --rate NaN"), &["--rate is NaN"]),
        (words("plan fleet gpt2 --machine t4 --rate 1e-300"), &["--rate"]),
        (words("plan fleet gpt2 --machine t4 --price NaN"), &["--price"]),
        (words("plan fleet gpt2 --machine t4 --max-sequences 0"), &["--max-sequences"]),
        (words("plan fleet gpt2 --machine t4 --kv-tokens 0"), &["--kv-tokens"]),
        (words("plan fleet gpt2 --machine t4 --kv-tokens 100"), &["is 192", "cache holds 112"]),
        (words("plan fleet gpt2 --machine t4 --prompt-tokens 9-2"), &["--prompt-tokens"]),
        (words("plan fleet gpt2"), &["--machine", "--calibrate"]),
        (words("plan fleet train gpt2 --ranks 2"), &["--machine", "--network"]),
        (words("plan serve qwen3-8b --by engine --kv bf16"), &["--kv is bf16", "f32, f16 or q8_0"]),
        (words("plan serve gpt2 --html /nowhere/x.html"), &["/nowhere/x.html"]),
        (words(&format!("diagnose {page}")), &["line 1 is no figure"]),
        (words(&format!("diagnose {odd}")), &["vllm:num_requests_running is NaN"]),
        (words(&format!("diagnose {ledger} --after {figures}")), &["a training", "a server"]),
        (words(&format!("diagnose {lacking}")), &["expected a ledger.json"]),
        (words("diagnose /nowhere"), &["/nowhere"]),
        (words("diagnose https://127.0.0.1:1"), &["speaks no TLS"]),
        (words("diagnose http://127.0.0.1:1"), &["is the server up"]),
    ] {
        autoreg(&asked).refused(2, said);
    }
}
