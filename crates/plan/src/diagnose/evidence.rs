//! What was measured, in one shape, from whatever holds it.

use super::prometheus;
use crate::{Balance, Error, Lever, Rank, Terms};
use models::ModelConfig;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// What a server's figures say: seconds are means of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serving {
    /// Requests answered.
    pub requests: f64,
    /// From arrival to the first step.
    pub queue_s: f64,
    /// From the first step to the first token.
    pub prefill_s: f64,
    /// From the first token to the last.
    pub decode_s: f64,
    /// Tokens of a prompt.
    pub prompt_tokens: f64,
    /// Tokens of an answer.
    pub generated_tokens: f64,
    /// Sequences of a step, where the server tells.
    pub sequences_per_step: Option<f64>,
    /// Seconds of a step that only decodes, where the server tells.
    pub decode_step_s: Option<f64>,
    /// Sequences in steps now.
    pub running: f64,
    /// Sequences that wait now.
    pub waiting: f64,
    /// Share of the K/V pool in use now.
    pub kv_use: f64,
    /// Sequences sent back to wait.
    pub preemptions: f64,
    /// Tokens looked for in the prefix cache.
    pub prefix_queries: f64,
    /// Tokens found there.
    pub prefix_hits: f64,
}

/// What a training's records say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// Seconds of a step.
    pub step_s: Option<f64>,
    /// Of it, communication.
    pub communication_s: Option<f64>,
    /// Of it, waiting for data.
    pub data_s: Option<f64>,
    /// Tokens/s.
    pub tokens_per_second: Option<f64>,
    /// Validation loss in nats a token.
    pub valid_loss: Option<f64>,
    /// ZeRO stage and ranks, where there are several.
    pub ranks: u64,
    /// What was computed again.
    pub recompute: Option<String>,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Where it was found.
    pub source: String,
    /// Bytes by term at the moment of the peak: as measured where they were.
    pub terms: Terms,
    /// The process at its peak.
    pub peak_bytes: Option<u64>,
    /// A server.
    pub serving: Option<Serving>,
    /// A training.
    pub training: Option<Training>,
    /// (pages held, pages) of a pool of K/V.
    pub pages: Option<(u64, u64)>,
    /// The network's numbers.
    pub config: Option<ModelConfig>,
    /// Levers that a plan has worked out.
    pub planned: Vec<Lever>,
    /// The model's parameters.
    pub parameters: Option<u64>,
    /// What may be taken, and whether it fits.
    pub budget: (Option<u64>, Option<bool>),
    /// Each rank's terms.
    pub rank_terms: Vec<Rank>,
    /// Bytes that each rank sends an optimizer step.
    pub sent_per_step: Option<u64>,
    /// What other settings are worked out from, where the model is known ([`crate::what_if`]).
    pub what_if: Option<Value>,
}

impl Evidence {
    /// Reads a run folder, or a file: a ledger, a plan, a log of a training, a page of figures.
    ///
    /// # Errors
    /// What does not hold and what was expected.
    pub fn open(path: &Path) -> Result<Evidence, Error> {
        let name = path.display().to_string();
        if path.is_dir() {
            return run(&name, path);
        }
        Evidence::of_text(&name, &read(path)?)
    }

    /// The same of a text: a server's page of figures, or what a file holds.
    ///
    /// # Errors
    /// What does not hold and what was expected.
    pub fn of_text(name: &str, text: &str) -> Result<Evidence, Error> {
        let content = |reason: String| Error::Content { path: name.into(), reason };
        if text.trim_start().starts_with('{') {
            return match serde_json::from_str::<Value>(text) {
                Ok(value) => Evidence::of_ledger(name, &value),
                Err(_) => metrics(text)
                    .map(|training| Evidence {
                        source: name.to_owned(),
                        training: Some(training),
                        ..Evidence::default()
                    })
                    .map_err(content),
            };
        }
        let serving = prometheus::serving(text).map_err(content)?;
        let mut evidence =
            Evidence { source: name.to_owned(), serving: Some(serving), ..Evidence::default() };
        prometheus::own_terms(text)
            .iter()
            .for_each(|(term, bytes)| evidence.terms.add(term, *bytes));
        Ok(evidence)
    }

    /// A ledger that was measured, or a plan.
    ///
    /// # Errors
    /// What does not hold and what was expected.
    pub fn of_ledger(name: &str, value: &Value) -> Result<Evidence, Error> {
        let rows = ["rows", "terms"].iter().find_map(|key| value.get(key)?.as_array());
        let mut evidence = Evidence { source: name.to_owned(), ..Evidence::default() };
        let number = |key: &str| value.get(key).and_then(Value::as_u64);
        let accounts = value.get("accounts").and_then(Value::as_object);
        for row in rows.into_iter().flatten() {
            let term = row.get("term").or_else(|| row.get("name")).and_then(Value::as_str);
            let bytes = ["measured_bytes", "bytes"].iter().find_map(|key| row.get(key)?.as_u64());
            match (term, bytes) {
                (Some(term), Some(bytes)) => evidence.terms.add(term, bytes),
                _ => return Err(no_ledger(name, "a row without its name and its bytes")),
            }
        }
        for (name, bytes) in accounts.into_iter().flatten() {
            evidence.terms.add(name, bytes.as_u64().unwrap_or(0));
        }
        if evidence.terms.0.is_empty() {
            return Err(no_ledger(name, "no rows and no terms"));
        }
        evidence.peak_bytes = number("peak_process_bytes").or_else(|| number("process_bytes"));
        let kv = value.get("kv");
        let page = |key: &str| kv.and_then(|kv| kv.get(key)?.as_u64());
        evidence.pages = page("pages_held").zip(page("pages"));
        evidence.planned = planned(value);
        evidence.training = training_of_plan(value);
        evidence.parameters = number("parameters");
        evidence.budget = (number("budget_bytes"), value.get("fits").and_then(Value::as_bool));
        evidence.sent_per_step = number("communication_bytes_per_step");
        let known = |v: &&Value| matches!(v["kind"].as_str(), Some("serve" | "train"));
        evidence.what_if = value.get("what_if").filter(known).cloned();
        let ranks = value.get("ranks").filter(|ranks| ranks.is_array());
        evidence.rank_terms =
            ranks.and_then(|v| Deserialize::deserialize(v).ok()).unwrap_or_default();
        Ok(evidence)
    }

    /// Whether it is of a training.
    pub(super) fn trains(&self) -> bool {
        let states = self.terms.of("gradients") + self.terms.of("optimizer");
        self.serving.is_none() && (self.training.is_some() || states > 0)
    }

    /// What it says of bytes by the keys that stay; levers are found by who looks for them.
    ///
    /// # Errors
    /// When the sum does not fit into 64 bits.
    pub(super) fn balance(&self) -> Result<Balance, Error> {
        let balance = Balance::new(self.terms.clone(), self.budget.0)?;
        Ok(Balance {
            parameters: self.parameters,
            fits: self.budget.1.or(balance.fits),
            ranks: self.rank_terms.clone(),
            communication_bytes_per_step: self.sent_per_step,
            ..balance
        })
    }

    /// Bytes of weights, master weights, gradients and moments.
    pub(super) fn states(&self) -> u64 {
        STATES.iter().map(|name| self.terms.of(name)).sum()
    }
}

/// Terms that ZeRO shares out.
pub(super) const STATES: [&str; 4] = ["weights", "master weights", "gradients", "optimizer"];

fn read(path: &Path) -> Result<String, Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(io)?;
    String::from_utf8(bytes).map_err(|_| Error::Content {
        path: path.to_owned(),
        reason: "not text; expected a ledger, a plan, a log or a page of figures".to_owned(),
    })
}

/// A run folder of `autoreg train`.
fn run(name: &str, path: &Path) -> Result<Evidence, Error> {
    let json = |file: &str| -> Result<Value, Error> {
        let path = path.join(file);
        serde_json::from_str(&read(&path)?)
            .map_err(|e| Error::Content { path, reason: e.to_string() })
    };
    if !path.join("ledger.json").is_file() {
        let reason =
            "no ledger.json in it; it is written when a run ends, and metrics.jsonl before";
        return Err(Error::Content { path: path.to_owned(), reason: reason.to_owned() });
    }
    let mut evidence = Evidence::of_ledger(name, &json("ledger.json")?)?;
    let result = json("result.json")?;
    let number = |key: &str| result.get(key).and_then(Value::as_f64);
    let steps = number("steps").filter(|&n| n > 0.0);
    let log = path.join("metrics.jsonl");
    let logged = if log.is_file() { metrics(&read(&log)?).ok() } else { None };
    evidence.training = Some(Training {
        step_s: number("train_seconds").zip(steps).map(|(seconds, steps)| seconds / steps),
        tokens_per_second: number("tokens_per_second"),
        valid_loss: number("valid_loss_nats"),
        recompute: result.get("recompute").and_then(Value::as_str).map(str::to_owned),
        ranks: 1,
        communication_s: logged.as_ref().and_then(|l| l.communication_s),
        data_s: logged.as_ref().and_then(|l| l.data_s),
    });
    evidence.config = json("config.json").ok().and_then(|v| serde_json::from_value(v).ok());
    Ok(evidence)
}

fn no_ledger(name: &str, found: &str) -> Error {
    Error::Content {
        path: name.into(),
        reason: format!(
            "{found}; expected a ledger.json of a run, /ledger of a server, or what `autoreg plan \
             --json` prints"
        ),
    }
}

fn planned(value: &Value) -> Vec<Lever> {
    let levers = value.get("levers").and_then(Value::as_array);
    levers.into_iter().flatten().filter_map(|v| Deserialize::deserialize(v).ok()).collect()
}

/// The times of a training that was planned.
fn training_of_plan(value: &Value) -> Option<Training> {
    let ranks = value.get("ranks")?.as_array()?.len() as u64;
    let times = value.get("times");
    let time = |key: &str| times.and_then(|t| t.get(key)?.as_f64());
    Some(Training {
        step_s: time("step_s"),
        communication_s: time("communication_s"),
        tokens_per_second: time("tokens_per_second"),
        ranks,
        ..Training::default()
    })
}

/// `metrics.jsonl`: a line a step with the seconds so far.
fn metrics(text: &str) -> Result<Training, String> {
    let expected = "expected JSON, or JSON Lines with step and seconds as metrics.jsonl has";
    let mut last: Option<Value> = None;
    let mut valid_loss = None;
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value =
            serde_json::from_str(line).map_err(|e| format!("line {}: {e}; {expected}", i + 1))?;
        valid_loss = value.get("valid_loss_nats").and_then(Value::as_f64).or(valid_loss);
        if value.get("seconds").is_some() {
            last = Some(value);
        }
    }
    let last = last.ok_or_else(|| format!("no line with seconds; {expected}"))?;
    let number = |key: &str| last.get(key).and_then(Value::as_f64);
    let steps = number("step").filter(|&n| n > 0.0).ok_or("no step in the last line")?;
    let each = |key: &str| number(key).map(|total| total / steps);
    Ok(Training {
        step_s: each("seconds"),
        communication_s: each("communication_seconds"),
        data_s: each("data_seconds"),
        tokens_per_second: number("tokens").zip(number("seconds")).map(|(t, s)| t / s.max(1e-9)),
        valid_loss,
        ranks: 1,
        recompute: None,
    })
}
