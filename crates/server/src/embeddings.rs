//! `POST /v1/embeddings`: the mean over a text's tokens of what the output projection reads, made as
//! long as 1.

use crate::answer::whole;
use crate::app::{App, UnderWay};
use crate::call::{Call, Update};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Kind, field};
use crate::prompt;
use axum::Json;
use axum::response::{IntoResponse, Response};
use decoding::Rules;
use engine::Request;
use engine::serving::Asked;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::block_in_place;

/// Fields of their own.
pub const EMBEDDINGS: &[Field] = &[
    field("model", Kind::Text, "The name that /v1/models gives; absent means that one"),
    field(
        "input",
        Kind::Any,
        "A text, a list of texts, a list of token ids, or a list of such lists",
    ),
    field(
        "encoding_format",
        Kind::Text,
        "float, or base64 of 32-bit floats, the lowest byte first",
    ),
    field("dimensions", Kind::Refused("a mean has as many values as the model is wide"), ""),
    field("strict", Kind::Flag, "Refuse fields that would have no effect"),
];

/// Answers a body.
///
/// # Errors
/// What cannot be answered.
pub async fn embeddings(
    app: Arc<App>,
    under_way: UnderWay,
    arrived: Instant,
    body: &[u8],
) -> Result<Response, ApiError> {
    let fields = Fields::read(body, &[EMBEDDINGS])?;
    app.is_model(fields.text("model"))?;
    let coded = match fields.text("encoding_format") {
        None | Some("float") => false,
        Some("base64") => true,
        Some(found) => {
            let message = format!("encoding_format: found {found:?}, expected float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let Some(input) = fields.value("input") else {
        return Err(ApiError::field("input", "input: missing; expected a text or a list of texts"));
    };
    let prompts = block_in_place(|| prompt::prompts(&app, "input", Some(input)))?;
    let asked = |given: prompt::Given| Asked {
        pool: true,
        ..Asked::plain(Request {
            prompt: given.ids,
            rules: Rules::default(),
            seed: 0,
            first_sequence: 0,
            sequences: 1,
            max_tokens: 1,
            end: Vec::new(),
            stops: Vec::new(),
        })
    };
    let all = prompts.into_iter().map(asked).collect();
    let mut call = Call::start(&app, under_way, arrived, all)?;
    let mut data = vec![Value::Null; call.choices()];
    for update in whole(&mut call).await? {
        if let Update::Pooled(index, mean) = update {
            let vector = unit(&mean);
            let value = if coded { base64(&vector).into() } else { json!(vector) };
            data[index] = json!({ "object": "embedding", "index": index, "embedding": value });
        }
    }
    let usage = call.usage();
    let tokens = &usage["prompt_tokens"];
    Ok(Json(json!({
        "object": "list", "data": data, "model": app.model.name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "warnings": fields.warnings,
    }))
    .into_response())
}

fn unit(mean: &[f32]) -> Vec<f32> {
    let square: f64 = mean.iter().map(|x| f64::from(*x).powi(2)).sum();
    let length = if square > 0.0 { square.sqrt() } else { 1.0 };
    mean.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648 of the values' bytes.
fn base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * place)) as usize % 64];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_base64() {
        // Made with Python's struct and base64.
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.1, 0.2, 0.3]), "zczMPc3MTD6amZk+");
        assert_eq!(unit(&[3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(unit(&[0.0]), [0.0]);
    }
}
