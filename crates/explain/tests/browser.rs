//! The page in a headless Chromium: its script must work the recorded choices out again.
//! With `AUTOREG_PAGES=DIR` the pages are kept there, to be looked at.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../tests/common/browser.rs"]
mod browser;

use std::path::PathBuf;

use browser::Browser;
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

fn logits(step: u64) -> Vec<f32> {
    let noise = Counter { seed: 40 + step, stream: 0 };
    let mut logits: Vec<f32> = (0..5000).map(|i| noise.uniform(i) as f32 * 6.0).collect();
    for (place, logit) in logits.iter_mut().take(WORDS.len()).enumerate() {
        *logit = 12.0 - 0.45 * ((place as u64 * 7 + step * 5) % 16) as f32;
    }
    logits
}

/// A record of several steps over a vocabulary of 5000, most of it in the histogram once `room`
/// single logits are recorded.
fn record(rules: &Rules, num_steps: u64, mut room: usize) -> Record {
    let (room_given, mut generated) = (room, Vec::new());
    let mut steps = Vec::new();
    for step in 0..num_steps {
        let logits = logits(step);
        let history = History::new(&[4, 1], &generated);
        let draw = Draw::Counter(Counter { seed: 3, stream: 0 });
        let told = explain(rules, Row::Logits(&logits), &history, draw, step).unwrap();
        let row = Row::Logits(&logits);
        let kept = StepRecord::new(step, &told, 200, text).exact(&told, &mut room);
        steps.push(kept.beside(rules, row, &history, text).unwrap());
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
        texts: if room_given > 0 { (0..5000).map(text).collect() } else { Vec::new() },
        steps,
        continuations: vec![
            continuation("greedy", &[" report", "\n"], -2.25),
            continuation("T = 2", &[" numbers", " it", " schedule"], -9.5),
        ],
        teacher: None,
    }
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
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("AUTOREG_PAGES").map(PathBuf::from);
    for (name, rules) in chains() {
        let file = folder.path().join(format!("{name}.html"));
        std::fs::write(&file, page(&record(&rules, 6, 0))).unwrap();
        if let Some(kept) = &kept {
            std::fs::copy(&file, kept.join(format!("{name}.html"))).unwrap();
        }
        let browser::Loaded { dom, console } = browser.load(&file);
        assert!(console.is_empty(), "{name}: {console:?}");
        assert!(dom.contains("data-ok=\"true\""), "{name}: {}", check_line(&dom));
        let all = dom.contains("all 6 steps give the recorded choice");
        assert!(all || dom.contains("Not decided here"), "{name}");
        if name == "hot" {
            assert!(dom.contains("Not decided here") && dom.contains("» cut"), "{name}");
        }
        // With every logit recorded nothing stays open.
        std::fs::write(&file, page(&record(&rules, 6, 6 * 5000))).unwrap();
        let browser::Loaded { dom, console } = browser.load(&file);
        assert!(console.is_empty(), "{name}: {console:?}");
        assert!(dom.contains("all 6 steps give the recorded choice"), "{name}");
        // Bars, interval, three temperatures, greedy and sampling.
        assert_eq!(dom.matches("<svg").count(), 7, "{name}");
        assert!(dom.contains("class=\"even\"") && dom.contains("T = 0.5"), "{name}");
    }
    // A record that does not fit its logits is noticed.
    let mut wrong = record(&Rules::default(), 2, 0);
    wrong.steps[1].choice.kept = 3;
    let file = folder.path().join("wrong.html");
    std::fs::write(&file, page(&wrong)).unwrap();
    let dom = browser.load(&file).dom;
    assert!(dom.contains("data-ok=\"false\"") && dom.contains("differ from the record: 1"));
}

/// What the rules choose for a step at a temperature, with its own u.
fn at(t: f64, step: u64, top_k: usize) -> String {
    let chain = [Rule::Temperature { t }, Rule::TopK { k: top_k, ties: Default::default() }];
    let rules = Rules::new(chain.to_vec()).unwrap();
    let draw = Draw::Counter(Counter { seed: 3, stream: 0 });
    let row = logits(step);
    let told = explain(&rules, Row::Logits(&row), &History::default(), draw, step).unwrap();
    text(told.choice.id).replace(' ', "␣").replace('\n', "↵")
}

/// A page of greedy choices draws with each step's own u once the temperature leaves 0, and names
/// what it draws, also where that is none of the best tokens.
#[test]
fn a_greedy_page_draws_with_the_steps_own_number() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greedy.html");
    let greedy = Rules::new(vec![Rule::Temperature { t: 0.0 }]).unwrap();
    let hands = "
        const move = (id, value) => {
          document.getElementById(id).value = value;
          document.getElementById(id).dispatchEvent(new Event('input'));
        };
        for (const step of [0, 1, 2, 3]) {
          document.querySelector(`[data-step='${step}']`).click();
          document.getElementById('reset').click();
          for (const card of document.querySelectorAll('#temperatures .hint')) say(card.textContent);
          move('temperature', 3);
          say(document.getElementById('verdict').textContent);
          move('top_k', 100);
          say(document.getElementById('verdict').textContent);
        }";
    let (mut outside, mut named) = (0, 0);
    for room in [0, 4 * 5000] {
        std::fs::write(&file, page(&record(&greedy, 4, room))).unwrap();
        let loaded = browser.load_and(&file, hands);
        assert!(loaded.console.is_empty(), "{:?}", loaded.console);
        let said: Vec<&str> = loaded.said().lines().collect();
        assert_eq!(said.len(), 4 * 5, "{said:?}");
        for (step, lines) in (0..).zip(said.chunks(5)) {
            // The cards are exact even where the page has bins only.
            for (line, t) in lines.iter().zip([0.5, 1.0, 2.0]) {
                assert!(line.ends_with(&format!("u takes {}", at(t, step, 0))), "{line}");
            }
            let hot = format!("u takes {} (", at(3.0, step, 0));
            if lines[3].starts_with("u takes a token outside the 200 recorded here") {
                outside += 1;
                assert_eq!(room, 0, "{}", lines[3]);
            } else {
                named += 1;
                assert!(lines[3].starts_with(&hot), "{} is not {hot}", lines[3]);
            }
            let few = format!("u takes {} (", at(3.0, step, 100));
            assert!(lines[4].starts_with(&few), "{} is not {few}", lines[4]);
        }
    }
    assert!(outside > 0 && named >= 4, "{outside} {named}");
}

/// The test of the tests: a page that fails says so on the console.
#[test]
fn a_fault_is_seen() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    std::fs::write(&file, "<body><script>missing();</script></body>").unwrap();
    let loaded = browser.load_and(&file, "say('here');");
    assert_eq!(loaded.said(), "here\n");
    assert!(loaded.console.len() == 1 && loaded.console[0].contains("missing"), "{loaded:?}");
}

fn check_line(dom: &str) -> &str {
    let start = dom.find("id=\"check\"").unwrap_or(0);
    dom.get(start..start + 160).unwrap_or(dom)
}
