//! The causal transformer: embeddings, layers of attention and MLP on a residual stream, a norm.
//!
//! One forward pass serves training, evaluation, prefill and decode. Training keeps a slot of
//! activations a layer, or computes some of them again; without it all layers share one. With
//! caches, keys and values go to the caller's caches and attention reads them there; without, it
//! reads them in the batch.

use crate::cache::Past;
use crate::runner::{Pass, all_finite};
use crate::slots::slots;
use crate::units::{Course, Packing};
use crate::{LoraTarget, MlpConfig, NormConfig, PositionConfig, Recompute, TransformerConfig};
use kernels::{
    AttentionShape, HalfKind, HeadPlace, Init, Kv, Segment, Team, add_assign, attention_backward,
    attention_forward, mixed_attention_backward, mixed_attention_forward, rounded_values,
    widen_halves,
};
use ledger::{Account, Buffer, Spec};
use std::ops::Range;
use tensor::ops::{
    Adapter, Embedding, Linear, MLP_ROWS, Mlp, MlpKind, MlpScratch, Norm, NormKind, Rotary,
    frozen_work, turn, turn_back,
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

slots! {
    /// What the attention half of a layer computes that its backward pass needs. Trained in 16 bits,
    /// `qkv` and `attention` are kept in 16 bits.
    struct AttentionSlot {
        /// R×2
        stats1,
        /// R×(H+2G)D
        qkv,
        /// R×(H+G)D: queries and keys before the norms of their heads (training only).
        raw,
        /// H×R: log-sums of the scores (training only).
        lse,
        /// R×HD
        attention,
        /// R×C: the branch before its own norm (training only).
        branch,
        /// R×2, where the branch has a norm.
        branch_stats,
    }
}

slots! {
    /// What the MLP half of a layer computes that its backward pass needs. Trained in 16 bits, `up` is
    /// kept in 16 bits, and in bf16 `middle`.
    struct MlpSlot {
        /// R×C: the stream between attention and MLP (training only).
        middle,
        /// R×2
        stats2,
        /// R×F or R×2F
        up,
        /// R×C: the branch before its own norm (training only).
        branch,
        /// R×2, where the branch has a norm.
        branch_stats,
    }
}

slots! {
    /// What all layers share.
    struct SharedSlot {
        /// R×C: the residual stream.
        x,
        /// R×C
        normed,
        /// R×C: what a branch adds to the stream.
        branch,
        /// R×2
        final_stats,
        /// R×C: what the output projection reads.
        hidden,
        /// MLP_ROWS×F
        act,
        attention_work,
        /// R×D: cosines and sines of the rows' positions.
        angles,
        /// R×D, where near layers have their own.
        near_angles,
        /// R×C: the gradient of the stream (training only).
        d_x,
        /// R×max(C, HD): the gradient of what a branch's last step read (training only).
        d_inner,
        /// R×(H+2G)D (training only); in a forward pass in 16 bits, queries, keys and values before they
        /// are rounded.
        d_qkv,
        /// MLP_ROWS×(F or 2F) (training only)
        d_up,
    }
}

/// The buffers of a run.
#[derive(Debug)]
pub(crate) struct TransformerSlots<B> {
    /// R×C a layer: the stream before it (training only); in 16 bits where it is trained in bf16 and
    /// nothing is computed again from it.
    inputs: Vec<B>,
    /// One a layer, or one for all.
    attention: Vec<AttentionSlot<B>>,
    /// One a layer, or one for all.
    mlp: Vec<MlpSlot<B>>,
    shared: SharedSlot<B>,
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

impl<B> TransformerSlots<B> {
    pub(crate) fn map<C, E>(
        self,
        f: &mut impl FnMut(B) -> Result<C, E>,
    ) -> Result<TransformerSlots<C>, E> {
        Ok(TransformerSlots {
            inputs: self.inputs.into_iter().map(&mut *f).collect::<Result<_, E>>()?,
            attention: self.attention.into_iter().map(|s| s.map(f)).collect::<Result<_, E>>()?,
            mlp: self.mlp.into_iter().map(|s| s.map(f)).collect::<Result<_, E>>()?,
            shared: self.shared.map(f)?,
        })
    }

    pub(crate) fn each(&self, f: &mut impl FnMut(&B)) {
        self.inputs.iter().for_each(&mut *f);
        self.attention.iter().for_each(|s| s.each(f));
        self.mlp.iter().for_each(|s| s.each(f));
        self.shared.each(f);
    }

    /// What the output projection reads, and where its gradient goes.
    pub(crate) fn hidden_and_gradient(&mut self) -> (&B, &mut B) {
        (&self.shared.hidden, &mut self.shared.d_inner)
    }
}

impl TransformerSlots<Buffer<f32>> {
    /// The largest attention score since the last call.
    pub(crate) fn largest_score(&mut self, threads: usize) -> f32 {
        kernels::largest_score(&mut self.shared.attention_work, threads)
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

    /// The buffers for batches of up to `rows` rows in sequences of up to `longest` tokens; for a
    /// backward pass where `training` says what it computes again.
    pub(crate) fn specs(
        &self,
        rows: usize,
        longest: usize,
        threads: usize,
        training: Option<Recompute>,
        half: Option<HalfKind>,
    ) -> TransformerSlots<Spec> {
        let c = self.width();
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let f = self.config.intermediate_size;
        let up = Mlp::saved_width(mlp_kind(&self.config), f);
        let account = if training.is_some() { Account::Activations } else { Account::Workspace };
        let kept = |width: usize| if training.is_some() { rows * width } else { 0 };
        let used = |condition: bool, len: usize| if condition { len } else { 0 };
        let mixed = half.is_some();
        let halved = |is_half: bool, len: usize| if is_half { len.div_ceil(2) } else { len };
        let kept_half = half.filter(|_| training.is_some());
        let stream_half = stream_half(kept_half).is_some();
        let layers = self.layers.len();
        let (post, heads) = (self.config.post_norm, self.config.qk_norm);
        let attention = slots_of(training, layers, Recompute::Attention, |i| {
            let spec = |what: &str, len| Spec::new(format!("layer {i} {what}"), account, len);
            AttentionSlot {
                stats1: spec("norm 1", rows * Norm::STATS),
                qkv: spec("q k v", halved(kept_half.is_some(), rows * (h + 2 * g) * d)),
                raw: spec("q k before norms", used(heads, kept((h + g) * d))),
                lse: spec("log-sums", kept(h)),
                attention: spec("attention", halved(kept_half.is_some(), rows * h * d)),
                branch: spec("attention branch", used(post, kept(c))),
                branch_stats: spec("attention branch norm", used(post, rows * Norm::STATS)),
            }
        });
        let mlp = slots_of(training, layers, Recompute::Layer, |i| {
            let spec = |what: &str, len| Spec::new(format!("layer {i} {what}"), account, len);
            MlpSlot {
                middle: spec("middle", halved(stream_half, kept(c))),
                stats2: spec("norm 2", rows * Norm::STATS),
                up: spec("mlp", halved(mixed, rows * up)),
                branch: spec("mlp branch", used(post, kept(c))),
                branch_stats: spec("mlp branch norm", used(post, rows * Norm::STATS)),
            }
        });
        let half_inputs = stream_half && training == Some(Recompute::None);
        let input =
            |i| Spec::new(format!("layer {i} input"), account, halved(half_inputs, rows * c));
        let inputs = (0..used(training.is_some(), layers)).map(input).collect();
        let kept_spec = |what: &str, len| Spec::new(what, account, len);
        let work = |what: &str, len| Spec::new(what, Account::Workspace, len);
        let backward = used(training.is_some(), longest);
        let tiles = match kept_half {
            Some(_) => kernels::mixed_attention_workspace(&self.shape, threads, backward),
            None => kernels::attention_workspace(&self.shape, threads, backward),
        };
        let run = MLP_ROWS.min(rows);
        let shared = SharedSlot {
            x: kept_spec("residual stream", rows * c),
            normed: work("normed", rows * c),
            branch: work("branch", rows * c),
            final_stats: kept_spec("final norm", rows * Norm::STATS),
            hidden: kept_spec("hidden", rows * c),
            act: work("mlp activation", run * Mlp::scratch_width(mlp_kind(&self.config), f, mixed)),
            attention_work: work("attention tiles", tiles),
            angles: work("angles", rows * self.rotary.as_ref().map_or(0, Rotary::width)),
            near_angles: work(
                "near angles",
                rows * self.near_rotary.as_ref().map_or(0, Rotary::width),
            ),
            d_x: work("d stream", kept(c)),
            d_inner: work("d inner", kept(c.max(h * d))),
            d_qkv: work("d q k v", kept((h + 2 * g) * d)),
            d_up: work("d mlp", used(training.is_some(), run * up)),
        };
        TransformerSlots { inputs, attention, mlp, shared }
    }

    /// Values of the largest second factor of a product of batches of so many rows.
    pub(crate) fn largest_factor(&self, rows: usize) -> usize {
        let (c, f) = (self.width(), self.config.intermediate_size);
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let weights = [((h + 2 * g) * d, c), (c, h * d), (f, c)].map(|(n, k)| n * k);
        let inputs = [rows * c, rows * h * d, rows.min(MLP_ROWS) * f];
        weights.into_iter().chain(inputs).max().unwrap_or(0)
    }

    /// The first of a training pass's tensors with a value that is not finite.
    pub(crate) fn first_not_finite(
        &self,
        slots: &TransformerSlots<Buffer<f32>>,
        rows: usize,
        half: Option<HalfKind>,
    ) -> Option<String> {
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let (c, last) = (self.width(), self.layers.len() - 1);
        // A slot that layers share holds the last layer's.
        let place = |count: usize, i: usize| match count {
            1 => (i == last).then_some(0),
            _ => Some(i),
        };
        let up = rows * Mlp::saved_width(mlp_kind(&self.config), self.config.intermediate_size);
        let bad_in = |half: Option<HalfKind>, x: &[f32], width: usize| match half {
            Some(kind) => {
                halves_in(x, rows * width).iter().any(|&bits| !kind.value(bits).is_finite())
            }
            None => !all_finite(&x[..rows * width]),
        };
        let stream = stream_half(half);
        for (i, input) in slots.inputs.iter().enumerate() {
            let attention = place(slots.attention.len(), i).map(|at| &slots.attention[at]);
            let mlp = place(slots.mlp.len(), i).map(|at| &slots.mlp[at]);
            let found = if bad_in(stream.filter(|_| is_halved(input, &slots.shared.x)), input, c) {
                Some("input")
            } else if attention.is_some_and(|slot| bad_in(half, &slot.qkv, (h + 2 * g) * d)) {
                Some("q k v")
            } else if attention.is_some_and(|slot| bad_in(half, &slot.attention, h * d)) {
                Some("attention")
            } else if mlp.is_some_and(|slot| bad_in(stream, &slot.middle, c)) {
                Some("stream after attention")
            } else if mlp.is_some_and(|slot| !Mlp::saved_is_finite(&slot.up, up, half)) {
                Some("mlp")
            } else {
                None
            };
            if let Some(what) = found {
                return Some(format!("layer {i} {what}"));
            }
        }
        (!all_finite(&slots.shared.hidden[..rows * c])).then(|| "final norm".to_owned())
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

    /// Adds the batch's gradients, from the gradient of `hidden` left in `d_inner`.
    pub(crate) fn backward(
        &self,
        course: &mut Course,
        gradients: &mut Parameters,
        slots: &mut TransformerSlots<Buffer<f32>>,
    ) {
        let (end, last) = (self.unit_of(self.layers.len()), self.layers.len() - 1);
        let (pass, _) = self.enter(course, end, Some(self.unit_of(last)));
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, c) = (batch.rows(), self.width());
        let TransformerSlots { inputs, attention, mlp, shared } = slots;
        let d_x = &mut shared.d_x[..rows * c];
        kernels::clear(team, d_x);
        let x = &shared.x[..rows * c];
        let d_hidden = &mut shared.d_inner[..rows * c];
        pass.dropout_at_the_end(d_hidden);
        self.norm.backward(team, weights, gradients, x, &shared.final_stats, d_hidden, d_x);
        course.reduce(gradients, end);
        // What stands in a slot that layers share is the last layer's.
        let again = |slots: usize, i: usize| slots < self.layers.len() && i < last;
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let next = i.checked_sub(1).map(|i| self.unit_of(i));
            let attention_again = again(attention.len(), i);
            let mlp_again = again(mlp.len(), i);
            let (pass, packed) = &if attention_again || mlp_again || layer.is_adapted() {
                self.enter_forward(course, (i, layer), next)
            } else {
                self.enter(course, self.unit_of(i), next)
            };
            let input = &inputs[i];
            let (attention, mlp) = (slot_of(attention, i), slot_of(mlp, i));
            if mlp_again {
                let input = &input[..rows * c];
                self.layer_again(pass, packed, (i, layer), attention, mlp, input, shared);
            }
            self.mlp_backward(pass, packed, gradients, (i, layer), mlp, shared);
            if attention_again && !mlp_again {
                let input = &input[..rows * c];
                self.attention_again(pass, packed, (i, layer), attention, input, shared);
            }
            self.attention_backward(pass, packed, gradients, (i, layer), attention, input, shared);
            // Weights of several layers have their gradient whole at the first of them.
            if i < self.config.own_layers() {
                course.reduce(gradients, self.unit_of(i));
            }
        }
        let (pass, _) = course.parts(0);
        let (team, batch) = (pass.team, pass.batch);
        let d_x = &mut shared.d_x[..rows * c];
        pass.dropout(d_x, 0);
        if let Some(factor) = self.config.embedding_scale {
            kernels::scale(team, d_x, factor);
        }
        self.tokens.backward(team, gradients, &batch.tokens, d_x);
        if let Some(positions) = &self.positions {
            positions.backward(team, gradients, &batch.positions, d_x);
        }
        course.reduce(gradients, 0);
    }

    /// Fills both slots of a layer again from its input.
    #[expect(clippy::too_many_arguments, reason = "what a layer's forward pass reads and writes")]
    fn layer_again(
        &self,
        pass: &Pass,
        packed: &Packed,
        (index, layer): (usize, &Layer),
        attention: &mut AttentionSlot<Buffer<f32>>,
        mlp: &mut MlpSlot<Buffer<f32>>,
        input: &[f32],
        shared: &mut SharedSlot<Buffer<f32>>,
    ) {
        let (x, desk) = &mut shared.desk(packed, input.len());
        kernels::copy(pass.team, input, x);
        self.attention_half(pass, (index, layer), &mut Past::none(), attention, desk, x);
        if layer.post.is_some() {
            return self.mlp_half(pass, (index, layer), mlp, desk, x);
        }
        keep(pass.team, stream_half(pass.weights.halves_kind()), &mut mlp.middle, x);
        layer.norm2.forward(pass.team, pass.weights, x, desk.normed, &mut mlp.stats2);
        let (normed, up, act) = (&*desk.normed, &mut mlp.up, &mut *desk.act);
        layer.mlp.recompute(pass.team, pass.weights, packed, normed, up, act);
    }

    /// Fills a layer's slot of attention again from its input.
    fn attention_again(
        &self,
        pass: &Pass,
        packed: &Packed,
        layer: (usize, &Layer),
        slot: &mut AttentionSlot<Buffer<f32>>,
        input: &[f32],
        shared: &mut SharedSlot<Buffer<f32>>,
    ) {
        let (x, desk) = &mut shared.desk(packed, input.len());
        if layer.1.post.is_none() {
            return self.attend(pass, layer, &mut Past::none(), slot, desk, input);
        }
        kernels::copy(pass.team, input, x);
        self.attention_half(pass, layer, &mut Past::none(), slot, desk, x);
    }

    fn mlp_backward(
        &self,
        pass: &Pass,
        packed: &Packed,
        gradients: &mut Parameters,
        (index, layer): (usize, &Layer),
        slot: &mut MlpSlot<Buffer<f32>>,
        shared: &mut SharedSlot<Buffer<f32>>,
    ) {
        let (team, weights) = (pass.team, pass.weights);
        let n = pass.batch.rows() * self.width();
        let (normed, room) = (&mut shared.normed[..n], &mut shared.branch[..n]);
        let (d_x, d_normed) = (&mut shared.d_x[..n], &mut shared.d_inner[..n]);
        let middle = stream(pass, &slot.middle, &mut shared.x, n);
        layer.norm2.forward(team, weights, middle, normed, &mut slot.stats2);
        let norm = layer.post.as_ref().map(|post| &post.1);
        let (read, place) = ((&slot.branch[..], &slot.branch_stats[..]), 2 * index as u64 + 2);
        let branch = branch_gradient(pass, gradients, norm, read, place, d_x, room);
        let scratch = &mut MlpScratch { act: &mut shared.act, d_up: &mut shared.d_up };
        layer.mlp.backward(
            team, weights, gradients, packed, normed, &slot.up, branch, d_normed, scratch,
        );
        layer.norm2.backward(team, weights, gradients, middle, &slot.stats2, d_normed, d_x);
    }

    #[expect(clippy::too_many_arguments, reason = "a backward pass takes what the forward saved")]
    fn attention_backward(
        &self,
        pass: &Pass,
        packed: &Packed,
        gradients: &mut Parameters,
        (index, layer): (usize, &Layer),
        slot: &mut AttentionSlot<Buffer<f32>>,
        input: &[f32],
        shared: &mut SharedSlot<Buffer<f32>>,
    ) {
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, c) = (batch.rows(), self.width());
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let (stride, width) = ((h + 2 * g) * d, (h + g) * d);
        let (normed, room) = (&mut shared.normed[..rows * c], &mut shared.branch[..rows * c]);
        let d_x = &mut shared.d_x[..rows * c];
        let norm = layer.post.as_ref().map(|post| &post.0);
        let (read, place) = ((&slot.branch[..], &slot.branch_stats[..]), 2 * index as u64 + 1);
        let branch = branch_gradient(pass, gradients, norm, read, place, d_x, room);
        let d_attention = &mut shared.d_inner[..rows * h * d];
        let (shape, sequences) = (&self.shape_of(layer), &batch.sequences[..]);
        let d_qkv = &mut shared.d_qkv[..rows * stride];
        let (lse, work) = (&slot.lse[..h * rows], &mut shared.attention_work);
        if let Some(kind) = kept_half(pass, slot) {
            let attention = halves_in(&slot.attention, rows * h * d);
            let d = (branch, c, 0);
            layer.out.backward_halves(team, weights, gradients, attention, d, d_attention);
            let kept = (halves_in(&slot.qkv, rows * stride), attention, lse);
            mixed_attention_backward(team, kind, shape, sequences, kept, d_attention, d_qkv, work);
        } else {
            let (qkv, attention) = (&slot.qkv[..rows * stride], &slot.attention[..rows * h * d]);
            let wanted = Some((&mut *d_attention, Init::Zero));
            layer.out.backward(team, weights, gradients, packed, attention, branch, c, 0, wanted);
            attention_backward(
                team,
                shape,
                sequences,
                qkv,
                attention,
                lse,
                d_attention,
                d_qkv,
                work,
            );
        }
        if self.rotary.is_some() {
            let near = self.turns_near(layer);
            let angles = if near { &shared.near_angles } else { &shared.angles };
            turn_back(team, d_qkv, stride, 0, h + g, &angles[..rows * d]);
        }
        if let Some((queries, keys)) = &layer.heads {
            let raw = &slot.raw[..rows * width];
            for (norm, from, heads) in [(queries, 0, h), (keys, h * d, g)] {
                let read = (raw, HeadPlace { stride: width, from, heads });
                let made = (&mut *d_qkv, HeadPlace { stride, from, heads });
                norm.heads_backward(team, weights, gradients, read, made);
            }
        }
        let input = stream(pass, input, &mut shared.x, rows * c);
        layer.norm1.forward(team, weights, input, normed, &mut slot.stats1);
        let d_normed = &mut shared.d_inner[..rows * c];
        let wanted = Some((&mut *d_normed, Init::Zero));
        layer.qkv.backward(team, weights, gradients, packed, normed, d_qkv, stride, 0, wanted);
        layer.norm1.backward(team, weights, gradients, input, &slot.stats1, d_normed, d_x);
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

/// A slot a layer, or one for all: without a backward pass, and where `shared_from` or more is
/// computed again.
fn slots_of<T>(
    training: Option<Recompute>,
    layers: usize,
    shared_from: Recompute,
    slot: impl Fn(usize) -> T,
) -> Vec<T> {
    let place = |r: Recompute| Recompute::ALL.iter().position(|&other| other == r);
    let own = training.is_some_and(|recompute| place(recompute) < place(shared_from));
    (0..if own { layers } else { 1 }).map(slot).collect()
}

/// The slot of layer `i`.
fn slot_of<T>(slots: &mut [T], i: usize) -> &mut T {
    let only = slots.len() == 1;
    &mut slots[if only { 0 } else { i }]
}

/// The gradient of what a branch makes, from the stream's: the same, but for the branch's norm and what
/// was dropped, which need `room`. Saved: what the norm read, and its statistics.
fn branch_gradient<'a>(
    pass: &Pass,
    gradients: &mut Parameters,
    norm: Option<&Norm>,
    (read, stats): (&[f32], &[f32]),
    place: u64,
    d_x: &'a [f32],
    room: &'a mut [f32],
) -> &'a [f32] {
    match norm {
        Some(norm) => {
            kernels::clear(pass.team, room);
            let read = &read[..d_x.len()];
            norm.backward(pass.team, pass.weights, gradients, read, stats, d_x, room);
        }
        None if pass.dropout.is_none() => return d_x,
        None => kernels::copy(pass.team, d_x, room),
    }
    pass.dropout(room, place);
    room
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

/// Keeps a copy for the backward pass, where there is a place for it; in 16 bits where told.
fn keep(team: &Team, half: Option<HalfKind>, slot: &mut Buffer<f32>, x: &[f32]) {
    match half {
        _ if slot.is_empty() => {}
        Some(kind) => kernels::round_halves(team, kind, x, halves_in_mut(slot, x.len())),
        None => kernels::copy(team, x, &mut slot[..x.len()]),
    }
}

/// In which 16 bits queries, keys, values and what attention makes of them are kept: those of training.
fn kept_half(pass: &Pass, slot: &AttentionSlot<Buffer<f32>>) -> Option<HalfKind> {
    pass.weights.halves_kind().filter(|_| !slot.lse.is_empty())
}

/// In which 16 bits the stream is kept for the backward pass. Half precision ends at 65,504, which a
/// stream may pass.
fn stream_half(half: Option<HalfKind>) -> Option<HalfKind> {
    half.filter(|&kind| kind == HalfKind::Bf16)
}

/// Whether a copy of the stream is kept in 16 bits.
fn is_halved(kept: &[f32], stream: &[f32]) -> bool {
    kept.len() < stream.len()
}

/// The stream as it was kept, n values, in `room` where it has to be widened. In 16-bit training it is
/// what 16 bits say, though it may be kept whole to compute again from.
fn stream<'a>(pass: &Pass, kept: &'a [f32], room: &'a mut [f32], n: usize) -> &'a [f32] {
    let Some(kind) = stream_half(pass.weights.halves_kind()) else { return &kept[..n] };
    let is_halved = is_halved(kept, room);
    let room = &mut room[..n];
    match is_halved {
        true => widen_halves(pass.team, kind, halves_in(kept, n), room),
        false => rounded_values(pass.team, kind, &kept[..n], room),
    }
    room
}
