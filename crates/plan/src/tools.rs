//! What other tools answer, by their own formulas, and why it is not what is needed.
//!
//! Each formula is written from the tool's documentation or source as it behaves, errors included;
//! none is used for a plan of ours.

use crate::{
    Architecture, Balance, Error, Layout, Optimizer, Precision, StateBytes, Terms, TrainAsk, both,
    train,
};
use models::TransformerConfig;
use serde::Serialize;

/// A tool whose figures can be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// DeepSpeed's estimators of model states.
    Deepspeed,
    /// The table of the ZeRO paper.
    ZeroPaper,
    /// Megatron-LM's distributed optimizer.
    Megatron,
    /// `accelerate estimate-memory`.
    Accelerate,
    /// The transformer calculators of EleutherAI's cookbook.
    Eleuther,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Tool; 5] =
        [Tool::Deepspeed, Tool::ZeroPaper, Tool::Megatron, Tool::Accelerate, Tool::Eleuther];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Deepspeed => "deepspeed",
            Tool::ZeroPaper => "zero-paper",
            Tool::Megatron => "megatron",
            Tool::Accelerate => "accelerate",
            Tool::Eleuther => "eleuther",
        }
    }

    /// Why its figure differs from ours.
    pub fn why(self) -> &'static str {
        match self {
            Tool::Deepspeed => {
                "model states only: no activations, no logits, frozen weights counted as trained; \
                 its \"GB\" is GiB; there is no stage 1"
            }
            Tool::ZeroPaper => {
                "16 bytes a parameter with 16-bit gradients; ours keeps FP32 gradients: 18"
            }
            Tool::Megatron => {
                "states a rank of the distributed optimizer (stage 1); a 16-bit gradient keeps an \
                 FP32 copy beside it: 20 bytes where ours has 18"
            }
            Tool::Accelerate => {
                "the largest of weights, gradients, optimizer and step, not their sum; no \
                 activations; an untied output projection is left out"
            }
            Tool::Eleuther => {
                "embeddings counted twice, learned positions always added, two matrices a MLP unless \
                 told; its K/V cache has no factor 2 and ignores shared heads"
            }
        }
    }
}

/// What else a tool is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolAsk {
    /// Bytes a parameter that Megatron starts from: 16, 18 or 20.
    pub megatron_bytes: Option<u64>,
    /// DeepSpeed: what is kept in host memory.
    pub offload: Offload,
    /// DeepSpeed's stage 3: parameters of the largest layer, where not a model's own are meant.
    pub largest_layer: Option<f64>,
}

/// A tool's answer beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct ToolAnswer {
    /// Whose.
    pub tool: &'static str,
    /// Parameters as the tool counts them, and its terms.
    #[serde(flatten)]
    pub balance: Balance,
    /// What it wants of the host's memory, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Our figure for the same question.
    pub ours_bytes: u64,
    /// Why they differ.
    pub why: &'static str,
}

impl ToolAnswer {
    fn new(
        tool: Tool,
        (parameters, terms): (u64, Terms),
        (host_bytes, ours_bytes): (Option<u64>, u64),
        budget: Option<u64>,
    ) -> Result<ToolAnswer, Error> {
        let balance = Balance::new(terms, budget)?;
        let balance = Balance { parameters: Some(parameters), ..balance };
        Ok(ToolAnswer { tool: tool.name(), balance, host_bytes, ours_bytes, why: tool.why() })
    }

    /// The answer for a terminal, of a model of that name.
    pub fn text(&self, model: &str) -> String {
        let balance = &self.balance;
        let mut out = format!(
            "{model} as {} counts it: {} parameters\n\n{}",
            self.tool,
            page::separated(balance.parameters.unwrap_or(0)),
            crate::bars(&balance.terms, balance.total_bytes)
        );
        if let Some(host) = self.host_bytes {
            out += &format!("and of the host's memory: {}\n", both(host));
        }
        out += &format!("ours for the same question: {}\n", both(self.ours_bytes));
        out + &crate::wrapped("", &format!("they differ because it counts so: {}", self.why))
    }
}

/// The paper's bytes a rank: 16 P shared out by stages.
pub fn zero_paper(parameters: f64, ranks: f64, stage: u8) -> f64 {
    parameters
        * match stage {
            0 => 16.0,
            1 => 4.0 + 12.0 / ranks,
            2 => 2.0 + 14.0 / ranks,
            _ => 16.0 / ranks,
        }
}

/// DeepSpeed's stage 2 (device, host) bytes.
pub fn deepspeed_2(parameters: f64, gpus: f64, offload: bool) -> (f64, f64) {
    if offload {
        (2.0 * parameters, parameters * (4.0 * gpus).max(16.0) * HOST_FACTOR)
    } else {
        (4.0 * parameters + 16.0 * parameters / gpus, 4.0 * parameters * gpus * HOST_FACTOR)
    }
}

/// What DeepSpeed adds to host memory.
const HOST_FACTOR: f64 = 1.5;

/// What DeepSpeed keeps in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// Optimizer states.
    Optimizer,
    /// Optimizer states and weights.
    All,
}

/// DeepSpeed's stage 3 (device, host) bytes on one node.
pub fn deepspeed_3(parameters: f64, largest: f64, gpus: f64, offload: Offload) -> (f64, f64) {
    let layer = 4.0 * largest;
    match offload {
        Offload::All => (layer, parameters * 18.0 * HOST_FACTOR),
        Offload::Optimizer => (layer + 2.0 * parameters / gpus, parameters * 16.0 * HOST_FACTOR),
        Offload::None => (layer + 18.0 * parameters / gpus, largest * 4.0 * gpus * HOST_FACTOR),
    }
}

/// Megatron's bytes a parameter with its distributed optimizer over `d` ranks; `bytes` without it.
pub fn megatron(bytes: u64, d: f64) -> Option<f64> {
    match bytes {
        20 => Some(4.0 + 16.0 / d),
        18 => Some(6.0 + 12.0 / d),
        16 => Some(8.0 + 8.0 / d),
        _ => None,
    }
}

/// Accelerate's "training with Adam" of `parameters`: in FP32 the step of 16 bytes is the largest
/// term, in mixed precision the optimizer's 8.
pub fn accelerate(parameters: u64, mixed: bool) -> u64 {
    parameters.saturating_mul(if mixed { 8 } else { 16 })
}

/// EleutherAI's count of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Eleuther {
    /// Layers.
    pub layers: u64,
    /// C.
    pub hidden: u64,
    /// V.
    pub vocab: u64,
    /// Tokens of a sequence, which it has positions for.
    pub length: u64,
    /// G/H.
    pub kv_ratio: f64,
    /// F/C.
    pub expansion: f64,
    /// Matrices of an MLP.
    pub matrices: u64,
}

impl Eleuther {
    /// Parameters.
    pub fn parameters(&self) -> u64 {
        let (l, c) = (self.layers as f64, self.hidden as f64);
        let tables = 2.0 * self.vocab as f64 * c + c * self.length as f64;
        let norms = 8.0 * c * l + 2.0 * c;
        let attention = (2.0 * (1.0 + self.kv_ratio) * l * c * c).floor();
        let mlp = self.matrices as f64 * l * c * (c * self.expansion).floor();
        (tables + norms + attention + mlp) as u64
    }

    /// Bytes of K/V of a token: no factor 2, all heads.
    pub fn kv_bytes_per_token(&self, width: u64) -> u64 {
        self.layers * self.hidden * width
    }
}

/// A tool's answer for a model, beside ours for the states of the same training.
///
/// # Errors
/// Numbers that make no training; a model that the tool has no formula for.
pub fn answer(
    tool: Tool,
    architecture: &Architecture,
    ask: &TrainAsk,
    more: ToolAsk,
) -> Result<ToolAnswer, Error> {
    let ours = train(architecture, ask)?;
    let parameters = architecture.parameters()?;
    let (p, n) = (parameters as f64, ask.layout.ranks as f64);
    let mut terms = Terms::default();
    let mut counted = parameters;
    let mut host_bytes = None;
    match tool {
        Tool::ZeroPaper => {
            let states = zero_paper(p, n, ask.layout.stage);
            terms.add("model states", states.round() as u64);
        }
        Tool::Deepspeed => {
            let units = architecture.units()?;
            let own = units.embedding.max(units.projection).max(units.layer) as f64;
            let largest = more.largest_layer.or(Some(own));
            let (device, host) =
                deepspeed_of(p, ask.layout, ToolAsk { largest_layer: largest, ..more })?;
            terms.add("model states", device as u64);
            host_bytes = Some(host as u64);
        }
        Tool::Megatron => {
            let bytes = megatron_of(p, ask.layout, more)?;
            terms.add("model states", bytes.round() as u64);
        }
        Tool::Accelerate => {
            let units = architecture.units()?;
            let tied = architecture.transformer()?.tie_word_embeddings;
            counted = if tied { parameters } else { parameters - units.projection };
            let mixed = ask.precision == Precision::Bf16;
            terms.add("largest of four", accelerate(counted, mixed));
        }
        Tool::Eleuther => {
            let config = architecture.transformer()?;
            let its = eleuther(config, ask.length);
            counted = its.parameters();
            terms.add("parameters", 2 * counted);
            terms.add("K/V cache", its.kv_bytes_per_token(2).saturating_mul(ask.length));
        }
    }
    let states = ["weights", "master weights", "gradients", "optimizer"];
    let ours_bytes = match tool {
        Tool::Eleuther => {
            let kind = crate::NumberKind::Bf16;
            let config = architecture.transformer()?;
            kind.bytes(parameters)? + crate::kv_bytes(config, ask.length, 1, kind)?
        }
        _ => states.iter().map(|name| ours.balance.terms.of(name)).sum(),
    };
    ToolAnswer::new(tool, (counted, terms), (host_bytes, ours_bytes), ask.budget)
}

/// A tool's answer for a number of parameters, which some of them need no more than.
///
/// # Errors
/// As [`answer`]; tools that need a shape.
pub fn answer_of_number(
    tool: Tool,
    parameters: f64,
    ask: &TrainAsk,
    more: ToolAsk,
) -> Result<ToolAnswer, Error> {
    ask.layout.check()?;
    let mut host_bytes = None;
    let bytes = match tool {
        Tool::ZeroPaper => zero_paper(parameters, ask.layout.ranks as f64, ask.layout.stage),
        Tool::Megatron => megatron_of(parameters, ask.layout, more)?,
        Tool::Accelerate => accelerate(parameters as u64, ask.precision == Precision::Bf16) as f64,
        Tool::Deepspeed => {
            let (device, host) = deepspeed_of(parameters, ask.layout, more)?;
            host_bytes = Some(host as u64);
            device
        }
        Tool::Eleuther => {
            return Err(Error::Unanswerable(
                "--as eleuther: it needs a model's shape; give a name or a config.json".to_owned(),
            ));
        }
    };
    let (mut ours, mut terms) = (Terms::default(), Terms::default());
    let state = StateBytes::new(ask.precision, Optimizer::Adamw);
    ask.layout.states(parameters as u64, 0, state, &mut ours)?;
    terms.add("model states", bytes.round() as u64);
    ToolAnswer::new(tool, (parameters as u64, terms), (host_bytes, ours.total()?), ask.budget)
}

/// DeepSpeed's (device, host) bytes of so many parameters.
fn deepspeed_of(parameters: f64, layout: Layout, more: ToolAsk) -> Result<(f64, f64), Error> {
    let ranks = layout.ranks as f64;
    let unanswerable = |why: &str| {
        Err(Error::Unanswerable(format!("--as deepspeed --zero {}: {why}", layout.stage)))
    };
    match (layout.stage, more.offload, more.largest_layer) {
        (2, Offload::All, _) => {
            unanswerable("stage 2 keeps weights on the device; give --offload alone")
        }
        (2, offload, _) => Ok(deepspeed_2(parameters, ranks, offload == Offload::Optimizer)),
        (3, _, None) => unanswerable(
            "its estimator asks for the largest layer too; give --largest-layer N (parameters), or a \
             model's name",
        ),
        (3, _, Some(largest)) if largest > parameters => {
            Err(Error::number("--largest-layer", largest, format!("the model has {parameters}")))
        }
        (3, offload, Some(largest)) => Ok(deepspeed_3(parameters, largest, ranks, offload)),
        _ => unanswerable("it has estimators for stages 2 and 3 only"),
    }
}

/// Megatron's bytes of so many parameters.
fn megatron_of(parameters: f64, layout: Layout, more: ToolAsk) -> Result<f64, Error> {
    let bytes = more.megatron_bytes.unwrap_or(18);
    let Some(shared) = megatron(bytes, layout.ranks as f64) else {
        return Err(Error::number("--megatron-bytes", bytes, "it must be 16, 18 or 20"));
    };
    Ok(parameters * if layout.stage == 0 { bytes as f64 } else { shared })
}

/// A model in the cookbook's words.
fn eleuther(config: &TransformerConfig, length: u64) -> Eleuther {
    Eleuther {
        layers: config.num_hidden_layers as u64,
        hidden: config.hidden_size as u64,
        vocab: config.vocab_size as u64,
        length,
        kv_ratio: config.kv_heads() as f64 / config.num_attention_heads as f64,
        expansion: config.intermediate_size as f64 / config.hidden_size as f64,
        matrices: 2,
    }
}

/// Korthikanti's 34·s·b·h a layer for any model: what charts of 16-bit training show.
pub fn thirty_four(hidden: u64, layers: u64, rows: u64) -> u64 {
    34 * hidden * layers * rows
}
