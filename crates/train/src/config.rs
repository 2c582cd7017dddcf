//! What a training run is told: the recipe, the budget, where to look and how often.

use crate::Precision;
use models::ModelConfig;
use serde::{Deserialize, Serialize};

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// It stays.
    Constant,
    /// It falls along half a cosine to `final_share`.
    #[default]
    Cosine,
    /// It falls along a line to `final_share`.
    Linear,
    /// It stays, and falls along a line to `final_share` over the last `decay_share` of the steps
    /// (warm-up, stable, decay: Hu et al., arXiv 2404.06395).
    Wsd,
}

/// What changes weights by gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// AdamW throughout.
    #[default]
    Adamw,
    /// Muon for the matrices between embeddings and output projection, AdamW for the rest.
    Muon,
}

impl OptimizerKind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    fn is_adamw(&self) -> bool {
        *self == OptimizerKind::Adamw
    }
}

/// The numbers of an optimisation, the same for every model of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Everything random starts from it.
    pub seed: u64,
    /// Passes over the training side.
    pub epochs: u64,
    /// Sequences an optimizer step.
    pub batch: usize,
    /// Sequences computed at once; a step adds up as many as it needs.
    pub micro_batch: usize,
    /// Pieces of a step whose gradients are added up one after another, whatever ranks compute them, so
    /// that any number of ranks that divides them gives the same bits; 0 for each rank's at once.
    #[serde(skip_serializing_if = "is_no_piece")]
    pub pieces: usize,
    /// The largest learning rate.
    pub learning_rate: f64,
    /// Steps over which it rises.
    pub warmup_steps: u64,
    /// How it goes on.
    pub schedule: Schedule,
    /// Where it ends, as a share of the largest.
    pub final_share: f64,
    /// The share of all steps over which `wsd` falls.
    #[serde(skip_serializing_if = "is_usual_decay")]
    pub decay_share: f64,
    /// Decay of matrices.
    pub weight_decay: f64,
    /// Decay of embeddings, a tied output projection among them.
    #[serde(skip_serializing_if = "is_none")]
    pub embedding_decay: f64,
    /// Adam's β1.
    pub beta1: f64,
    /// Adam's β2.
    pub beta2: f64,
    /// Adam's ε.
    pub epsilon: f64,
    /// What changes weights.
    #[serde(skip_serializing_if = "OptimizerKind::is_adamw")]
    pub optimizer: OptimizerKind,
    /// Muon's largest learning rate; it rises and falls as the other does.
    #[serde(skip_serializing_if = "is_usual_muon_rate")]
    pub muon_learning_rate: f64,
    /// Muon's β.
    #[serde(skip_serializing_if = "is_usual_momentum")]
    pub muon_momentum: f64,
    /// Decay of the matrices that Muon changes.
    #[serde(skip_serializing_if = "is_usual_muon_decay")]
    pub muon_weight_decay: f64,
    /// Largest norm of the gradient; 0 for none.
    pub clip: f64,
    /// Share of values zeroed after the embedding and after each branch.
    pub dropout: f32,
    /// The same of what a transformer's output projection reads.
    #[serde(skip_serializing_if = "is_no_share")]
    pub hidden_dropout: f32,
    /// The share that the average of all weights so far keeps of itself at each step; evaluated and
    /// saved are these averaged weights. 0 for the weights as they are.
    #[serde(skip_serializing_if = "is_none")]
    pub average: f64,
    /// Steps between evaluations on the validation side; 0 for once an epoch.
    pub eval_every: u64,
    /// Evaluations without a better validation loss after which to stop; 0 for never.
    pub patience: u64,
    /// Steps between checkpoints; 0 for once an epoch.
    pub checkpoint_every: u64,
    /// Stop after this many steps; 0 for the epochs.
    pub max_steps: u64,
    /// In which numbers products are taken.
    #[serde(skip_serializing_if = "is_f32")]
    pub precision: Precision,
}

const NONE: f64 = 0.0;
const USUAL_DECAY: f64 = 0.2;
const USUAL_MUON_RATE: f64 = 0.02;
const USUAL_MOMENTUM: f64 = 0.95;
const USUAL_MUON_DECAY: f64 = 0.01;

/// Fields that are left out where they are usual, so that runs from before them keep their identity.
macro_rules! usual {
    ($($name:ident = $usual:ident;)+) => {
        $(fn $name(value: &f64) -> bool {
            *value == $usual
        })+
    };
}
usual! {
    is_none = NONE;
    is_usual_decay = USUAL_DECAY;
    is_usual_muon_rate = USUAL_MUON_RATE;
    is_usual_momentum = USUAL_MOMENTUM;
    is_usual_muon_decay = USUAL_MUON_DECAY;
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_no_piece(pieces: &usize) -> bool {
    *pieces == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_no_share(share: &f32) -> bool {
    *share == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            seed: 0,
            epochs: 8,
            batch: 64,
            micro_batch: 64,
            pieces: 0,
            learning_rate: 1e-2,
            warmup_steps: 100,
            schedule: Schedule::Cosine,
            final_share: 0.1,
            decay_share: USUAL_DECAY,
            weight_decay: 0.01,
            embedding_decay: NONE,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            optimizer: OptimizerKind::Adamw,
            muon_learning_rate: USUAL_MUON_RATE,
            muon_momentum: USUAL_MOMENTUM,
            muon_weight_decay: USUAL_MUON_DECAY,
            clip: 1.0,
            dropout: 0.0,
            hidden_dropout: 0.0,
            average: NONE,
            eval_every: 0,
            patience: 0,
            checkpoint_every: 0,
            max_steps: 0,
            precision: Precision::F32,
        }
    }
}

/// A model and how it is trained: the TOML file of `autoreg train`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// The network.
    pub model: ModelConfig,
    /// The optimisation.
    #[serde(default)]
    pub train: Recipe,
}

/// A number that makes no run.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("recipe: {field} is {found}; {expected}")]
pub struct RecipeError {
    /// The key.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it must be.
    pub expected: &'static str,
}

impl TrainConfig {
    /// Whether the recipe makes a run of this model.
    ///
    /// # Errors
    /// The first number that does not.
    pub fn check_recipe(&self) -> Result<(), RecipeError> {
        self.train.check()?;
        let precision = self.train.precision;
        let expected = match &self.model {
            _ if precision == Precision::F32 => return Ok(()),
            ModelConfig::Transformer(c) if c.lora.is_none() => return Ok(()),
            ModelConfig::Transformer(_) => {
                "it must be f32 with --lora: adapters learn in f32 beside weights as they are stored"
            }
            _ => "it must be f32: only transformers are trained in 16 bits",
        };
        Err(RecipeError { field: "precision", found: precision.name().to_owned(), expected })
    }
}

impl Recipe {
    /// Whether these numbers make a run.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), RecipeError> {
        let require = |good: bool, field, found: f64, expected| {
            if good {
                Ok(())
            } else {
                Err(RecipeError { field, found: found.to_string(), expected })
            }
        };
        let at_least_one = "it must be at least 1";
        require(self.epochs > 0, "epochs", self.epochs as f64, at_least_one)?;
        require(self.batch > 0, "batch", self.batch as f64, at_least_one)?;
        require(self.micro_batch > 0, "micro_batch", self.micro_batch as f64, at_least_one)?;
        let rate = self.learning_rate;
        require(rate > 0.0 && rate.is_finite(), "learning_rate", rate, "it must be above 0")?;
        let share = |x: f64| (0.0..=1.0).contains(&x);
        require(share(self.final_share), "final_share", self.final_share, "it must lie in 0..1")?;
        let decay = self.decay_share;
        require(share(decay), "decay_share", decay, "it must lie in 0..1")?;
        let below_one = "it must be at least 0 and below 1";
        require((0.0..1.0).contains(&self.beta1), "beta1", self.beta1, below_one)?;
        require((0.0..1.0).contains(&self.beta2), "beta2", self.beta2, below_one)?;
        require(self.epsilon > 0.0, "epsilon", self.epsilon, "it must be above 0")?;
        let at_least_zero = "it must be at least 0";
        require(self.weight_decay >= 0.0, "weight_decay", self.weight_decay, at_least_zero)?;
        let decay = self.embedding_decay;
        require(decay >= 0.0, "embedding_decay", decay, at_least_zero)?;
        let (rate, decay) = (self.muon_learning_rate, self.muon_weight_decay);
        require(rate > 0.0 && rate.is_finite(), "muon_learning_rate", rate, "it must be above 0")?;
        require(
            (0.0..1.0).contains(&self.muon_momentum),
            "muon_momentum",
            self.muon_momentum,
            below_one,
        )?;
        require(decay >= 0.0, "muon_weight_decay", decay, at_least_zero)?;
        require(self.clip >= 0.0, "clip", self.clip, at_least_zero)?;
        for (field, share) in [("dropout", self.dropout), ("hidden_dropout", self.hidden_dropout)] {
            let share = f64::from(share);
            require((0.0..1.0).contains(&share), field, share, below_one)?;
        }
        require((0.0..1.0).contains(&self.average), "average", self.average, below_one)
    }
}
