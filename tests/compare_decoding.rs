//! `autoreg compare-decoding` through the built binary, on a small model trained here.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "common/browser.rs"]
mod browser;
mod common;

use browser::Browser;
use common::{autoreg, data, json, mean, model, works};
use serde_json::Value;
use std::path::Path;

const MEASURES: [&str; 11] = [
    "distinct_1",
    "distinct_2",
    "distinct_3",
    "distinct_2_all_texts",
    "repetition_rate",
    "mean_logprob_nats",
    "length_tokens",
    "ended_share",
    "reference_overlap_f1",
    "reference_prefix_tokens",
    "ms_per_token",
];

/// The command's words, for 20 prompts of 3 tokens.
fn words<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["compare-decoding", model(), "--data", data(), "--quiet"];
    words.extend(["--prompts", "20", "--max-tokens", "12"]);
    if !more.contains(&"--prompt-tokens") {
        words.extend(["--prompt-tokens", "3"]);
    }
    words.extend(["--out", out.to_str().unwrap()]);
    words.extend(more);
    words
}

fn named<'a>(results: &'a Value, name: &str) -> &'a Value {
    results["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap()
}

#[test]
fn the_standard_rules_on_real_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let results = json(&words(&out, &[]));
    let written: Value =
        serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results, written);
    let names: Vec<&str> = results["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let expected = [
        "reference",
        "greedy",
        "T 0.7",
        "T 1.0",
        "top-k 40",
        "top-p 0.9",
        "min-p 0.05",
        "combined",
        "beam 4",
    ];
    assert_eq!(names, expected);
    for row in results["rows"].as_array().unwrap() {
        for measure in MEASURES {
            if !row[measure].is_null() {
                mean(&row[measure]);
            }
        }
    }
    assert_eq!((results["prompts"].as_u64(), &results["synthetic"]), (Some(20), &true.into()));
    let logprob = |name: &str| mean(&named(&results, name)["mean_logprob_nats"]);
    // What is likelier under the model: the best token each time rather than a draw at T = 1.
    assert!(logprob("greedy") > logprob("T 1.0"), "{} {}", logprob("greedy"), logprob("T 1.0"));
    assert!(logprob("T 0.7") > logprob("T 1.0"));
    assert!(mean(&named(&results, "beam 4")["length_tokens"]) <= 12.0);
    assert!(mean(&named(&results, "greedy")["ms_per_token"]) > 0.0);
    assert!(named(&results, "reference")["ms_per_token"].is_null());

    // What a rule wrote is what `generate` writes.
    for example in results["examples"].as_array().unwrap() {
        let prompt = example["prompt"].as_str().unwrap();
        if prompt.contains("<unk>") {
            continue;
        }
        let common = ["generate", model(), prompt, "--max-tokens", "12"];
        for (rule, flags) in [("greedy", &["--greedy"][..]), ("beam 4", &["--beam", "4"])] {
            let texts = example["texts"].as_array().unwrap();
            let one = texts.iter().find(|text| text["rule"] == rule).unwrap();
            let written = works(&[&common[..], flags].concat()).out;
            assert_eq!(one["text"].as_str().unwrap(), written.trim_end_matches('\n'), "{rule}");
        }
    }

    // Again, everything but the times is the same.
    let untimed = |results: &Value| {
        let mut results = results.clone();
        results["rows"].as_array_mut().unwrap().iter_mut().for_each(|row| {
            row["ms_per_token"].take();
        });
        results
    };
    let again = json(&words(&out, &["--threads", "1"]));
    assert_eq!(untimed(&results)["rows"], untimed(&again)["rows"]);
    let other = json(&words(&out, &["--seed", "5"]));
    assert_ne!(untimed(&results)["rows"], untimed(&other)["rows"]);
}

#[test]
fn a_table_a_page_and_rules_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let file = folder.path().join("rules.toml");
    let rules = "[[rule]]\nname = 'cool & calm'\nsettings = { temperature = 0.5, top_p = 0.9 }\n\
        [[rule]]\nname = 'best of 4'\nbest_of = 4\nlength_penalty = 0.6\n\
        [[rule]]\nname = 'beam 2'\nbeam = 2\n";
    std::fs::write(&file, rules).unwrap();
    let ran = works(&words(&out, &["--rules", file.to_str().unwrap()]));
    assert!(
        ran.out.starts_with("inference choices: same weights, different outputs"),
        "{}",
        ran.out
    );
    for line in ran.out.lines().filter(|line| !line.contains('/')) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let results: Value =
        serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["rows"].as_array().unwrap().len(), 4);
    assert!(named(&results, "best of 4")["rule"].as_str().unwrap().contains("best of 4 draws"));
    let page = out.join("report.html");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("cool &amp; calm") && text.contains("synthetic data"));
    let Some(browser) = Browser::find() else { return };
    let loaded = browser.load_and(
        &page,
        "say(document.title);
         say(document.querySelectorAll('svg.chart').length);
         for (const row of document.querySelectorAll('#results tbody tr'))
           say([...row.cells].map((cell) => (cell.querySelector('span') || cell).textContent).join('|'));",
    );
    assert!(loaded.console.is_empty(), "{:?}", loaded.console);
    let said: Vec<&str> = loaded.said().lines().collect();
    assert_eq!(said[0], "Inference choices: same weights, different outputs");
    assert_eq!(said[1], "7");
    let greedy: Vec<&str> = said[3].split('|').collect();
    assert_eq!(greedy[0], "cool &amp; calm");
    for (shown, measure) in greedy[1..].iter().zip(MEASURES) {
        let shown: f64 = shown.replace('−', "-").parse().unwrap();
        let found = mean(&named(&results, "cool & calm")[measure]);
        assert!((shown - found).abs() < 0.051, "{measure}: {shown} is not {found}");
    }
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let refused = |more: &[&str], said: &[&str]| {
        autoreg(&words(&out, more)).refused(2, said);
        assert!(!out.exists());
    };
    refused(&["--prompt-tokens", "23"], &["none of", "give fewer"]);
    refused(&["--prompt-tokens", "400"], &["401 tokens", "24 at most"]);
    let file = folder.path().join("rules.toml");
    let bad = |text: &str, said: &[&str]| {
        std::fs::write(&file, text).unwrap();
        refused(&["--rules", file.to_str().unwrap()], said);
    };
    bad("rule = []", &["no [[rule]]"]);
    bad("[[rule]]\nname = 'a'\nsettings = { temprature = 1 }", &["rules.toml", "temprature"]);
    bad("[[rule]]\nname = 'a'\nsettings = { top_p = 0.0 }", &["rule `a`", "top_p"]);
    bad("[[rule]]\nname = 'a'\nbeam = 0", &["rule `a`", "found 0"]);
    bad("[[rule]]\nname = 'a'\nbeam = 2\nbest_of = 2", &["rule `a`", "exclude"]);
    bad("[[rule]]\nname = 'a'\nlength_penalty = 1.0", &["rule `a`", "length_penalty"]);
    bad("[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'", &["two rules", "`a`"]);
    bad("[[rule]\n", &["rules.toml", "line 1"]);
    bad(
        "[[rule]]\nname = 'a'\nbeam = 2\nsettings = { temperature = 0.5 }",
        &["beam search", "0.5"],
    );
}
