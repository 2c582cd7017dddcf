//! What a workload needs beside the weights, and the three things that are done with a batch:
//! train on it, evaluate it, get its logits.

use crate::batch::Batch;
use crate::cache::Past;
use crate::mixed_head::{self, MixedHead};
use crate::model::{Model, Network, Parts, build};
use crate::rnn::RnnSlots;
use crate::slots::slots;
use crate::transformer::TransformerSlots;
use crate::units::{Course, Keeper, Packing, Residence, Source};
use crate::{ModelConfig, Recompute, frozen, model};
use kernels::{
    HalfKind, HeadOutput, HeadShape, Team, head_cross_entropy, head_logits, head_workspace,
    logits_workspace, row_losses,
};
use ledger::{Account, Buffer, Plan, Spec};
use std::cell::RefCell;
use std::sync::Arc;
use tensor::ops::packed_product;
use tensor::{Mixed, Packed, Parameters};

pub use crate::model::Error;

/// What is to be done with a model.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Rows that a batch holds at most.
    pub rows: usize,
    /// Sequences that a batch holds at most.
    pub sequences: usize,
    /// Tokens that a sequence holds at most.
    pub longest: usize,
    /// Workers.
    pub threads: usize,
    /// Whether activations are kept for a backward pass.
    pub training: bool,
}

/// Dropout in force: its rate, and the stream that its numbers come from.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// The share of values that is zeroed after the embedding and after each branch.
    pub rate: f32,
    /// The same of what the output projection reads.
    pub hidden: f32,
    /// Changes with every pass over the data.
    pub stream: u64,
}

/// How a network is trained: what memory and bits of a step depend on beside the workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Training {
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// In which 16 bits products are taken, where they are.
    pub half: Option<HalfKind>,
}

/// Room that operations work in beside a network's own buffers.
pub(crate) struct Room<'a> {
    pub(crate) packed: &'a mut [f32],
    pub(crate) rounded: &'a mut [f32],
    pub(crate) work: &'a mut [f32],
}

/// What a pass over a batch reads.
pub(crate) struct Pass<'a> {
    pub(crate) team: &'a Team,
    pub(crate) weights: &'a Parameters,
    pub(crate) batch: &'a Batch,
    pub(crate) dropout: Option<Dropout>,
}

impl Pass<'_> {
    /// Drops values of x (R×any) at one place of the network, the same in both directions.
    pub(crate) fn dropout(&self, x: &mut [f32], place: u64) {
        let rate = self.dropout.map_or(0.0, |dropout| dropout.rate);
        self.drop_share(x, rate, place);
    }

    /// Drops values of what the output projection reads, or of its gradient.
    pub(crate) fn dropout_at_the_end(&self, x: &mut [f32]) {
        let rate = self.dropout.map_or(0.0, |dropout| dropout.hidden);
        self.drop_share(x, rate, u64::MAX);
    }

    fn drop_share(&self, x: &mut [f32], rate: f32, place: u64) {
        let stream = self.dropout.map_or(0, |dropout| dropout.stream);
        let stream = kernels::mix(stream ^ kernels::mix(place));
        kernels::dropout(self.team, x, &self.batch.row_keys, stream, rate);
    }
}

enum NetworkSlots<B> {
    Transformer(TransformerSlots<B>),
    Rnn(RnnSlots<B>),
}

impl<B> NetworkSlots<B> {
    fn map<C, E>(self, f: &mut impl FnMut(B) -> Result<C, E>) -> Result<NetworkSlots<C>, E> {
        Ok(match self {
            NetworkSlots::Transformer(s) => NetworkSlots::Transformer(s.map(f)?),
            NetworkSlots::Rnn(s) => NetworkSlots::Rnn(s.map(f)?),
        })
    }

    fn each(&self, f: &mut impl FnMut(&B)) {
        match self {
            NetworkSlots::Transformer(s) => s.each(f),
            NetworkSlots::Rnn(s) => s.each(f),
        }
    }

    fn hidden_and_gradient(&mut self) -> (&B, &mut B) {
        match self {
            NetworkSlots::Transformer(s) => s.hidden_and_gradient(),
            NetworkSlots::Rnn(s) => s.hidden_and_gradient(),
        }
    }
}

slots! {
    /// What every network has around its own buffers.
    struct OuterSlot {
        /// Matrices in the form that the forward pass reads.
        packed,
        /// Rows of x rounded for quantised matrices.
        rounded,
        /// Adapters, and rows of matrices that do not learn.
        work,
        /// A chunk of logits and what belongs to it.
        head,
        /// R: the loss of each row.
        losses,
        /// R: probabilities of the best ids.
        best,
    }
}

impl OuterSlot<Buffer<f32>> {
    fn room(&mut self) -> Room<'_> {
        Room { packed: &mut self.packed, rounded: &mut self.rounded, work: &mut self.work }
    }
}

fn specs(
    network: &Network,
    config: &ModelConfig,
    w: &Workload,
    Training { recompute, half }: Training,
) -> (NetworkSlots<Spec>, OuterSlot<Spec>) {
    let inner = match network {
        Network::Transformer(n) => {
            let training = w.training.then_some(recompute);
            NetworkSlots::Transformer(n.specs(w.rows, w.longest, w.threads, training, half))
        }
        Network::Rnn(n) => NetworkSlots::Rnn(n.specs(w.rows, w.sequences, w.threads, w.training)),
    };
    let work = |what: &str, len| Spec::new(what, Account::Workspace, len);
    let (width, vocab) = (network.width(), config.vocab_size());
    let learns = w.training && config.trains_all();
    let head = if config.has_quantised_head() {
        QUANT_HEAD_ROWS.min(w.rows) * vocab
    } else if half.is_some() {
        mixed_head::workspace(vocab, w.rows)
    } else {
        head_workspace(width, vocab, learns).max(logits_workspace(width, w.threads))
    };
    let frozen = w.training && !learns;
    let head =
        head.max(if frozen { frozen::head_work(w.rows, width, vocab, w.threads) } else { 0 });
    let outer = OuterSlot {
        packed: work(
            "packed matrices",
            half.map_or(network.packed_len(network.packing(w.training)), |_| 0),
        ),
        rounded: work("rounded rows", network.rounded_len(w.rows)),
        work: work("adapters", network.work_len(w.rows, w.training)),
        head: work("head chunk", head),
        losses: work("losses", w.rows),
        best: work("best", w.rows),
    };
    (inner, outer)
}

pub(crate) fn all_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

fn head_shape(parts: Parts, rows: usize) -> HeadShape {
    let Parts { config, network, .. } = parts;
    let width = network.width();
    HeadShape { rows, width, vocab: config.vocab_size(), soft_cap: config.soft_cap() }
}

/// Rows whose logits are stored at a time for their losses under a quantised output projection.
const QUANT_HEAD_ROWS: usize = 8;

/// R: the most probable ids.
fn best_ids_spec(w: &Workload) -> Spec {
    Spec::new("best ids", Account::Workspace, w.rows)
}

/// A model at work: buffers for one workload, and the workers.
pub struct Runner {
    team: Arc<Team>,
    workload: Workload,
    slots: NetworkSlots<Buffer<f32>>,
    outer: OuterSlot<Buffer<f32>>,
    best_ids: Buffer<u32>,
    packed: bool,
}

impl Runner {
    /// What [`Runner::new`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan(config: &ModelConfig, workload: &Workload) -> Result<Plan, Error> {
        Runner::plan_recomputing(config, workload, Recompute::None)
    }

    /// What [`Parameters::keep_halves`] is to be given for this workload.
    ///
    /// # Errors
    /// When the configuration makes no network that is trained in 16 bits.
    pub fn mixed(
        config: &ModelConfig,
        workload: &Workload,
        kind: HalfKind,
    ) -> Result<Mixed, Error> {
        config.check_trainable()?;
        let (network, _, _) = build(config)?;
        let Network::Transformer(transformer) = network else {
            return Err(Error::NotMixed(config.kind()));
        };
        if !config.trains_all() {
            return Err(Error::NotMixedAdapters);
        }
        let head = config.vocab_size().saturating_mul(transformer.width());
        let largest = transformer.largest_factor(workload.rows).max(head);
        Ok(Mixed { kind, threads: workload.threads, largest })
    }

    /// What [`Runner::recomputing`] will allocate.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan_recomputing(
        config: &ModelConfig,
        workload: &Workload,
        recompute: Recompute,
    ) -> Result<Plan, Error> {
        Runner::plan_training(config, workload, Training { recompute, ..Training::default() })
    }

    /// The same for a model that is trained as `training` says.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn plan_training(
        config: &ModelConfig,
        workload: &Workload,
        training: Training,
    ) -> Result<Plan, Error> {
        if workload.training {
            config.check_trainable()?;
        }
        let (network, _, _) = build(config)?;
        let (inner, outer) = specs(&network, config, workload, training);
        let mut plan = Plan::default();
        inner.each(&mut |s| plan.add(s));
        outer.each(&mut |s| plan.add(s));
        plan.add(&best_ids_spec(workload));
        Ok(plan)
    }

    /// Buffers for `workload` on `team`.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(model: &Model, workload: Workload, team: &Arc<Team>) -> Result<Runner, Error> {
        Runner::recomputing(model, workload, Recompute::None, team)
    }

    /// The same, with fewer activations kept for the backward pass.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn recomputing(
        model: &Model,
        workload: Workload,
        recompute: Recompute,
        team: &Arc<Team>,
    ) -> Result<Runner, Error> {
        if workload.training {
            model.config().check_trainable()?;
        }
        let workload = Workload { threads: team.threads(), ..workload };
        let half = model.weights().halves_kind();
        let training = Training { recompute, half };
        let (inner, outer) = specs(&model.network, model.config(), &workload, training);
        let mut allocate = |spec: Spec| Buffer::new(&spec).map_err(model::Error::Memory);
        Ok(Runner {
            team: Arc::clone(team),
            slots: inner.map(&mut allocate)?,
            outer: outer.map(&mut allocate)?,
            best_ids: Buffer::new(&best_ids_spec(&workload))?,
            workload,
            packed: false,
        })
    }

    /// The workers.
    pub fn team(&self) -> &Arc<Team> {
        &self.team
    }

    /// Must be called after weights have changed.
    pub fn weights_changed(&mut self) {
        self.packed = false;
    }

    /// The network's part of the forward pass.
    fn forward(
        &mut self,
        parts: Parts,
        source: &mut Source,
        batch: &Batch,
        past: &mut Past<'_>,
        dropout: Option<Dropout>,
    ) {
        assert!(batch.rows() <= self.workload.rows, "a batch fits the workload");
        assert!(batch.sequences.len() <= self.workload.sequences, "a batch fits the workload");
        let packing = parts.network.packing(self.workload.training);
        if !self.packed && packing == Packing::Whole {
            // A network that is packed whole while its weights come and go is one unit.
            source.fetch(0, None);
            let pass = Pass { team: &self.team, weights: source.weights(), batch, dropout };
            parts.network.pack(&pass, &mut self.outer.packed);
            self.packed = true;
        }
        let (team, room) = (&*self.team, self.outer.room());
        let course = &mut Course { team, batch, dropout, source, packing, room };
        match (parts.network, &mut self.slots) {
            (Network::Transformer(n), NetworkSlots::Transformer(s)) => n.forward(course, past, s),
            (Network::Rnn(n), NetworkSlots::Rnn(s)) => n.forward(course, past, s),
            _ => unreachable!("a runner is made for its model"),
        }
    }

    /// Forward and backward: adds the gradient of Σ scale·loss to `gradients` and answers with the
    /// loss of each row in nats (0 where there is no target).
    pub fn train(
        &mut self,
        model: &Model,
        batch: &Batch,
        scale: f32,
        dropout: Option<Dropout>,
        gradients: &mut Parameters,
    ) -> &[f32] {
        let source = Source::Whole(model.weights());
        self.train_from(model.parts(), source, (batch, dropout), scale, gradients)
    }

    /// The same for weights and gradients that come and go.
    pub fn train_kept(
        &mut self,
        model: &mut Model,
        keeper: &mut dyn Keeper,
        (batch, dropout): (&Batch, Option<Dropout>),
        scale: f32,
        gradients: &mut Parameters,
    ) -> &[f32] {
        let (parts, weights) = model.split_mut();
        let source = Source::Kept(weights, keeper);
        self.train_from(parts, source, (batch, dropout), scale, gradients)
    }

    fn train_from(
        &mut self,
        parts: Parts,
        mut source: Source,
        (batch, dropout): (&Batch, Option<Dropout>),
        scale: f32,
        gradients: &mut Parameters,
    ) -> &[f32] {
        let rows = batch.rows();
        self.forward(parts, &mut source, batch, &mut Past::none(), dropout);
        let (width, weights, head) = (parts.network.width(), source.weights(), parts.head);
        let rounded = RefCell::new(&mut self.outer.rounded[..]);
        let work = RefCell::new(&mut self.outer.work[..]);
        let packed = &Packed { matrices: &self.outer.packed, from: 0, rounded, work };
        let (hidden, d_hidden) = self.slots.hidden_and_gradient();
        let (hidden, d_x) = (&hidden[..rows * width], &mut d_hidden[..rows * width]);
        let shape = head_shape(parts, rows);
        let (losses, log_z) = (&mut self.outer.losses[..rows], &mut self.outer.best[..rows]);
        let (d_weight, d_bias) = gradients.pair_mut(head.weight, head.bias);
        if weights.halves_kind().is_some() {
            let (team, z) = (&*self.team, &mut self.outer.head[..]);
            let mut head = MixedHead { team, weights, head, shape, z };
            head.train((hidden, &batch.targets), scale, d_x, gradients, [losses, log_z]);
        } else if d_weight.is_empty() {
            let (read, made) = ((hidden, &batch.targets[..]), ([losses, log_z], d_x));
            let model = (parts, weights);
            frozen::head(&self.team, model, read, scale, made, packed, &mut self.outer.head);
        } else {
            head_cross_entropy(
                &self.team,
                shape,
                hidden,
                weights.get(head.weight),
                head.bias.map_or(&[], |id| weights.get(id)),
                &batch.targets,
                losses,
                &mut HeadOutput::Gradients { scale, d_x, d_weight, d_bias, log_z },
                &mut self.outer.head,
            );
        }
        let packing = parts.network.packing(self.workload.training);
        let (team, room) = (&*self.team, self.outer.room());
        let source = &mut source;
        let course = &mut Course { team, batch, dropout, source, packing, room };
        match (parts.network, &mut self.slots) {
            (Network::Transformer(n), NetworkSlots::Transformer(s)) => {
                n.backward(course, gradients, s)
            }
            (Network::Rnn(n), NetworkSlots::Rnn(s)) => n.backward(course, gradients, s),
            _ => unreachable!("a runner is made for its model"),
        }
        &self.outer.losses[..rows]
    }

    /// Loss of each row, its most probable id (ties to the lowest) and that id's probability.
    pub fn evaluate(&mut self, model: &Model, batch: &Batch) -> (&[f32], &[u32], &[f32]) {
        self.evaluate_from(model.parts(), Source::Whole(model.weights()), batch)
    }

    /// The same for weights that come and go.
    pub fn evaluate_kept(
        &mut self,
        model: &mut Model,
        keeper: &mut dyn Keeper,
        batch: &Batch,
    ) -> (&[f32], &[u32], &[f32]) {
        let (parts, weights) = model.split_mut();
        self.evaluate_from(parts, Source::Kept(weights, keeper), batch)
    }

    fn evaluate_from(
        &mut self,
        parts: Parts,
        mut source: Source,
        batch: &Batch,
    ) -> (&[f32], &[u32], &[f32]) {
        let rows = batch.rows();
        self.forward(parts, &mut source, batch, &mut Past::none(), None);
        let (width, weights, head) = (parts.network.width(), source.weights(), parts.head);
        let (hidden, _) = self.slots.hidden_and_gradient();
        let (ids, best) = (&mut self.best_ids[..rows], &mut self.outer.best[..rows]);
        if weights.halves_kind().is_some() {
            let (team, z) = (&*self.team, &mut self.outer.head[..]);
            let shape = head_shape(parts, rows);
            let losses = &mut self.outer.losses[..rows];
            let read = (&hidden[..rows * width], &batch.targets[..]);
            MixedHead { team, weights, head, shape, z }.best(read, losses, ids, best);
            return (&self.outer.losses[..rows], &self.best_ids[..rows], &self.outer.best[..rows]);
        }
        if weights.layout().is_packed(head.weight) {
            let vocab = parts.config.vocab_size();
            let bias: &[f32] = head.bias.map_or(&[], |id| weights.get(id));
            let rounded = RefCell::new(&mut self.outer.rounded[..]);
            let packed = Packed { matrices: &[], from: 0, rounded, work: RefCell::default() };
            for first in (0..rows).step_by(QUANT_HEAD_ROWS) {
                let chunk = first..rows.min(first + QUANT_HEAD_ROWS);
                let x = &hidden[chunk.start * width..chunk.end * width];
                let z = &mut self.outer.head[..chunk.len() * vocab];
                packed_product(&self.team, weights, head.weight, bias, &packed, x, z, vocab, 0);
                if let Some(limit) = parts.config.soft_cap() {
                    kernels::soft_cap(&self.team, z, limit);
                }
                row_losses(
                    &self.team,
                    z,
                    &batch.targets[chunk.clone()],
                    &mut self.outer.losses[chunk.clone()],
                    &mut ids[chunk.clone()],
                    &mut best[chunk],
                );
            }
            return (&self.outer.losses[..rows], &self.best_ids[..rows], &self.outer.best[..rows]);
        }
        head_cross_entropy(
            &self.team,
            head_shape(parts, rows),
            &hidden[..rows * width],
            weights.get(head.weight),
            head.bias.map_or(&[], |id| weights.get(id)),
            &batch.targets,
            &mut self.outer.losses[..rows],
            &mut HeadOutput::Best { ids, probabilities: best },
            &mut self.outer.head,
        );
        (&self.outer.losses[..rows], &self.best_ids[..rows], &self.outer.best[..rows])
    }

    /// log Σ e^z of each row of the last training pass, 0 where there is no target.
    pub fn log_z(&self, rows: usize) -> &[f32] {
        &self.outer.best[..rows]
    }

    /// The largest attention score since the last call; none without attention.
    pub fn largest_score(&mut self) -> Option<f32> {
        let NetworkSlots::Transformer(slots) = &mut self.slots else { return None };
        Some(slots.largest_score(self.team.threads()))
    }

    /// The first tensor, in the order of the forward pass, that held a value that is not finite when
    /// the batch of the last training pass was computed: a weight, else something computed from it.
    pub fn first_not_finite(&self, model: &Model, rows: usize) -> Option<String> {
        let weights = model.weights();
        let specs = weights.layout().specs();
        let bad = specs.iter().find(|s| !all_finite(&weights.flat()[s.range.clone()]));
        if let Some(spec) = bad.filter(|_| model.residence() == Residence::Whole) {
            return Some(format!("weight {}", spec.name));
        }
        match (&model.network, &self.slots) {
            (Network::Transformer(n), NetworkSlots::Transformer(s)) => {
                n.first_not_finite(s, rows, weights.halves_kind())
            }
            (_, NetworkSlots::Rnn(s)) => (!all_finite(&s.h)).then(|| "states".to_owned()),
            _ => None,
        }
        .or_else(|| Some("the output projection".to_owned()))
    }

    /// What the output projection read in the last pass: its first `rows` rows (rows×C).
    pub fn hidden(&mut self, model: &Model, rows: usize) -> &[f32] {
        let width = model.network.width();
        &self.slots.hidden_and_gradient().0[..rows * width]
    }

    /// Extends the remembered sequences by the batch's tokens (caches or page tables, one a
    /// sequence; none for a batch without a past) and writes the logits of the rows named in `rows` to `logits`
    /// (rows.len()×V).
    pub fn logits<'p>(
        &mut self,
        model: &Model,
        batch: &Batch,
        past: impl Into<Past<'p>>,
        rows: &[usize],
        logits: &mut [f32],
    ) {
        let parts = model.parts();
        self.forward(parts, &mut Source::Whole(model.weights()), batch, &mut past.into(), None);
        let (width, weights, head) = (model.network.width(), model.weights(), model.head);
        let (hidden, _) = self.slots.hidden_and_gradient();
        let vocab = model.config().vocab_size();
        let bias: &[f32] = head.bias.map_or(&[], |id| weights.get(id));
        let mut done = 0;
        // Neighbouring rows go together: the head's matrix is then read once for all of them.
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            let x = &hidden[run[0] * width..(run[0] + run.len()) * width];
            let out = &mut logits[done * vocab..(done + run.len()) * vocab];
            done += run.len();
            if weights.halves_kind().is_some() {
                let (team, shape) = (&*self.team, head_shape(parts, run.len()));
                MixedHead { team, weights, head, shape, z: &mut [] }.logits(x, out);
                continue;
            }
            if weights.layout().is_packed(head.weight) {
                let rounded = RefCell::new(&mut self.outer.rounded[..]);
                let packed = Packed { matrices: &[], from: 0, rounded, work: RefCell::default() };
                let id = head.weight;
                packed_product(&self.team, weights, id, bias, &packed, x, out, vocab, 0);
                if let Some(limit) = model.config().soft_cap() {
                    kernels::soft_cap(&self.team, out, limit);
                }
                continue;
            }
            let shape = head_shape(parts, run.len());
            let (weight, work) = (weights.get(head.weight), &mut self.outer.head);
            head_logits(&self.team, shape, x, weight, bias, out, work);
        }
    }
}
