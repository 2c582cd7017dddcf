//! The buffers of a transformer's passes: how large they are, and what of them is kept in 16 bits.

use super::{Transformer, mlp_kind};
use crate::Recompute;
use crate::runner::{Pass, all_finite};
use crate::slots::slots;
use kernels::{HalfKind, Team, rounded_values, widen_halves};
use ledger::{Account, Buffer, Spec};
use tensor::ops::{MLP_ROWS, Mlp, Norm, Rotary};
use tensor::{halves_in, halves_in_mut};

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
    pub(super) inputs: Vec<B>,
    /// One a layer, or one for all.
    pub(super) attention: Vec<AttentionSlot<B>>,
    /// One a layer, or one for all.
    pub(super) mlp: Vec<MlpSlot<B>>,
    pub(super) shared: SharedSlot<B>,
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

/// Keeps a copy for the backward pass, where there is a place for it; in 16 bits where told.
pub(super) fn keep(team: &Team, half: Option<HalfKind>, slot: &mut Buffer<f32>, x: &[f32]) {
    match half {
        _ if slot.is_empty() => {}
        Some(kind) => kernels::round_halves(team, kind, x, halves_in_mut(slot, x.len())),
        None => kernels::copy(team, x, &mut slot[..x.len()]),
    }
}

/// In which 16 bits queries, keys, values and what attention makes of them are kept: those of training.
pub(super) fn kept_half(pass: &Pass, slot: &AttentionSlot<Buffer<f32>>) -> Option<HalfKind> {
    pass.weights.halves_kind().filter(|_| !slot.lse.is_empty())
}

/// In which 16 bits the stream is kept for the backward pass. Half precision ends at 65,504, which a
/// stream may pass.
pub(super) fn stream_half(half: Option<HalfKind>) -> Option<HalfKind> {
    half.filter(|&kind| kind == HalfKind::Bf16)
}

/// Whether a copy of the stream is kept in 16 bits.
pub(super) fn is_halved(kept: &[f32], stream: &[f32]) -> bool {
    kept.len() < stream.len()
}

/// The stream as it was kept, n values, in `room` where it has to be widened. In 16-bit training it is
/// what 16 bits say, though it may be kept whole to compute again from.
pub(super) fn stream<'a>(pass: &Pass, kept: &'a [f32], room: &'a mut [f32], n: usize) -> &'a [f32] {
    let Some(kind) = stream_half(pass.weights.halves_kind()) else { return &kept[..n] };
    let is_halved = is_halved(kept, room);
    let room = &mut room[..n];
    match is_halved {
        true => widen_halves(pass.team, kind, halves_in(kept, n), room),
        false => rounded_values(pass.team, kind, &kept[..n], room),
    }
    room
}
