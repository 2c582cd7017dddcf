//! The total order of a row (score descending, id ascending), sorted only as far as it is read.
//!
//! The idea: the m-th largest of the lane maxima is a bound that at least m entries reach, so
//! only lanes that reach it are looked into, and only what reaches it is selected from and sorted.

use std::cmp::Ordering;

use crate::row::{LANES, SCAN_CHUNK};
use crate::score::Score;

/// A token in the order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate<S> {
    pub score: S,
    pub id: u32,
}

impl<S: Score> Candidate<S> {
    fn rank_before(&self, other: &Self) -> Ordering {
        other.score.order(self.score).then(self.id.cmp(&other.id))
    }
}

/// How far the order is sorted at first, and how much further each time that is not enough.
const FIRST_RUNG: usize = 64;
const RUNG_FACTOR: usize = 16;

/// The order of one row, over buffers that the caller keeps.
pub(crate) struct Order<'a, S> {
    row: &'a [S],
    maxima: &'a [S],
    /// Lane maxima, reordered while the bound is looked for.
    work: &'a mut Vec<S>,
    /// The sorted prefix.
    list: &'a mut Vec<Candidate<S>>,
    /// Whether `list` holds every possible token.
    complete: bool,
}

impl<'a, S: Score> Order<'a, S> {
    pub fn new(
        row: &'a [S],
        maxima: &'a [S],
        work: &'a mut Vec<S>,
        list: &'a mut Vec<Candidate<S>>,
    ) -> Self {
        list.clear();
        Self { row, maxima, work, list, complete: false }
    }

    /// The token at a place of the order, from 0; none behind the last possible token.
    pub fn get(&mut self, place: usize) -> Option<Candidate<S>> {
        if place >= self.list.len() && !self.complete {
            let mut rung = FIRST_RUNG;
            while rung <= place {
                rung = rung.saturating_mul(RUNG_FACTOR);
            }
            self.sort_at_least(rung);
        }
        self.list.get(place).copied()
    }

    /// Sorts the first `count`, when it is known how many will be read.
    pub fn sort_at_least(&mut self, count: usize) {
        if self.complete || count <= self.list.len() {
            return;
        }
        self.list.clear();
        let bound = self.bound(count);
        match bound {
            Some(bound) => self.collect_from(bound),
            None => self.collect_all(),
        }
        self.complete = bound.is_none() && self.list.len() <= count;
        if count < self.list.len() {
            self.list.select_nth_unstable_by(count, Candidate::rank_before);
            self.list.truncate(count);
        }
        self.list.sort_unstable_by(Candidate::rank_before);
    }

    /// How many tokens are possible.
    pub fn num_possible(&self) -> usize {
        if self.complete {
            return self.list.len();
        }
        self.row.iter().filter(|&&score| score > S::IMPOSSIBLE).count()
    }

    /// A score that at least `count` entries reach; none if the lanes cannot tell one.
    fn bound(&mut self, count: usize) -> Option<S> {
        if count > self.maxima.len() {
            return None;
        }
        self.work.clear();
        self.work.extend_from_slice(self.maxima);
        let (_, bound, _) = self
            .work
            .select_nth_unstable_by(count - 1, |a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
        (*bound > S::IMPOSSIBLE).then_some(*bound)
    }

    fn collect_from(&mut self, bound: S) {
        let lanes = self.maxima.iter().enumerate().filter(|(_, best)| **best >= bound);
        for (index, _) in lanes {
            let (chunk, lane) = (index / LANES, index % LANES);
            let end = (chunk * SCAN_CHUNK + SCAN_CHUNK).min(self.row.len());
            for place in (chunk * SCAN_CHUNK + lane..end).step_by(LANES) {
                if self.row[place] >= bound {
                    self.list.push(candidate(self.row, place));
                }
            }
        }
    }

    fn collect_all(&mut self) {
        let row = self.row;
        let possible = (0..row.len()).filter(|&place| row[place] > S::IMPOSSIBLE);
        self.list.extend(possible.map(|place| candidate(row, place)));
    }
}

fn candidate<S: Score>(row: &[S], place: usize) -> Candidate<S> {
    // The width of the row was checked against 32 bits at the gate.
    Candidate { score: row[place].canonical(), id: place as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Counter;
    use crate::row::scan;

    fn check(row: &[f32], reads: &[usize]) {
        let mut expected: Vec<(f32, u32)> = row
            .iter()
            .zip(0..)
            .map(|(&z, id)| (z, id))
            .filter(|c| c.0 > f32::NEG_INFINITY)
            .collect();
        expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut maxima, mut work, mut list) = (Vec::new(), Vec::new(), Vec::new());
        scan(row, &mut maxima);
        let mut order = Order::new(row, &maxima, &mut work, &mut list);
        for &place in reads {
            let found = order.get(place).map(|c| (c.score, c.id));
            assert_eq!(found, expected.get(place).copied(), "place {place} of {}", row.len());
        }
        assert_eq!(order.num_possible(), expected.len());
    }

    fn noise(width: usize, levels: f64) -> Vec<f32> {
        let counter = Counter { seed: width as u64, stream: 0 };
        (0..width as u64).map(|i| (counter.uniform(i) * levels).floor() as f32).collect()
    }

    #[test]
    fn agrees_with_a_full_sort() {
        for width in [1, 15, 16, 17, 1023, 1024, 1025, 5000, 40_000] {
            for levels in [1.0, 7.0, 1e6] {
                let row = noise(width, levels);
                check(&row, &[0, 1, 39, 63, 64, 65, 700, 1023, 1024, 20_000, 39_999, 40_000]);
                check(&row, &[30_000, 3]);
            }
        }
    }

    #[test]
    fn impossible_tokens_never_enter() {
        let mut row = noise(3000, 50.0);
        for place in (0..3000).filter(|i| i % 3 != 1) {
            row[place] = f32::NEG_INFINITY;
        }
        check(&row, &[0, 500, 999, 1000, 2999]);
        let mut one = vec![f32::NEG_INFINITY; 3000];
        one[1700] = -3.0;
        check(&one, &[0, 1, 64]);
    }
}
