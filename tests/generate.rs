//! `autoreg generate`, `replay` and `score` through the built binary, on models trained here.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "common/browser.rs"]
mod browser;

use browser::Browser;
use decoding::{Draw, Explanation, History, Row, Rules};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

fn autoreg(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_autoreg");
    Command::new(program).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn good(args: &[&str]) -> Output {
    let done = autoreg(args);
    assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    done
}

#[track_caller]
fn value(args: &[&str]) -> Value {
    serde_json::from_slice(&good(args).stdout).unwrap()
}

/// Exit code, one line on standard error that holds the words, nothing on standard output.
#[track_caller]
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let done = autoreg(args);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    assert_eq!((said.trim().lines().count(), done.stdout.len()), (1, 0), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

/// A transformer, a recurrent network and a bigram, trained for some steps on invented mail; made
/// once. The context of the transformer is 23 tokens.
fn models() -> &'static [String; 3] {
    static MODELS: OnceLock<[String; 3]> = OnceLock::new();
    MODELS.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generate");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let data = path("data");
        let prepare = ["--vocab-size", "200", "--max-len", "24", "--group-by", "thread"];
        good(&[&["data", "prepare", "--messages", "600", "--out", &data][..], &prepare].concat());
        let arms = "[[arm]]\nname = 'transformer'\nkind = 'transformer'\n\
            model = { hidden_size = 16, num_attention_heads = 2, intermediate_size = 32 }\n\
            [[arm]]\nname = 'rnn'\nkind = 'rnn'\n\
            model = { embedding_size = 8, hidden_size = 16 }\n\
            [[arm]]\nname = 'bigram'\nkind = 'bigram'\n";
        let experiment = format!(
            "name = 'small'\nseeds = [1]\nepochs = 1\ndraws = 100\nprompts = ['please']\n\
             [train]\nbatch = 16\nlearning_rate = 1e-2\nwarmup_steps = 5\n{arms}"
        );
        let file = path("experiment.toml");
        std::fs::write(&file, experiment).unwrap();
        let out = path("out");
        good(&[
            "compare",
            "--quiet",
            "--json",
            "--threads",
            "1",
            "--data",
            &data,
            "--experiment",
            &file,
            "--out",
            &out,
        ]);
        ["transformer", "rnn", "bigram"].map(|name| model_folder(Path::new(&out), name))
    })
}

/// The run folder of an arm: where its weights lie.
fn model_folder(out: &Path, arm: &str) -> String {
    let mut folders = vec![out.to_owned()];
    while let Some(folder) = folders.pop() {
        if folder.join("model.safetensors").exists() {
            let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
            let names = folder.to_str().unwrap().contains(arm);
            if names && config.contains("vocab_size") {
                return folder.to_str().unwrap().to_owned();
            }
        }
        let inside = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(inside.filter(|path| path.is_dir()));
    }
    panic!("no model of {arm} below {}", out.display());
}

#[test]
fn the_seed_decides_and_nothing_else() {
    for model in models() {
        let record = |seed: &str, threads: &str| {
            value(&["generate", model, "please", "--seed", seed, "--threads", threads, "--json"])
        };
        let first = record("7", "1");
        assert_eq!(first, record("7", "3"));
        assert_ne!(first["sequences"], record("8", "1")["sequences"]);
        let greedy = |seed: &str| {
            let args = ["generate", model, "please", "--greedy", "--seed", seed, "--json"];
            value(&args)["sequences"].clone()
        };
        assert_eq!(greedy("1"), greedy("2"));
        assert_eq!(greedy("1")[0]["tokens"][0]["rank"], 1);
        assert_eq!(greedy("1")[0]["tokens"][0]["u"], Value::Null);
    }
}

#[test]
fn eight_in_one_batch_are_eight_alone() {
    for model in models() {
        let common = ["generate", model, "please send the", "--seed", "3", "--json"];
        let eight = value(&[&common[..], &["--n", "8"]].concat());
        let eight = eight["sequences"].as_array().unwrap();
        assert_eq!(eight.len(), 8);
        for (index, one) in eight.iter().enumerate() {
            let index = index.to_string();
            let alone = value(&[&common[..], &["--first-sequence", &index]].concat());
            assert_eq!(&alone["sequences"][0], one);
        }
        assert!(eight.iter().any(|one| one["tokens"] != eight[0]["tokens"]), "streams differ");
        let lengths = eight.iter().map(|one| one["tokens"].as_array().unwrap().len());
        assert!(lengths.collect::<std::collections::BTreeSet<_>>().len() > 1, "some end earlier");
    }
}

#[test]
fn text_streamed_or_not_is_the_text_of_the_record() {
    for model in models() {
        let common = ["generate", model, "please", "--seed", "5", "--temperature", "0.8"];
        let record = value(&[&common[..], &["--json"]].concat());
        let whole = record["sequences"][0]["text"].as_str().unwrap().to_owned();
        let pieces = record["sequences"][0]["tokens"].as_array().unwrap().iter();
        let pieces: String = pieces.map(|token| token["text"].as_str().unwrap()).collect();
        assert_eq!(pieces, whole);
        assert!(!whole.is_empty() && !whole.contains("<eos>"), "{whole:?}");
        for stream in [&[][..], &["--stream"]] {
            let done = good(&[&common[..], stream].concat());
            assert_eq!(text(&done.stdout), format!("{whole}\n"));
        }
    }
}

/// Stops: the end token, the cap, the context, a text; each says which.
#[test]
fn it_ends_for_one_of_four_reasons() {
    let [transformer, rnn, bigram] = models();
    let sequence = |args: &[&str]| value(args)["sequences"][0].clone();
    let count = |sequence: &Value| sequence["tokens"].as_array().unwrap().len();
    let long = sequence(&["generate", transformer, "--ignore-eos", "--json"]);
    // The prompt is <bos> alone; the last token is chosen after as many as the model can see.
    assert_eq!((long["finish"].as_str(), count(&long)), (Some("context"), limit(transformer)));
    for model in [rnn, bigram] {
        let long = sequence(&["generate", model, "--ignore-eos", "--max-tokens", "70", "--json"]);
        assert_eq!((long["finish"].as_str(), count(&long)), (Some("length"), 70));
        let args = ["generate", model, "please", "--seed", "2", "--max-tokens", "5000", "--json"];
        let ended = sequence(&args);
        assert_eq!(ended["finish"], "eos");
        let ids = &value(&args)["eos_ids"];
        assert_eq!(ended["tokens"][count(&ended) - 1]["id"], ids[0]);
        let whole = ended["text"].as_str().unwrap();
        let words: Vec<&str> = whole.split_whitespace().collect();
        assert!(words.len() > 3, "{whole:?}");
        let stop = format!("{} {}", words[1], words[2]);
        let stopped = sequence(&[&args[..], &["--stop", &stop]].concat());
        assert_eq!((stopped["finish"].as_str(), &stopped["stop"]), (Some("stop"), &stop.into()));
        assert!(whole.starts_with(stopped["text"].as_str().unwrap()));
        assert_eq!(stopped["text"].as_str().unwrap().trim(), words[0]);
        let early = ended["tokens"][1]["id"].to_string();
        let early = sequence(&[&args[..], &["--eos", &early]].concat());
        assert_eq!((early["finish"].as_str(), count(&early)), (Some("eos"), 2));
    }
}

fn limit(model: &str) -> usize {
    let config = std::fs::read_to_string(Path::new(model).join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    config["max_position_embeddings"].as_u64().unwrap() as usize
}

#[test]
fn padding_and_the_beginning_never_come() {
    for model in models() {
        let args = ["generate", model, "--temperature", "5", "--n", "20", "--ban-unk", "--json"];
        let record = value(&args);
        assert_eq!(record["rules"][0]["rule"], "ban");
        let banned: Vec<u64> = record["rules"][0]["ids"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        assert_eq!(banned.len(), 3, "<pad>, <bos>, <unk>");
        let mut seen = 0;
        for sequence in record["sequences"].as_array().unwrap() {
            for token in sequence["tokens"].as_array().unwrap() {
                assert!(!banned.contains(&token["id"].as_u64().unwrap()));
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }
}

#[test]
fn a_long_prompt_is_refused_with_both_numbers_or_cut() {
    let transformer = &models()[0];
    let limit = limit(transformer);
    let long = "please send the ".repeat(limit);
    let found = (3 * limit + 1).to_string();
    refused(&["generate", transformer, &long], 2, &[&found, &limit.to_string(), "--truncate"]);
    let cut = |side: &str, more: &[&str]| {
        let args = ["generate", transformer, &long, "--truncate-prompt", side, "--ignore-eos"];
        value(&[&args[..], more, &["--json"]].concat())
    };
    let ids = |record: &Value| record["prompt_ids"].as_array().unwrap().clone();
    // One token more than the context holds: the last is not read.
    let [left, right] = ["left", "right"].map(|side| ids(&cut(side, &["--max-tokens", "1"])));
    assert_eq!((left.len(), right.len(), &left[0]), (limit, limit, &right[0]));
    // What was asked for finds room, and half of the context where it is more than all of it.
    let five = cut("left", &["--max-tokens", "5"]);
    assert_eq!(ids(&five).len(), limit + 1 - 5);
    assert_eq!(five["sequences"][0]["finish"], "length");
    assert_eq!(ids(&cut("left", &[])).len(), limit.div_ceil(2));
    let truth = "please send the report";
    let args = ["generate", transformer, &long, "--truncate-prompt", "left", "--teacher", truth];
    let taught = value(&[&args[..], &["--json"]].concat());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.json");
    std::fs::write(&file, five.to_string()).unwrap();
    good(&["replay", file.to_str().unwrap()]);
    assert_eq!(ids(&taught["free"]).len(), limit + 1 - taught["steps"].as_array().unwrap().len());
    let whole = value(&["generate", &models()[1], &long, "--max-tokens", "0", "--json"]);
    let whole = whole["prompt_ids"].as_array().unwrap();
    assert_eq!(left[1..], whole[whole.len() - limit + 1..]);
    assert_eq!(right, whole[..limit]);
}

#[test]
fn a_record_is_repeated_or_the_first_difference_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.json");
    let file = file.to_str().unwrap();
    for model in models() {
        let args = ["generate", model, "please", "--n", "3", "--top-p", "0.9", "--json"];
        let made = good(&args).stdout;
        std::fs::write(file, &made).unwrap();
        let done = good(&["replay", file]);
        assert!(text(&done.stdout).contains("3 sequences"), "{}", text(&done.stdout));
        let record: Value = serde_json::from_slice(&made).unwrap();
        let differs = |change: &dyn Fn(&mut Value), words: &[&str]| {
            let mut other = record.clone();
            change(&mut other);
            std::fs::write(file, other.to_string()).unwrap();
            refused(&["replay", file], 1, words);
        };
        differs(&|r| r["model"]["digest"] = "0".into(), &["the model's digest was 0"]);
        differs(&|r| r["version"] = "9.9.9".into(), &["the version was 9.9.9"]);
        differs(&|r| r["seed"] = 77.into(), &["sequence 0, token 0"]);
        let token = record["sequences"][1]["tokens"][1]["logprob"].as_f64().unwrap();
        let near = f64::from_bits(token.to_bits() + 1);
        let change = |r: &mut Value| r["sequences"][1]["tokens"][1]["logprob"] = near.into();
        differs(&change, &["sequence 1, token 1"]);
    }
    let args = ["generate", &models()[1], "please", "--max-tokens", "3", "--json"];
    let mut other = value(&args);
    other["prompt"] = "please send".into();
    std::fs::write(file, other.to_string()).unwrap();
    refused(&["replay", file], 1, &["the text of its prompt"]);
    let taught = good(&["generate", &models()[1], "please", "--teacher", "send the", "--json"]);
    std::fs::write(file, taught.stdout).unwrap();
    let done = good(&["replay", file]);
    assert!(text(&done.stderr).contains("--teacher"), "{}", text(&done.stderr));
    std::fs::write(file, "{}").unwrap();
    refused(&["replay", file], 2, &["record.json", "generate --json"]);
}

#[test]
fn pictures_in_the_terminal_and_on_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let page = page.to_str().unwrap();
    for model in models() {
        let common = ["generate", model, "please send the", "--top-k", "5", "--max-tokens", "4"];
        let drawn = text(&good(&[&common[..], &["--explain"]].concat()).stdout);
        assert!(drawn.contains("step 3: 200 tokens") && drawn.contains("top_k 5"), "{drawn}");
        let plain = text(&good(&common).stdout);
        assert!(drawn.ends_with(&plain), "{drawn}{plain}");
        good(&[&common[..], &["--explain", page]].concat());
        let page = std::fs::read_to_string(page).unwrap();
        for words in ["greedy", "T = 0.5", "T = 1", "T = 2", "please"] {
            assert!(page.contains(words), "{words}");
        }
    }
    refused(&["generate", &models()[0], "--explain", "please send"], 2, &["please send", ".html"]);
    refused(&["generate", &models()[0], "x", "--n", "2", "--explain"], 2, &["--first-sequence"]);
}

/// The record that a page carries.
fn record_of(page: &str) -> Value {
    let (_, after) = page.split_once("type=\"application/json\">").unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

/// What the rules make of a recorded step, worked out here.
fn worked_out(record: &Value, step: &Value, changed: &Value) -> Explanation {
    let tokens = step["tokens"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, step["vocabulary"].as_u64().unwrap(), "all are recorded");
    let mut row = vec![0.0_f32; tokens.len()];
    for token in tokens {
        row[token["id"].as_u64().unwrap() as usize] = token["logit"].as_f64().unwrap() as f32;
    }
    let chain = json!([
        record["rules"][0],
        {"rule": "temperature", "t": changed["temperature"]},
        {"rule": "top_k", "k": changed["top_k"], "ties": "exact"},
        {"rule": "top_p", "p": changed["top_p"], "boundary": "reach", "of": "kept"},
        {"rule": "min_p", "p": changed["min_p"]},
    ]);
    let rules = Rules::new(serde_json::from_value(chain).unwrap()).unwrap();
    let draw = Draw::Fixed(step["choice"]["draw"].as_f64().unwrap());
    decoding::explain(&rules, Row::Logits(&row), &History::default(), draw, 0).unwrap()
}

/// The sliders of the page are moved, and what the browser works out is what the rules give.
#[test]
fn sliders_work_the_choices_out_again() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let settings = json!([
        {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.35, "min_p": 0},
        {"temperature": 0.9, "top_k": 0, "top_p": 0.97, "min_p": 0.2},
    ]);
    let hands = format!(
        "for (const one of {settings}) for (const step of [0, 2]) {{
           document.querySelector(`[data-step='${{step}}']`).click();
           for (const [id, value] of Object.entries(one)) {{
             const slider = document.getElementById(id);
             slider.value = value;
             slider.dispatchEvent(new Event('input'));
           }}
           for (const line of document.querySelectorAll('#figures tr')) {{
             const cells = [...line.cells].map((cell) => cell.textContent);
             if (cells[0] !== 'id') say([cells[0], cells[6], line.className].join(' '));
           }}
           say('§' + document.getElementById('verdict').textContent);
         }}"
    );
    for model in models() {
        let common = ["generate", model, "please", "--seed", "6", "--max-tokens", "4"];
        good(&[&common[..], &["--ignore-eos", "--explain", page.to_str().unwrap()]].concat());
        let record = record_of(&std::fs::read_to_string(&page).unwrap());
        let loaded = browser.load_and(&page, &hands);
        assert!(loaded.console.is_empty(), "{:?}", loaded.console);
        assert!(loaded.dom.contains("data-ok=\"true\""));
        let blocks: Vec<&str> = loaded.said().split('§').collect();
        assert_eq!(blocks.len(), 4 * 2 + 1);
        for (place, block) in blocks[..8].iter().enumerate() {
            let step = &record["steps"][2 * (place % 2)];
            let told = worked_out(&record, step, &settings[place / 2]);
            let mut kept = 0;
            // A block begins with the end of the verdict before it.
            for line in block.lines().skip(usize::from(place > 0)) {
                let mut words = line.split(' ');
                let id: u32 = words.next().unwrap().parse().unwrap();
                let shown = words.next().unwrap();
                let token = told.candidates.iter().find(|token| token.id == id).unwrap();
                match shown {
                    "–" => assert_eq!(token.probability, 0.0, "{line}"),
                    shown => {
                        let p: f64 = shown.parse().unwrap();
                        assert!((p - token.probability).abs() < 1e-6, "{line}: {token:?}");
                        kept += 1;
                    }
                }
                assert_eq!(words.next() == Some("picked"), id == told.choice.id, "{line}");
            }
            assert_eq!(kept, told.choice.kept, "setting {}", settings[place / 2]);
            let verdict = blocks[place + 1].lines().next().unwrap();
            assert!(verdict.contains(&format!("; {kept} of 198 kept.")), "{verdict}");
        }
    }
}

#[test]
fn scores_are_those_of_generation_by_both_routes() {
    for model in models() {
        // The name of <unk> in a text is plain text, so it must not come.
        let common = ["generate", model, "please", "--seed", "4", "--max-tokens", "9"];
        let args = [&common[..], &["--ban-unk", "--json"]].concat();
        let record = value(&args);
        let made = &record["sequences"][0];
        let prompt = record["prompt"].as_str().unwrap();
        let whole = format!("{prompt} {}", made["text"].as_str().unwrap());
        let scored = value(&["score", model, &whole, "--check", "--json"]);
        assert_eq!(scored["checked"], true);
        let tokens = scored["tokens"].as_array().unwrap();
        let first = record["prompt_ids"].as_array().unwrap().len() - 1;
        for (token, made) in tokens[first..].iter().zip(made["tokens"].as_array().unwrap()) {
            for key in ["id", "logprob", "rank"] {
                assert_eq!(token[key], made[key], "{key}");
            }
        }
        let logprobs = tokens.iter().map(|token| token["logprob"].as_f64().unwrap());
        let sum: f64 = logprobs.sum();
        assert_eq!(scored["logprob"].as_f64().unwrap(), sum);
        let perplexity = (-sum / tokens.len() as f64).exp();
        assert!((scored["perplexity"].as_f64().unwrap() / perplexity - 1.0).abs() < 1e-12);
        let drawn = text(&good(&["score", model, &whole, "--check", "--end"]).stdout);
        assert!(drawn.contains("<eos>") && drawn.contains("perplexity"), "{drawn}");
        assert!(drawn.contains("the same bits"), "{drawn}");
    }
}

/// In JSON a token's text is what it adds: together they are the text.
#[test]
fn the_texts_of_tokens_together_are_the_text() {
    let whole = "please the thanks, please";
    for model in models() {
        let joined = |tokens: &Value, at: &dyn Fn(&Value) -> Value| -> String {
            let tokens = tokens.as_array().unwrap().iter();
            tokens.map(|token| at(token)["text"].as_str().unwrap().to_owned()).collect()
        };
        let scored = value(&["score", model, whole, "--json"]);
        let found = joined(&scored["tokens"], &Value::clone);
        assert_eq!(found.replace("<unk>", ""), found, "the words are known");
        assert_eq!(found, whole);
        let ended = value(&["score", model, whole, "--end", "--json"]);
        assert_eq!(joined(&ended["tokens"], &Value::clone), whole);
        let taught = value(&["generate", model, "please", "--teacher", whole, "--json"]);
        assert_eq!(joined(&taught["steps"], &|step| step["truth"].clone()), whole);
        let free = &taught["free"]["sequences"][0]["tokens"];
        for (step, token) in
            taught["steps"].as_array().unwrap().iter().zip(free.as_array().unwrap())
        {
            assert_eq!(step["free"]["text"], token["text"]);
        }
    }
}

#[test]
fn a_text_from_standard_input_or_a_file_is_the_same_text() {
    let model = &models()[1];
    let direct = good(&["score", model, "please send the report", "--json"]).stdout;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "please send the report\n").unwrap();
    let from_file = good(&["score", model, "--file", file.to_str().unwrap(), "--json"]).stdout;
    assert_eq!(text(&direct), text(&from_file));
    let mut child = Command::new(env!("CARGO_BIN_EXE_autoreg"))
        .args(["score", model, "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"please send the report\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), text(&direct));
}

/// Up to the first divergence both sides are the same; the free side is what `generate` writes, the
/// true text what `score` says of it.
#[test]
fn teacher_forcing_beside_free_running() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let page = page.to_str().unwrap();
    for model in models() {
        let common = ["generate", model, "please", "--seed", "4", "--ban-unk"];
        let own = value(&[&common[..], &["--max-tokens", "6", "--json"]].concat());
        let own = own["sequences"][0].clone();
        let words: Vec<&str> = own["text"].as_str().unwrap().split_whitespace().collect();
        let truth = format!("{} please please", words[..2].join(" "));
        let teach = [&common[..], &["--teacher", &truth]].concat();
        let told = value(&[&teach[..], &["--json"]].concat());
        let steps = told["steps"].as_array().unwrap();
        let first = told["first_divergence"].as_u64().unwrap() as usize;
        assert!(first >= 2, "{told}");
        for (place, step) in steps.iter().enumerate() {
            if place <= first {
                assert_eq!(step["forced"], step["free"], "step {place}");
            }
            assert_eq!(step["free"]["id"], own["tokens"][place]["id"]);
            assert_eq!(
                step["truth"]["id"] == step["free"]["id"],
                place < first || place > first && step["truth"]["id"] == own["tokens"][place]["id"]
            );
        }
        let scored = value(&["score", model, &format!("please {truth}"), "--json"]);
        let scored = scored["tokens"].as_array().unwrap();
        let before = scored.len() - steps.len();
        for (token, step) in scored[before..].iter().zip(steps) {
            assert_eq!(token["logprob"], step["truth"]["logprob"]);
            assert_eq!(token["rank"], step["truth_rank"]);
        }
        let drawn = text(&good(&teach).stdout);
        assert_eq!(drawn.matches("first divergence").count(), 1, "{drawn}");
        assert!(drawn.contains(&format!("►{first:>4}")), "{drawn}");
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        good(&[&teach[..], &["--explain", page]].concat());
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("Teacher forcing against free running"));
        assert_eq!(page.matches("first divergence:").count(), 1);
        // The free side is a record, which can be repeated.
        let file = folder.path().join("free.json");
        std::fs::write(&file, told["free"].to_string()).unwrap();
        good(&["replay", file.to_str().unwrap()]);
    }
    let [transformer, rnn, _] = models();
    refused(&["generate", rnn, "x", "--teacher", ""], 2, &["--teacher", "no token"]);
    let long = "please ".repeat(limit(transformer));
    refused(&["generate", transformer, "x", "--teacher", &long], 2, &["tokens", "shorten"]);
}

#[test]
fn searches_are_recorded_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.json");
    let file = file.to_str().unwrap();
    for model in models() {
        let common = ["generate", model, "please send", "--max-tokens", "12"];
        let search = |more: &[&str]| value(&[&common[..], more, &["--json"]].concat());
        let greedy = search(&["--greedy"])["sequences"][0].clone();
        let one = search(&["--beam", "1", "--length-penalty", "0"])["sequences"][0].clone();
        let chosen = |one: &Value| -> Vec<(Value, Value)> {
            let tokens = one["tokens"].as_array().unwrap().iter();
            tokens.map(|token| (token["id"].clone(), token["logprob"].clone())).collect()
        };
        assert_eq!(chosen(&one), chosen(&greedy), "a beam of one is greedy, to the bit");
        let four = search(&["--beam", "4", "--length-penalty", "0", "--n", "3"]);
        let sums: Vec<f64> = four["sequences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["logprob"].as_f64().unwrap())
            .collect();
        assert!(sums.len() == 3 && sums.is_sorted_by(|a, b| a >= b), "{sums:?}");
        assert!(sums[0] >= greedy["logprob"].as_f64().unwrap());
        let best = search(&["--best-of", "6", "--n", "2", "--seed", "3"]);
        let all = search(&["--n", "6", "--seed", "3"]);
        let mean = |one: &Value| {
            one["logprob"].as_f64().unwrap() / one["tokens"].as_array().unwrap().len() as f64
        };
        let most = all["sequences"].as_array().unwrap().iter().map(mean).fold(f64::MIN, f64::max);
        let first = &best["sequences"][0];
        assert_eq!(mean(first), most);
        assert_eq!(first, &all["sequences"][first["sequence"].as_u64().unwrap() as usize]);
        for record in [four, best] {
            std::fs::write(file, record.to_string()).unwrap();
            good(&["replay", file]);
            let mut other = record.clone();
            other["sequences"][1]["tokens"][0]["rank"] = 190.into();
            std::fs::write(file, other.to_string()).unwrap();
            refused(&["replay", file], 1, &["token 0"]);
        }
    }
    let rnn = &models()[1];
    refused(&["generate", rnn, "x", "--beam", "2", "--n", "3"], 2, &["3 sequences", "2"]);
    let preset = ["generate", rnn, "x", "--beam", "2", "--preset", "llamacpp"];
    refused(&preset, 2, &["beam search", "top_k 40"]);
}

#[test]
fn presets_side_by_side_on_a_model() {
    for model in models() {
        let common = ["generate", model, "please", "--top-k", "4", "--temperature", "0.7"];
        let rows = value(&[&common[..], &["--compare-presets", "--json"]].concat());
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 5);
        let next = value(&[&common[..], &["--max-tokens", "1", "--json"]].concat());
        let token = &next["sequences"][0]["tokens"][0];
        assert_eq!(rows[0]["answer"]["choice"], token["id"]);
        assert_eq!(rows[0]["answer"]["logprob"], token["logprob"]);
        assert_eq!(rows[0]["answer"]["kept"].as_array().unwrap().len(), 4);
        let drawn = text(&good(&[&common[..], &["--compare-presets"]].concat()).stdout);
        assert!(drawn.contains("llamacpp") && drawn.contains("keeps 4"), "{drawn}");
    }
}

#[test]
fn json_lines_in_and_out() {
    let model = &models()[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.jsonl");
    let texts = "{\"id\": 7, \"text\": \"please send the report\"}\n\n{\"text\": \"thanks\"}";
    std::fs::write(&file, texts).unwrap();
    let file = file.to_str().unwrap();
    let done = text(&good(&["score", model, "--jsonl", file, "--check"]).stdout);
    let lines: Vec<Value> = done.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["id"], 7);
    assert_eq!(lines[1].get("text"), None);
    for (line, one) in lines.iter().zip(["please send the report", "thanks"]) {
        let alone = value(&["score", model, one, "--check", "--json"]);
        for (key, value) in alone.as_object().unwrap() {
            assert_eq!(&line[key], value, "{key}");
        }
    }
    let bad = |line: &str, words: &[&str]| {
        std::fs::write(file, line).unwrap();
        refused(&["score", model, "--jsonl", file], 2, &[words, &["line 1"]].concat());
    };
    // The others are scored all the same.
    std::fs::write(file, "{\"text\": \"please\"}\n[1]\n{\"text\": \"thanks\"}\n{}\n").unwrap();
    let mixed = autoreg(&["score", model, "--jsonl", file]);
    assert_eq!((mixed.status.code(), text(&mixed.stdout).lines().count()), (Some(2), 2));
    let said = text(&mixed.stderr);
    assert!(said.contains("line 2") && said.contains("line 4"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    bad("{\"text\": 3}", &["`text` is 3"]);
    bad("{\"words\": \"x\"}", &["`text` is nothing"]);
    bad("[1]", &["expected an object"]);
    bad("{\"text\": \"x\", \"rank\": 1, \"logprob\": 1}", &["field `logprob`", "rename"]);
    bad("{\"text\": \"\"}", &["no token to score"]);
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let [transformer, rnn, _] = models();
    refused(&["generate", "no-such-folder", "x"], 2, &["no-such-folder"]);
    refused(&["generate", rnn, "x", "--stop", ""], 2, &["stop string 0 is empty"]);
    refused(&["generate", rnn, "x", "--temperature", "-1"], 2, &["temperature"]);
    refused(&["generate", rnn, "x", "--top-p", "0"], 2, &["top_p"]);
    refused(&["generate", rnn, "x", "--ban", "4000"], 2, &["token 4000", "200"]);
    refused(&["generate", rnn, "x", "--logit-bias", "5=-inf", "--json"], 2, &["--ban"]);
    for (flag, value) in [("--eos", "4000"), ("--allow", "4000"), ("--logit-bias", "4000=1")] {
        let args = ["generate", rnn, "x", flag, value, "--max-tokens", "0"];
        refused(&args, 2, &[flag, "token 4000", "200"]);
    }
    for (flag, value) in [("--draw", "0.5"), ("--step", "1"), ("--history", "1")] {
        refused(&["generate", rnn, "x", flag, value], 2, &[flag, "MODEL"]);
    }
    refused(&["generate", rnn, "x", "--greedy", "--temperature", "1"], 2, &["--greedy"]);
    refused(&["generate", rnn, "x", "--teacher", "y", "--stop", "z"], 2, &["--teacher", "--stop"]);
    refused(&["generate", rnn, "x", "--beam", "2", "--seed", "3"], 2, &["--beam", "--seed"]);
    for (flag, value) in [("--max-tokens", "3"), ("--stop", "z"), ("--eos", "5")] {
        refused(&["generate", rnn, "x", "--compare-presets", flag, value], 2, &[flag]);
    }
    refused(&["score", rnn, ""], 2, &["no token to score"]);
    let long = "please send ".repeat(limit(transformer));
    let most = (limit(transformer) + 1).to_string();
    refused(&["score", transformer, &long], 2, &[&most, "shorten"]);
    refused(&["score", rnn, "--file", "no-such-file.txt"], 2, &["no-such-file.txt"]);
}

/// Weights that give no numbers are the model's fault: exit code 1, whatever was asked for.
#[test]
fn broken_weights_fail_with_the_same_code_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&models()[1]).unwrap().map(|entry| entry.unwrap()) {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    let weights = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for number in bytes[head..].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(&weights, bytes).unwrap();
    let model = folder.path().to_str().unwrap();
    let generate = ["generate", model, "please"];
    for more in
        [&[][..], &["--explain"], &["--beam", "2"], &["--teacher", "the"], &["--compare-presets"]]
    {
        refused(&[&generate[..], more].concat(), 1, &["NaN"]);
    }
    refused(&["score", model, "please"], 1, &["NaN"]);
}

/// A published model of byte-level pieces, where it is there: texts join, bytes of a character are
/// shown as bytes, and an empty prompt begins from the token that the file names.
#[test]
fn pieces_of_a_published_model_are_texts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models =
        std::env::var_os("AUTOREG_MODELS").map_or_else(|| root.join("models"), PathBuf::from);
    let model = models.join("smollm2-135m-q4_1.gguf");
    if !model.exists() {
        eprintln!("skipped: no {}", model.display());
        return;
    }
    let model = model.to_str().unwrap();
    let scored = value(&["score", model, "The capital 🦀 is", "--json"]);
    let texts = scored["tokens"].as_array().unwrap().iter();
    let joined: String = texts.map(|token| token["text"].as_str().unwrap()).collect();
    // The first token has nothing before it.
    assert_eq!(joined, " capital 🦀 is");
    let drawn = text(&good(&["score", model, "The capital 🦀 is"]).stdout);
    assert!(drawn.contains("␣capital ") && drawn.contains("<0x80>"), "{drawn}");
    assert!(!drawn.contains('Ġ'), "{drawn}");
    let begun = good(&["generate", model, "--max-tokens", "1", "--json"]).stdout;
    let record: Value = serde_json::from_slice(&begun).unwrap();
    assert_eq!(record["prompt_ids"].as_array().unwrap().len(), 1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.json");
    std::fs::write(&file, begun).unwrap();
    good(&["replay", file.to_str().unwrap()]);
}
