//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.
//!
//! A Hugging Face folder may let the upper layers see only the last positions.

use crate::Error;
use crate::family::Family;
use crate::keys::Keys;
use crate::llama::textbook;
use models::{SlidingWindow, TransformerConfig};

pub(crate) const FAMILY: Family = Family {
    name: "qwen2",
    architecture: "qwen2",
    model_types: &["qwen2"],
    config,
    gguf: &[],
    folder: &[],
    tied: false,
};

fn config(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    let mut config = textbook(keys)?;
    keys.only(("", "hidden_act"), &["silu"])?;
    config.qkv_bias = Some(true);
    config.sliding_window = window(keys, config.num_hidden_layers)?;
    Ok(config)
}

/// The upper layers' window, where `use_sliding_window` turns it on.
pub(crate) fn window(keys: &Keys<'_>, layers: usize) -> Result<Option<SlidingWindow>, Error> {
    if !keys.flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(None);
    }
    let from = keys.size(("", "max_window_layers"))?.unwrap_or(layers).min(layers);
    let tokens = keys.size(("", "sliding_window"))?.filter(|_| from < layers);
    Ok(tokens.map(|tokens| SlidingWindow {
        tokens,
        layers: (from..layers).collect(),
        rope_theta: None,
    }))
}
