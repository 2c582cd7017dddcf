//! Llama, and what is built like it: SmolLM2, TinyLlama, Mistral.
//!
//! The textbook itself: RMSNorm, rotary positions, SiLU gate, no biases, K/V heads shared. GGUF files
//! hold queries and keys with the halves of each head in turn. Mistral may see only the last
//! positions (a Hugging Face folder says so).

use crate::Error;
use crate::binding::Stored;
use crate::family::Family;
use crate::keys::Keys;
use crate::rope::rope;
use models::{MlpConfig, NormConfig, PositionConfig, SlidingWindow, TransformerConfig};

pub(crate) const FAMILY: Family = Family {
    name: "llama",
    architecture: "llama",
    model_types: &["llama", "mistral"],
    config,
    gguf: &[(
        "layers.{}.attn.qkv",
        &[
            ("blk.{}.attn_q", Stored::Interleaved),
            ("blk.{}.attn_k", Stored::Interleaved),
            ("blk.{}.attn_v", Stored::Plain),
        ],
    )],
    folder: &[],
    tied: false,
};

fn config(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    let mut config = textbook(keys)?;
    keys.only(("", "hidden_act"), &["silu"])?;
    if keys.json("model_type").is_some_and(|kind| kind == "mistral") {
        let all = config.num_hidden_layers;
        let layers = near_layers(keys, all)?.unwrap_or((0..all).collect());
        let tokens = keys.size(("", "sliding_window"))?.filter(|_| !layers.is_empty());
        config.sliding_window =
            tokens.map(|tokens| SlidingWindow { tokens, layers, rope_theta: None });
    }
    Ok(config)
}

/// Layers that see only the last positions, where a folder lists the kinds of all.
pub(crate) fn near_layers(keys: &Keys<'_>, layers: usize) -> Result<Option<Vec<usize>>, Error> {
    let key = "layer_types";
    let Some(value) = keys.json(key) else { return Ok(None) };
    let Some(kinds) = value.as_array() else {
        return Err(keys.wrong(key.to_owned(), value, "a list of the kinds of layers"));
    };
    if kinds.len() != layers {
        let expected = format!("{layers} entries, one a layer");
        return Err(keys.wrong(key.to_owned(), format!("{} entries", kinds.len()), expected));
    }
    let known = ["sliding_attention", "full_attention"];
    if let Some(odd) = kinds.iter().find(|kind| !known.iter().any(|known| *kind == known)) {
        let what = format!("{key} of a layer");
        return Err(keys.wrong(what, odd, known.join(" or ")));
    }
    Ok(Some((0..layers).filter(|&i| kinds[i] == "sliding_attention").collect()))
}

/// The numbers that all families but GPT-2 share.
pub(crate) fn textbook(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    keys.only(("expert_count", "num_local_experts"), &["0"])?;
    keys.only(("", "quantization_config"), &[])?;
    keys.only(("", "attention_bias"), &["false"])?;
    keys.only(("", "mlp_bias"), &["false"])?;
    keys.only(("attn_logit_softcapping", "attn_logit_softcapping"), &[])?;
    let heads = keys.need_size(("attention.head_count", "num_attention_heads"))?;
    let hidden_size = keys.need_size(("embedding_length", "hidden_size"))?;
    let num_hidden_layers = keys.need_size(("block_count", "num_hidden_layers"))?;
    let length = ("attention.key_length", "head_dim");
    let head_dim = match keys.size(length)? {
        Some(d) => d,
        None if heads > 0 && hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let key = keys.name(("attention.head_count", "num_attention_heads"));
            let expected =
                format!("a divisor of {hidden_size}, or {} beside it", keys.name(length));
            return Err(keys.wrong(key, heads, expected));
        }
    };
    for (key, found) in [
        ("attention.value_length", keys.size(("attention.value_length", ""))?),
        ("rope.dimension_count", keys.size(("rope.dimension_count", ""))?),
    ] {
        if matches!(keys, Keys::Gguf { .. })
            && let Some(found) = found.filter(|&found| found != head_dim)
        {
            return Err(keys.wrong(keys.name((key, "")), found, head_dim));
        }
    }
    let (rope_theta, rope_scaling) = rope(keys)?;
    let epsilon = keys.need_number(("attention.layer_norm_rms_epsilon", "rms_norm_eps"))?;
    Ok(TransformerConfig {
        hidden_size,
        num_hidden_layers,
        num_attention_heads: heads,
        num_key_value_heads: keys.size(("attention.head_count_kv", "num_key_value_heads"))?,
        head_dim: Some(head_dim),
        intermediate_size: keys.need_size(("feed_forward_length", "intermediate_size"))?,
        norm: NormConfig::Rms,
        norm_epsilon: epsilon as f32,
        positions: PositionConfig::Rotary,
        rope_theta,
        rope_scaling,
        mlp: MlpConfig::Swiglu,
        bias: false,
        tie_word_embeddings: keys.tied()?,
        ..TransformerConfig::email(
            keys.vocab()?,
            keys.need_size(("context_length", "max_position_embeddings"))?,
        )
    })
}
