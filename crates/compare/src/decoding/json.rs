//! The findings for programs. Keys are stable.

use super::{CONFIDENCE, Findings, Measure, Measured, Row, TITLE};
use serde_json::{Map, Value, json};

/// The findings as JSON.
pub fn json(found: &Findings) -> Value {
    let facts = &found.study.facts;
    json!({
        "title": TITLE,
        "version": facts.version,
        "model": facts.model,
        "model_digest": facts.digest,
        "data": facts.data,
        "synthetic": facts.synthetic,
        "split": facts.split,
        "prompts": found.study.prompts.len(),
        "groups": found.num_groups(),
        "note": found.note(),
        "prompt_tokens": facts.prompt_tokens,
        "max_tokens": facts.max_tokens,
        "seed": facts.seed,
        "confidence": CONFIDENCE,
        "machine": facts.machine,
        "rows": found.rows.iter().map(row).collect::<Vec<_>>(),
        "examples": found.study.examples.iter().map(|example| json!({
            "prompt": example.prompt,
            "reference": example.reference,
            "texts": found.study.arms.iter().zip(&example.texts)
                .map(|(arm, text)| json!({"rule": arm.name, "text": text}))
                .collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), row.name.into());
    fields.insert("rule".to_owned(), row.rule.into());
    for measure in Measure::ALL {
        let value = row.value(measure).map_or(Value::Null, |Measured { mean, interval }| {
            let [low, high] = [interval.map(|i| i.low), interval.map(|i| i.high)];
            json!({"mean": mean, "low": low, "high": high})
        });
        fields.insert(measure.key().to_owned(), value);
    }
    fields.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_a_key_in_every_row() {
        let study = super::super::tests::study();
        let value = json(&Findings::new(&study));
        for row in value["rows"].as_array().unwrap() {
            for measure in Measure::ALL {
                assert!(row.get(measure.key()).is_some(), "{}", measure.key());
            }
        }
        assert_eq!(value["rows"][0]["ms_per_token"], Value::Null);
        assert_eq!(value["note"], Value::Null);
        let value = json(&Findings::new(&super::super::tests::one_group()));
        for row in value["rows"].as_array().unwrap() {
            assert_eq!(row["length_tokens"]["low"], Value::Null, "{row}");
        }
        assert!(value["note"].as_str().unwrap().contains("one group"));
        let value = json(&Findings::new(&study));
        assert_eq!(value["rows"][1]["mean_logprob_nats"]["mean"], -0.5);
        assert_eq!(value["examples"][0]["texts"][0]["text"], "me me me");
    }
}
