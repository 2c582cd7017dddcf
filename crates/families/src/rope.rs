//! How published files say that rotary positions are stretched.

use crate::Error;
use crate::keys::Keys;
use models::RopeScaling;
use serde_json::Value;

/// θ of rotary positions, and how they are stretched.
pub(crate) fn rope(keys: &Keys<'_>) -> Result<(f64, Option<RopeScaling>), Error> {
    match keys {
        Keys::Gguf { .. } => gguf(keys),
        Keys::Folder { .. } => {
            let theta = keys.number(("", "rope_theta"))?;
            let name = ["rope_parameters", "rope_scaling"].into_iter();
            match name.filter_map(|name| Some((name, keys.json(name)?))).next() {
                Some((name, object)) => folder(keys, name, object, theta),
                None => Ok((theta.unwrap_or(10_000.0), None)),
            }
        }
    }
}

fn gguf(keys: &Keys<'_>) -> Result<(f64, Option<RopeScaling>), Error> {
    let Keys::Gguf { tensors, .. } = keys else { return Ok((10_000.0, None)) };
    let theta = keys.number(("rope.freq_base", ""))?.unwrap_or(10_000.0);
    if let Some(factors) = tensors.rope_factors.clone() {
        return Ok((theta, Some(RopeScaling::Factors { factors })));
    }
    let number = |key| keys.number((key, ""));
    // Before there were kinds, there was one factor, under another name.
    let said = match number("rope.scaling.factor")? {
        None => number("rope.scale_linear")?,
        said => said,
    };
    let factor = || said.ok_or_else(|| keys.missing(("rope.scaling.factor", "")));
    let scaling = match keys.gguf_text("rope.scaling.type")? {
        None => said.filter(|&f| f != 0.0 && f != 1.0).map(|factor| RopeScaling::Linear { factor }),
        Some("none") => None,
        Some("linear") => Some(RopeScaling::Linear { factor: factor()? }),
        Some("yarn") => {
            let factor = factor()?;
            let grown = RopeScaling::yarn_growth(factor);
            let original = ("rope.scaling.original_context_length", "");
            Some(RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: keys.need_size(original)?,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: number("rope.scaling.attn_factor")?.map(|f| f * grown),
            })
        }
        Some(other) => {
            let key = keys.name(("rope.scaling.type", ""));
            return Err(keys.wrong(key, other, "none, linear or yarn"));
        }
    };
    Ok((theta, scaling))
}

/// Numbers that such an object may hold.
const NUMBERS: [&str; 11] = [
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "partial_rotary_factor",
];

/// What the object under `name` of `config.json` says; `theta` is what stands beside it.
pub(crate) fn folder(
    keys: &Keys<'_>,
    name: &str,
    object: &Value,
    theta: Option<f64>,
) -> Result<(f64, Option<RopeScaling>), Error> {
    let Some(map) = object.as_object() else {
        return Err(keys.wrong(name.to_owned(), object, "an object"));
    };
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let fits = match key.as_str() {
            "rope_type" | "type" => value.is_string(),
            "truncate" => *value == true,
            "finetuned" => value.is_boolean(),
            // Gemma 3 has one such object a kind of layer.
            "full_attention" | "sliding_attention" => value.is_object(),
            key => NUMBERS.contains(&key) && value.is_number(),
        };
        if !fits {
            let known = "none of it: only what is known keeps positions where they were learnt";
            return Err(keys.wrong(format!("{name}.{key}"), value, known));
        }
    }
    let number = |key: &str| object.get(key).and_then(Value::as_f64);
    let need = |key: &str| {
        let missing =
            || Error::MissingKey { path: keys.path().to_owned(), key: format!("{name}.{key}") };
        number(key).ok_or_else(missing)
    };
    let theta = number("rope_theta").or(theta).unwrap_or(10_000.0);
    if number("partial_rotary_factor").is_some_and(|share| share != 1.0) {
        let key = format!("{name}.partial_rotary_factor");
        return Err(keys.wrong(key, object["partial_rotary_factor"].clone(), 1));
    }
    let original = || match number("original_max_position_embeddings") {
        Some(n) => Ok(n as usize),
        None => keys.need_size(("", "max_position_embeddings")),
    };
    let kind = object.get("rope_type").or_else(|| object.get("type")).and_then(Value::as_str);
    let scaling = match kind.unwrap_or("default") {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: need("factor")? }),
        "llama3" => Some(RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_max_position_embeddings: original()?,
        }),
        "yarn" => {
            let factor = need("factor")?;
            // The share of the usual growth that each of the two takes.
            let growth = |key| {
                let share = number(key).filter(|&share| share != 0.0)?;
                Some(1.0 + share * (RopeScaling::yarn_growth(factor) - 1.0))
            };
            let told = || Some(growth("mscale")? / growth("mscale_all_dim")?);
            Some(RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original()?,
                beta_fast: number("beta_fast").unwrap_or(32.0),
                beta_slow: number("beta_slow").unwrap_or(1.0),
                attention_factor: number("attention_factor").or_else(told),
            })
        }
        other => {
            let key = format!("{name}.rope_type");
            return Err(keys.wrong(key, other, "default, linear, llama3 or yarn"));
        }
    };
    Ok((theta, scaling))
}
