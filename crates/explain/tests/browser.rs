//! The page in a headless Chromium: its script must work the recorded choices out again.
//! Skipped with a line where no Chromium is found (`AUTOREG_CHROMIUM` names one).
//! With `AUTOREG_PAGES=DIR` the pages are kept there, to be looked at.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use decoding::{Counter, Draw, History, Preset, Row, Rule, Rules, Settings, explain};
use explain::{Continuation, Record, StepRecord, page};

const WORDS: [&str; 16] = [
    " report",
    " me",
    " file",
    " invoice",
    " the",
    " updated",
    " draft",
    " numbers",
    "\n",
    " it",
    " contract",
    " latest",
    " schedule",
    " signed",
    " attached",
    " budget",
];

fn text(id: u32) -> String {
    WORDS.get(id as usize).map_or_else(|| format!(" w{id}"), |word| (*word).to_owned())
}

/// A record of several steps over a vocabulary of 5000, most of it in the histogram.
fn record(rules: &Rules, num_steps: u64) -> Record {
    let mut generated = Vec::new();
    let mut steps = Vec::new();
    for step in 0..num_steps {
        let noise = Counter { seed: 40 + step, stream: 0 };
        let mut logits: Vec<f32> = (0..5000).map(|i| noise.uniform(i) as f32 * 6.0).collect();
        for (place, logit) in logits.iter_mut().take(WORDS.len()).enumerate() {
            *logit = 12.0 - 0.45 * ((place as u64 * 7 + step * 5) % 16) as f32;
        }
        let history = History::new(&[4, 1], &generated);
        let draw = Draw::Counter(Counter { seed: 3, stream: 0 });
        let told = explain(rules, Row::Logits(&logits), &history, draw, step).unwrap();
        steps.push(StepRecord::new(step, &told, 200, text));
        generated.push(told.choice.id);
    }
    let continuation = |label: &str, tokens: &[&str], logprob| Continuation {
        label: label.to_owned(),
        tokens: tokens.iter().map(ToString::to_string).collect(),
        logprob,
    };
    Record {
        title: "invented logits".to_owned(),
        prompt: vec!["please".to_owned(), " send".to_owned(), " the".to_owned()],
        rules: rules.chain().to_vec(),
        steps,
        continuations: vec![
            continuation("greedy", &[" report", "\n"], -2.25),
            continuation("T = 2", &[" numbers", " it", " schedule"], -9.5),
        ],
        teacher: None,
    }
}

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("AUTOREG_CHROMIUM").map(PathBuf::from);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    named.or_else(|| {
        std::env::split_paths(&folders)
            .flat_map(|folder| {
                ["chromium", "chromium-browser", "google-chrome"].map(|n| folder.join(n))
            })
            .find(|path| path.is_file())
    })
}

fn dom(browser: &Path, file: &Path, profile: &Path) -> String {
    let run = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    String::from_utf8_lossy(&run.stdout).into_owned()
}

/// Chains of every kind: no rule, each preset's order with all filters, greedy, edits.
fn chains() -> Vec<(String, Rules)> {
    let mut chains = vec![
        ("none".to_owned(), Rules::default()),
        ("greedy".to_owned(), Rules::new(vec![Rule::Temperature { t: 0.0 }]).unwrap()),
        ("hot".to_owned(), Rules::new(vec![Rule::Temperature { t: 2.0 }]).unwrap()),
    ];
    for preset in Preset::ALL {
        let settings = Settings {
            preset,
            temperature: Some(0.8),
            top_k: Some(40),
            top_p: Some(0.9),
            min_p: Some(0.02),
            repetition_penalty: Some(1.3),
            banned: vec![2],
            ..Settings::default()
        };
        chains.push((preset.to_string(), Rules::from_settings(&settings).unwrap()));
    }
    chains
}

#[test]
fn the_browser_works_out_the_recorded_choices() {
    let Some(browser) = chromium() else {
        println!("skipped: no Chromium found; set AUTOREG_CHROMIUM");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("AUTOREG_PAGES").map(PathBuf::from);
    for (name, rules) in chains() {
        let file = folder.path().join(format!("{name}.html"));
        std::fs::write(&file, page(&record(&rules, 6))).unwrap();
        if let Some(kept) = &kept {
            std::fs::copy(&file, kept.join(format!("{name}.html"))).unwrap();
        }
        let dom = dom(&browser, &file, &folder.path().join("profile"));
        assert!(dom.contains("data-ok=\"true\""), "{name}: {}", check_line(&dom));
        assert!(dom.contains("all 6 steps give the recorded choice"), "{name}");
        // Bars, interval, three temperatures, greedy and sampling.
        assert_eq!(dom.matches("<svg").count(), 7, "{name}");
        assert!(dom.contains("class=\"even\"") && dom.contains("T = 0.5"), "{name}");
    }
    // A record that does not fit its logits is noticed.
    let mut wrong = record(&Rules::default(), 2);
    wrong.steps[1].choice.kept = 3;
    let file = folder.path().join("wrong.html");
    std::fs::write(&file, page(&wrong)).unwrap();
    let dom = dom(&browser, &file, &folder.path().join("profile"));
    assert!(dom.contains("data-ok=\"false\"") && dom.contains("differ from the record: 1"));
}

fn check_line(dom: &str) -> &str {
    let start = dom.find("id=\"check\"").unwrap_or(0);
    dom.get(start..start + 160).unwrap_or(dom)
}
