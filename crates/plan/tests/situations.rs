//! Situations that were recorded by `scripts/record-situations`, each with its verdict.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use plan::diagnose::{
    Bits, Diagnosis, Evidence, Quality, compare, compare_knowing, comparison_page, diagnose,
    diagnose_knowing, diagnosis_page,
};
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/situations").join(name)
}

fn evidence(name: &str) -> Evidence {
    Evidence::open(&path(name)).unwrap()
}

/// The verdict is this; the first lever is one of these and the refused ones have these among them.
#[track_caller]
fn check(name: &str, limiting: &str, first: &str, refused: &str) -> Diagnosis {
    let found = diagnose(&evidence(name)).unwrap();
    assert_eq!(found.balance.limiting_term, limiting, "{name}: {:?}", found.evidence);
    assert!(found.balance.levers[0].change.contains(first), "{name}: {:?}", found.balance.levers);
    assert!(
        found.refused.iter().any(|r| r.change.contains(refused)),
        "{name}: {:?}",
        found.refused
    );
    assert!(
        found.balance.levers.iter().all(|l| !found.refused.iter().any(|r| r.change == l.change))
    );
    let gain = |i: usize| {
        let lever = &found.balance.levers[i];
        lever.saves_seconds.unwrap_or_else(|| lever.saves_bytes.unwrap() as f64)
    };
    let page = diagnosis_page(&evidence(name), &found);
    assert!(page.contains("What would not help") && !page.contains("src="), "{page}");
    assert_eq!(page.contains("<script"), found.balance.total_bytes > 0, "{page}");
    assert_eq!(page.contains("Where the bytes are"), found.balance.total_bytes > 0);
    assert!((1..found.balance.levers.len()).all(|i| gain(i - 1) >= gain(i) && gain(i) > 0.0));
    assert!(found.text().lines().all(|line| line.chars().count() <= 80), "{}", found.text());
    found
}

#[test]
fn long_prompts() {
    let found = check("long-prompts.prom", "prefill compute", "put first", "K/V in fewer bits");
    // The server told its bytes with its figures.
    assert!(found.balance.terms.of("weights") > 90_000_000);
}

#[test]
fn too_many_requests() {
    check("too-many-requests.prom", "queue", "answers half as long", "more --kv-tokens");
}

#[test]
fn a_small_batch() {
    let found = check("small-batch.prom", "decode bandwidth", "--draft-tokens", "more --kv-tokens");
    let fewer_bits = found.refused.iter().find(|r| r.change == "weights in fewer bits").unwrap();
    assert!(fewer_bits.why.contains("on your own text"));
    // With its cost measured it is advised, cost beside gain.
    let quality = Quality {
        bits: Bits::Weights,
        original: "big.gguf".to_owned(),
        instead: "small.gguf".to_owned(),
        text: "mine.txt".to_owned(),
        tokens: 1000,
        perplexity: 20.0,
        perplexity_instead: 21.5,
        divergence_nats: 0.03,
        same_best_share: 0.95,
        bytes: 400,
        bytes_instead: 100,
    };
    let recorded = evidence("small-batch.prom");
    let knowing = diagnose_knowing(&recorded, Some(&quality)).unwrap();
    let lever = knowing.balance.levers.iter().find(|l| l.change.contains("small.gguf")).unwrap();
    let decode = recorded.serving.unwrap().decode_s;
    assert_eq!(lever.saves_seconds, Some(decode * 0.75));
    assert!(
        lever.costs.contains("21.500 instead of 20.000") && lever.costs.contains("0.0300 nats")
    );
    assert!(knowing.refused.iter().all(|r| r.change != "weights in fewer bits"));
    // Where weights are not what limits, it stays refused.
    let pool = diagnose_knowing(&evidence("small-pool.prom"), Some(&quality)).unwrap();
    assert!(pool.refused.iter().any(|r| r.change == "weights in fewer bits"));
}

#[test]
fn a_small_pool() {
    let found = check("small-pool.prom", "K/V pool", "twice --kv-tokens", "more --max-sequences");
    let refused = found.refused.iter().find(|r| r.change == "K/V in fewer bits").unwrap();
    assert!(refused.why.contains("on your own text"));
    // Keys and values in fewer bits are advised with their cost, of the pool's bytes or its waits.
    let quality = Quality {
        bits: Bits::Kv,
        original: "m.gguf".to_owned(),
        instead: "m.gguf with --kv q8".to_owned(),
        text: "mine.txt".to_owned(),
        tokens: 1000,
        perplexity: 20.0,
        perplexity_instead: 20.1,
        divergence_nats: 0.001,
        same_best_share: 0.99,
        bytes: 400,
        bytes_instead: 100,
    };
    let recorded = evidence("small-pool.prom");
    let knowing = diagnose_knowing(&recorded, Some(&quality)).unwrap();
    let lever = knowing.balance.levers.iter().find(|l| l.change.contains("--kv q8")).unwrap();
    let serving = recorded.serving.clone().unwrap();
    assert_eq!(lever.saves_seconds, Some(serving.queue_s + serving.prefill_s));
    let large = evidence("large-pool.ledger.json");
    let knowing = diagnose_knowing(&large, Some(&quality)).unwrap();
    let lever = knowing.balance.levers.iter().find(|l| l.change.contains("--kv q8")).unwrap();
    assert_eq!(lever.saves_bytes, Some(large.terms.of("K/V cache") / 4 * 3));
    // Beside a change that was made, quality stands with memory and time.
    let both = compare_knowing(&recorded, &recorded, Some(quality)).unwrap();
    let perplexity = both.perplexity.clone().unwrap();
    assert_eq!((perplexity.before, perplexity.after), (20.0, 20.1));
    assert!(both.verdict.contains("0.0010 nats") && both.text().contains("perplexity"));
}

#[test]
fn a_large_pool() {
    let found = check("large-pool.ledger.json", "K/V pool", "half --kv-tokens", "weights");
    assert!(found.evidence.iter().any(|line| line.contains("0 of 2048 pages")));
}

#[test]
fn many_rows_at_once() {
    let found = check("many-rows", "activations", "--recompute block", "more ZeRO");
    let rows = found.balance.levers.iter().find(|l| l.change == "half --micro-batch").unwrap();
    assert_eq!(rows.saves_bytes, Some(found.balance.terms.of("activations") / 2));
}

#[test]
fn a_wide_model() {
    check("wide-model", "optimizer state", "adapters", "--recompute");
}

#[test]
fn big_logits() {
    let found = check("big-logits.json", "logits", "--logits chunked", "more ZeRO");
    assert!(found.balance.levers[0].saves_bytes.unwrap() > found.balance.total_bytes / 2);
}

#[test]
fn a_slow_network() {
    check("slow-network.json", "communication", "twice", "more ranks");
}

#[test]
fn a_slow_disk() {
    let line = |step: u64| {
        let s = step as f64;
        format!(
            r#"{{"step": {step}, "seconds": {}, "data_seconds": {}, "tokens": {}}}"#,
            2.0 * s,
            1.2 * s,
            100 * step
        )
    };
    let log = format!("{}\n{}\n", line(1), line(10));
    let found = diagnose(&Evidence::of_text("metrics.jsonl", &log).unwrap()).unwrap();
    assert_eq!(found.balance.limiting_term, "data loading");
    assert!(
        (found.balance.levers[0].saves_seconds.unwrap() - 1.2).abs() < 1e-9,
        "{:?}",
        found.balance.levers
    );
    assert!(found.refused.iter().any(|r| r.change.contains("precision")));
}

#[test]
fn a_longer_prompt_takes_keys_and_values_not_weights_and_not_gradients() {
    let (short, long) = (evidence("prompt-short.json"), evidence("prompt-long.json"));
    let found = compare(&short, &long).unwrap();
    assert_eq!(found.changed_term, "K/V cache");
    let of = |name: &str| found.bytes.iter().find(|c| c.name == name).unwrap().difference;
    assert_eq!(of("weights"), 0.0);
    assert!(of("K/V cache") > 0.9 * found.all_bytes.difference && of("workspace") > 0.0);
    assert!(found.bytes.iter().all(|c| c.name != "gradients"));
    assert!(found.verdict.contains("weights are the same"), "{}", found.verdict);
    let sum: f64 = found.bytes.iter().map(|c| c.difference).sum();
    assert_eq!(sum, found.all_bytes.difference);
    assert!(found.text().lines().all(|line| line.chars().count() <= 80), "{}", found.text());
    // A long prompt alone: K/V, and weights are told not to be touched.
    check("prompt-long.json", "K/V pool", "half --kv-tokens", "--zero");
}

#[test]
fn times_add_up_and_the_change_is_judged() {
    let (before, after) = (evidence("too-many-requests.prom"), evidence("small-batch.prom"));
    let found = compare(&before, &after).unwrap();
    assert_eq!((found.limited_before.as_str(), found.worked), ("queue", Some(true)));
    assert_eq!(found.changed_term, "queue");
    let sum: f64 = found.milliseconds.iter().map(|c| c.difference).sum();
    let total = found.total_ms.clone().unwrap();
    assert!((sum - total.difference).abs() < 1e-6 * total.before);
    let page = comparison_page(&found);
    assert!(page.contains("The change worked") && page.matches("<svg").count() >= 2, "{page}");
    let back = compare(&after, &before).unwrap();
    assert_eq!(back.worked, Some(true), "decode is what limited: {}", back.verdict);
    let same = compare(&before, &before).unwrap();
    assert_eq!((same.worked, same.changed_term.as_str()), (Some(false), "nothing"));
    // Memory and quality beside each other.
    let runs = compare(&evidence("many-rows"), &evidence("wide-model")).unwrap();
    assert_eq!(runs.worked, Some(true));
    assert!(runs.valid_loss.is_some() && runs.tokens_per_second.is_some());
    let sum: f64 = runs.bytes.iter().map(|c| c.difference).sum();
    assert_eq!(sum, runs.all_bytes.difference);
}

#[test]
fn what_holds_no_figures_is_refused() {
    for (text, word) in [
        ("<html><body>Not found</body></html>", "is no figure"),
        ("go_threads 7\n", "vllm:"),
        ("{}", "no rows"),
        ("{\"rows\": [{\"term\": \"weights\"}]}", "without its name and its bytes"),
        ("{\"step\": 1}\n{\"step\": 2}\n", "no line with seconds"),
        ("{\"step\": 1}\nnonsense\n", "line 2"),
        ("", "found nothing"),
    ] {
        let error = Evidence::of_text("page", text).unwrap_err().to_string();
        assert!(error.starts_with("page: ") && error.contains(word), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let idle = "vllm:num_requests_running 0\n";
    let error = diagnose(&Evidence::of_text("page", idle).unwrap()).unwrap_err().to_string();
    assert!(error.contains("no request was answered yet"), "{error}");
}
