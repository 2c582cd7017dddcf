//! Gemma 3 (text): four norms a layer, QK-norm, embeddings scaled by √C, a GELU gate.
//!
//! Five layers of six see only the last positions and have a rotary base of their own. Gains are
//! stored less one in Hugging Face folders (GGUF files hold them whole). Tied heads.

use crate::Error;
use crate::binding::Stored;
use crate::family::Family;
use crate::keys::Keys;
use crate::llama::textbook;
use models::{MlpConfig, SlidingWindow, TransformerConfig};

const LESS_ONE: Stored = Stored::LessOne;

pub(crate) const FAMILY: Family = Family {
    name: "gemma3",
    architecture: "gemma3",
    model_types: &["gemma3_text"],
    config,
    gguf: &[],
    folder: &[
        ("layers.{}.norm1", &[("model.layers.{}.input_layernorm", LESS_ONE)]),
        ("layers.{}.attn.q_norm", &[("model.layers.{}.self_attn.q_norm", LESS_ONE)]),
        ("layers.{}.attn.k_norm", &[("model.layers.{}.self_attn.k_norm", LESS_ONE)]),
        ("layers.{}.attn.post_norm", &[("model.layers.{}.post_attention_layernorm", LESS_ONE)]),
        ("layers.{}.norm2", &[("model.layers.{}.pre_feedforward_layernorm", LESS_ONE)]),
        ("layers.{}.mlp.post_norm", &[("model.layers.{}.post_feedforward_layernorm", LESS_ONE)]),
        ("norm", &[("model.norm", LESS_ONE)]),
    ],
    tied: true,
};

/// Layers from one that sees everything to the next, where the file does not say.
pub(crate) const PATTERN: usize = 6;
/// θ of layers that see only the last positions, where the file does not say.
const NEAR_THETA: f64 = 10_000.0;
/// Layers of the largest model, whose scores are scaled by C/H instead of D.
const LAYERS_27B: usize = 62;

fn config(keys: &Keys<'_>) -> Result<TransformerConfig, Error> {
    let mut config = textbook(keys)?;
    keys.only(("", "hidden_activation"), &["gelu_pytorch_tanh"])?;
    keys.only(("", "use_bidirectional_attention"), &["false"])?;
    config.mlp = MlpConfig::GegluTanh;
    (config.qk_norm, config.post_norm) = (true, true);
    config.embedding_scale = Some((config.hidden_size as f32).sqrt());
    let soft_cap = ("final_logit_softcapping", "final_logit_softcapping");
    config.final_logit_softcapping = keys.number(soft_cap)?.map(|limit| limit as f32);
    config.query_pre_attn_scalar = match keys.number(("", "query_pre_attn_scalar"))? {
        // A folder that does not say means what transformers takes; a GGUF file has no word for it.
        None if matches!(keys, Keys::Folder { .. }) => Some(256.0),
        None if config.num_hidden_layers == LAYERS_27B => {
            Some(config.hidden_size as f64 / config.num_attention_heads as f64)
        }
        given => given,
    };
    // Newer folders keep the two kinds of layers apart: textbook() found no θ at the top.
    let both = keys.json("rope_parameters");
    let mut near_theta =
        keys.number(("rope.freq_base_swa", "rope_local_base_freq"))?.unwrap_or(NEAR_THETA);
    if let Some(full) = both.and_then(|o| o.get("full_attention")) {
        (config.rope_theta, config.rope_scaling) =
            crate::rope::folder(keys, "rope_parameters.full_attention", full, None)?;
    }
    if let Some(near) = both.and_then(|o| o.get("sliding_attention")) {
        near_theta = crate::rope::folder(keys, "rope_parameters.sliding_attention", near, None)?.0;
    }
    let layers = near_layers(keys, config.num_hidden_layers)?;
    let tokens = keys.need_size(("attention.sliding_window", "sliding_window"))?;
    config.sliding_window = (!layers.is_empty()).then_some(SlidingWindow {
        tokens,
        layers,
        rope_theta: Some(near_theta),
    });
    Ok(config)
}

fn near_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<usize>, Error> {
    if let Some(listed) = crate::llama::near_layers(keys, layers)? {
        return Ok(listed);
    }
    let key = ("attention.sliding_window_pattern", "sliding_window_pattern");
    let pattern = keys.size(key)?.unwrap_or(PATTERN).max(1);
    Ok((0..layers).filter(|i| !(i + 1).is_multiple_of(pattern)).collect())
}
