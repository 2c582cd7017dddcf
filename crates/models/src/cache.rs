//! What is remembered of a sequence between steps, lent by the caller.

use crate::model::Model;
use crate::runner::Error;
use crate::{ModelConfig, TransformerConfig};
use ledger::{Account, Buffer, Plan, Spec};

/// The past of one sequence.
#[derive(Debug)]
pub enum Cache {
    /// Keys and values of every layer of a transformer.
    Kv(KvCache),
    /// The state of a recurrent network.
    State(Vec<f32>),
    /// The last tokens, for count models.
    Tokens(Vec<u32>),
}

/// Keys and values of one sequence, a run of rows a layer.
#[derive(Debug)]
pub struct KvCache {
    /// Per layer: capacity×(G·D) keys.
    pub(crate) keys: Vec<Buffer<f32>>,
    /// Per layer: capacity×(G·D) values.
    pub(crate) values: Vec<Buffer<f32>>,
    /// Positions filled.
    pub(crate) len: usize,
    /// Positions that fit.
    pub(crate) capacity: usize,
}

fn specs(config: &TransformerConfig, capacity: usize) -> impl Iterator<Item = Spec> {
    let len = capacity * config.kv_heads() * config.head_size();
    (0..2 * config.num_hidden_layers).map(move |i| {
        let what = if i % 2 == 0 { "keys" } else { "values" };
        Spec::new(format!("layer {} {what}", i / 2), Account::KvCache, len)
    })
}

impl Cache {
    /// What a cache for `capacity` tokens will take: 2·L·capacity·G·D·4 bytes for a transformer.
    pub fn plan(config: &ModelConfig, capacity: usize) -> Plan {
        let mut plan = Plan::default();
        if let ModelConfig::Transformer(c) = config {
            specs(c, capacity).for_each(|s| plan.add(&s));
        }
        plan
    }

    /// An empty cache for up to `capacity` tokens.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: &Model, capacity: usize) -> Result<Cache, Error> {
        Ok(match model.config() {
            ModelConfig::Transformer(c) => {
                let mut buffers = specs(c, capacity).map(|s| Buffer::new(&s));
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                while let (Some(k), Some(v)) = (buffers.next(), buffers.next()) {
                    keys.push(k?);
                    values.push(v?);
                }
                Cache::Kv(KvCache { keys, values, len: 0, capacity })
            }
            ModelConfig::Rnn(c) => Cache::State(vec![0.0; c.hidden_size]),
            ModelConfig::Ngram(_) => Cache::Tokens(Vec::new()),
        })
    }

    /// A copy of its own, for a continuation that shares the past.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn fork(&self, model: &Model) -> Result<Cache, Error> {
        Ok(match self {
            Cache::Kv(old) => {
                let mut new = Cache::new(model, old.capacity)?;
                if let Cache::Kv(new) = &mut new {
                    let pairs = old.keys.iter().chain(&old.values);
                    let width = old.keys.first().map_or(0, |k| k.len() / old.capacity.max(1));
                    for (from, to) in pairs.zip(new.keys.iter_mut().chain(&mut new.values)) {
                        to[..old.len * width].copy_from_slice(&from[..old.len * width]);
                    }
                    new.len = old.len;
                }
                new
            }
            Cache::State(state) => Cache::State(state.clone()),
            Cache::Tokens(tokens) => Cache::Tokens(tokens.clone()),
        })
    }
}
