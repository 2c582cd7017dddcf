//! Temperature and filters: each keeps a prefix of the total order, so the state between them is
//! how many are kept and the temperature so far.

use crate::order::{Candidate, Order};
use crate::rule::{Boundary, Measure, Rule, Ties};
use crate::score::{Moments, Score, exact_moments};

/// How much of the order is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    All,
    First(usize),
}

/// A total mass and the bound on its relative error.
#[derive(Debug, Clone, Copy)]
struct Mass {
    total: f64,
    error: f64,
}

/// The distribution as the rules so far have shaped it.
pub(crate) struct Shape<'a, S> {
    pub order: Order<'a, S>,
    /// The edited row.
    pub row: &'a [S],
    /// Its best score.
    pub top: S,
    pub kept: Kept,
    pub temperature: f64,
    /// The row's sums at the temperature they were computed for.
    pub whole: Option<(f64, Moments)>,
}

impl<S: Score> Shape<'_, S> {
    /// Applies one shaping rule; editing rules do nothing here.
    pub fn apply(&mut self, rule: &Rule) {
        match *rule {
            Rule::Temperature { t: 0.0 } => {
                self.order.sort_at_least(1);
                self.kept = Kept::First(1);
            }
            Rule::Temperature { t } => self.temperature = bounded(self.temperature * t),
            Rule::TopK { k, ties } if k > 0 => self.top_k(k, ties),
            Rule::TopP { p, boundary, of } if p < 1.0 => self.top_p(p, boundary, of),
            Rule::MinP { p } if p > 0.0 => self.min_p(p),
            _ => {}
        }
    }

    /// The candidate at a place, if the rules so far keep it.
    pub fn candidate(&mut self, place: usize) -> Option<Candidate<S>> {
        match self.kept {
            Kept::First(count) if place >= count => None,
            _ => self.order.get(place),
        }
    }

    pub fn weight(&self, candidate: Candidate<S>) -> f64 {
        candidate.score.weight(self.top, self.temperature)
    }

    /// How many candidates are kept.
    pub fn num_kept(&self) -> usize {
        match self.kept {
            Kept::All => self.order.num_possible(),
            Kept::First(count) => count,
        }
    }

    /// The mass of what is kept.
    pub fn mass(&mut self) -> f64 {
        self.mass_of(Measure::Kept).total
    }

    fn top_k(&mut self, k: usize, ties: Ties) {
        if k >= self.row.len() {
            return;
        }
        // One more shows whether the k-th has an equal.
        self.order.sort_at_least(k + usize::from(ties == Ties::All));
        let Some(last) = self.candidate(k - 1) else { return };
        let mut count = k;
        while ties == Ties::All && self.candidate(count).is_some_and(|c| c.score == last.score) {
            count += 1;
        }
        self.kept = Kept::First(count);
    }

    fn min_p(&mut self, p: f64) {
        let Some(best) = self.candidate(0) else { return };
        let least = p * self.weight(best);
        let mut count = 1;
        while self.candidate(count).is_some_and(|c| self.weight(c) >= least) {
            count += 1;
        }
        self.kept = Kept::First(count);
    }

    fn top_p(&mut self, p: f64, boundary: Boundary, of: Measure) {
        let mut mass = self.mass_of(of);
        let mut before = 0.0;
        let mut count = 0;
        while let Some(candidate) = self.candidate(count) {
            if self.is_unsure(before, p, mass) {
                mass = self.exact_mass();
            }
            if count > 0 && ends(boundary, before, p, mass.total) {
                break;
            }
            before += self.weight(candidate);
            count += 1;
        }
        self.kept = Kept::First(count);
    }

    /// The first place whose cumulated mass exceeds u of the total. Behind the last boundary it is
    /// the last candidate with any weight.
    pub fn draw(&mut self, u: f64) -> usize {
        let mut mass = self.mass_of(Measure::Kept);
        let (mut cumulated, mut place, mut last) = (0.0, 0, 0);
        while let Some(candidate) = self.candidate(place) {
            let weight = self.weight(candidate);
            if weight > 0.0 {
                last = place;
            }
            cumulated += weight;
            if self.is_unsure(cumulated, u, mass) {
                mass = self.exact_mass();
            }
            if cumulated > u * mass.total {
                return place;
            }
            if weight == 0.0 {
                break;
            }
            place += 1;
        }
        last
    }

    /// Whether an approximate total leaves open on which side of `share` of it a mass lies.
    fn is_unsure(&self, mass: f64, share: f64, of: Mass) -> bool {
        of.error > 0.0 && (mass - share * of.total).abs() <= of.error * of.total
    }

    fn mass_of(&mut self, of: Measure) -> Mass {
        match (of, self.kept) {
            (Measure::Kept, Kept::First(count)) => {
                let total = (0..count)
                    .map_while(|i| self.order.get(i))
                    .fold(0.0, |sum, c| sum + c.score.weight(self.top, self.temperature));
                Mass { total, error: 0.0 }
            }
            _ => {
                let moments = match self.whole {
                    Some((temperature, moments)) if temperature == self.temperature => moments,
                    _ => S::survey(self.row, self.temperature, None).moments,
                };
                self.whole = Some((self.temperature, moments));
                Mass { total: moments.mass, error: moments.error }
            }
        }
    }

    fn exact_mass(&mut self) -> Mass {
        let moments = exact_moments(self.row, self.top, self.temperature);
        self.whole = Some((self.temperature, moments));
        Mass { total: moments.mass, error: 0.0 }
    }
}

/// Several temperatures multiply; the product stays a usable divisor.
fn bounded(temperature: f64) -> f64 {
    temperature.clamp(f64::MIN_POSITIVE, f64::MAX)
}

fn ends(boundary: Boundary, before: f64, p: f64, total: f64) -> bool {
    match boundary {
        Boundary::Reach => before >= p * total,
        Boundary::Tail => total - before <= (1.0 - p) * total,
        Boundary::Beyond => before > p * total,
    }
}
