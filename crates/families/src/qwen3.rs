//! Qwen3: Llama with RMSNorm on each head of queries and keys, and heads of their own size.

use crate::Error;
use crate::family::Family;
use crate::keys::Keys;
use crate::llama::textbook;
use models::TransformerConfig;

pub(crate) const FAMILY: Family = Family {
    name: "qwen3",
    architecture: "qwen3",
    model_types: &["qwen3"],
    config,
    gguf: &[],
    folder: &[],
    tied: false,
};

fn config(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    let mut config = textbook(keys)?;
    keys.only(("", "hidden_act"), &["silu"])?;
    config.qk_norm = true;
    config.sliding_window = crate::qwen2::window(keys, config.num_hidden_layers)?;
    Ok(config)
}
