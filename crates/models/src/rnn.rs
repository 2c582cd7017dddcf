//! The simple recurrent network: an embedding, one tanh layer, its states.

use crate::RnnConfig;
use crate::cache::{Cache, Past};
use crate::runner::Pass;
use crate::slots::slots;
use crate::units::Course;
use kernels::{Init, RnnShape, rnn_backward, rnn_forward, rnn_workspace};
use ledger::{Account, Buffer, Spec};
use tensor::ops::{Embedding, Linear};
use tensor::{Initial, Layout, ParamId, Parameters};

/// The network below the output projection.
#[derive(Clone, Debug)]
pub(crate) struct Rnn {
    config: RnnConfig,
    tokens: Embedding,
    input: Linear,
    recurrent: Linear,
    recurrent_weight: ParamId,
    recurrent_bias: ParamId,
    packed_len: usize,
}

slots! {
    /// The buffers of a run.
    struct RnnSlots {
        /// R×E
        x,
        /// R×hidden: the states.
        h,
        /// groups of states in work
        work,
        /// sequences×hidden: states carried from step to step (inference only).
        states,
        /// R×hidden (training only)
        d_h,
        /// R×E (training only)
        d_x,
    }
}

impl<B> RnnSlots<B> {
    /// What the output projection reads, and where its gradient goes.
    pub(crate) fn hidden_and_gradient(&mut self) -> (&B, &mut B) {
        (&self.h, &mut self.d_h)
    }
}

impl Rnn {
    pub(crate) fn new(config: &RnnConfig, layout: &mut Layout) -> Rnn {
        let (e, n) = (config.embedding_size, config.hidden_size);
        let bound = Initial::Uniform((1.0 / n as f32).sqrt());
        let tokens = Embedding::new(layout, "tok_emb", config.vocab_size, e, Initial::Normal(1.0));
        let w_ih = layout.add("rnn.w_ih", &[n, e], bound, true);
        let w_hh = layout.add("rnn.w_hh", &[n, n], bound, true);
        let b_ih = layout.add("rnn.b_ih", &[n], bound, false);
        let b_hh = layout.add("rnn.b_hh", &[n], bound, false);
        let mut packed = 0;
        Rnn {
            config: config.clone(),
            tokens,
            input: Linear::of(&mut packed, w_ih, Some(b_ih), (n, e)),
            recurrent: Linear::of(&mut packed, w_hh, None, (n, n)),
            recurrent_weight: w_hh,
            recurrent_bias: b_hh,
            packed_len: packed,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.config.hidden_size
    }

    pub(crate) fn packed_len(&self) -> usize {
        self.packed_len
    }

    pub(crate) fn pack(&self, pass: &Pass, packed: &mut [f32]) {
        self.input.pack(pass.team, pass.weights, packed, 0);
        self.recurrent.pack(pass.team, pass.weights, packed, 0);
    }

    pub(crate) fn specs(
        &self,
        rows: usize,
        sequences: usize,
        threads: usize,
        training: bool,
    ) -> RnnSlots<Spec> {
        let (e, n) = (self.config.embedding_size, self.config.hidden_size);
        let account = if training { Account::Activations } else { Account::Workspace };
        let work = |what: &str, len| Spec::new(what, Account::Workspace, len);
        let kept = |width: usize| if training { rows * width } else { 0 };
        RnnSlots {
            x: Spec::new("embedded", account, rows * e),
            h: Spec::new("states", account, rows * n),
            work: work("states in work", rnn_workspace(n, threads)),
            states: work("carried states", if training { 0 } else { sequences * n }),
            d_h: work("d states", kept(n)),
            d_x: work("d embedded", kept(e)),
        }
    }

    /// Runs the batch up to the states that the output projection reads.
    pub(crate) fn forward(
        &self,
        course: &mut Course,
        past: &mut Past<'_>,
        slots: &mut RnnSlots<Buffer<f32>>,
    ) {
        course.fetch(0, None);
        let (pass, packed) = &course.parts(0);
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, n) = (batch.rows(), self.width());
        let caches = past.own();
        let x = &mut slots.x[..rows * self.config.embedding_size];
        let h = &mut slots.h[..rows * n];
        self.tokens.forward(team, weights, &batch.tokens, Init::Zero, x);
        pass.dropout(x, 0);
        self.input.forward(team, weights, packed, x, h, n, 0);
        let carried = if caches.is_empty() { 0 } else { batch.sequences.len() * n };
        let states = &mut slots.states[..carried];
        for (cache, state) in caches.iter().zip(states.chunks_exact_mut(n)) {
            if let Cache::State(kept) = cache {
                state.copy_from_slice(kept);
            }
        }
        let shape = RnnShape { sequences: &batch.sequences, hidden: n };
        let bias = weights.get(self.recurrent_bias);
        rnn_forward(team, shape, self.recurrent.packed(packed), bias, h, states, &mut slots.work);
        for (cache, state) in caches.iter_mut().zip(states.chunks_exact(n)) {
            if let Cache::State(kept) = cache {
                kept.copy_from_slice(state);
            }
        }
    }

    /// Adds the batch's gradients, from the gradient of the states left in `d_h`.
    pub(crate) fn backward(
        &self,
        course: &mut Course,
        gradients: &mut Parameters,
        slots: &mut RnnSlots<Buffer<f32>>,
    ) {
        let (pass, packed) = &course.parts(0);
        let (team, weights, batch) = (pass.team, pass.weights, pass.batch);
        let (rows, n, e) = (batch.rows(), self.width(), self.config.embedding_size);
        let (x, h) = (&slots.x[..rows * e], &slots.h[..rows * n]);
        let (d, d_x) = (&mut slots.d_h[..rows * n], &mut slots.d_x[..rows * e]);
        let shape = RnnShape { sequences: &batch.sequences, hidden: n };
        let w = weights.get(self.recurrent_weight);
        let (d_w, d_b) = gradients.pair_mut(self.recurrent_weight, Some(self.recurrent_bias));
        rnn_backward(team, shape, w, h, d, d_w, d_b, &mut slots.work);
        let wanted = Some((&mut *d_x, Init::Zero));
        self.input.backward(team, weights, gradients, packed, x, d, n, 0, wanted);
        pass.dropout(d_x, 0);
        self.tokens.backward(team, gradients, &batch.tokens, d_x);
        course.reduce(gradients, 0);
    }
}
