//! What a family is: its names, and the function from its keys to a configuration.

use crate::Error;
use crate::binding::Stored;
use crate::keys::Keys;
use models::TransformerConfig;

/// Our parameter's name without `.weight` or `.bias` (`{}` for a layer), and the tensors that make
/// it, one below the other.
pub(crate) type Name = (&'static str, &'static [(&'static str, Stored)]);

/// What departs from the textbook.
pub struct Family {
    /// What it is called here.
    pub name: &'static str,
    /// `general.architecture` in GGUF files.
    pub(crate) architecture: &'static str,
    /// `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// From keys to numbers.
    pub(crate) config: fn(&Keys<'_>) -> Result<TransformerConfig, Error>,
    /// Names of tensors in GGUF files that are not those of [`GGUF`].
    pub(crate) gguf: &'static [Name],
    /// Names of tensors in Hugging Face folders that are not those of [`FOLDER`].
    pub(crate) folder: &'static [Name],
    /// Whether the output projection is the token embedding where `config.json` does not say.
    pub(crate) tied: bool,
}

const P: Stored = Stored::Plain;

/// Names in GGUF files.
pub(crate) const GGUF: &[Name] = &[
    ("tok_emb", &[("token_embd", P)]),
    ("layers.{}.norm1", &[("blk.{}.attn_norm", P)]),
    ("layers.{}.attn.qkv", &[("blk.{}.attn_q", P), ("blk.{}.attn_k", P), ("blk.{}.attn_v", P)]),
    ("layers.{}.attn.q_norm", &[("blk.{}.attn_q_norm", P)]),
    ("layers.{}.attn.k_norm", &[("blk.{}.attn_k_norm", P)]),
    ("layers.{}.attn.out", &[("blk.{}.attn_output", P)]),
    ("layers.{}.attn.post_norm", &[("blk.{}.post_attention_norm", P)]),
    ("layers.{}.norm2", &[("blk.{}.ffn_norm", P)]),
    ("layers.{}.mlp.gate", &[("blk.{}.ffn_gate", P)]),
    ("layers.{}.mlp.up", &[("blk.{}.ffn_up", P)]),
    ("layers.{}.mlp.down", &[("blk.{}.ffn_down", P)]),
    ("layers.{}.mlp.post_norm", &[("blk.{}.post_ffw_norm", P)]),
    ("norm", &[("output_norm", P)]),
    ("head", &[("output", P)]),
];

/// Names in Hugging Face folders.
pub(crate) const FOLDER: &[Name] = &[
    ("tok_emb", &[("model.embed_tokens", P)]),
    ("layers.{}.norm1", &[("model.layers.{}.input_layernorm", P)]),
    (
        "layers.{}.attn.qkv",
        &[
            ("model.layers.{}.self_attn.q_proj", P),
            ("model.layers.{}.self_attn.k_proj", P),
            ("model.layers.{}.self_attn.v_proj", P),
        ],
    ),
    ("layers.{}.attn.q_norm", &[("model.layers.{}.self_attn.q_norm", P)]),
    ("layers.{}.attn.k_norm", &[("model.layers.{}.self_attn.k_norm", P)]),
    ("layers.{}.attn.out", &[("model.layers.{}.self_attn.o_proj", P)]),
    ("layers.{}.norm2", &[("model.layers.{}.post_attention_layernorm", P)]),
    ("layers.{}.mlp.gate", &[("model.layers.{}.mlp.gate_proj", P)]),
    ("layers.{}.mlp.up", &[("model.layers.{}.mlp.up_proj", P)]),
    ("layers.{}.mlp.down", &[("model.layers.{}.mlp.down_proj", P)]),
    ("norm", &[("model.norm", P)]),
    ("head", &[("lm_head", P)]),
];

impl Family {
    /// The tensors that make a parameter: (name, how it is stored).
    pub(crate) fn tensors(&self, gguf: bool, parameter: &str) -> Vec<(String, Stored)> {
        let (base, kind) = parameter.rsplit_once('.').unwrap_or((parameter, "weight"));
        let layer = base.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
        let ours = match layer {
            Some(number) => base.replacen(number, "{}", 1),
            None => base.to_owned(),
        };
        let (own, shared) = if gguf { (self.gguf, GGUF) } else { (self.folder, FOLDER) };
        let found = own.iter().chain(shared).find(|(name, _)| *name == ours);
        let file = |name: &str| format!("{}.{kind}", name.replace("{}", layer.unwrap_or("")));
        match found {
            Some((_, pieces)) => pieces.iter().map(|(name, how)| (file(name), *how)).collect(),
            None => vec![(parameter.to_owned(), Stored::Plain)],
        }
    }
}
