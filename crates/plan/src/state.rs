//! Bytes of weights, master weights, gradients and moments, a parameter and a rank.
//!
//! Ours: 16-bit weights (2), FP32 master weights (4), FP32 gradients (4), two FP32 moments (8): 18.
//! Master weights and moments are shared out from stage 1 on, gradients from stage 2, weights from
//! stage 3 (Rajbhandari et al., arXiv 1910.02054).

use crate::term::Terms;
use crate::term::product;
use crate::{Error, NumberKind};
use serde::Serialize;

/// How training computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 16-bit weights with FP32 master weights and gradients.
    #[default]
    Bf16,
    /// FP32 throughout: no master weights.
    F32,
}

/// Which optimizer keeps what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Two moments.
    #[default]
    Adamw,
    /// One buffer for matrices of the layers, two moments for the rest.
    Muon,
    /// One buffer.
    Momentum,
    /// None.
    Sgd,
}

/// Bytes a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StateBytes {
    /// As computation reads them.
    pub weights: u64,
    /// FP32 beside 16-bit weights.
    pub master: u64,
    /// Gradients.
    pub gradients: u64,
    /// Moments.
    pub moments: u64,
}

impl StateBytes {
    /// A precision's and an optimizer's; of Muon, those of a parameter with two moments.
    pub fn new(precision: Precision, optimizer: Optimizer) -> StateBytes {
        let (weights, master) = match precision {
            Precision::Bf16 => (2, 4),
            Precision::F32 => (4, 0),
        };
        let moments = match optimizer {
            Optimizer::Adamw | Optimizer::Muon => 8,
            Optimizer::Momentum => 4,
            Optimizer::Sgd => 0,
        };
        StateBytes { weights, master, gradients: 4, moments }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        self.weights + self.master + self.gradients + self.moments
    }
}

impl Precision {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Bf16 => "bf16",
            Precision::F32 => "f32",
        }
    }

    /// The kind of weights that computation reads.
    pub fn weights(self) -> NumberKind {
        match self {
            Precision::Bf16 => NumberKind::Bf16,
            Precision::F32 => NumberKind::F32,
        }
    }
}

/// Ranks and what they share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// 0 to 3.
    pub stage: u8,
    /// At least 1.
    pub ranks: u64,
}

impl Layout {
    /// Stages and ranks that exist.
    ///
    /// # Errors
    /// [`Error::Number`].
    pub fn check(&self) -> Result<(), Error> {
        if self.stage > 3 {
            return Err(Error::number("--zero", self.stage, "stages are 0, 1, 2 and 3"));
        }
        if self.ranks == 0 || self.ranks > 1 << 20 {
            return Err(Error::number("--ranks", self.ranks, "it must be 1 to 1048576"));
        }
        Ok(())
    }

    /// What of `parameters` a rank holds where a term is shared out from stage `from` on.
    fn held(&self, parameters: u64, from: u8) -> u64 {
        if self.stage >= from { parameters.div_ceil(self.ranks) } else { parameters }
    }

    /// A rank's states of `parameters` trained parameters; `single` of them have one buffer of
    /// moments instead of two.
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub fn states(
        &self,
        parameters: u64,
        single: u64,
        bytes: StateBytes,
        terms: &mut Terms,
    ) -> Result<(), Error> {
        let of = |what, count, each| product(what, &[count, each]);
        terms.add("weights", of("weights", self.held(parameters, 3), bytes.weights)?);
        terms.add("master weights", of("master weights", self.held(parameters, 1), bytes.master)?);
        terms.add("gradients", of("gradients", self.held(parameters, 2), bytes.gradients)?);
        let both = of("optimizer", self.held(parameters - single, 1), bytes.moments)?;
        let one = of("optimizer", self.held(single, 1), bytes.moments.min(4))?;
        terms.add("optimizer", both + one);
        Ok(())
    }

    /// Weights that do not learn: no gradient, no moments; shared out at stage 3.
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub fn frozen(
        &self,
        parameters: u64,
        kind: NumberKind,
        terms: &mut Terms,
    ) -> Result<(), Error> {
        terms.add("weights", kind.bytes(self.held(parameters, 3))?);
        Ok(())
    }
}
