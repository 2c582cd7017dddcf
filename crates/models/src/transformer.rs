//! The causal transformer: embeddings, layers of attention and MLP on a residual stream, a norm.
//!
//! One forward pass serves training, evaluation, prefill and decode. Training keeps a slot of
//! activations a layer, or computes some of them again; without it all layers share one. With
//! caches, keys and values go to the caller's caches and attention reads them there; without, it
//! reads them in the batch.

mod backward;
mod memory;

pub(crate) use self::memory::TransformerSlots;

use self::memory::{AttentionSlot, MlpSlot, SharedSlot, is_halved, keep, kept_half, stream_half};
use crate::cache::Past;
use crate::runner::Pass;
use crate::units::{Course, Packing};
use crate::{LoraTarget, MlpConfig, NormConfig, PositionConfig, TransformerConfig};
use kernels::{
    AttentionShape, Init, Kv, Segment, Team, add_assign, attention_forward, mixed_attention_forward,
};
use ledger::Buffer;
use std::ops::Range;
use tensor::ops::{
    Adapter, Embedding, Linear, MLP_ROWS, Mlp, MlpKind, Norm, NormKind, Rotary, frozen_work, turn,
};
use tensor::{Initial, Layout, Packed, ParamId, Parameters, halves_in, halves_in_mut};

/// One layer's operations.
#[derive(Clone, Debug)]
struct Layer {
    norm1: Norm,
    qkv: Linear,
    /// Norms of each head of queries and keys.
    heads: Option<(Norm, Norm)>,
    out: Linear,
    /// Norms of what the two branches add to the stream.
    post: Option<(Norm, Norm)>,
    norm2: Norm,
    mlp: Mlp,
    /// Whether it sees only near positions.
    near: bool,
    /// Where the packed forms of its matrices begin and end.
    packed: Range<usize>,
}

/// The network below the output projection.
#[derive(Clone, Debug)]
pub(crate) struct Transformer {
    config: TransformerConfig,
    tokens: Embedding,
    positions: Option<Embedding>,
    rotary: Option<Rotary>,
    /// Of the layers that see only near positions, where it differs.
    near_rotary: Option<Rotary>,
    layers: Vec<Layer>,
    norm: Norm,
    shape: AttentionShape,
    /// Values of all packed matrices.
    packed_len: usize,
}

/// What a layer's forward pass works with beside its slots.
struct Desk<'a, 'p> {
    packed: &'a Packed<'p>,
    normed: &'a mut [f32],
    branch: &'a mut [f32],
    act: &'a mut [f32],
    attention_work: &'a mut [f32],
    wide_qkv: &'a mut [f32],
    angles: &'a [f32],
    near_angles: &'a [f32],
}

impl Layer {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.qkv, &self.out].into_iter().chain(self.mlp.linears())
    }

    /// Whether adapters add to what its matrices compute.
    fn is_adapted(&self) -> bool {
        self.linears().any(Linear::is_adapted)
    }

    /// Packs its matrices; `packed` begins at `from` among the packed forms of all layers.
    fn pack(&self, team: &Team, weights: &Parameters, packed: &mut [f32], from: usize) {
        for linear in self.linears() {
            linear.pack(team, weights, packed, from);
        }
    }

    /// Adds the adapters of layer `i` that the configuration asks for.
    fn adapt(
        &mut self,
        config: &TransformerConfig,
        i: usize,
        layout: &mut Layout,
        packed: &mut usize,
    ) {
        let Some(lora) = &config.lora else { return };
        let size = (lora.rank, lora.alpha / lora.rank as f32);
        for &target in &lora.targets {
            let name = format!("layers.{i}.{}", target.prefix());
            let adapter = Adapter::new(layout, packed, &name, target.shape(config), size);
            let (gate, up, down) = self.mlp.parts_mut();
            let linear = match target {
                LoraTarget::Query | LoraTarget::Key | LoraTarget::Value => Some(&mut self.qkv),
                LoraTarget::Out => Some(&mut self.out),
                LoraTarget::Gate => gate,
                LoraTarget::Up => Some(up),
                LoraTarget::Down => Some(down),
            };
            linear.into_iter().for_each(|linear| linear.adapt(adapter.clone()));
        }
    }
}

impl Transformer {
    pub(crate) fn new(config: &TransformerConfig, layout: &mut Layout) -> Transformer {
        let c = config.hidden_size;
        let (h, g, d) = (config.num_attention_heads, config.kv_heads(), config.head_size());
        let norm = match config.norm {
            NormConfig::Layer => NormKind::Layer,
            NormConfig::Rms => NormKind::Rms,
        };
        let norm =
            |layout: &mut Layout, name: &str| Norm::new(layout, name, norm, c, config.norm_epsilon);
        let head_norm = |layout: &mut Layout, name: &str| {
            Norm::new(layout, name, NormKind::Rms, d, config.norm_epsilon)
        };
        let embedding = Initial::Normal(0.02);
        let inner = |inputs: usize| Initial::Normal((1.0 / inputs as f32).sqrt());
        // Branches end small, so that the stream keeps its size through all layers.
        let last = |inputs: usize| {
            Initial::Normal((1.0 / (2.0 * inputs as f32 * config.num_hidden_layers as f32)).sqrt())
        };
        let mut packed = 0;
        let tokens = Embedding::new(layout, "tok_emb", config.vocab_size, c, embedding);
        let positions = (config.positions == PositionConfig::Learned).then(|| {
            Embedding::new(layout, "pos_emb", config.max_position_embeddings, c, embedding)
        });
        let is_rotary = config.positions == PositionConfig::Rotary;
        let rotary = is_rotary.then(|| match &config.rope_scaling {
            Some(scaling) => scaling.rotary(d, config.rope_theta),
            None => Rotary::new(d, config.rope_theta),
        });
        let window = config.sliding_window.as_ref();
        let near_theta = window.and_then(|w| w.rope_theta).filter(|_| is_rotary);
        let own: Vec<Layer> = (0..config.own_layers())
            .map(|i| {
                let name = |part: &str| format!("layers.{i}.{part}");
                let begins = packed;
                let mut linear = |layout: &mut Layout, part: &str, shape, bias, initial| {
                    Linear::new(layout, &mut packed, &name(part), shape, bias, initial)
                };
                let norm1 = norm(layout, &name("norm1"));
                let qkv_bias = config.qkv_bias.unwrap_or(config.bias);
                let qkv = linear(layout, "attn.qkv", ((h + 2 * g) * d, c), qkv_bias, inner(c));
                let heads = config.qk_norm.then(|| {
                    let queries = head_norm(layout, &name("attn.q_norm"));
                    (queries, head_norm(layout, &name("attn.k_norm")))
                });
                let out = linear(layout, "attn.out", (c, h * d), config.bias, last(h * d));
                let post = config.post_norm.then(|| {
                    let attention = norm(layout, &name("attn.post_norm"));
                    (attention, norm(layout, &name("mlp.post_norm")))
                });
                let norm2 = norm(layout, &name("norm2"));
                let f = config.intermediate_size;
                let initial = (inner(c), last(f));
                let (name, kind) = (name("mlp"), mlp_kind(config));
                let mlp = Mlp::new(layout, &mut packed, &name, kind, (c, f), config.bias, initial);
                let near = config.sees_near(i);
                let none = begins..begins;
                let mut layer =
                    Layer { norm1, qkv, heads, out, post, norm2, mlp, near, packed: none };
                layer.adapt(config, i, layout, &mut packed);
                layer.packed.end = packed;
                layer
            })
            .collect();
        let layers = own.iter().cycle().take(config.num_hidden_layers).cloned().collect();
        Transformer {
            tokens,
            positions,
            rotary,
            near_rotary: near_theta.map(|theta| Rotary::new(d, theta)),
            layers,
            norm: norm(layout, "norm"),
            shape: AttentionShape {
                heads: h,
                kv_heads: g,
                head_dim: d,
                scale: config.attention_scale(),
                window: None,
            },
            packed_len: packed,
            config: config.clone(),
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// Values of the packed forms of all layers, or of one.
    pub(crate) fn packed_len(&self, packing: Packing) -> usize {
        match packing {
            Packing::Whole => self.packed_len,
            Packing::ByUnit => self.layers.iter().map(|l| l.packed.len()).max().unwrap_or(0),
        }
    }

    /// Room for the widest rows that a quantised matrix reads.
    pub(crate) fn rounded_len(&self, rows: usize) -> usize {
        if !self.config.is_quantised() {
            return 0;
        }
        let outer = self.width().max(self.shape.heads * self.shape.head_dim);
        let inner = kernels::quant_rows_len(rows.min(MLP_ROWS), self.config.intermediate_size);
        kernels::quant_rows_len(rows, outer).max(inner)
    }

    /// Room for adapters, and for rows of matrices in panels that gradients pass through.
    pub(crate) fn work_len(&self, rows: usize, training: bool) -> usize {
        let rank = self.config.lora.as_ref().map_or(0, |lora| lora.rank);
        let frozen = training && !self.config.storage.is_empty();
        let (heads, inner) =
            (self.shape.heads * self.shape.head_dim, self.config.intermediate_size);
        let widest = self.width().max(heads).max(inner);
        Adapter::work(rows, rank).max(if frozen { frozen_work(widest) } else { 0 })
    }

    /// The token table, for a tied output projection.
    pub(crate) fn token_table(&self) -> ParamId {
        self.tokens.table()
    }

    pub(crate) fn pack(&self, pass: &Pass, packed: &mut [f32]) {
        let own = &self.layers[..self.config.own_layers()];
        own.iter().for_each(|layer| layer.pack(pass.team, pass.weights, packed, 0));
    }

    /// The unit of layer `i`; the last norm's where it is behind the last layer.
    fn unit_of(&self, i: usize) -> usize {
        let own = self.config.own_layers();
        1 + if i < self.layers.len() { i % own } else { own }
    }

    /// What is read at unit `unit` of a pass: embeddings, a layer, or the last norm; `next` after it.
    fn enter<'c>(
        &self,
        course: &'c mut Course,
        unit: usize,
        next: Option<usize>,
    ) -> (Pass<'c>, Packed<'c>) {
        course.fetch(unit, next);
        let layer = unit.checked_sub(1).and_then(|i| self.layers.get(i));
        course.parts(layer.map_or(0, |layer| layer.packed.start))
    }

    /// The same for layer i, whose forward pass is to come.
    fn enter_forward<'c>(
        &self,
        course: &'c mut Course,
        (i, layer): (usize, &Layer),
        next: Option<usize>,
    ) -> (Pass<'c>, Packed<'c>) {
        course.fetch(self.unit_of(i), next);
        let from = layer.packed.start;
        course.pack(|team, weights, packed| layer.pack(team, weights, packed, from));
        course.parts(from)
    }

    /// Runs the batch up to the rows that the output projection reads.
    pub(crate) fn forward(
        &self,
        course: &mut Course,
        past: &mut Past<'_>,
        slots: &mut TransformerSlots<Buffer<f32>>,
    ) {
        let (pass, _) = self.enter(course, 0, Some(1));
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, c) = (batch.rows(), self.width());
        let TransformerSlots { inputs, attention, mlp, shared } = slots;
        let x = &mut shared.x[..rows * c];
        self.tokens.forward(team, weights, &batch.tokens, Init::Zero, x);
        if let Some(positions) = &self.positions {
            positions.forward(team, weights, &batch.positions, Init::Keep, x);
        }
        if let Some(factor) = self.config.embedding_scale {
            kernels::scale(team, x, factor);
        }
        pass.dropout(x, 0);
        for (rotary, angles) in
            [(&self.rotary, &mut shared.angles), (&self.near_rotary, &mut shared.near_angles)]
        {
            if let Some(rotary) = rotary {
                rotary.angles(&batch.positions, &mut angles[..rows * rotary.width()]);
            }
        }
        let half_inputs = inputs.first().is_some_and(|input| is_halved(input, &shared.x));
        for (i, layer) in self.layers.iter().enumerate() {
            let next = Some(self.unit_of(i + 1));
            let (pass, packed) = &self.enter_forward(course, (i, layer), next);
            let (x, desk) = &mut shared.desk(packed, rows * c);
            if let Some(input) = inputs.get_mut(i) {
                let half = stream_half(pass.weights.halves_kind());
                keep(pass.team, half.filter(|_| half_inputs), input, x);
            }
            self.attention_half(pass, (i, layer), past, slot_of(attention, i), desk, x);
            self.mlp_half(pass, (i, layer), slot_of(mlp, i), desk, x);
        }
        let (pass, _) = self.enter(course, self.unit_of(self.layers.len()), None);
        let hidden = &mut shared.hidden[..rows * c];
        let x = &shared.x[..rows * c];
        self.norm.forward(pass.team, pass.weights, x, hidden, &mut shared.final_stats);
        pass.dropout_at_the_end(hidden);
        past.advance(&pass.batch.sequences);
    }

    /// x ← x + what attention makes of it.
    fn attention_half(
        &self,
        pass: &Pass,
        (index, layer): (usize, &Layer),
        past: &mut Past<'_>,
        slot: &mut AttentionSlot<Buffer<f32>>,
        desk: &mut Desk,
        x: &mut [f32],
    ) {
        let (team, weights) = (pass.team, pass.weights);
        self.attend(pass, (index, layer), past, slot, desk, x);
        let n = pass.batch.rows() * self.shape.heads * self.shape.head_dim;
        let (branch, c) = (&mut *desk.branch, self.width());
        match kept_half(pass, slot) {
            Some(_) => {
                let attention = halves_in(&slot.attention, n);
                layer.out.forward_halves(team, weights, attention, (&mut *branch, c, 0));
            }
            None => {
                let attention = &slot.attention[..n];
                layer.out.forward(team, weights, desk.packed, attention, branch, c, 0);
            }
        }
        pass.dropout(branch, 2 * index as u64 + 1);
        keep(pass.team, None, &mut slot.branch, branch);
        let norm = layer.post.as_ref().map(|post| &post.0);
        add_branch(pass, norm, branch, desk.normed, &mut slot.branch_stats, x);
    }

    /// x ← x + what the MLP makes of it.
    fn mlp_half(
        &self,
        pass: &Pass,
        (index, layer): (usize, &Layer),
        slot: &mut MlpSlot<Buffer<f32>>,
        desk: &mut Desk,
        x: &mut [f32],
    ) {
        let (team, weights) = (pass.team, pass.weights);
        let (normed, branch) = (&mut *desk.normed, &mut *desk.branch);
        keep(pass.team, stream_half(weights.halves_kind()), &mut slot.middle, x);
        layer.norm2.forward(team, weights, x, normed, &mut slot.stats2);
        layer.mlp.forward(team, weights, desk.packed, normed, branch, &mut slot.up, desk.act);
        pass.dropout(branch, 2 * index as u64 + 2);
        keep(pass.team, None, &mut slot.branch, branch);
        let norm = layer.post.as_ref().map(|post| &post.1);
        add_branch(pass, norm, branch, normed, &mut slot.branch_stats, x);
    }

    /// Whether a layer's positions are those of near layers.
    fn turns_near(&self, layer: &Layer) -> bool {
        layer.near && self.near_rotary.is_some()
    }

    fn shape_of(&self, layer: &Layer) -> AttentionShape {
        let window = self.config.sliding_window.as_ref().filter(|_| layer.near).map(|w| w.tokens);
        AttentionShape { window, ..self.shape }
    }

    /// Queries, keys and values of the normed stream x, and what attention makes of them.
    fn attend(
        &self,
        pass: &Pass,
        (index, layer): (usize, &Layer),
        past: &mut Past<'_>,
        slot: &mut AttentionSlot<Buffer<f32>>,
        desk: &mut Desk,
        x: &[f32],
    ) {
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let (rows, stride) = (batch.rows(), (h + 2 * g) * d);
        layer.norm1.forward(team, weights, x, desk.normed, &mut slot.stats1);
        let kept_half = kept_half(pass, slot);
        let qkv = match kept_half {
            Some(_) => &mut desk.wide_qkv[..rows * stride],
            None => &mut slot.qkv[..rows * stride],
        };
        layer.qkv.forward(team, weights, desk.packed, desk.normed, qkv, stride, 0);
        if let Some((queries, keys)) = &layer.heads {
            if !slot.raw.is_empty() {
                let width = (h + g) * d;
                let raw = slot.raw.chunks_exact_mut(width);
                raw.zip(qkv.chunks_exact(stride))
                    .for_each(|(raw, row)| raw.copy_from_slice(&row[..width]));
            }
            queries.heads_forward(team, weights, qkv, stride, (0, h));
            keys.heads_forward(team, weights, qkv, stride, (h * d, g));
        }
        if self.rotary.is_some() {
            let angles = if self.turns_near(layer) { desk.near_angles } else { desk.angles };
            turn(team, qkv, stride, 0, h + g, &angles[..rows * d]);
        }
        if let Some(kind) = kept_half {
            let kept = halves_in_mut(&mut slot.qkv, rows * stride);
            kernels::round_halves(team, kind, &desk.wide_qkv[..rows * stride], kept);
            let attention = halves_in_mut(&mut slot.attention, rows * h * d);
            let lse = &mut slot.lse[..h * rows];
            let (shape, work) = (self.shape_of(layer), &mut *desk.attention_work);
            let sequences = &batch.sequences;
            mixed_attention_forward(team, kind, &shape, sequences, kept, attention, lse, work);
            return;
        }
        let qkv = &mut slot.qkv[..rows * stride];
        for (i, &(row, new)) in batch.sequences.iter().enumerate() {
            if let Some((pool, to)) = past.pages_mut(i) {
                let rows = &qkv[row * stride..(row + new) * stride];
                pool.append(index, to, rows, stride, h * d);
            }
        }
        let qkv = &slot.qkv[..rows * stride];
        let segments: Vec<Segment> = batch
            .sequences
            .iter()
            .enumerate()
            .filter(|(_, s)| s.1 > 0)
            .map(|(i, &(row, queries))| {
                let (past, kv) = match past.pages(i) {
                    Some((pool, past)) => (past.len, pool.layer(index, past)),
                    None => {
                        let from = row * stride + h * d;
                        (0, Kv::whole(&qkv[from..], &qkv[from + g * d..], stride))
                    }
                };
                Segment { row, queries, past, kv }
            })
            .collect();
        let attention = &mut slot.attention[..rows * h * d];
        let lse = if slot.lse.is_empty() { &mut [] } else { &mut slot.lse[..h * rows] };
        let (shape, work) = (self.shape_of(layer), &mut *desk.attention_work);
        attention_forward(team, &shape, &segments, qkv, stride, attention, lse, work);
    }
}

impl SharedSlot<Buffer<f32>> {
    /// The stream (n values, R×C) and what a layer's forward pass works with.
    fn desk<'a, 'p>(
        &'a mut self,
        packed: &'a Packed<'p>,
        n: usize,
    ) -> (&'a mut [f32], Desk<'a, 'p>) {
        let desk = Desk {
            packed,
            normed: &mut self.normed[..n],
            branch: &mut self.branch[..n],
            act: &mut self.act,
            attention_work: &mut self.attention_work,
            wide_qkv: &mut self.d_qkv,
            angles: &self.angles,
            near_angles: &self.near_angles,
        };
        (&mut self.x[..n], desk)
    }
}

/// The slot of layer `i`.
fn slot_of<T>(slots: &mut [T], i: usize) -> &mut T {
    let only = slots.len() == 1;
    &mut slots[if only { 0 } else { i }]
}

fn mlp_kind(config: &TransformerConfig) -> MlpKind {
    match config.mlp {
        MlpConfig::Gelu => MlpKind::Gelu,
        MlpConfig::Swiglu => MlpKind::SwiGlu,
        MlpConfig::GeluTanh => MlpKind::GeluTanh,
        MlpConfig::GegluTanh => MlpKind::GegluTanh,
        MlpConfig::Relu2 => MlpKind::Relu2,
    }
}

/// x ← x + branch, or x + norm(branch), computed in `normed`.
fn add_branch(
    pass: &Pass,
    norm: Option<&Norm>,
    branch: &[f32],
    normed: &mut [f32],
    stats: &mut [f32],
    x: &mut [f32],
) {
    match norm {
        Some(norm) => {
            norm.forward(pass.team, pass.weights, branch, normed, stats);
            add_assign(pass.team, x, normed);
        }
        None => add_assign(pass.team, x, branch),
    }
}
