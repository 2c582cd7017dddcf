//! GPT-2: LayerNorm, learned positions, GELU by its tanh approximation, biases, tied heads.
//!
//! Queries, keys and values are one matrix; a Hugging Face folder stores matrices as inputs by
//! outputs.

use crate::Error;
use crate::binding::Stored;
use crate::family::Family;
use crate::keys::Keys;
use models::{MlpConfig, NormConfig, PositionConfig, TransformerConfig};

const P: Stored = Stored::Plain;
/// Matrices only: a bias has nothing to exchange.
const T: Stored = Stored::Transposed;

pub(crate) const FAMILY: Family = Family {
    name: "gpt2",
    architecture: "gpt2",
    model_types: &["gpt2"],
    config,
    gguf: &[
        ("pos_emb", &[("position_embd", P)]),
        ("layers.{}.attn.qkv", &[("blk.{}.attn_qkv", P)]),
    ],
    folder: &[
        ("tok_emb", &[("transformer.wte", P)]),
        ("pos_emb", &[("transformer.wpe", P)]),
        ("layers.{}.norm1", &[("transformer.h.{}.ln_1", P)]),
        ("layers.{}.attn.qkv", &[("transformer.h.{}.attn.c_attn", T)]),
        ("layers.{}.attn.out", &[("transformer.h.{}.attn.c_proj", T)]),
        ("layers.{}.norm2", &[("transformer.h.{}.ln_2", P)]),
        ("layers.{}.mlp.up", &[("transformer.h.{}.mlp.c_fc", T)]),
        ("layers.{}.mlp.down", &[("transformer.h.{}.mlp.c_proj", T)]),
        ("norm", &[("transformer.ln_f", P)]),
    ],
    tied: true,
};

fn config(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    keys.only(("", "activation_function"), &["gelu_new", "gelu_pytorch_tanh"])?;
    keys.only(("", "scale_attn_weights"), &["true"])?;
    keys.only(("", "scale_attn_by_inverse_layer_idx"), &["false"])?;
    keys.only(("", "add_cross_attention"), &["false"])?;
    let hidden_size = keys.need_size(("embedding_length", "n_embd"))?;
    let inner = keys.size(("feed_forward_length", "n_inner"))?;
    let epsilon = keys.number(("attention.layer_norm_epsilon", "layer_norm_epsilon"))?;
    Ok(TransformerConfig {
        hidden_size,
        num_hidden_layers: keys.need_size(("block_count", "n_layer"))?,
        num_attention_heads: keys.need_size(("attention.head_count", "n_head"))?,
        intermediate_size: inner.unwrap_or(hidden_size.saturating_mul(4)),
        norm: NormConfig::Layer,
        norm_epsilon: epsilon.unwrap_or(1e-5) as f32,
        positions: PositionConfig::Learned,
        mlp: MlpConfig::GeluTanh,
        bias: true,
        head_bias: Some(false),
        tie_word_embeddings: keys.tied()?,
        ..TransformerConfig::email(
            keys.vocab()?,
            keys.need_size(("context_length", "n_positions"))?,
        )
    })
}
