//! What other systems do with the same settings: their order of rules, their meaning of edge
//! values, their defaults. Data only; [`crate::Settings`] turns it into a chain.
//!
//! Read in the sources of those systems in the second half of 2026. Rules that a system has and
//! that are off unless asked for (dry, typical, xtc, top-n-sigma, mirostat) are not part of it.

use serde::{Deserialize, Serialize};

use crate::rule::{Boundary, Measure, Ties, Window};

/// Whose order and edge meanings are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// This project's own: bans and bias, penalties, temperature, top-k, top-p, min-p; k is
    /// exact, 0 turns top-k off, temperature 0 is greedy, top-p 0 is refused.
    #[default]
    Autoreg,
    /// Hugging Face transformers `generate`.
    Hf,
    /// vLLM (V1 engine).
    Vllm,
    /// llama.cpp and its server.
    Llamacpp,
    /// SGLang.
    Sglang,
}

impl Preset {
    /// Every preset, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Autoreg, Self::Hf, Self::Vllm, Self::Llamacpp, Self::Sglang];

    /// The word by which it is chosen.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoreg => "autoreg",
            Self::Hf => "hf",
            Self::Vllm => "vllm",
            Self::Llamacpp => "llamacpp",
            Self::Sglang => "sglang",
        }
    }

    pub(crate) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Autoreg => &AUTOREG,
            Self::Hf => &HF,
            Self::Vllm => &VLLM,
            Self::Llamacpp => &LLAMACPP,
            Self::Sglang => &SGLANG,
        }
    }
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No preset has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no preset is called {found:?}; expected autoreg, hf, vllm, llamacpp or sglang")]
pub struct UnknownPreset {
    /// What was given.
    pub found: String,
}

impl std::str::FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        Self::ALL
            .into_iter()
            .find(|preset| preset.name() == text)
            .ok_or_else(|| UnknownPreset { found: text.to_owned() })
    }
}

/// A place in a system's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    Allow,
    Ban,
    Bias,
    Repetition,
    Frequency,
    Presence,
    Temperature,
    TopK,
    TopP,
    MinP,
}

/// What temperature 0 becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum AtZero {
    /// Greedy at temperature's place in the order; the other rules stay.
    Greedy,
    /// Greedy, and top-k, top-p and min-p are left out.
    GreedyAlone,
    /// Temperature 1 and top-k 1, also below this bound.
    TopOne { below: f64 },
    /// Refused while sampling.
    Rejected,
}

/// What a value that filters nothing, or everything, becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    Off,
    KeepsOne,
    Rejected,
}

/// One system's order and edge meanings.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub order: &'static [Slot],
    pub temperature_zero: AtZero,
    /// Positive temperatures below this are raised to it.
    pub temperature_floor: f64,
    pub temperature_ceiling: f64,
    pub top_k_zero: Edge,
    pub top_k_minus_one: Edge,
    pub top_k_ties: Ties,
    pub top_p_zero: Edge,
    pub top_p_boundary: Boundary,
    pub top_p_of: Measure,
    /// Biases are clamped to plus and minus this.
    pub bias_limit: f64,
    pub repetition_window: Window,
    /// Where presence and frequency penalties look; none where the system lacks them.
    pub count_window: Option<Window>,
    pub repetition_ceiling: f64,
    /// Presence and frequency penalties lie between plus and minus this.
    pub count_limit: f64,
    pub defaults: Defaults,
}

/// What a system uses where the client says nothing.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub temperature: f64,
    pub top_k: i64,
    pub top_p: f64,
    pub min_p: f64,
}

const NO_FILTER: Defaults = Defaults { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

use Slot::{Allow, Ban, Bias, Frequency, MinP, Presence, Repetition, Temperature, TopK, TopP};

const AUTOREG: Dialect = Dialect {
    order: &[Allow, Ban, Bias, Repetition, Frequency, Presence, Temperature, TopK, TopP, MinP],
    temperature_zero: AtZero::Greedy,
    temperature_floor: 0.0,
    temperature_ceiling: f64::INFINITY,
    top_k_zero: Edge::Off,
    top_k_minus_one: Edge::Rejected,
    top_k_ties: Ties::Exact,
    top_p_zero: Edge::Rejected,
    top_p_boundary: Boundary::Reach,
    top_p_of: Measure::Kept,
    bias_limit: f64::INFINITY,
    repetition_window: Window::All,
    count_window: Some(Window::Generated),
    repetition_ceiling: f64::INFINITY,
    count_limit: f64::INFINITY,
    defaults: NO_FILTER,
};

const HF: Dialect = Dialect {
    order: &[Bias, Repetition, Ban, Allow, Temperature, TopK, TopP, MinP],
    temperature_zero: AtZero::Rejected,
    top_k_ties: Ties::All,
    top_p_zero: Edge::KeepsOne,
    top_p_boundary: Boundary::Tail,
    count_window: None,
    defaults: Defaults { temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0 },
    ..AUTOREG
};

const VLLM: Dialect = Dialect {
    order: &[Allow, Ban, Bias, Repetition, Frequency, Presence, Temperature, MinP, TopK, TopP],
    temperature_zero: AtZero::GreedyAlone,
    temperature_floor: 0.01,
    temperature_ceiling: 2.0,
    top_k_minus_one: Edge::Off,
    top_k_ties: Ties::All,
    top_p_boundary: Boundary::Tail,
    bias_limit: 100.0,
    count_limit: 2.0,
    ..AUTOREG
};

const LLAMACPP: Dialect = Dialect {
    order: &[Allow, Ban, Bias, Repetition, Frequency, Presence, TopK, TopP, MinP, Temperature],
    top_k_minus_one: Edge::Off,
    top_p_zero: Edge::KeepsOne,
    repetition_window: Window::Last(64),
    count_window: Some(Window::Last(64)),
    defaults: Defaults { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 },
    ..AUTOREG
};

const SGLANG: Dialect = Dialect {
    order: &[Bias, Frequency, Presence, Repetition, Ban, Allow, Temperature, TopK, TopP, MinP],
    temperature_zero: AtZero::TopOne { below: 1e-6 },
    top_k_zero: Edge::Rejected,
    top_k_minus_one: Edge::Off,
    top_p_boundary: Boundary::Beyond,
    top_p_of: Measure::Whole,
    repetition_window: Window::Generated,
    repetition_ceiling: 2.0,
    count_limit: 2.0,
    defaults: Defaults { temperature: 1.0, top_k: -1, top_p: 1.0, min_p: 0.0 },
    ..AUTOREG
};
