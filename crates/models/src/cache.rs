//! What is remembered of sequences between steps, lent by the caller.
//!
//! Keys and values lie in pages of a [`KvPool`]: one pool for many sequences, each with a table of
//! its pages, or a [`Cache`] of one sequence, which is a pool of its own. Which pages a sequence has
//! is the caller's business. Layers that see only near positions have pages and tables of their own:
//! what lies behind the window is given back, and its places in the table are never read again.

use crate::model::Model;
use crate::runner::Error;
use crate::{ModelConfig, TransformerConfig};
use kernels::{KEY_TILE, Kv, KvKind, key_lanes, store_keys};
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

/// Keys and values of one sequence: a pool of its own.
#[derive(Debug)]
pub struct KvCache {
    pool: KvPool,
    pages: Vec<u32>,
    /// Goes round: a place is taken again once it lies behind the window.
    near: Vec<u32>,
    /// Positions filled.
    len: usize,
    /// Positions that it can hold, and those that come in one piece at most.
    room: (usize, usize),
}

/// How many pages a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// Of layers that see everything.
    pub pages: usize,
    /// Of layers that see only near positions; 0 where a model has none.
    pub near: usize,
    /// Tokens that a page holds.
    pub page_tokens: usize,
}

/// The first position whose keys and values a layer with a window must still have when `computed`
/// positions are known: attention reads whole tiles.
pub fn near_from(window: usize, computed: usize) -> usize {
    (computed + 1).saturating_sub(window) / KEY_TILE * KEY_TILE
}

/// Pages of `page_tokens` tokens that a window and a piece of `piece` tokens reach at most.
pub fn near_reach(window: usize, piece: usize, page_tokens: usize) -> usize {
    (window + KEY_TILE + piece).div_ceil(page_tokens) + 1
}

/// Keys and values of many sequences, in pages of a fixed number of tokens.
#[derive(Debug)]
pub struct KvPool {
    /// Per layer: pages×page_tokens rows of keys (G·D, raw bits where `kind` is not F32).
    keys: Vec<Buffer<f32>>,
    /// Per layer: pages×page_tokens rows of values, alike.
    values: Vec<Buffer<f32>>,
    /// Which layers see only near positions.
    near: Vec<bool>,
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
    /// Those of layers that see only near positions: as many places, of which those behind the window
    /// may hold any number.
    pub near: &'a [u32],
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
                Some(Cache::Kv(kv)) => Some((&kv.pool, past(&kv.pages, &kv.near, kv.len))),
                _ => None,
            },
            Past::Pages { pool, sequences } => sequences.get(i).map(|s| (&**pool, *s)),
        }
    }

    /// The same, to be written.
    pub(crate) fn pages_mut(&mut self, i: usize) -> Option<(&mut KvPool, PagedPast<'_>)> {
        match self {
            Past::Own(caches) => match caches.get_mut(i) {
                Some(Cache::Kv(kv)) => Some((&mut kv.pool, past(&kv.pages, &kv.near, kv.len))),
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

fn past<'a>(pages: &'a [u32], near: &'a [u32], len: usize) -> PagedPast<'a> {
    PagedPast { pages, near, len }
}

fn specs(config: &TransformerConfig, size: KvPages) -> impl Iterator<Item = Spec> {
    let row = config.kv.row_words(config.kv_heads(), config.head_size());
    (0..2 * config.num_hidden_layers).map(move |i| {
        let what = if i % 2 == 0 { "keys" } else { "values" };
        let pages = if config.sees_near(i / 2) { size.near } else { size.pages };
        let len = pages * size.page_tokens * row;
        Spec::new(format!("layer {} {what}", i / 2), Account::KvCache, len)
    })
}

impl KvPool {
    /// What a pool will take: 2·pages·page_tokens·G·D values a layer, of the kind that `config.kv`
    /// says.
    pub fn plan(config: &TransformerConfig, size: KvPages) -> Plan {
        let mut plan = Plan::default();
        specs(config, size).for_each(|s| plan.add(&s));
        plan
    }

    /// A pool.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(config: &TransformerConfig, size: KvPages) -> Result<KvPool, Error> {
        let mut buffers = specs(config, size).map(|s| Buffer::new(&s));
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        while let (Some(k), Some(v)) = (buffers.next(), buffers.next()) {
            keys.push(k?);
            values.push(v?);
        }
        let near = (0..config.num_hidden_layers).map(|i| config.sees_near(i)).collect();
        let (heads, head_size, kind) = (config.kv_heads(), config.head_size(), config.kv);
        let (width, row) = (heads * head_size, kind.row_words(heads, head_size));
        let page_tokens = size.page_tokens;
        Ok(KvPool { keys, values, near, kind, page_tokens, head_size, width, row })
    }

    fn table<'a>(&self, layer: usize, past: &PagedPast<'a>) -> &'a [u32] {
        if self.near[layer] { past.near } else { past.pages }
    }

    /// One layer of a sequence.
    pub(crate) fn layer<'a>(&'a self, layer: usize, past: PagedPast<'a>) -> Kv<'a> {
        let (keys, values) = (&self.keys[layer][..], &self.values[layer][..]);
        let (kind, page_tokens, pages) = (self.kind, self.page_tokens, self.table(layer, &past));
        Kv { keys, values, kind, stride: self.row, pages, page_tokens, lanes: self.lanes() }
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
        let pages = self.table(layer, &to);
        let (size, lanes) = (self.page_tokens * self.row, self.lanes());
        for (i, row) in rows.chunks_exact(stride).enumerate() {
            let (page, inside) = ((to.len + i) / self.page_tokens, (to.len + i) % self.page_tokens);
            let at = pages[page] as usize * size;
            let keys = &mut self.keys[layer][at..at + size];
            let key = &row[from..from + width];
            store_keys(self.kind, key, d, (self.row, lanes), inside, keys);
            let values = &mut self.values[layer][at + inside * self.row..][..self.row];
            self.kind.store(&row[from + width..from + 2 * width], d, values);
        }
    }

    fn lanes(&self) -> usize {
        key_lanes(self.page_tokens)
    }
}

/// Tokens of a page of a cache whose near layers go round.
const RING_TOKENS: usize = KEY_TILE;

impl KvCache {
    /// The pages of a cache for `capacity` tokens that come in pieces of up to `piece`.
    fn size(config: &TransformerConfig, capacity: usize, piece: usize) -> KvPages {
        // So that keys stand together.
        let whole = KvPages { pages: 1, near: 1, page_tokens: capacity.next_multiple_of(16) };
        let Some(window) = &config.sliding_window else { return KvPages { near: 0, ..whole } };
        let near = near_reach(window.tokens, piece, RING_TOKENS);
        let pages = capacity.div_ceil(RING_TOKENS);
        if near < pages { KvPages { pages, near, page_tokens: RING_TOKENS } } else { whole }
    }

    fn new(config: &TransformerConfig, capacity: usize, piece: usize) -> Result<KvCache, Error> {
        let size = KvCache::size(config, capacity, piece);
        let pages = 0..size.pages as u32;
        let near = pages.clone().map(|page| page % (size.near as u32).max(1)).collect();
        let pool = KvPool::new(config, size)?;
        Ok(KvCache { pool, pages: pages.collect(), near, len: 0, room: (capacity, piece) })
    }

    /// A copy of its own.
    fn fork(&self, config: &TransformerConfig) -> Result<KvCache, Error> {
        let mut new = KvCache::new(config, self.room.0, self.room.1)?;
        new.len = self.len;
        let pairs = self.pool.keys.iter().chain(&self.pool.values);
        let places = new.pool.keys.iter_mut().chain(&mut new.pool.values);
        for (from, to) in pairs.zip(places) {
            let used = from.len().min(self.len.next_multiple_of(self.pool.lanes()) * self.pool.row);
            to[..used].copy_from_slice(&from[..used]);
        }
        Ok(new)
    }
}

impl Cache {
    /// What a cache for `capacity` tokens that come in pieces of up to `piece` will take:
    /// 2·capacity·G·D values a layer of a transformer, or what its window reaches.
    pub fn plan(config: &ModelConfig, capacity: usize, piece: usize) -> Plan {
        match config {
            ModelConfig::Transformer(c) => KvPool::plan(c, KvCache::size(c, capacity, piece)),
            _ => Plan::default(),
        }
    }

    /// An empty cache for up to `capacity` tokens that come in pieces of up to `piece`.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: &Model, capacity: usize, piece: usize) -> Result<Cache, Error> {
        Ok(match model.config() {
            ModelConfig::Transformer(c) => Cache::Kv(KvCache::new(c, capacity, piece)?),
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
        Ok(match (self, model.config()) {
            (Cache::Kv(old), ModelConfig::Transformer(c)) => Cache::Kv(old.fork(c)?),
            (Cache::Kv(_), _) => unreachable!("keys and values are a transformer's"),
            (Cache::State(state), _) => Cache::State(state.clone()),
            (Cache::Tokens(tokens), _) => Cache::Tokens(tokens.clone()),
        })
    }
}
