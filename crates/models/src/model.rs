//! A configuration with its weights.

use crate::rnn::Rnn;
use crate::runner::Pass;
use crate::transformer::Transformer;
use crate::units::{Packing, Residence};
use crate::{ConfigError, ModelConfig};
use ledger::Plan;
use std::sync::Arc;
use tensor::{Initial, Layout, ParamId, Parameters};

/// Why a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its numbers do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its memory is not to be had.
    #[error(transparent)]
    Memory(#[from] ledger::Error),
    /// Count models hold no weights of this kind.
    #[error("a {0} model has counts, not weights: it is not trained by gradients")]
    Counts(&'static str),
    /// Only transformers are trained in 16 bits.
    #[error("a model of kind {0} is trained in f32; only transformers are trained in 16 bits")]
    NotMixed(&'static str),
    /// Adapters learn in f32.
    #[error("adapters learn in f32 beside weights as they are stored; found 16-bit training")]
    NotMixedAdapters,
}

/// The network below the output projection.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    Transformer(Box<Transformer>),
    Rnn(Rnn),
}

/// The output projection: V×C, with or without a bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) weight: ParamId,
    pub(crate) bias: Option<ParamId>,
}

/// A network with its weights. It keeps no state of any sequence.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    pub(crate) network: Network,
    pub(crate) head: Head,
    weights: Parameters,
    residence: Residence,
}

/// A model but for its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) network: &'a Network,
    pub(crate) head: Head,
}

pub(crate) fn build(config: &ModelConfig) -> Result<(Network, Head, Layout), Error> {
    config.check()?;
    let mut layout = match config {
        ModelConfig::Transformer(c) => Layout::stored(&c.storage),
        _ => Layout::default(),
    };
    let (network, width, tied, bias) = match config {
        ModelConfig::Transformer(c) => {
            let network = Transformer::new(c, &mut layout);
            let tied = c.tie_word_embeddings.then(|| network.token_table());
            (
                Network::Transformer(Box::new(network)),
                c.hidden_size,
                tied,
                c.head_bias.unwrap_or(c.bias),
            )
        }
        ModelConfig::Rnn(c) => (Network::Rnn(Rnn::new(c, &mut layout)), c.hidden_size, None, true),
        ModelConfig::Ngram(_) => return Err(Error::Counts(config.kind())),
    };
    let vocab = config.vocab_size();
    let initial = Initial::Normal((1.0 / width as f32).sqrt() * 0.5);
    let weight = tied.unwrap_or_else(|| layout.add("head.weight", &[vocab, width], initial, true));
    let bias = bias.then(|| layout.add("head.bias", &[vocab], Initial::Constant(0.0), false));
    Ok((network, Head { weight, bias }, layout))
}

impl Model {
    /// A model with zero weights: [`Parameters::initialise`] or a file fills them.
    ///
    /// # Errors
    /// When the configuration makes no network, or memory is not to be had.
    pub fn new(config: &ModelConfig) -> Result<Model, Error> {
        let (network, head, layout) = build(config)?;
        let weights = Parameters::weights(&Arc::new(layout))?;
        Ok(Model { config: config.clone(), network, head, weights, residence: Residence::Whole })
    }

    /// A model with weights whose layout has the configuration's parameters at places of their own
    /// choosing.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn of_weights(
        config: &ModelConfig,
        weights: Parameters,
        residence: Residence,
    ) -> Result<Model, Error> {
        let (network, head, _) = build(config)?;
        Ok(Model { config: config.clone(), network, head, weights, residence })
    }

    /// All but the weights.
    pub(crate) fn parts(&self) -> Parts<'_> {
        let Model { config, network, head, .. } = self;
        Parts { config, network, head: *head }
    }

    /// All but the weights, and these, to be changed.
    pub(crate) fn split_mut(&mut self) -> (Parts<'_>, &mut Parameters) {
        let Model { config, network, head, weights, .. } = self;
        (Parts { config, network, head: *head }, weights)
    }

    /// Where its weights are.
    pub fn residence(&self) -> Residence {
        self.residence
    }

    /// What [`Model::new`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(config: &ModelConfig) -> Result<Plan, Error> {
        Ok(build(config)?.2.weight_specs())
    }

    /// The layout that the configuration makes.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn layout_of(config: &ModelConfig) -> Result<Layout, Error> {
        Ok(build(config)?.2)
    }

    /// Parameters that the configuration makes.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn count_parameters(config: &ModelConfig) -> Result<usize, Error> {
        Ok(build(config)?.2.count())
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Keeps keys and values so from now on, in caches and pools that are made later; a network
    /// without any is as before.
    pub fn keep_kv_as(&mut self, kind: kernels::KvKind) {
        if let ModelConfig::Transformer(config) = &mut self.config {
            config.kv = kind;
        }
    }

    /// C: values of what the output projection reads.
    pub fn width(&self) -> usize {
        self.network.width()
    }

    /// The weights.
    pub fn weights(&self) -> &Parameters {
        &self.weights
    }

    /// The weights, to be changed; a runner must then be told ([`crate::Runner::weights_changed`]).
    pub fn weights_mut(&mut self) -> &mut Parameters {
        &mut self.weights
    }

    /// Names, shapes and places of the parameters.
    pub fn layout(&self) -> &Arc<Layout> {
        self.weights.layout()
    }
}

impl Network {
    pub(crate) fn width(&self) -> usize {
        match self {
            Network::Transformer(n) => n.width(),
            Network::Rnn(n) => n.width(),
        }
    }

    /// How its matrices are packed.
    pub(crate) fn packing(&self, training: bool) -> Packing {
        match self {
            Network::Transformer(_) if training => Packing::ByUnit,
            _ => Packing::Whole,
        }
    }

    pub(crate) fn packed_len(&self, packing: Packing) -> usize {
        match self {
            Network::Transformer(n) => n.packed_len(packing),
            Network::Rnn(n) => n.packed_len(),
        }
    }

    /// Room for rounded rows, where matrices are quantised.
    pub(crate) fn rounded_len(&self, rows: usize) -> usize {
        match self {
            Network::Transformer(n) => n.rounded_len(rows),
            Network::Rnn(_) => 0,
        }
    }

    /// Room for adapters and for products with matrices that do not learn.
    pub(crate) fn work_len(&self, rows: usize, training: bool) -> usize {
        match self {
            Network::Transformer(n) => n.work_len(rows, training),
            Network::Rnn(_) => 0,
        }
    }

    pub(crate) fn pack(&self, pass: &Pass, packed: &mut [f32]) {
        match self {
            Network::Transformer(n) => n.pack(pass, packed),
            Network::Rnn(n) => n.pack(pass, packed),
        }
    }
}
