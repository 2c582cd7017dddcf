//! The pages of `plan`, `plan fleet` and `diagnose` in a browser: sliders work the same figures out.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/browser.rs"]
mod browser;
mod common;
#[path = "common/http.rs"]
mod http;

use browser::Browser;
use common::{json, works};
use http::{Server, fixture};
use serde_json::{Value, json};

const HANDS: &str = "
const slide = (key, value) => {
    const control = document.getElementById(key);
    if (control.tagName === 'SELECT') control.value = value;
    else for (let i = 0; i <= Number(control.max); i++) {
        control.value = i;
        control.dispatchEvent(new Event('input'));
        if (now[key] === value) break;
    }
    control.dispatchEvent(new Event('input'));
};
say('first: ' + document.body.dataset.total);
MOVES
say('then: ' + document.body.dataset.total);
say('labels: ' + [...document.querySelectorAll('input, select')].every((e) => e.labels.length));
say('bars: ' + document.querySelectorAll('svg rect').length);
say('verdict: ' + document.getElementById('verdict').textContent);
say('the end');";

/// A plan's page, its sliders moved, against the plan of the same numbers.
fn slide(browser: &Browser, words: &str, moves: &[(&str, &str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("plan.html");
    let words: Vec<&str> = words.split(' ').collect();
    let html = ["--html", page.to_str().unwrap()];
    let first = json(&[&words[..], &html[..]].concat());
    let mut then = words.clone();
    let mut script = String::new();
    for (key, flag, value) in moves {
        match then.iter().position(|word| word == flag) {
            Some(at) => then[at + 1] = value,
            None => then.extend([*flag, *value]),
        }
        let value =
            if value.parse::<u64>().is_ok() { (*value).to_owned() } else { format!("'{value}'") };
        script += &format!("slide('{key}', {value});\n");
    }
    let then = json(&then);
    // Each process measures what it holds itself; the page goes on from the first's.
    let runtime = |plan: &Value| {
        let terms = plan["terms"].as_array().unwrap().iter();
        terms.filter(|t| t["name"] == "runtime").map(|t| t["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let own = runtime(&then);
    let runtime = if own > 0 { runtime(&first) } else { 0 };
    let expected = then["total_bytes"].as_u64().unwrap() - own + runtime;
    let text = std::fs::read_to_string(&page).unwrap();
    for word in ["http://", "https://", "src=", "@import", "url(", "fetch("] {
        assert!(!text.replace("http://www.w3.org/2000/svg", "").contains(word), "{word}");
    }
    let loaded = browser.load_and(&page, &HANDS.replace("MOVES", &script));
    assert!(loaded.console.is_empty(), "{:?}", loaded.console);
    let said = loaded.said();
    assert!(said.contains("the end"), "{said}");
    assert!(said.contains(&format!("first: {}\n", first["total_bytes"])), "{first}\n{said}");
    assert!(said.contains(&format!("then: {expected}\n")), "{then}\n{said}");
    assert!(said.contains("labels: true") && !said.contains("bars: 0"), "{said}");
}

#[test]
fn sliders_work_the_same_formulas_out() {
    let Some(browser) = Browser::find() else { return };
    slide(
        &browser,
        "plan serve gemma-2-2b --budget 24GiB",
        &[
            ("context", "--context", "8192"),
            ("requests", "--requests", "16"),
            ("kv", "--kv", "q8_0"),
            ("weights", "--weights", "q4_k"),
        ],
    );
    slide(
        &browser,
        "plan train qwen3-0.6b --budget 24GB",
        &[
            ("batch", "--batch", "8"),
            ("length", "--length", "4096"),
            ("recompute", "--recompute", "block"),
            ("precision", "--precision", "f32"),
            ("zero", "--zero", "3"),
            ("ranks", "--ranks", "8"),
        ],
    );
    slide(
        &browser,
        "plan train gpt2 --optimizer muon --attention stored --logits whole --dropout",
        &[
            ("recompute", "--recompute", "attention"),
            ("zero", "--zero", "2"),
            ("ranks", "--ranks", "4"),
        ],
    );
    // By the lists that the engine and the trainer allocate by.
    let model = fixture("mistral");
    for kv in ["q8_0", "f16"] {
        let moves = [("requests", "--requests", "32"), ("kv", "--kv", kv)];
        slide(&browser, &format!("plan serve {model}"), &moves);
    }
    slide(
        &browser,
        "plan train email-transformer",
        &[
            ("batch", "--batch", "16"),
            ("recompute", "--recompute", "block"),
            ("precision", "--precision", "bf16"),
        ],
    );
    slide(
        &browser,
        "plan train email-transformer",
        &[("ranks", "--ranks", "8"), ("zero", "--zero", "2"), ("precision", "--precision", "bf16")],
    );
    slide(
        &browser,
        "plan train email-transformer --ranks 2 --zero 1 --precision f32",
        &[
            ("zero", "--zero", "3"),
            ("ranks", "--ranks", "16"),
            ("recompute", "--recompute", "attention"),
            ("batch", "--batch", "4"),
        ],
    );
    slide(&browser, "plan train email-rnn --length 64", &[("batch", "--batch", "8")]);
    slide(
        &browser,
        "plan fleet gemma-2-2b --machine t4 --requests 20",
        &[("kv", "--kv", "q8_0"), ("weights", "--weights", "q4_k")],
    );
}

#[test]
fn a_diagnosis_says_what_would_be_at_other_numbers() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let plan = folder.path().join("plan.json");
    let of = |words: &str| json(&words.split(' ').collect::<Vec<_>>());
    let total = |found: &Value| found["total_bytes"].as_u64().unwrap();
    let slid = |moves: &str| {
        let html = page.to_str().unwrap();
        works(&["diagnose", plan.to_str().unwrap(), "--html", html]);
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains(UNKNOWN) && !text.contains("At other settings"));
        let loaded = browser.load_and(&page, &HANDS.replace("MOVES", moves));
        assert!(loaded.console.is_empty(), "{:?}", loaded.console);
        let said = loaded.said().to_owned();
        assert!(said.contains("the end") && said.contains("labels: true"), "{said}");
        said
    };
    // K/V in proportion to context and requests.
    let first = of("plan serve qwen3-8b --context 2048 --requests 2");
    std::fs::write(&plan, first.to_string()).unwrap();
    let said = slid("slide('context', 4); slide('requests', 0.5);");
    let kv = first["terms"][1]["bytes"].as_u64().unwrap();
    assert!(said.contains(&format!("first: {}\n", total(&first))), "{said}");
    assert!(said.contains(&format!("then: {}\n", total(&first) + kv)), "{said}");
    // Activations with the batch, states over ranks by stage.
    let alone = "plan train gpt2 --batch 1 --length 1024";
    std::fs::write(&plan, of(alone).to_string()).unwrap();
    let said = slid("slide('batch', 4); slide('ranks', 8); slide('zero', 2);");
    let then = of("plan train gpt2 --batch 4 --length 1024 --zero 2 --ranks 8");
    let sent = then["terms"].as_array().unwrap().iter();
    let sent: u64 = sent
        .filter(|term| term["name"] == "communication")
        .map(|term| term["bytes"].as_u64().unwrap())
        .sum();
    // Buffers for other ranks are not foreseen from a ledger.
    assert!(said.contains(&format!("then: {}\n", total(&then) - sent)), "{then}\n{said}");
}

/// What a page says where sliders know no model.
const UNKNOWN: &str = "This source does not tell the numbers of its model";

/// The page of a ledger that tells its model, its sliders moved, against the plan of the same numbers.
#[track_caller]
fn slide_ledger(browser: &Browser, ledger: &str, moves: &str, then: &str) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    works(&["diagnose", ledger, "--html", page.to_str().unwrap()]);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("At other settings") && !text.contains(UNKNOWN));
    let script = format!("{moves}\nsay('terms: ' + JSON.stringify(termsOf(now)));");
    let loaded = browser.load_and(&page, &HANDS.replace("MOVES", &script));
    assert!(loaded.console.is_empty(), "{:?}", loaded.console);
    let said = loaded.said().to_owned();
    let terms = said.lines().find_map(|line| line.strip_prefix("terms: ")).unwrap();
    let terms: Vec<(String, u64)> = serde_json::from_str(terms).unwrap();
    let then = json(&then.split(' ').collect::<Vec<_>>());
    // Each process measures what it holds itself, and only a run has its tokens mapped.
    let mut compared = 0;
    for term in then["terms"].as_array().unwrap() {
        let name = term["name"].as_str().unwrap();
        if !["runtime", "data"].contains(&name) {
            let found = terms.iter().find(|(n, _)| n == name).map(|(_, bytes)| *bytes);
            assert_eq!(found, term["bytes"].as_u64(), "{name}: {said}");
            compared += 1;
        }
    }
    assert!(compared >= 3 && terms.iter().any(|(name, _)| name == "runtime"), "{said}");
}

#[test]
fn a_diagnosis_of_a_known_model_recomputes_by_the_lists_of_a_plan() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let model = fixture("mistral");
    let sizes = ["--max-sequences", "4", "--kv-tokens", "512", "--threads", "1"];
    let server = Server::start(&model, &[&sizes[..], &[&format!("--ledger={dir}")]].concat());
    server.good("/v1/completions", &json!({"prompt": "some text", "max_tokens": 4}));
    let live = format!("http://{}", server.address);
    let then = format!("plan serve {model} --context 128 --requests 16 --kv q8_0 --threads 1");
    let moves = "slide('requests', 16); slide('kv', 'q8_0');";
    slide_ledger(&browser, &live, moves, &then);
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
    slide_ledger(&browser, &format!("{dir}/ledger.json"), moves, &then);
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let words = ["train", "--data", common::data(), "--model", "transformer", "--max-steps", "1"];
    works(&[&words[..], &["--quiet", "--threads", "1", "--out", run]].concat());
    let told = std::fs::read_to_string(format!("{run}/ledger.json")).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let of = |key: &str| told["what_if"][key].as_u64().unwrap();
    let vocabulary = of("vocabulary");
    assert!(vocabulary > 0 && told["what_if"]["lists"].as_object().unwrap().len() > 10, "{told}");
    let then = format!(
        "plan train {run} --by engine --precision f32 --batch 2 --length {} --recompute block \
         --threads 1",
        of("length")
    );
    let moves = "slide('batch', 2); slide('recompute', 'block');";
    slide_ledger(&browser, run, moves, &then);
}

#[test]
fn a_fleets_page_has_the_loads_and_servers_that_were_simulated() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("fleet.html");
    let words =
        "plan fleet llama-3-8b --machine l4 --rate 2 --requests 60 --replicas 2 --max-tokens 16";
    let mut words: Vec<&str> = words.split(' ').collect();
    let seen = json(&[&words[..], &["--html", page.to_str().unwrap()]].concat());
    let script = "
const move = (key, value) => {
    const range = document.getElementById(key);
    for (let i = 0; i <= Number(range.max) && now[key] !== value; i++) {
        range.value = i;
        range.dispatchEvent(new Event('input'));
    }
};
const row = () => [...document.querySelectorAll('#spread tr')].at(-1).textContent;
say('own: ' + row());
move('load', 8);
move('servers', 1);
say('then: ' + row());
say('told: ' + document.getElementById('seen').textContent);
say('the end');";
    let loaded = browser.load_and(&page, script);
    assert!(loaded.console.is_empty(), "{:?}", loaded.console);
    let said = loaded.said();
    assert!(said.contains("the end") && said.contains("told: 8 requests a second on one server"));
    let ms = |found: &Value| {
        let mean = found["seen"]["whole"]["mean_ms"].as_f64().unwrap();
        if mean < 1e4 { format!("{mean:.1} ms") } else { format!("{:.1} s", mean / 1e3) }
    };
    assert!(said.contains(&format!("own: whole{}", ms(&seen))), "{seen}\n{said}");
    words[6] = "8";
    let at = words.iter().position(|word| *word == "--replicas").unwrap();
    words[at + 1] = "1";
    let then = json(&words);
    assert!(said.contains(&format!("then: whole{}", ms(&then))), "{then}\n{said}");
}
