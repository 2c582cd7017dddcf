//! Adapters: which maps of the layers learn in place of all weights.

use crate::config::require;
use crate::{ConfigError, MlpConfig, TransformerConfig};

/// Low-rank adapters beside frozen weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// B·A is multiplied by this over the rank.
    pub alpha: f32,
    /// Which maps have one; in the order of [`LoraTarget::ALL`], each once.
    pub targets: Vec<LoraTarget>,
}

/// A linear map of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoraTarget {
    /// To queries.
    Query,
    /// To keys.
    Key,
    /// To values.
    Value,
    /// From heads to the stream.
    Out,
    /// The MLP's gate.
    Gate,
    /// Into the MLP.
    Up,
    /// Out of the MLP.
    Down,
}

impl LoraTarget {
    /// Every target, in order.
    pub const ALL: [LoraTarget; 7] = [
        LoraTarget::Query,
        LoraTarget::Key,
        LoraTarget::Value,
        LoraTarget::Out,
        LoraTarget::Gate,
        LoraTarget::Up,
        LoraTarget::Down,
    ];

    /// The word for it in options.
    pub fn name(self) -> &'static str {
        match self {
            LoraTarget::Query => "q",
            LoraTarget::Key => "k",
            LoraTarget::Value => "v",
            LoraTarget::Out => "o",
            LoraTarget::Gate => "gate",
            LoraTarget::Up => "up",
            LoraTarget::Down => "down",
        }
    }

    /// What its adapter's parameters of a layer begin with, behind `layers.N.`.
    pub fn prefix(self) -> &'static str {
        match self {
            LoraTarget::Query => "attn.q",
            LoraTarget::Key => "attn.k",
            LoraTarget::Value => "attn.v",
            LoraTarget::Out => "attn.out",
            LoraTarget::Gate => "mlp.gate",
            LoraTarget::Up => "mlp.up",
            LoraTarget::Down => "mlp.down",
        }
    }

    /// The matrix of a layer whose rows it adapts, behind `layers.N.`.
    pub fn matrix(self) -> &'static str {
        match self {
            LoraTarget::Query | LoraTarget::Key | LoraTarget::Value => "attn.qkv.weight",
            LoraTarget::Out => "attn.out.weight",
            LoraTarget::Gate => "mlp.gate.weight",
            LoraTarget::Up => "mlp.up.weight",
            LoraTarget::Down => "mlp.down.weight",
        }
    }

    /// Whether a network has the map.
    pub fn is_in(self, config: &TransformerConfig) -> bool {
        self != LoraTarget::Gate || matches!(config.mlp, MlpConfig::Swiglu | MlpConfig::GegluTanh)
    }

    /// The rows of its matrix, and what it reads.
    pub fn shape(self, c: &TransformerConfig) -> (std::ops::Range<usize>, usize) {
        let (width, inner, d) = (c.hidden_size, c.intermediate_size, c.head_size());
        let (q, kv) = (c.num_attention_heads * d, c.kv_heads() * d);
        match self {
            LoraTarget::Query => (0..q, width),
            LoraTarget::Key => (q..q + kv, width),
            LoraTarget::Value => (q + kv..q + 2 * kv, width),
            LoraTarget::Out => (0..width, q),
            LoraTarget::Gate | LoraTarget::Up => (0..inner, width),
            LoraTarget::Down => (0..width, inner),
        }
    }
}

impl LoraConfig {
    /// Whether these adapters fit the network.
    ///
    /// # Errors
    /// The first number that does not.
    pub(crate) fn check(&self, config: &TransformerConfig) -> Result<(), ConfigError> {
        let most = config.hidden_size;
        let expected = format!("it must be 1 to the model's width, {most}");
        require((1..=most).contains(&self.rank), "lora rank", self.rank, &expected)?;
        let alpha = self.alpha;
        require(alpha > 0.0 && alpha.is_finite(), "lora alpha", alpha, "it must be above 0")?;
        require(!self.targets.is_empty(), "lora targets", "empty", "name at least one")?;
        let absent = self.targets.iter().find(|target| !target.is_in(config));
        let found = absent.map_or("", |target| target.name());
        require(absent.is_none(), "lora targets", found, "this model's MLP has no gate")
    }
}

/// Whether a parameter is part of an adapter.
pub fn is_adapter(parameter: &str) -> bool {
    parameter.ends_with(".lora_a.weight") || parameter.ends_with(".lora_b.weight")
}
