//! What a model makes of a side: sums from which every score follows.

use crate::data::{Facts, Sequences};
use crate::zero::Place;
use models::ngram::Ngram;
use models::{Batch, IGNORED, Keeper, Model, Runner};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Real targets and what a model made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// How many.
    pub tokens: u64,
    /// Sum of the losses, nats.
    pub nll: f64,
    /// How many were the most probable id (ties to the lowest).
    pub correct: u64,
}

impl Tally {
    /// Mean loss, nats/token; none without targets.
    pub fn loss(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.nll / self.tokens as f64)
    }

    /// Share of exact predictions; none without targets.
    pub fn accuracy(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.correct as f64 / self.tokens as f64)
    }

    fn count(&mut self, nll: f64, correct: bool) {
        self.tokens += 1;
        self.nll += nll;
        self.correct += u64::from(correct);
    }
}

/// Predictions whose confidence fell into one of equal bins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// How many.
    pub count: u64,
    /// Sum of their confidences.
    pub confidence: f64,
    /// How many were right.
    pub correct: u64,
}

/// Bins of confidence between 0 and 1.
pub const BINS: usize = 15;

/// Everything that one pass over a side says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// All targets.
    pub total: Tally,
    /// Without targets that are `<unk>`.
    pub known: Tally,
    /// By group: all targets, and those without `<unk>`.
    pub groups: BTreeMap<u32, (Tally, Tally)>,
    /// Sequences with a long run that the training side holds too.
    pub seen: Tally,
    /// The others.
    pub unseen: Tally,
    /// By tokens before the target, `<bos>` counted: index 0 is the first word.
    pub positions: Vec<Tally>,
    /// By confidence.
    pub calibration: Vec<Bin>,
    /// Sequences with a target.
    pub messages: u64,
    /// Sum of their own mean losses.
    pub message_loss: f64,
    /// Sum of their own accuracies.
    pub message_accuracy: f64,
}

/// Whatever can be evaluated.
pub enum Evaluator<'a> {
    /// A network at work.
    Network(&'a Model, &'a mut Runner),
    /// A network whose weights come and go.
    Kept(&'a mut Model, &'a mut Runner, &'a mut dyn Keeper),
    /// A count model.
    Counts(&'a Ngram),
}

impl Evaluator<'_> {
    /// Losses, most probable ids and their probabilities; nothing from a count model.
    fn pass(&mut self, rows: &Batch) -> (&[f32], &[u32], &[f32]) {
        match self {
            Evaluator::Network(model, runner) => runner.evaluate(model, rows),
            Evaluator::Kept(model, runner, keeper) => runner.evaluate_kept(model, *keeper, rows),
            Evaluator::Counts(_) => (&[], &[], &[]),
        }
    }
}

/// One prediction.
#[derive(Clone, Copy, Debug)]
struct Prediction {
    nll: f64,
    best: u32,
    confidence: f64,
}

/// Scores a side, `batch` sequences at a time. Nothing is carried from one sequence to the next.
pub fn evaluate(
    evaluator: &mut Evaluator,
    data: &dyn Sequences,
    batch: usize,
    unknown: Option<u32>,
) -> Scores {
    evaluate_turns(evaluator, data, batch, unknown, Place::ALONE)
}

/// The same for one of several that take turns at batches; each makes as many passes as the others.
pub(crate) fn evaluate_turns(
    evaluator: &mut Evaluator,
    data: &dyn Sequences,
    batch: usize,
    unknown: Option<u32>,
    place: Place,
) -> Scores {
    let mut scores = Scores { calibration: vec![Bin::default(); BINS], ..Scores::default() };
    match evaluator {
        Evaluator::Counts(model) => score_counts(model, data, &mut scores, unknown),
        network => {
            score_network(network, data, (batch, place), &mut |_, facts, targets, predictions| {
                scores.add(facts, targets, predictions, unknown);
            });
        }
    }
    scores
}

/// The same, and what each of this one's turns came to by itself; nothing of a count model.
pub(crate) fn evaluate_parts(
    evaluator: &mut Evaluator,
    data: &dyn Sequences,
    batch: usize,
    place: Place,
) -> Vec<Tally> {
    let mut parts = vec![Tally::default(); data.len().div_ceil(batch).div_ceil(place.size)];
    score_network(evaluator, data, (batch, place), &mut |turn, _, targets, predictions| {
        let real = targets.iter().zip(predictions).filter(|(target, _)| **target != IGNORED);
        real.for_each(|(&target, p)| parts[turn].count(p.nll, p.best == target));
    });
    parts
}

/// Hears of each sequence: the turn, its facts, its targets, what was predicted of them.
type Each<'a> = dyn FnMut(usize, Facts, &[u32], &[Prediction]) + 'a;

fn score_network(
    network: &mut Evaluator,
    data: &dyn Sequences,
    (batch, place): (usize, Place),
    each: &mut Each<'_>,
) {
    let (mut rows, mut ids) = (Batch::default(), Vec::new());
    let all: Vec<usize> = (0..data.len()).collect();
    let parts: Vec<&[usize]> = all.chunks(batch.max(1)).collect();
    for (turn, (part, counts)) in place.turns(&parts).into_iter().enumerate() {
        rows.clear();
        for &i in part {
            data.add_to(i, &mut rows, &mut ids);
        }
        let (losses, best, confidence) = network.pass(&rows);
        if !counts {
            continue;
        }
        let predictions: Vec<Prediction> = (0..rows.rows())
            .map(|r| Prediction {
                nll: f64::from(losses[r]),
                best: best[r],
                confidence: f64::from(confidence[r]),
            })
            .collect();
        let owners = part.iter().flat_map(|&i| std::iter::repeat_n(i, data.parts(i)));
        for (i, &(row, count)) in owners.zip(&rows.sequences) {
            let range = row..row + count;
            each(turn, data.facts(i), &rows.targets[range.clone()], &predictions[range]);
        }
    }
}

fn score_counts(model: &Ngram, data: &dyn Sequences, scores: &mut Scores, unknown: Option<u32>) {
    let mut ids = Vec::new();
    let mut row = vec![0.0; model.vocab_size()];
    let mut known: HashMap<Vec<u32>, (u32, f64)> = HashMap::new();
    for i in 0..data.len() {
        data.copy(i, &mut ids);
        let predictions: Vec<Prediction> = (1..ids.len())
            .map(|t| {
                let before = &ids[..t];
                let context = model.context(before);
                let (best, confidence) = match known.get(context) {
                    Some(&found) => found,
                    None => {
                        let found = model.best(before, &mut row);
                        if known.len() < 1 << 16 {
                            known.insert(context.to_vec(), found);
                        }
                        found
                    }
                };
                Prediction { nll: -model.probability(before, ids[t]).ln(), best, confidence }
            })
            .collect();
        scores.add(data.facts(i), ids.get(1..).unwrap_or(&[]), &predictions, unknown);
    }
}

impl Scores {
    fn add(
        &mut self,
        facts: Facts,
        targets: &[u32],
        predictions: &[Prediction],
        unknown: Option<u32>,
    ) {
        if targets.iter().all(|&target| target == IGNORED) {
            return;
        }
        if self.positions.len() < targets.len() {
            self.positions.resize(targets.len(), Tally::default());
        }
        let mut own = Tally::default();
        let group = self.groups.entry(facts.group).or_default();
        for (t, (&target, p)) in targets.iter().zip(predictions).enumerate() {
            if target == IGNORED {
                continue;
            }
            let correct = p.best == target;
            own.count(p.nll, correct);
            group.0.count(p.nll, correct);
            self.total.count(p.nll, correct);
            self.positions[t].count(p.nll, correct);
            if Some(target) != unknown {
                self.known.count(p.nll, correct);
                group.1.count(p.nll, correct);
            }
            let side = if facts.seen_run { &mut self.seen } else { &mut self.unseen };
            side.count(p.nll, correct);
            let bin = ((p.confidence * BINS as f64) as usize).min(BINS - 1);
            self.calibration[bin].count += 1;
            self.calibration[bin].confidence += p.confidence;
            self.calibration[bin].correct += u64::from(correct);
        }
        self.messages += 1;
        self.message_loss += own.loss().unwrap_or(0.0);
        self.message_accuracy += own.accuracy().unwrap_or(0.0);
    }
}
