//! What is remembered of sequences between steps, lent by the caller.
//!
//! Keys and values lie in pages of a [`KvPool`]: one pool for many sequences, each with a table of
//! its pages, or a [`Cache`] of one sequence, which is a pool with a single page. Which pages a
//! sequence has is the caller's business.

use crate::model::Model;
use crate::runner::Error;
use crate::{ModelConfig, TransformerConfig};
use kernels::{Kv, KvKind};
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

/// Keys and values of one sequence: a pool with one page.
#[derive(Debug)]
pub struct KvCache {
    pool: KvPool,
    /// Positions filled.
    len: usize,
}

/// Keys and values of many sequences, in pages of a fixed number of tokens.
#[derive(Debug)]
pub struct KvPool {
    /// Per layer: pages×page_tokens rows of keys (G·D, raw bits where `kind` is not F32).
    keys: Vec<Buffer<f32>>,
    /// Per layer: pages×page_tokens rows of values, alike.
    values: Vec<Buffer<f32>>,
    kind: KvKind,
    page_tokens: usize,
    /// D.
    head_size: usize,
    /// G·D.
    width: usize,
    /// Words of four bytes that a row takes.
    row: usize,
}

/// The past of one sequence in a pool.
#[derive(Clone, Copy, Debug)]
pub struct PagedPast<'a> {
    /// Its pages, those for the batch's tokens included.
    pub pages: &'a [u32],
    /// Positions filled.
    pub len: usize,
}

/// What the sequences of a batch remember, in their order.
#[derive(Debug)]
pub enum Past<'a> {
    /// One cache a sequence, or none at all.
    Own(&'a mut [Cache]),
    /// Pages of one pool; no two sequences write to the same one.
    Pages {
        /// The pool.
        pool: &'a mut KvPool,
        /// One a sequence.
        sequences: &'a [PagedPast<'a>],
    },
}

impl<'a> From<&'a mut [Cache]> for Past<'a> {
    fn from(caches: &'a mut [Cache]) -> Self {
        Past::Own(caches)
    }
}

impl<'a, const N: usize> From<&'a mut [Cache; N]> for Past<'a> {
    fn from(caches: &'a mut [Cache; N]) -> Self {
        Past::Own(caches)
    }
}

impl<'a> From<&'a mut Vec<Cache>> for Past<'a> {
    fn from(caches: &'a mut Vec<Cache>) -> Self {
        Past::Own(caches)
    }
}

impl Past<'_> {
    pub(crate) fn none() -> Past<'static> {
        Past::Own(&mut [])
    }

    /// The caches of their own; none where sequences have pages.
    pub(crate) fn own(&mut self) -> &mut [Cache] {
        match self {
            Past::Own(caches) => caches,
            Past::Pages { .. } => &mut [],
        }
    }

    /// Where the keys and values of sequence `i` lie.
    pub(crate) fn pages(&self, i: usize) -> Option<(&KvPool, PagedPast<'_>)> {
        match self {
            Past::Own(caches) => match caches.get(i) {
                Some(Cache::Kv(kv)) => Some((&kv.pool, PagedPast { pages: &[0], len: kv.len })),
                _ => None,
            },
            Past::Pages { pool, sequences } => sequences.get(i).map(|s| (&**pool, *s)),
        }
    }

    /// The same, to be written.
    pub(crate) fn pages_mut(&mut self, i: usize) -> Option<(&mut KvPool, PagedPast<'_>)> {
        match self {
            Past::Own(caches) => match caches.get_mut(i) {
                Some(Cache::Kv(kv)) => Some((&mut kv.pool, PagedPast { pages: &[0], len: kv.len })),
                _ => None,
            },
            Past::Pages { pool, sequences } => sequences.get(i).map(|s| (&mut **pool, *s)),
        }
    }

    /// Caches of their own have read the batch; whoever lends pages counts for himself.
    pub(crate) fn advance(&mut self, sequences: &[(usize, usize)]) {
        for (cache, &(_, new)) in self.own().iter_mut().zip(sequences) {
            if let Cache::Kv(kv) = cache {
                kv.len += new;
            }
        }
    }
}

fn specs(config: &TransformerConfig, positions: usize) -> impl Iterator<Item = Spec> {
    let len = positions * config.kv.row_words(config.kv_heads(), config.head_size());
    (0..2 * config.num_hidden_layers).map(move |i| {
        let what = if i % 2 == 0 { "keys" } else { "values" };
        Spec::new(format!("layer {} {what}", i / 2), Account::KvCache, len)
    })
}

impl KvPool {
    /// What a pool will take: 2·L·pages·page_tokens·G·D values of the kind that `config.kv` says.
    pub fn plan(config: &TransformerConfig, pages: usize, page_tokens: usize) -> Plan {
        let mut plan = Plan::default();
        specs(config, pages * page_tokens).for_each(|s| plan.add(&s));
        plan
    }

    /// A pool of `pages` pages for `page_tokens` tokens each.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(
        config: &TransformerConfig,
        pages: usize,
        page_tokens: usize,
    ) -> Result<KvPool, Error> {
        let mut buffers = specs(config, pages * page_tokens).map(|s| Buffer::new(&s));
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        while let (Some(k), Some(v)) = (buffers.next(), buffers.next()) {
            keys.push(k?);
            values.push(v?);
        }
        let (heads, head_size, kind) = (config.kv_heads(), config.head_size(), config.kv);
        let (width, row) = (heads * head_size, kind.row_words(heads, head_size));
        Ok(KvPool { keys, values, kind, page_tokens, head_size, width, row })
    }

    /// One layer of a sequence.
    pub(crate) fn layer<'a>(&'a self, layer: usize, pages: &'a [u32]) -> Kv<'a> {
        let (keys, values) = (&self.keys[layer][..], &self.values[layer][..]);
        let (kind, page_tokens) = (self.kind, self.page_tokens);
        Kv { keys, values, kind, stride: self.row, pages, page_tokens }
    }

    /// Copies keys and values out of rows of q, k, v to the positions after those filled.
    pub(crate) fn append(
        &mut self,
        layer: usize,
        to: PagedPast<'_>,
        rows: &[f32],
        stride: usize,
        from: usize,
    ) {
        let (width, d) = (self.width, self.head_size);
        for (i, row) in rows.chunks_exact(stride).enumerate() {
            let (page, inside) = ((to.len + i) / self.page_tokens, (to.len + i) % self.page_tokens);
            let at = (to.pages[page] as usize * self.page_tokens + inside) * self.row;
            let place = at..at + self.row;
            self.kind.store(&row[from..from + width], d, &mut self.keys[layer][place.clone()]);
            let values = &row[from + width..from + 2 * width];
            self.kind.store(values, d, &mut self.values[layer][place]);
        }
    }
}

impl Cache {
    /// What a cache for `capacity` tokens will take: 2·L·capacity·G·D values for a transformer.
    pub fn plan(config: &ModelConfig, capacity: usize) -> Plan {
        match config {
            ModelConfig::Transformer(c) => KvPool::plan(c, 1, capacity),
            _ => Plan::default(),
        }
    }

    /// An empty cache for up to `capacity` tokens.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: &Model, capacity: usize) -> Result<Cache, Error> {
        Ok(match model.config() {
            ModelConfig::Transformer(c) => {
                Cache::Kv(KvCache { pool: KvPool::new(c, 1, capacity)?, len: 0 })
            }
            ModelConfig::Rnn(c) => Cache::State(vec![0.0; c.hidden_size]),
            ModelConfig::Ngram(_) => Cache::Tokens(Vec::new()),
        })
    }

    /// Forgets what was read after the first `len` tokens. Only keys and values can be taken back: a
    /// recurrent state stays as it is.
    pub fn rewind(&mut self, len: usize) {
        match self {
            Cache::Kv(kv) => kv.len = kv.len.min(len),
            Cache::Tokens(tokens) => tokens.truncate(len),
            Cache::State(_) => {}
        }
    }

    /// A copy of its own, for a continuation that shares the past.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn fork(&self, model: &Model) -> Result<Cache, Error> {
        Ok(match self {
            Cache::Kv(old) => {
                let mut new = Cache::new(model, old.pool.page_tokens)?;
                if let Cache::Kv(new) = &mut new {
                    let used = old.len * old.pool.row;
                    let pairs = old.pool.keys.iter().chain(&old.pool.values);
                    let places = new.pool.keys.iter_mut().chain(&mut new.pool.values);
                    pairs.zip(places).for_each(|(from, to)| {
                        to[..used].copy_from_slice(&from[..used]);
                    });
                    new.len = old.len;
                }
                new
            }
            Cache::State(state) => Cache::State(state.clone()),
            Cache::Tokens(tokens) => Cache::Tokens(tokens.clone()),
        })
    }
}
