//! One step: from a row of logits to a choice. The same code decides, with nothing recorded and
//! nothing allocated, and explains, with a trace that is told of every rule.

use serde::{Deserialize, Serialize};

use crate::chain::{Kept, Shape};
use crate::edit::{Counts, Edit};
use crate::error::DecodeError;
use crate::history::History;
use crate::order::{Candidate, Order};
use crate::random::Counter;
use crate::row::scan;
use crate::rule::{Rule, Rules};
use crate::score::{Moments, Score, Survey};

/// The token chosen at a step and what is said of it. Logarithms are natural.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// Its log-probability under the model: log-softmax of the logits as given, before any rule.
    pub logprob: f64,
    /// Its log-probability in the distribution that was drawn from, after every rule.
    pub sample_logprob: f64,
    /// Its place in the model's own order, from 1; ties go by id.
    pub rank: u32,
    /// Entropy of the model's distribution, in nats.
    pub entropy: f64,
    /// How many tokens the rules kept.
    pub kept: usize,
    /// The uniform number; none where temperature is 0.
    pub draw: Option<f64>,
}

/// Where the uniform number of a step comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// The counter-based generator.
    Counter(Counter),
    /// A given number in [0, 1), for lessons and tests.
    Fixed(f64),
}

impl Draw {
    pub(crate) fn uniform(self, step: u64) -> Result<f64, DecodeError> {
        match self {
            Self::Counter(counter) => Ok(counter.uniform(step)),
            Self::Fixed(u) if (0.0..1.0).contains(&u) => Ok(u),
            Self::Fixed(found) => Err(DecodeError::Draw { step, found }),
        }
    }
}

/// Buffers of a step, kept between steps so that only the first one allocates. One a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    buffers: Buffers<f32>,
}

impl Scratch {
    /// Empty buffers; the first step makes them as large as its row asks for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes reserved.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let buffers = &self.buffers;
        let floats =
            buffers.edited.capacity() + buffers.maxima.capacity() + buffers.work.capacity();
        floats * size_of::<f32>()
            + buffers.list.capacity() * size_of::<Candidate<f32>>()
            + buffers.counts.num_bytes()
    }
}

#[derive(Debug)]
pub(crate) struct Buffers<S> {
    edited: Vec<S>,
    maxima: Vec<S>,
    work: Vec<S>,
    list: Vec<Candidate<S>>,
    counts: Counts,
}

impl<S> Default for Buffers<S> {
    fn default() -> Self {
        let counts = Counts::default();
        Self { edited: vec![], maxima: vec![], work: vec![], list: vec![], counts }
    }
}

/// What the explaining caller is told on the way; the deciding one passes `()`.
pub(crate) trait Trace<S> {
    /// The mask (no rule) or an editing rule has run.
    fn edited(&mut self, _rule: Option<&Rule>, _row: &[S]) {}
    /// A shaping rule has run.
    fn shaped(&mut self, _rule: &Rule, _shape: &mut Shape<'_, S>) {}
    /// All rules have run and the choice is made.
    fn chosen(&mut self, _shape: &mut Shape<'_, S>, _model: &Model<S>) {}
}

impl<S> Trace<S> for () {}

/// The model's own distribution: softmax of the row as given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model<S> {
    /// The best score.
    pub top: S,
    /// The total mass.
    pub mass: f64,
    /// Log of the total mass relative to the best token's.
    pub log_mass: f64,
    /// Nats.
    pub entropy: f64,
}

/// Chooses the token of one step.
///
/// `logits` is one row (V); `history` is lent to penalties and mask; `rng` and `step` alone give
/// the uniform number. Nothing is allocated once `scratch` has seen a row of this width.
///
/// # Errors
/// [`DecodeError`], which names the step; the row and the rules are left as they were.
pub fn decide(
    rules: &Rules,
    logits: &[f32],
    history: &History<'_>,
    rng: Counter,
    step: u64,
    scratch: &mut Scratch,
) -> Result<Choice, DecodeError> {
    let at = Step { rules, history, draw: Draw::Counter(rng), step };
    at.run(logits, &mut scratch.buffers, &mut ())
}

/// The best tokens of one step, best first: at most `count` of those that the rules keep, each as
/// if it had been chosen (without a draw). This is what a search over continuations looks at.
///
/// # Errors
/// [`DecodeError`], as for [`decide`].
pub fn best(
    rules: &Rules,
    logits: &[f32],
    history: &History<'_>,
    step: u64,
    count: usize,
    scratch: &mut Scratch,
) -> Result<Vec<Choice>, DecodeError> {
    let at = Step { rules, history, draw: Draw::Fixed(0.0), step };
    at.shaped(logits, &mut scratch.buffers, &mut (), |mut shaped, ()| {
        let places = 0..count.min(shaped.shape.num_kept());
        Ok(places.map_while(|place| shaped.choice(place, None)).collect())
    })
}

/// Everything about a step but its row.
pub(crate) struct Step<'a> {
    pub rules: &'a Rules,
    pub history: &'a History<'a>,
    pub draw: Draw,
    pub step: u64,
}

impl Step<'_> {
    pub fn run<S: Score>(
        &self,
        row: &[S],
        buffers: &mut Buffers<S>,
        trace: &mut impl Trace<S>,
    ) -> Result<Choice, DecodeError> {
        self.shaped(row, buffers, trace, |mut shaped, trace| {
            let draw = match self.rules.is_greedy() {
                true => None,
                false => Some(self.draw.uniform(self.step)?),
            };
            let place = draw.map_or(0, |u| shaped.shape.draw(u));
            // The best token is always kept, and a draw lands on a kept one.
            let forbidden = DecodeError::AllForbidden { step: self.step, vocabulary: row.len() };
            let choice = shaped.choice(place, draw).ok_or(forbidden)?;
            trace.chosen(&mut shaped.shape, &shaped.model);
            Ok(choice)
        })
    }

    /// Runs the rules and hands over what they leave.
    fn shaped<S: Score, T: Trace<S>, R>(
        &self,
        row: &[S],
        buffers: &mut Buffers<S>,
        trace: &mut T,
        then: impl FnOnce(Shaped<'_, S>, &mut T) -> Result<R, DecodeError>,
    ) -> Result<R, DecodeError> {
        let (edits, shapers) = self.rules.chain().split_at(self.rules.num_edits());
        self.check_width(row.len())?;
        buffers.reserve(row.len());
        let Survey { top: raw_top, moments } = S::survey(row, 1.0, Some(&mut buffers.maxima));
        let is_possible = raw_top.is_sound() && raw_top > S::IMPOSSIBLE;
        if !is_possible || moments.log_moment.is_nan() {
            return Err(self.unsound(row, S::WHAT));
        }
        let model = Model::new(raw_top, moments);

        let unedited = edits.is_empty() && self.history.mask().is_none();
        let Buffers { edited, maxima, work, list, counts } = buffers;
        let (shaped_row, top) = if unedited {
            (row, raw_top)
        } else {
            edited.clear();
            edited.extend_from_slice(row);
            self.edit(edits, edited, counts, trace)?;
            let top = scan(edited, maxima);
            if !top.is_sound() {
                return Err(self.unsound(edited, "edited logit"));
            }
            (edited.as_slice(), top)
        };
        if top == S::IMPOSSIBLE {
            return Err(DecodeError::AllForbidden { step: self.step, vocabulary: row.len() });
        }
        let mut shape = Shape {
            order: Order::new(shaped_row, maxima, work, list),
            row: shaped_row,
            top,
            kept: Kept::All,
            temperature: 1.0,
            whole: unedited.then_some((1.0, moments)),
        };
        for rule in shapers {
            shape.apply(rule);
            trace.shaped(rule, &mut shape);
        }
        then(Shaped { row, shape, model, unedited }, trace)
    }

    fn edit<S: Score>(
        &self,
        rules: &[Rule],
        row: &mut [S],
        counts: &mut Counts,
        trace: &mut impl Trace<S>,
    ) -> Result<(), DecodeError> {
        let mut edit = Edit { row, counts, history: self.history, step: self.step };
        if let Some(mask) = self.history.mask() {
            edit.mask(mask)?;
            trace.edited(None, edit.row);
        }
        for rule in rules {
            edit.apply(rule)?;
            trace.edited(Some(rule), edit.row);
        }
        Ok(())
    }

    fn check_width(&self, found: usize) -> Result<(), DecodeError> {
        let step = self.step;
        match u32::try_from(found) {
            Ok(0) => Err(DecodeError::Empty { step }),
            Ok(_) => Ok(()),
            Err(_) => Err(DecodeError::TooWide { step, found }),
        }
    }

    /// What is wrong with a row that cannot be used: its first bad entry, or that it has no
    /// possible token.
    pub fn unsound<S: Score>(&self, row: &[S], what: &'static str) -> DecodeError {
        let (step, vocabulary) = (self.step, row.len());
        match row.iter().position(|score| !score.is_sound()) {
            None => DecodeError::AllImpossible { step, vocabulary },
            Some(place) => DecodeError::NotFinite {
                step,
                id: u32::try_from(place).unwrap_or(u32::MAX),
                vocabulary,
                what,
                found: row[place].value(),
            },
        }
    }
}

impl<S: Score> Model<S> {
    fn new(top: S, Moments { mass, log_moment, .. }: Moments) -> Self {
        let log_mass = (mass / top.weight(top, 1.0)).ln();
        Self { top, mass, log_mass, entropy: (log_mass - log_moment / mass).max(0.0) }
    }
}

/// A row with all rules run.
struct Shaped<'a, S> {
    /// As given.
    row: &'a [S],
    shape: Shape<'a, S>,
    model: Model<S>,
    /// Whether the shape's order is that of the row as given.
    unedited: bool,
}

impl<S: Score> Shaped<'_, S> {
    /// The token at a place of the order, if it is kept.
    fn choice(&mut self, place: usize, draw: Option<f64>) -> Option<Choice> {
        let chosen = self.shape.candidate(place)?;
        let raw = self.row[chosen.id as usize].canonical();
        let rank = if self.unedited { place } else { rank(self.row, raw, chosen.id) };
        Some(Choice {
            id: chosen.id,
            logprob: raw.log_weight(self.model.top, 1.0) - self.model.log_mass,
            sample_logprob: self.shape.log_probability(chosen),
            rank: u32::try_from(rank + 1).unwrap_or(u32::MAX),
            entropy: self.model.entropy,
            kept: self.shape.num_kept(),
            draw,
        })
    }
}

impl<S: Score> Shape<'_, S> {
    /// Log-probability of a kept candidate among the kept.
    pub fn log_probability(&mut self, candidate: Candidate<S>) -> f64 {
        let log_mass = (self.mass() / self.top.weight(self.top, self.temperature)).ln();
        candidate.score.log_weight(self.top, self.temperature) - log_mass
    }
}

fn rank<S: Score>(row: &[S], score: S, id: u32) -> usize {
    let better = row.iter().filter(|&&other| other > score).count();
    better + row[..id as usize].iter().filter(|&&other| other == score).count()
}

impl<S: Score> Buffers<S> {
    fn reserve(&mut self, vocabulary: usize) {
        self.edited.clear();
        self.list.clear();
        self.edited.reserve(vocabulary);
        self.list.reserve(vocabulary);
        let lanes = vocabulary.div_ceil(crate::row::SCAN_CHUNK) * crate::row::LANES;
        self.maxima.clear();
        self.work.clear();
        self.maxima.reserve(lanes);
        self.work.reserve(lanes);
    }
}
