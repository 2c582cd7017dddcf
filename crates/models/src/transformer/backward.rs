//! The backward pass of a transformer, layer by layer from the last: what its forward pass kept is read,
//! or computed again.

use super::memory::{
    AttentionSlot, MlpSlot, SharedSlot, TransformerSlots, keep, kept_half, stream, stream_half,
};
use super::{Layer, Transformer, slot_of};
use crate::cache::Past;
use crate::runner::Pass;
use crate::units::Course;
use kernels::{HeadPlace, Init, attention_backward, mixed_attention_backward};
use ledger::Buffer;
use tensor::ops::{MlpScratch, Norm, turn_back};
use tensor::{Packed, Parameters, halves_in};

impl Transformer {
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
