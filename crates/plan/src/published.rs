//! Published models by name: the numbers of their configurations, nothing downloaded.
//!
//! Parameters come from these numbers by the layout that the program itself would allocate; the
//! totals that were published are test data, not table data.

use crate::{Architecture, Error, Experts};
use models::{
    MlpConfig, ModelConfig, NormConfig, PositionConfig, RnnConfig, SlidingWindow, TransformerConfig,
};

/// What a family adds to the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// LayerNorm, learned positions, biases, two matrices in the MLP.
    Gpt2,
    /// RMSNorm, rotary positions, a gate, no biases.
    Llama,
    /// The same, with biases on queries, keys and values.
    Qwen2,
    /// Llama with norms on the heads of queries and keys.
    Qwen3,
    /// Llama with a GELU gate.
    Gemma,
    /// Gemma with norms behind the branches.
    Gemma2,
    /// Gemma 2 with norms on the heads of queries and keys.
    Gemma3,
}

/// Which layers see only near positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Near {
    None,
    All(usize),
    /// Every layer but each n-th, counted from 1.
    AllBut(usize, usize),
    /// The first of two.
    Even(usize),
}

/// A published model's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The name.
    pub name: &'static str,
    style: Style,
    /// L, C, H, G, D, F, V.
    shape: [usize; 7],
    tied: bool,
    context: usize,
    near: Near,
    experts: Option<Experts>,
}

/// A mixture: experts of a layer, those that a token goes through, F of one, F of a shared one.
const fn sparse(dense: Published, [count, active, inner, shared]: [u64; 4]) -> Published {
    Published { experts: Some(Experts { count, active, inner, shared }), ..dense }
}

const fn row(
    name: &'static str,
    style: Style,
    shape: [usize; 7],
    tied: bool,
    context: usize,
    near: Near,
) -> Published {
    Published { name, style, shape, tied, context, near, experts: None }
}

use Style::{Gemma, Gemma2, Gemma3, Gpt2, Llama, Qwen2, Qwen3};

/// Every published model that has a name here.
#[rustfmt::skip]
const ALL: [Published; 30] = [
    row("gpt2", Gpt2, [12, 768, 12, 12, 64, 3072, 50257], true, 1024, Near::None),
    row("gpt2-medium", Gpt2, [24, 1024, 16, 16, 64, 4096, 50257], true, 1024, Near::None),
    row("gpt2-large", Gpt2, [36, 1280, 20, 20, 64, 5120, 50257], true, 1024, Near::None),
    row("gpt2-xl", Gpt2, [48, 1600, 25, 25, 64, 6400, 50257], true, 1024, Near::None),
    row("smollm2-135m", Llama, [30, 576, 9, 3, 64, 1536, 49152], true, 8192, Near::None),
    row("smollm2-360m", Llama, [32, 960, 15, 5, 64, 2560, 49152], true, 8192, Near::None),
    row("smollm2-1.7b", Llama, [24, 2048, 32, 32, 64, 8192, 49152], true, 8192, Near::None),
    row("qwen2.5-0.5b", Qwen2, [24, 896, 14, 2, 64, 4864, 151_936], true, 32768, Near::None),
    row("qwen3-0.6b", Qwen3, [28, 1024, 16, 8, 128, 3072, 151_936], true, 40960, Near::None),
    row("qwen3-1.7b", Qwen3, [28, 2048, 16, 8, 128, 6144, 151_936], true, 40960, Near::None),
    row("qwen3-4b", Qwen3, [36, 2560, 32, 8, 128, 9728, 151_936], true, 40960, Near::None),
    row("qwen3-8b", Qwen3, [36, 4096, 32, 8, 128, 12288, 151_936], false, 40960, Near::None),
    row("qwen3-14b", Qwen3, [40, 5120, 40, 8, 128, 17408, 151_936], false, 40960, Near::None),
    row("qwen3-32b", Qwen3, [64, 5120, 64, 8, 128, 25600, 151_936], false, 40960, Near::None),
    row("tinyllama-1.1b", Llama, [22, 2048, 32, 4, 64, 5632, 32000], false, 2048, Near::None),
    row("llama-2-7b", Llama, [32, 4096, 32, 32, 128, 11008, 32000], false, 4096, Near::None),
    row("llama-3-8b", Llama, [32, 4096, 32, 8, 128, 14336, 128_256], false, 8192, Near::None),
    row("llama-3.1-8b", Llama, [32, 4096, 32, 8, 128, 14336, 128_256], false, 131_072, Near::None),
    row("llama-3.2-1b", Llama, [16, 2048, 32, 8, 64, 8192, 128_256], true, 131_072, Near::None),
    row("llama-3-70b", Llama, [80, 8192, 64, 8, 128, 28672, 128_256], false, 8192, Near::None),
    row("mistral-7b-v0.1", Llama, [32, 4096, 32, 8, 128, 14336, 32000], false, 32768, Near::All(4096)),
    row("gemma-2b", Gemma, [18, 2048, 8, 1, 256, 16384, 256_000], true, 8192, Near::None),
    row("gemma-7b", Gemma, [28, 3072, 16, 16, 256, 24576, 256_000], true, 8192, Near::None),
    row("gemma-2-2b", Gemma2, [26, 2304, 8, 4, 256, 9216, 256_000], true, 8192, Near::Even(4096)),
    row("gemma-3-270m", Gemma3, [18, 640, 4, 1, 256, 2048, 262_144], true, 32768, Near::AllBut(6, 512)),
    row("gemma-3-1b", Gemma3, [26, 1152, 4, 1, 256, 6912, 262_144], true, 32768, Near::AllBut(6, 512)),
    sparse(row("mixtral-8x7b", Llama, [32, 4096, 32, 8, 128, 0, 32000], false, 32768, Near::None), [8, 2, 14336, 0]),
    sparse(row("qwen1.5-moe-a2.7b", Qwen2, [24, 2048, 16, 16, 128, 0, 151_936], false, 8192, Near::None), [60, 4, 1408, 5632]),
    sparse(row("qwen3-30b-a3b", Qwen3, [48, 2048, 32, 4, 128, 0, 151_936], false, 40960, Near::None), [128, 8, 768, 0]),
    sparse(row("qwen3-235b-a22b", Qwen3, [94, 4096, 64, 4, 128, 0, 151_936], false, 40960, Near::None), [128, 8, 1536, 0]),
];

/// Models of this program's own experiment.
const OWN: [&str; 2] = ["email-transformer", "email-rnn"];
/// V and T of the experiment's probe.
const PROBE: (usize, usize) = (4000, 64);

/// Every name.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|row| row.name).chain(OWN)
}

impl Published {
    /// Every published model, in the order of families.
    pub fn all() -> impl Iterator<Item = &'static Published> {
        ALL.iter()
    }

    /// The model.
    ///
    /// # Errors
    /// Numbers that make no network: none of the table's.
    pub fn architecture(&self) -> Result<Architecture, Error> {
        let config = ModelConfig::Transformer(self.config());
        Architecture::of(self.name, config, false)?.with_experts(self.experts)
    }

    /// The configuration; of a mixture that of what a token goes through.
    pub fn config(&self) -> TransformerConfig {
        let [layers, hidden, heads, kv_heads, head_dim, inner, vocab] = self.shape;
        let textbook = self.style != Gpt2;
        let near: Vec<usize> = (0..layers)
            .filter(|&i| match self.near {
                Near::None => false,
                Near::All(_) => true,
                Near::AllBut(n, _) => !(i + 1).is_multiple_of(n),
                Near::Even(_) => i % 2 == 0,
            })
            .collect();
        let window = match self.near {
            Near::None => None,
            Near::All(tokens) | Near::AllBut(_, tokens) | Near::Even(tokens) => Some(tokens),
        };
        TransformerConfig {
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: Some(kv_heads),
            head_dim: Some(head_dim),
            intermediate_size: self.experts.map_or(inner, |e| e.active_inner() as usize),
            norm: if textbook { NormConfig::Rms } else { NormConfig::Layer },
            positions: if textbook { PositionConfig::Rotary } else { PositionConfig::Learned },
            mlp: match self.style {
                Gpt2 => MlpConfig::GeluTanh,
                Llama | Qwen2 | Qwen3 => MlpConfig::Swiglu,
                Gemma | Gemma2 | Gemma3 => MlpConfig::GegluTanh,
            },
            bias: !textbook,
            head_bias: Some(false),
            qkv_bias: (self.style == Qwen2).then_some(true),
            qk_norm: matches!(self.style, Qwen3 | Gemma3),
            post_norm: matches!(self.style, Gemma2 | Gemma3),
            tie_word_embeddings: self.tied,
            sliding_window: window.map(|tokens| SlidingWindow {
                tokens,
                layers: near,
                rope_theta: None,
            }),
            ..TransformerConfig::email(vocab, self.context)
        }
    }
}

/// The model of a name: case, an organisation before it and underscores do not matter.
///
/// # Errors
/// [`Error::UnknownModel`] with the nearest names.
pub(crate) fn find(name: &str) -> Result<Architecture, Error> {
    let bare = name.rsplit('/').next().unwrap_or(name).to_lowercase().replace('_', "-");
    let alias = match bare.as_str() {
        "gpt2-124m" | "gpt2-small" => "gpt2",
        "meta-llama-3-8b" => "llama-3-8b",
        "meta-llama-3.1-8b" => "llama-3.1-8b",
        "meta-llama-3-70b" | "llama-3.1-70b" => "llama-3-70b",
        "llama-2-7b-hf" => "llama-2-7b",
        "mistral-7b" => "mistral-7b-v0.1",
        "mixtral-8x7b-v0.1" | "mixtral" => "mixtral-8x7b",
        other => other,
    };
    if let Some(row) = ALL.iter().find(|row| row.name == alias) {
        return row.architecture();
    }
    let (vocab, longest) = PROBE;
    match alias {
        "email-transformer" => {
            let config = ModelConfig::Transformer(TransformerConfig::email(vocab, longest));
            Architecture::of(OWN[0], config, true)
        }
        "email-rnn" => Architecture::of(OWN[1], ModelConfig::Rnn(RnnConfig::email(vocab)), true),
        _ => Err(Error::UnknownModel { name: name.to_owned(), near: nearest(&bare, names()) }),
    }
}

/// The three names nearest to a word.
pub(crate) fn nearest(word: &str, names: impl Iterator<Item = &'static str>) -> String {
    let mut all: Vec<(usize, &str)> =
        names.map(|name| (strsim::damerau_levenshtein(word, name), name)).collect();
    all.sort();
    all.iter().take(3).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}
