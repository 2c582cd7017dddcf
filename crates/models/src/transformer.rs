//! The causal transformer: embeddings, layers of attention and MLP on a residual stream, a norm.
//!
//! One forward pass serves training, evaluation, prefill and decode. Training keeps a slot of
//! activations a layer; without it all layers share one. With caches, keys and values go to the
//! caller's caches and attention reads them there; without, it reads them in the batch.

use crate::cache::{PagedPast, Past};
use crate::runner::Pass;
use crate::slots::slots;
use crate::{MlpConfig, NormConfig, PositionConfig, TransformerConfig};
use kernels::{
    AttentionShape, Digits, Init, Kv, Segment, add_assign, attention_backward, attention_forward,
};
use ledger::{Account, Buffer, Spec};
use tensor::ops::{
    Embedding, Linear, MLP_ROWS, Mlp, MlpKind, MlpScratch, Norm, NormKind, Rotary, turn, turn_back,
};
use tensor::{Initial, Layout, Packed, ParamId, Parameters};

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
    /// What a layer computes that its backward pass needs.
    struct LayerSlot {
        /// R×C: the stream before the layer (training only).
        input,
        /// R×2
        stats1,
        /// R×(H+2G)D
        qkv,
        /// H×R: log-sums of the scores (training only).
        lse,
        /// R×HD
        attention,
        /// R×C: the stream between attention and MLP (training only).
        middle,
        /// R×2
        stats2,
        /// R×F or R×2F
        up,
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
        /// R×(H+2G)D (training only)
        d_qkv,
        /// MLP_ROWS×(F or 2F) (training only)
        d_up,
    }
}

/// The buffers of a run.
#[derive(Debug)]
pub(crate) struct TransformerSlots<B> {
    layers: Vec<LayerSlot<B>>,
    shared: SharedSlot<B>,
}

impl<B> TransformerSlots<B> {
    pub(crate) fn map<C, E>(
        self,
        f: &mut impl FnMut(B) -> Result<C, E>,
    ) -> Result<TransformerSlots<C>, E> {
        let layers = self.layers.into_iter().map(|l| l.map(f)).collect::<Result<_, E>>()?;
        Ok(TransformerSlots { layers, shared: self.shared.map(f)? })
    }

    pub(crate) fn each(&self, f: &mut impl FnMut(&B)) {
        self.layers.iter().for_each(|l| l.each(f));
        self.shared.each(f);
    }

    /// What the output projection reads, and where its gradient goes.
    pub(crate) fn hidden_and_gradient(&mut self) -> (&B, &mut B) {
        (&self.shared.hidden, &mut self.shared.d_inner)
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
        let layers = (0..config.num_hidden_layers)
            .map(|i| {
                let name = |part: &str| format!("layers.{i}.{part}");
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
                let near = window.is_some_and(|w| w.layers.contains(&i));
                Layer { norm1, qkv, heads, out, post, norm2, mlp, near }
            })
            .collect();
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

    pub(crate) fn packed_len(&self) -> usize {
        self.packed_len
    }

    /// Room for the widest rows that a quantised matrix reads.
    pub(crate) fn rounded_len(&self, rows: usize) -> usize {
        if self.config.storage.is_empty() {
            return 0;
        }
        let outer = self.width().max(self.shape.heads * self.shape.head_dim);
        let inner =
            kernels::quant_rows_len(rows.min(MLP_ROWS), self.config.intermediate_size, Digits::Two);
        kernels::quant_rows_len(rows, outer, Digits::Two).max(inner)
    }

    /// The token table, for a tied output projection.
    pub(crate) fn token_table(&self) -> ParamId {
        self.tokens.table()
    }

    pub(crate) fn pack(&self, pass: &Pass, packed: &mut [f32]) {
        for layer in &self.layers {
            for linear in [&layer.qkv, &layer.out].into_iter().chain(layer.mlp.linears()) {
                linear.pack(pass.team, pass.weights, packed);
            }
        }
    }

    /// The buffers for batches of up to `rows` rows in sequences of up to `longest` tokens.
    pub(crate) fn specs(
        &self,
        rows: usize,
        longest: usize,
        threads: usize,
        training: bool,
    ) -> TransformerSlots<Spec> {
        let c = self.width();
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let f = self.config.intermediate_size;
        let up = Mlp::saved_width(mlp_kind(&self.config), f);
        let account = if training { Account::Activations } else { Account::Workspace };
        let kept = |width: usize| if training { rows * width } else { 0 };
        let slots = if training { self.layers.len() } else { 1 };
        let layers = (0..slots)
            .map(|i| {
                let spec = |what: &str, len| Spec::new(format!("layer {i} {what}"), account, len);
                LayerSlot {
                    input: spec("input", kept(c)),
                    stats1: spec("norm 1", rows * Norm::STATS),
                    qkv: spec("q k v", rows * (h + 2 * g) * d),
                    lse: spec("log-sums", kept(h)),
                    attention: spec("attention", rows * h * d),
                    middle: spec("middle", kept(c)),
                    stats2: spec("norm 2", rows * Norm::STATS),
                    up: spec("mlp", rows * up),
                }
            })
            .collect();
        let kept_spec = |what: &str, len| Spec::new(what, account, len);
        let work = |what: &str, len| Spec::new(what, Account::Workspace, len);
        let backward = if training { longest } else { 0 };
        let attention = kernels::attention_workspace(&self.shape, threads, backward);
        let run = MLP_ROWS.min(rows);
        let shared = SharedSlot {
            x: kept_spec("residual stream", rows * c),
            normed: work("normed", rows * c),
            branch: work("branch", rows * c),
            final_stats: kept_spec("final norm", rows * Norm::STATS),
            hidden: kept_spec("hidden", rows * c),
            act: work("mlp activation", run * f),
            attention_work: work("attention tiles", attention),
            angles: work("angles", rows * self.rotary.as_ref().map_or(0, Rotary::width)),
            near_angles: work(
                "near angles",
                rows * self.near_rotary.as_ref().map_or(0, Rotary::width),
            ),
            d_x: work("d stream", kept(c)),
            d_inner: work("d inner", kept(c.max(h * d))),
            d_qkv: work("d q k v", kept((h + 2 * g) * d)),
            d_up: work("d mlp", if training { run * up } else { 0 }),
        };
        TransformerSlots { layers, shared }
    }

    /// Runs the batch up to the rows that the output projection reads.
    pub(crate) fn forward(
        &self,
        pass: &Pass,
        packed: &Packed,
        past: &mut Past<'_>,
        slots: &mut TransformerSlots<Buffer<f32>>,
    ) {
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, c) = (batch.rows(), self.width());
        let TransformerSlots { layers: kept, shared } = slots;
        let x = &mut shared.x[..rows * c];
        let normed = &mut shared.normed[..rows * c];
        let branch = &mut shared.branch[..rows * c];
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
        for (i, layer) in self.layers.iter().enumerate() {
            let only = kept.len() == 1;
            let slot = &mut kept[if only { 0 } else { i }];
            keep(&mut slot.input, x);
            layer.norm1.forward(team, weights, x, normed, &mut slot.stats1);
            let near = layer.near && self.near_rotary.is_some();
            let angles = if near { &shared.near_angles } else { &shared.angles };
            let work = &mut shared.attention_work;
            self.attend(pass, layer, i, packed, past, angles, normed, slot, work, branch);
            pass.dropout(branch, 2 * i as u64 + 1);
            let stats = &mut shared.final_stats;
            add_branch(pass, layer.post.as_ref().map(|p| &p.0), branch, normed, stats, x);
            keep(&mut slot.middle, x);
            layer.norm2.forward(team, weights, x, normed, &mut slot.stats2);
            layer.mlp.forward(team, weights, packed, normed, branch, &mut slot.up, &mut shared.act);
            pass.dropout(branch, 2 * i as u64 + 2);
            let stats = &mut shared.final_stats;
            add_branch(pass, layer.post.as_ref().map(|p| &p.1), branch, normed, stats, x);
        }
        let hidden = &mut shared.hidden[..rows * c];
        self.norm.forward(team, weights, x, hidden, &mut shared.final_stats);
        past.advance(&batch.sequences);
    }

    /// The attention branch of one layer.
    #[expect(clippy::too_many_arguments, reason = "one part of the forward pass, told in order")]
    fn attend(
        &self,
        pass: &Pass,
        layer: &Layer,
        index: usize,
        packed: &Packed,
        past: &mut Past<'_>,
        angles: &[f32],
        normed: &[f32],
        slot: &mut LayerSlot<Buffer<f32>>,
        work: &mut [f32],
        branch: &mut [f32],
    ) {
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let (rows, stride) = (batch.rows(), (h + 2 * g) * d);
        let qkv = &mut slot.qkv[..rows * stride];
        layer.qkv.forward(team, weights, packed, normed, qkv, stride, 0);
        if let Some((queries, keys)) = &layer.heads {
            queries.heads_forward(team, weights, qkv, stride, (0, h));
            keys.heads_forward(team, weights, qkv, stride, (h * d, g));
        }
        if self.rotary.is_some() {
            turn(team, qkv, stride, 0, h + g, &angles[..rows * d]);
        }
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
                    Some((pool, PagedPast { pages, len })) => (len, pool.layer(index, pages)),
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
        let window = self.config.sliding_window.as_ref().filter(|_| layer.near).map(|w| w.tokens);
        let shape = AttentionShape { window, ..self.shape };
        attention_forward(team, &shape, &segments, qkv, stride, attention, lse, work);
        layer.out.forward(team, weights, packed, attention, branch, self.width(), 0);
    }

    /// Adds the batch's gradients, from the gradient of `hidden` left in `d_inner`.
    pub(crate) fn backward(
        &self,
        pass: &Pass,
        gradients: &mut Parameters,
        slots: &mut TransformerSlots<Buffer<f32>>,
    ) {
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, c) = (batch.rows(), self.width());
        let (h, g, d) = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim);
        let stride = (h + 2 * g) * d;
        let TransformerSlots { layers: kept, shared } = slots;
        let normed = &mut shared.normed[..rows * c];
        let branch = &mut shared.branch[..rows * c];
        let d_x = &mut shared.d_x[..rows * c];
        d_x.fill(0.0);
        let x = &shared.x[..rows * c];
        let d_hidden = &shared.d_inner[..rows * c];
        self.norm.backward(team, weights, gradients, x, &shared.final_stats, d_hidden, d_x);
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let slot = &mut kept[i];
            let middle = &slot.middle[..rows * c];
            layer.norm2.forward(team, weights, middle, normed, &mut slot.stats2);
            branch.copy_from_slice(d_x);
            pass.dropout(branch, 2 * i as u64 + 2);
            let d_normed = &mut shared.d_inner[..rows * c];
            let scratch = &mut MlpScratch { act: &mut shared.act, d_up: &mut shared.d_up };
            layer
                .mlp
                .backward(team, weights, gradients, normed, &slot.up, branch, d_normed, scratch);
            layer.norm2.backward(team, weights, gradients, middle, &slot.stats2, d_normed, d_x);

            branch.copy_from_slice(d_x);
            pass.dropout(branch, 2 * i as u64 + 1);
            let d_attention = &mut shared.d_inner[..rows * h * d];
            let attention = &slot.attention[..rows * h * d];
            let wanted = Some((&mut *d_attention, Init::Zero));
            layer.out.backward(team, weights, gradients, attention, branch, c, 0, wanted);
            let d_qkv = &mut shared.d_qkv[..rows * stride];
            attention_backward(
                team,
                &self.shape,
                &batch.sequences,
                &slot.qkv[..rows * stride],
                attention,
                &slot.lse[..h * rows],
                d_attention,
                d_qkv,
                &mut shared.attention_work,
            );
            if self.rotary.is_some() {
                turn_back(team, d_qkv, stride, 0, h + g, &shared.angles[..rows * d]);
            }
            let input = &slot.input[..rows * c];
            layer.norm1.forward(team, weights, input, normed, &mut slot.stats1);
            let d_normed = &mut shared.d_inner[..rows * c];
            let wanted = Some((&mut *d_normed, Init::Zero));
            layer.qkv.backward(team, weights, gradients, normed, d_qkv, stride, 0, wanted);
            layer.norm1.backward(team, weights, gradients, input, &slot.stats1, d_normed, d_x);
        }
        pass.dropout(d_x, 0);
        self.tokens.backward(team, gradients, &batch.tokens, d_x);
        if let Some(positions) = &self.positions {
            positions.backward(team, gradients, &batch.positions, d_x);
        }
    }
}

fn mlp_kind(config: &TransformerConfig) -> MlpKind {
    match config.mlp {
        MlpConfig::Gelu => MlpKind::Gelu,
        MlpConfig::Swiglu => MlpKind::SwiGlu,
        MlpConfig::GeluTanh => MlpKind::GeluTanh,
        MlpConfig::GegluTanh => MlpKind::GegluTanh,
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

/// Keeps a copy for the backward pass, where there is a place for it.
fn keep(slot: &mut Buffer<f32>, x: &[f32]) {
    if !slot.is_empty() {
        slot[..x.len()].copy_from_slice(x);
    }
}
