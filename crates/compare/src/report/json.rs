//! `results.json`: stable keys for programs. Numbers that are not finite are null.
//!
//! `rows`, `pairs` and `top_next` and what is in them keep their names and meanings; other keys may
//! be added.

use super::figures::matched;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::analysis::{Estimate, Measured};
use crate::statistics::Interval;
use crate::{Analysis, Confirmation, Pair, Row};

/// The results as one JSON object.
pub fn json(analysis: &Analysis) -> Value {
    json!({
        "experiment": analysis.experiment.name,
        "experiment_digest": analysis.experiment.digest(),
        "synthetic": analysis.audit.data.synthetic,
        "group_by": analysis.audit.data.group_by,
        "margin_nats": analysis.experiment.margin_nats,
        "confidence": analysis.experiment.confidence,
        "bootstrap_draws": analysis.draws,
        "headline": analysis.headline(),
        "warnings": analysis.warnings,
        "missing_runs": analysis.missing,
        "rows": analysis.rows.iter().map(row).collect::<Vec<_>>(),
        "pairs": analysis.pairs.iter().map(|each| pair(each, analysis)).collect::<Vec<_>>(),
        "matched_compute": matched(analysis).iter().map(|pair| json!({
            "models": pair.names,
            "parameters_ratio": pair.parameters,
            "flops_per_token_ratio": pair.flops_per_token,
            "flops": pair.flops,
            "validation_losses_nats": pair.losses,
        })).collect::<Vec<_>>(),
        "top_next": top_next(analysis),
        "failures": analysis.failures.iter().map(|failure| json!({
            "model": failure.arm, "seed": failure.seed, "why": failure.why,
        })).collect::<Vec<_>>(),
        "audit": analysis.audit,
    })
}

fn row(row: &Row) -> Value {
    let perplexity = row.loss.map(|loss| {
        let Interval { low, high } = loss.interval;
        json!({ "mean": loss.mean.exp(), "low": low.exp(), "high": high.exp() })
    });
    let first = row.runs.first();
    json!({
        "model": row.arm.name,
        "kind": row.arm.kind.word(),
        "seeds": row.runs.len(),
        "failed": row.failed,
        "parameters": row.parameters.dense,
        "parameters_nonzero": row.parameters.nonzero,
        "parameters_non_embedding": row.parameters.non_embedding,
        "parameter_bytes": row.parameters.bytes,
        "optimizer_bytes": row.parameters.optimizer_bytes,
        "test_loss_nats": estimate(row.loss),
        "test_accuracy": estimate(row.accuracy),
        "test_perplexity": perplexity,
        "test_loss_nats_known": row.loss_known,
        "test_accuracy_known": row.accuracy_known,
        "test_loss_nats_by_message": row.loss_by_message,
        "test_loss_nats_seen_run": row.seen.and_then(|gap| gap.seen.loss()),
        "test_loss_nats_unseen": row.seen.and_then(|gap| gap.unseen.loss()),
        "train_seconds": row.seconds.map(|m| m.mean),
        "train_seconds_range": measured(row.seconds),
        "tokens_per_second": row.tokens_per_second.map(|m| m.mean),
        "tokens_per_second_range": measured(row.tokens_per_second),
        "peak_process_bytes": row.peak_bytes.map(|m| m.most.round() as u64),
        "baseline_process_bytes": first.map(|run| run.memory.baseline_process_bytes),
        "predicted_process_bytes": first.and_then(|run| run.memory.predicted_process_bytes),
        "train_tokens": first.map(|run| run.training.tokens),
        "train_steps": first.map(|run| run.training.steps),
        "train_flops": first.map(|run| run.training.flops),
        "tuning_trials": first.map(|run| run.training.tuning_trials),
        "notes": first.map(|run| run.notes.clone()).unwrap_or_default(),
    })
}

fn estimate(estimate: Option<Estimate>) -> Value {
    let Some(Estimate { mean, interval, spread }) = estimate else { return Value::Null };
    json!({ "mean": mean, "low": interval.low, "high": interval.high, "sd_over_seeds": spread })
}

fn measured(measured: Option<Measured>) -> Value {
    measured.map_or(Value::Null, |m| json!([m.least, m.most]))
}

fn pair(pair: &Pair, analysis: &Analysis) -> Value {
    json!({
        "a": analysis.rows[pair.a].arm.name,
        "b": analysis.rows[pair.b].arm.name,
        "loss_difference_nats": estimate(Some(pair.loss)),
        "accuracy_difference": estimate(Some(pair.accuracy)),
        "p_value_adjusted": pair.p_value,
        "detectable_nats": pair.detectable,
        "seeds": pair.seeds,
        "groupings": analysis.groupings,
        "verdict": pair.verdict.text,
        "verdict_code": pair.verdict.outcome.code(),
    })
}

/// prompt → model → [[token, probability], …], of the first scored seed.
fn top_next(analysis: &Analysis) -> Value {
    let mut prompts = Map::new();
    for prompt in &analysis.experiment.prompts {
        let mut models = Map::new();
        for row in &analysis.rows {
            if let Some(list) = row.runs.first().and_then(|run| run.top_next.get(prompt)) {
                models.insert(row.arm.name.clone(), json!(list));
            }
        }
        prompts.insert(prompt.clone(), Value::Object(models));
    }
    Value::Object(prompts)
}

/// Reads the pairs back from the `results.json` of the same experiment on a split that was grouped
/// by another key; `None` where the text is no such file.
pub fn confirmation(text: &str) -> Option<Confirmation> {
    let results: Value = serde_json::from_str(text).ok()?;
    let group_by = results.get("group_by")?.as_str()?.to_owned();
    let mut pairs = BTreeMap::new();
    for pair in results.get("pairs")?.as_array()? {
        let name = |key: &str| pair.get(key)?.as_str().map(str::to_owned);
        let end = |key: &str| pair.get("loss_difference_nats")?.get(key)?.as_f64();
        pairs.insert((name("a")?, name("b")?), (end("low")?, end("high")?));
    }
    Some(Confirmation { group_by, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;

    #[test]
    fn the_promised_keys_are_there() {
        let (experiment, audit, records) = invented::comparison();
        let results = json(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        let row = &results["rows"][3];
        assert_eq!(row["model"], "rnn");
        assert_eq!(row["parameters"], 659_552);
        assert_eq!(row["parameter_bytes"], 2_638_208);
        for key in ["test_loss_nats", "test_accuracy"] {
            let [low, mean, high] = ["low", "mean", "high"].map(|k| row[key][k].as_f64().unwrap());
            assert!(low < mean && mean < high, "{key}: {low} {mean} {high}");
        }
        for key in ["train_seconds", "tokens_per_second", "peak_process_bytes"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}");
        }
        let pair = &results["pairs"][2];
        assert_eq!((pair["a"].as_str(), pair["b"].as_str()), (Some("rnn"), Some("transformer")));
        assert!(pair["loss_difference_nats"]["low"].is_f64());
        assert!(pair["verdict"].as_str().unwrap().starts_with("no decisive winner"));
        let next = &results["top_next"]["please send the"]["transformer"][0];
        assert_eq!((next[0].as_str(), next[1].as_f64()), (Some("attached"), Some(0.21)));
    }

    #[test]
    fn a_row_without_scores_is_valid_json() {
        let (experiment, audit, mut records) = invented::comparison();
        for record in records.iter_mut().filter(|record| record.arm == "rnn") {
            record.failed = Some("loss is NaN at step 3".to_owned());
            *record = record.clone().sealed();
        }
        let results = json(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        let text = results.to_string();
        let back: Value = serde_json::from_str(&text).unwrap();
        assert!(back["rows"][3]["test_loss_nats"].is_null());
        assert_eq!(back["failures"].as_array().unwrap().len(), 6);
        assert_eq!(back["pairs"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn another_run_confirms() {
        let (experiment, audit, records) = invented::comparison();
        let results = json(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        let read = confirmation(&results.to_string()).unwrap();
        assert_eq!((read.group_by.as_str(), read.pairs.len()), ("thread", 3));
        assert!(confirmation("{}").is_none() && confirmation("no").is_none());
    }
}
