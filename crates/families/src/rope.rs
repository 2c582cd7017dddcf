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
            let both = keys.json("rope_parameters").or_else(|| keys.json("rope_scaling"));
            folder(keys, both, keys.number(("", "rope_theta"))?)
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
    let factor = || match number("rope.scaling.factor")? {
        Some(factor) => Ok(factor),
        None => Err(keys.missing(("rope.scaling.factor", ""))),
    };
    let scaling = match keys.gguf_text("rope.scaling.type")? {
        None | Some("none") => None,
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

/// What one object of `config.json` says; `theta` is what stands beside it.
pub(crate) fn folder(
    keys: &Keys<'_>,
    object: Option<&Value>,
    theta: Option<f64>,
) -> Result<(f64, Option<RopeScaling>), Error> {
    let Some(object) = object else { return Ok((theta.unwrap_or(10_000.0), None)) };
    let number = |key: &str| object.get(key).and_then(Value::as_f64);
    let need = |key: &str| {
        let missing = || Error::MissingKey {
            path: keys.path().to_owned(),
            key: format!("rope_scaling.{key}"),
        };
        number(key).ok_or_else(missing)
    };
    let theta = number("rope_theta").or(theta).unwrap_or(10_000.0);
    if number("partial_rotary_factor").is_some_and(|share| share != 1.0) {
        let key = "rope_parameters.partial_rotary_factor".to_owned();
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
        "yarn" => Some(RopeScaling::Yarn {
            factor: need("factor")?,
            original_max_position_embeddings: original()?,
            beta_fast: number("beta_fast").unwrap_or(32.0),
            beta_slow: number("beta_slow").unwrap_or(1.0),
            attention_factor: number("attention_factor"),
        }),
        other => {
            let key = "rope_scaling.rope_type".to_owned();
            return Err(keys.wrong(key, other, "default, linear, llama3 or yarn"));
        }
    };
    Ok((theta, scaling))
}
