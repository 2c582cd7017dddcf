//! The numbers of a network, named as published `config.json` files name them.

use crate::{LoraConfig, RopeScaling, SlidingWindow};
use serde::{Deserialize, Serialize};

/// Any model that can be trained, evaluated and sampled from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a process has a handful of them")]
pub enum ModelConfig {
    /// A causal transformer.
    Transformer(TransformerConfig),
    /// One recurrent tanh layer.
    Rnn(RnnConfig),
    /// A count model: bigram, or an n-gram of any order up to 5.
    Ngram(NgramConfig),
}

/// A causal transformer: pre-norm layers of attention and an MLP on a residual stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerConfig {
    /// V. Taken from the data when 0.
    #[serde(default)]
    pub vocab_size: usize,
    /// C.
    pub hidden_size: usize,
    /// L.
    pub num_hidden_layers: usize,
    /// Layers with weights of their own, which all L use in a cycle; L when absent (Takase and
    /// Kiyono, arXiv 2104.06022).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct_layers: Option<usize>,
    /// H.
    pub num_attention_heads: usize,
    /// G; H when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// D; C/H when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// F.
    pub intermediate_size: usize,
    /// Longest context, in tokens.
    pub max_position_embeddings: usize,
    /// Which norm.
    #[serde(default)]
    pub norm: NormConfig,
    /// Added to the variance.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// How a token knows its place.
    #[serde(default)]
    pub positions: PositionConfig,
    /// θ of rotary positions.
    #[serde(default = "default_theta")]
    pub rope_theta: f64,
    /// Which MLP.
    #[serde(default)]
    pub mlp: MlpConfig,
    /// Biases in attention, MLP and output.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the output projection is the token embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Biases of queries, keys and values; as `bias` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Bias of the output projection; as `bias` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_bias: Option<bool>,
    /// RMSNorm on each head of queries and keys, before their positions.
    #[serde(default, skip_serializing_if = "is_no")]
    pub qk_norm: bool,
    /// A norm on what each branch adds to the stream.
    #[serde(default, skip_serializing_if = "is_no")]
    pub post_norm: bool,
    /// What token embeddings are multiplied by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<f32>,
    /// Scores are multiplied by 1/√this; D when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<f64>,
    /// How rotary positions are stretched for contexts longer than those trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Layers that see only near positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindow>,
    /// Logits z become this·tanh(z/this).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_logit_softcapping: Option<f32>,
    /// Matrices that are kept quantised: what the weights' file says.
    #[serde(skip)]
    pub storage: tensor::Storage,
    /// What learns in place of all weights: what whoever trains the model says.
    #[serde(skip)]
    pub lora: Option<LoraConfig>,
    /// How keys and values are kept between steps: what whoever runs the model says.
    #[serde(skip)]
    pub kv: kernels::KvKind,
}

/// Which norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormConfig {
    /// LayerNorm with gain and bias.
    #[default]
    Layer,
    /// RMSNorm.
    Rms,
}

/// How a token knows its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionConfig {
    /// A learned vector a position.
    #[default]
    Learned,
    /// Rotary angles on queries and keys.
    Rotary,
}

/// Which MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpConfig {
    /// GELU (exact).
    #[default]
    Gelu,
    /// SiLU gate.
    Swiglu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU gate, by its tanh approximation.
    GegluTanh,
    /// The square of ReLU.
    Relu2,
}

/// One recurrent tanh layer between an embedding and the output projection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RnnConfig {
    /// V. Taken from the data when 0.
    #[serde(default)]
    pub vocab_size: usize,
    /// Width of the embedding.
    pub embedding_size: usize,
    /// Width of the state.
    pub hidden_size: usize,
}

/// Counts of token runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramConfig {
    /// V. Taken from the data when 0.
    #[serde(default)]
    pub vocab_size: usize,
    /// Tokens a run holds, the predicted one counted: 2 for a bigram, 1 for frequencies alone, 0
    /// for every token alike.
    pub order: usize,
    /// How unseen runs get their share; chosen on the validation side when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<Smoothing>,
}

/// How a count model gives unseen runs their share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum Smoothing {
    /// (count + add) / (total + add·V); for bigrams.
    Add {
        /// What is added to every count.
        add: f64,
    },
    /// λ·(maximum likelihood) + (1 - λ)·(unigram with add-one); for bigrams (Jelinek and Mercer,
    /// 1980).
    Interpolated {
        /// λ.
        lambda: f64,
    },
    /// Interpolated Kneser–Ney with one discount an order (Kneser and Ney, 1995; Chen and Goodman,
    /// 1998).
    KneserNey {
        /// What is taken from every count; n1/(n1 + 2·n2) of each order when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        discount: Option<f64>,
    },
}

fn default_epsilon() -> f32 {
    1e-5
}
fn default_theta() -> f64 {
    10_000.0
}
fn yes() -> bool {
    true
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_no(flag: &bool) -> bool {
    !flag
}

/// Numbers that do not make a network.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("model configuration: {field} is {found}; {expected}")]
pub struct ConfigError {
    /// The key.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it must be.
    pub expected: String,
}

pub(crate) fn require(
    good: bool,
    field: &'static str,
    found: impl ToString,
    expected: &str,
) -> Result<(), ConfigError> {
    if good {
        return Ok(());
    }
    Err(ConfigError { field, found: found.to_string(), expected: expected.to_owned() })
}

/// A size from 1 to `most`: with all at their most, the bytes of a plan still fit in 64 bits.
fn require_size(field: &'static str, found: usize, most: usize) -> Result<(), ConfigError> {
    let expected = format!("it must be at least 1 and at most {most}");
    require((1..=most).contains(&found), field, found, &expected)
}

impl TransformerConfig {
    /// Whether a layer sees only near positions.
    pub fn sees_near(&self, layer: usize) -> bool {
        self.sliding_window.as_ref().is_some_and(|window| window.layers.contains(&layer))
    }

    /// Whether a matrix is kept quantised; those in 16 bits are not.
    pub fn is_quantised(&self) -> bool {
        let mut kinds = self.storage.values().flatten();
        kinds.any(|(kind, _)| matches!(kind, tensor::MatrixKind::Quant(_)))
    }

    /// The small causal transformer of the email experiment: 620,192 parameters at V = 4,000.
    pub fn email(vocab_size: usize, max_len: usize) -> TransformerConfig {
        TransformerConfig {
            vocab_size,
            hidden_size: 64,
            num_hidden_layers: 2,
            distinct_layers: None,
            num_attention_heads: 4,
            num_key_value_heads: None,
            head_dim: None,
            intermediate_size: 256,
            max_position_embeddings: max_len,
            norm: NormConfig::Layer,
            norm_epsilon: default_epsilon(),
            positions: PositionConfig::Learned,
            rope_theta: default_theta(),
            mlp: MlpConfig::Gelu,
            bias: true,
            tie_word_embeddings: false,
            qkv_bias: None,
            head_bias: None,
            qk_norm: false,
            post_norm: false,
            embedding_scale: None,
            query_pre_attn_scalar: None,
            rope_scaling: None,
            sliding_window: None,
            lora: None,
            kv: kernels::KvKind::F32,
            final_logit_softcapping: None,
            storage: tensor::Storage::new(),
        }
    }

    /// What scores are multiplied by.
    pub(crate) fn attention_scale(&self) -> f32 {
        match self.query_pre_attn_scalar {
            Some(scalar) => (1.0 / scalar.sqrt()) as f32,
            None => 1.0 / (self.head_size() as f32).sqrt(),
        }
    }

    /// Layers with weights of their own.
    pub fn own_layers(&self) -> usize {
        self.distinct_layers.unwrap_or(self.num_hidden_layers)
    }

    /// G.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// D.
    pub fn head_size(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let (h, g, d) = (self.num_attention_heads, self.kv_heads(), self.head_size());
        require_size("hidden_size", self.hidden_size, 1 << 17)?;
        require_size("num_hidden_layers", self.num_hidden_layers, 1 << 10)?;
        require(
            (1..=self.num_hidden_layers).contains(&self.own_layers()),
            "distinct_layers",
            self.own_layers(),
            "it must be at least 1 and at most num_hidden_layers",
        )?;
        require_size("num_attention_heads", h, 1 << 10)?;
        require_size("intermediate_size", self.intermediate_size, 1 << 19)?;
        require_size("max_position_embeddings", self.max_position_embeddings, 1 << 22)?;
        require(
            self.head_dim.is_some() || self.hidden_size.is_multiple_of(h),
            "num_attention_heads",
            h,
            "it must divide hidden_size, or head_dim must be given",
        )?;
        require(
            g > 0 && h.is_multiple_of(g),
            "num_key_value_heads",
            g,
            "it must divide num_attention_heads",
        )?;
        require((1..=1024).contains(&d), "head_dim", d, "it must be between 1 and 1024")?;
        require(
            self.positions == PositionConfig::Learned || d.is_multiple_of(2),
            "head_dim",
            d,
            "rotary positions need an even number",
        )?;
        require(
            self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0,
            "norm_epsilon",
            self.norm_epsilon,
            "it must lie between 0 and 1",
        )?;
        let above = |field, value: Option<f64>| {
            let good = value.is_none_or(|v| v > 0.0 && v.is_finite());
            require(good, field, value.unwrap_or(0.0), "it must be above 0")
        };
        require(
            self.rope_theta > 1.0 && self.rope_theta.is_finite(),
            "rope_theta",
            self.rope_theta,
            "it must be above 1",
        )?;
        above("embedding_scale", self.embedding_scale.map(f64::from))?;
        above("query_pre_attn_scalar", self.query_pre_attn_scalar)?;
        above("final_logit_softcapping", self.final_logit_softcapping.map(f64::from))?;
        self.rope_scaling.as_ref().map_or(Ok(()), |scaling| scaling.check(d))?;
        self.lora.as_ref().map_or(Ok(()), |lora| lora.check(self))?;
        self.sliding_window.as_ref().map_or(Ok(()), |w| w.check(self.num_hidden_layers))
    }
}

impl RnnConfig {
    /// The simple RNN of the email experiment: 659,552 parameters at V = 4,000.
    pub fn email(vocab_size: usize) -> RnnConfig {
        RnnConfig { vocab_size, embedding_size: 64, hidden_size: 96 }
    }
}

impl ModelConfig {
    /// V.
    pub fn vocab_size(&self) -> usize {
        match self {
            ModelConfig::Transformer(c) => c.vocab_size,
            ModelConfig::Rnn(c) => c.vocab_size,
            ModelConfig::Ngram(c) => c.vocab_size,
        }
    }

    /// The same with V set.
    pub fn with_vocab_size(mut self, vocab_size: usize) -> ModelConfig {
        match &mut self {
            ModelConfig::Transformer(c) => c.vocab_size = vocab_size,
            ModelConfig::Rnn(c) => c.vocab_size = vocab_size,
            ModelConfig::Ngram(c) => c.vocab_size = vocab_size,
        }
        self
    }

    /// The word for it in tables.
    pub fn kind(&self) -> &'static str {
        match self {
            ModelConfig::Transformer(_) => "transformer",
            ModelConfig::Rnn(_) => "rnn",
            ModelConfig::Ngram(c) => {
                ["uniform", "unigram", "bigram"].get(c.order).unwrap_or(&"ngram")
            }
        }
    }

    /// The longest context that the model can see, in tokens; none for models without a limit.
    pub fn context_limit(&self) -> Option<usize> {
        match self {
            ModelConfig::Transformer(c) => Some(c.max_position_embeddings),
            ModelConfig::Rnn(_) | ModelConfig::Ngram(_) => None,
        }
    }

    /// Positions that layers with a window see, where a model has such.
    pub fn window(&self) -> Option<usize> {
        match self {
            ModelConfig::Transformer(c) => c.sliding_window.as_ref().map(|window| window.tokens),
            ModelConfig::Rnn(_) | ModelConfig::Ngram(_) => None,
        }
    }

    /// Whether there is a gradient for everything that the network does.
    ///
    /// # Errors
    /// The first feature without one.
    pub fn check_trainable(&self) -> Result<(), ConfigError> {
        match self {
            ModelConfig::Transformer(c) if c.lora.is_none() && !c.storage.is_empty() => Err(ConfigError {
                field: "storage",
                found: "in panels".to_owned(),
                expected: "matrices that are quantised or in 16 bits have no gradient; load the weights as floats, or train adapters"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether several layers have the same weights.
    pub fn shares_layers(&self) -> bool {
        matches!(self, ModelConfig::Transformer(c) if c.own_layers() < c.num_hidden_layers)
    }

    /// Whether all weights learn, not adapters alone.
    pub fn trains_all(&self) -> bool {
        !matches!(self, ModelConfig::Transformer(TransformerConfig { lora: Some(_), .. }))
    }

    /// Whether a parameter learns.
    pub fn trains(&self, parameter: &str) -> bool {
        self.trains_all() || crate::is_adapter(parameter)
    }

    /// What bends logits, where there is such a limit.
    pub(crate) fn soft_cap(&self) -> Option<f32> {
        let ModelConfig::Transformer(c) = self else { return None };
        c.final_logit_softcapping
    }

    /// Whether the output projection is a quantised matrix.
    pub(crate) fn has_quantised_head(&self) -> bool {
        let ModelConfig::Transformer(c) = self else { return false };
        let name = if c.tie_word_embeddings { "tok_emb.weight" } else { "head.weight" };
        c.storage.contains_key(name)
    }

    /// Whether these numbers make a network.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let v = self.vocab_size();
        require((2..=1 << 22).contains(&v), "vocab_size", v, "it must be between 2 and 4,194,304")?;
        match self {
            ModelConfig::Transformer(c) => c.check(),
            ModelConfig::Rnn(c) => {
                require_size("embedding_size", c.embedding_size, 1 << 17)?;
                require_size("hidden_size", c.hidden_size, 1 << 17)
            }
            ModelConfig::Ngram(c) => {
                require(
                    (1..=5).contains(&c.order),
                    "order",
                    c.order,
                    "it must be between 1 and 5",
                )?;
                match c.smoothing {
                    Some(Smoothing::Add { add }) => {
                        require(add >= 0.0 && add.is_finite(), "add", add, "it must be at least 0")
                    }
                    Some(Smoothing::Interpolated { lambda }) => require(
                        (0.0..=1.0).contains(&lambda),
                        "lambda",
                        lambda,
                        "it must lie in 0..1",
                    ),
                    Some(Smoothing::KneserNey { discount: Some(d) }) => {
                        require((0.0..=1.0).contains(&d), "discount", d, "it must lie in 0..1")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_named() {
        let mut c = TransformerConfig::email(4000, 64);
        c.num_attention_heads = 5;
        let error = ModelConfig::Transformer(c).check().unwrap_err();
        assert_eq!((error.field, error.found.as_str()), ("num_attention_heads", "5"));
        let mut c = TransformerConfig::email(4000, 64);
        c.distinct_layers = Some(3);
        let error = ModelConfig::Transformer(c).check().unwrap_err();
        assert_eq!((error.field, error.found.as_str()), ("distinct_layers", "3"));
        let small = ModelConfig::Rnn(RnnConfig::email(1));
        assert!(small.check().unwrap_err().to_string().contains("vocab_size is 1"));
    }

    #[test]
    fn what_cannot_be_trained_is_named() {
        let mut c = TransformerConfig::email(4000, 64);
        assert_eq!(ModelConfig::Transformer(c.clone()).check_trainable(), Ok(()));
        let part = vec![(tensor::MatrixKind::Quant(tensor::QuantKind::Q8_0), 4000)];
        c.storage.insert("head.weight".to_owned(), part);
        let config = ModelConfig::Transformer(c);
        assert_eq!(config.check_trainable().unwrap_err().field, "storage");
        let workload =
            crate::Workload { rows: 8, sequences: 1, longest: 8, threads: 1, training: true };
        let error = crate::Runner::plan(&config, &workload).unwrap_err().to_string();
        assert!(error.contains("quantised") && error.contains("as floats"), "{error}");
    }

    #[test]
    fn kv_heads_and_head_size_have_defaults() {
        let c = TransformerConfig::email(4000, 64);
        assert_eq!((c.kv_heads(), c.head_size()), (4, 16));
        let text = serde_json::to_string(&ModelConfig::Transformer(c.clone())).unwrap();
        assert_eq!(
            serde_json::from_str::<ModelConfig>(&text).unwrap(),
            ModelConfig::Transformer(c)
        );
    }
}
