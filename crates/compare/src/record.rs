//! One measured run, as it is written down: facts only, no conclusions.
//!
//! A record is one line of JSON in `records.jsonl`. Sums are stored, not means, so that any subset
//! of groups can be scored again; losses are in nats, bytes are bytes, times are seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Real target tokens and what a model made of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, f64, u64)", into = "(u64, f64, u64)")]
pub struct Score {
    /// Number of real target tokens (no padding).
    pub tokens: u64,
    /// Sum of the negative log-likelihood over them, nats.
    pub nll: f64,
    /// How many of them were the arg-max of the prediction (ties to the lowest id).
    pub correct: u64,
}

impl Score {
    /// Mean loss, nats a token; `None` without tokens.
    pub fn loss(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.nll / self.tokens as f64)
    }

    /// Share of exact next tokens, 0 to 1; `None` without tokens.
    pub fn accuracy(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.correct as f64 / self.tokens as f64)
    }

    /// Adds another score to this one.
    pub fn add(&mut self, other: Score) {
        self.tokens += other.tokens;
        self.nll += other.nll;
        self.correct += other.correct;
    }
}

impl std::iter::Sum for Score {
    fn sum<I: Iterator<Item = Score>>(scores: I) -> Score {
        scores.fold(Score::default(), |mut sum, score| {
            sum.add(score);
            sum
        })
    }
}

impl From<(u64, f64, u64)> for Score {
    fn from((tokens, nll, correct): (u64, f64, u64)) -> Score {
        Score { tokens, nll, correct }
    }
}

impl From<Score> for (u64, f64, u64) {
    fn from(score: Score) -> Self {
        (score.tokens, score.nll, score.correct)
    }
}

/// The score of one test group (a thread, a sender, a mailbox).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupScore {
    /// Number of the group, the same in every run on this data.
    pub group: u32,
    /// What the model made of the group's targets.
    pub score: Score,
}

/// The same test targets under another key of grouping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grouping {
    /// The key, as a word: `sender`.
    pub by: String,
    /// One score a group of that key.
    pub groups: Vec<GroupScore>,
}

/// The score at one position of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionScore {
    /// Number of tokens seen before the target, `<bos>` counted: 1 is the first word.
    pub position: u32,
    /// What the model made of the targets there.
    pub score: Score,
}

/// One of the equal bins of confidence (probability of the arg-max).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationBin {
    /// Targets whose confidence fell into the bin.
    pub count: u64,
    /// Sum of their confidences.
    pub confidence: f64,
    /// How many arg-maxes were right.
    pub correct: u64,
}

/// Test messages with and without a long run of tokens that also stands on the training side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenSplit {
    /// Messages with such a run.
    pub seen: Score,
    /// All others.
    pub unseen: Score,
}

/// Sums over messages of the messages' own means: the macro average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageMean {
    /// Messages with at least one real target.
    pub messages: u64,
    /// Sum of the messages' mean losses, nats a token.
    pub loss: f64,
    /// Sum of the messages' accuracies.
    pub accuracy: f64,
}

/// Everything measured on the test side, once, after training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TestScores {
    /// One score a group; every run of a comparison has the same groups with the same tokens.
    pub groups: Vec<GroupScore>,
    /// The same without targets that are `<unk>`.
    pub known: Vec<GroupScore>,
    /// The same targets under a second key of grouping, where the data has one.
    #[serde(default)]
    pub second_grouping: Option<Grouping>,
    /// Split by the leak flag, where the data has one.
    #[serde(default)]
    pub seen_run: Option<SeenSplit>,
    /// Averages by message.
    #[serde(default)]
    pub messages: MessageMean,
    /// One score a position.
    #[serde(default)]
    pub positions: Vec<PositionScore>,
    /// Equal bins of confidence from 0 to 1; 15 by custom.
    #[serde(default)]
    pub calibration: Vec<CalibrationBin>,
}

impl TestScores {
    /// The score over all groups.
    pub fn total(&self) -> Score {
        self.groups.iter().map(|group| group.score).sum()
    }

    /// The score over all groups without `<unk>` targets.
    pub fn total_known(&self) -> Score {
        self.known.iter().map(|group| group.score).sum()
    }

    fn is_finite(&self) -> bool {
        let scores = self.groups.iter().chain(&self.known).map(|group| group.score);
        let scores = scores.chain(self.positions.iter().map(|position| position.score));
        scores.map(|score| score.nll).all(f64::is_finite) && self.messages.loss.is_finite()
    }
}

/// How many numbers a model has and what they weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ParameterCount {
    /// All parameters, a table of counts taken as dense.
    pub dense: u64,
    /// Those without the token and position embeddings (an untied output matrix counts).
    #[serde(default)]
    pub non_embedding: u64,
    /// Parameters that are not zero: differs from `dense` for tables of counts.
    pub nonzero: u64,
    /// Bytes of the parameters as the model holds them.
    pub bytes: u64,
    /// Bytes of optimizer state.
    #[serde(default)]
    pub optimizer_bytes: u64,
}

/// What training took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRun {
    /// Wall time of training, validation excluded, seconds.
    pub seconds: f64,
    /// Real target tokens seen, all epochs.
    pub tokens: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Real target tokens a second.
    pub tokens_per_second: f64,
    /// Floating-point operations, counted by formula.
    #[serde(default)]
    pub flops: f64,
    /// Settings tried on the validation side before this run; 1 means as given.
    #[serde(default)]
    pub tuning_trials: u32,
    /// Best validation loss, nats a token.
    #[serde(default)]
    pub best_validation_loss: Option<f64>,
    /// The step at which it was met; its weights were tested.
    #[serde(default)]
    pub best_step: Option<u64>,
}

/// One line of the ledger at the moment of the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerTerm {
    /// The account or line.
    pub name: String,
    /// Bytes promised before the run.
    pub predicted_bytes: u64,
    /// Bytes counted at the peak.
    pub measured_bytes: u64,
}

/// Memory of the process that trained the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Peak resident bytes of the whole process.
    pub peak_process_bytes: u64,
    /// Peak resident bytes of the same process with nothing to do: the empty harness.
    pub baseline_process_bytes: u64,
    /// Bytes predicted for the whole process before it ran.
    #[serde(default)]
    pub predicted_process_bytes: Option<u64>,
    /// Predicted and measured, term by term.
    #[serde(default)]
    pub terms: Vec<LedgerTerm>,
}

impl MemoryUse {
    /// Peak bytes without the empty harness.
    pub fn model_bytes(&self) -> u64 {
        self.peak_process_bytes.saturating_sub(self.baseline_process_bytes)
    }
}

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Real target tokens seen so far.
    pub tokens: u64,
    /// Training loss since the point before, nats a token.
    #[serde(default)]
    pub train_loss: Option<f64>,
    /// Validation loss here, nats a token.
    #[serde(default)]
    pub validation_loss: Option<f64>,
}

/// One measured run of one arm with one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the arm.
    pub arm: String,
    /// Seed of the initial weights and the order of the data.
    pub seed: u64,
    /// Digest of all that fixes the run ([`crate::Experiment::run_digest`]); [`crate::Store`] fills it.
    #[serde(default)]
    pub config_digest: String,
    /// Numbers of the model.
    pub parameters: ParameterCount,
    /// What training took.
    pub training: TrainingRun,
    /// What the process took.
    pub memory: MemoryUse,
    /// What the test side says; `None` where the run failed.
    pub test: Option<TestScores>,
    /// Learning curve in ascending order of tokens.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
    /// Prompt → the most probable next tokens with their probabilities, best first.
    #[serde(default)]
    pub top_next: BTreeMap<String, Vec<(String, f64)>>,
    /// Choices made on the validation side, in words: `add-k smoothing 0.05 of 7 tried`.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Why the run gave no score, in words; it stays in the report as a failure.
    #[serde(default)]
    pub failed: Option<String>,
}

impl Record {
    /// The record as it may be written: scores that are not finite become a stated failure, since
    /// neither JSON nor a mean can hold them.
    pub fn sealed(mut self) -> Record {
        if self.failed.is_none() && self.test.as_ref().is_some_and(|test| !test.is_finite()) {
            self.failed = Some("the test loss is not finite".to_owned());
        }
        if self.failed.is_none() && self.test.is_none() {
            self.failed = Some("the run left no test score".to_owned());
        }
        if self.failed.is_some() {
            self.test = None;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_line() {
        let record = crate::invented::record("rnn", 3);
        let line = serde_json::to_string(&record).unwrap();
        assert!(!line.contains('\n'));
        assert!(serde_json::from_str::<Record>(&line).unwrap() == record);
    }

    #[test]
    fn an_infinite_loss_becomes_a_stated_failure() {
        let mut record = crate::invented::record("bigram", 1);
        record.test.as_mut().unwrap().groups[0].score.nll = f64::INFINITY;
        let sealed = record.sealed();
        assert_eq!(sealed.failed.as_deref(), Some("the test loss is not finite"));
        assert_eq!(sealed.test, None);
        let line = serde_json::to_string(&sealed).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), sealed);
    }

    #[test]
    fn a_score_without_tokens_has_no_mean() {
        assert_eq!(Score::default().loss(), None);
        assert_eq!(Score::default().accuracy(), None);
        let score = Score { tokens: 4, nll: 6.0, correct: 1 };
        assert_eq!((score.loss(), score.accuracy()), (Some(1.5), Some(0.25)));
    }
}
