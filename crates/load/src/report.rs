//! From what clients saw to figures, each with its definition.

use crate::client::{Failure, Seen};
use serde::Serialize;
use std::collections::BTreeMap;

/// Places in a sorted list of measurements, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Measurements.
    pub count: usize,
    /// Mean.
    pub mean_ms: f64,
    /// Half are at most this.
    pub p50_ms: f64,
    /// Nine of ten are at most this.
    pub p90_ms: f64,
    /// 99 of 100 are at most this.
    pub p99_ms: f64,
}

impl Percentiles {
    /// Of seconds, in any order.
    #[must_use]
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len();
        if count == 0 {
            return Self::default();
        }
        // The smallest measurement that so large a share does not exceed.
        let at = |share: f64| {
            let place = (share * count as f64).ceil() as usize;
            1e3 * seconds[place.clamp(1, count) - 1]
        };
        let mean_ms = 1e3 * seconds.iter().sum::<f64>() / count as f64;
        Self { count, mean_ms, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99) }
    }
}

/// A load in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered.
    pub answered: usize,
    /// Failures by what they said.
    pub failures: BTreeMap<String, usize>,
    /// From the first byte sent to the last answer's end, seconds.
    pub seconds: f64,
    /// Tokens of prompts, as the server counts.
    pub prompt_tokens: u64,
    /// Of those, found in the server's cache.
    pub cached_tokens: u64,
    /// Tokens written, as the server counts.
    pub completion_tokens: u64,
    /// Requests answered a second.
    pub requests_per_second: f64,
    /// Tokens written a second, all clients together.
    pub tokens_per_second: f64,
    /// From a request's first byte to the first piece of its answer.
    pub time_to_first_token: Percentiles,
    /// From the first piece to the last, divided by the tokens after the first; one a request.
    pub time_per_output_token: Percentiles,
    /// Between neighbouring pieces; one a gap.
    pub inter_token: Percentiles,
    /// From a request's first byte to the end of its answer.
    pub end_to_end: Percentiles,
    /// Requests a second that met the objective, where one was given.
    pub goodput: Option<f64>,
}

/// Sums up a load. A request meets the objective if its first token and its time a token, in
/// milliseconds, are at most these.
#[must_use]
pub fn report(all: &[Result<Seen, Failure>], objective: Option<(f64, f64)>) -> Report {
    let seen: Vec<&Seen> = all.iter().filter_map(|one| one.as_ref().ok()).collect();
    let mut failures = BTreeMap::new();
    for failure in all.iter().filter_map(|one| one.as_ref().err()) {
        *failures.entry(failure.to_string()).or_insert(0) += 1;
    }
    let first = seen.iter().map(|one| one.sent).fold(f64::INFINITY, f64::min);
    let last = seen.iter().map(|one| one.sent + one.end).fold(0.0, f64::max);
    let seconds = if seen.is_empty() { 0.0 } else { last - first };
    let sum = |count: fn(&Seen) -> u64| seen.iter().map(|one| count(one)).sum::<u64>();
    let completion_tokens = sum(|one| one.completion_tokens);
    let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let of = |what: &dyn Fn(&Seen) -> Option<f64>| {
        Percentiles::of(seen.iter().filter_map(|one| what(one)).collect())
    };
    let met = |(first_ms, token_ms): (f64, f64)| {
        let good = |one: &&&Seen| {
            one.first().is_some_and(|s| 1e3 * s <= first_ms)
                && one.per_token().is_none_or(|s| 1e3 * s <= token_ms)
        };
        rate(seen.iter().filter(good).count() as f64)
    };
    Report {
        answered: seen.len(),
        failures,
        seconds,
        prompt_tokens: sum(|one| one.prompt_tokens),
        cached_tokens: sum(|one| one.cached_tokens),
        completion_tokens,
        requests_per_second: rate(seen.len() as f64),
        tokens_per_second: rate(completion_tokens as f64),
        time_to_first_token: of(&Seen::first),
        time_per_output_token: of(&Seen::per_token),
        inter_token: Percentiles::of(seen.iter().flat_map(|one| one.gaps()).collect()),
        end_to_end: of(&|one| Some(one.end)),
        goodput: objective.map(met),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measurements() {
        let p = Percentiles::of((1..=200).rev().map(|i| f64::from(i) / 1e3).collect());
        assert_eq!((p.count, p.p50_ms, p.p90_ms), (200, 100.0, 180.0));
        assert!((p.p99_ms - 198.0).abs() < 1e-9 && (p.mean_ms - 100.5).abs() < 1e-9);
        assert_eq!(Percentiles::of(vec![0.25]).p99_ms, 250.0);
        assert_eq!(Percentiles::of(vec![]).count, 0);
    }

    #[test]
    fn a_load_sums_up() {
        let seen = |sent: f64, first: f64| Seen {
            sent,
            pieces: vec![first, first + 0.5, first + 1.0],
            end: first + 1.0,
            prompt_tokens: 10,
            completion_tokens: 3,
            cached_tokens: 4,
        };
        let late = Failure::Status { status: 429, message: "busy".to_owned() };
        let all = [Ok(seen(0.0, 1.0)), Err(late.clone()), Err(late), Ok(seen(2.0, 0.5))];
        let report = report(&all, Some((800.0, 500.0)));
        assert_eq!((report.answered, report.failures["status 429: busy"]), (2, 2));
        assert_eq!((report.seconds, report.completion_tokens, report.cached_tokens), (3.5, 6, 8));
        assert_eq!(report.time_to_first_token.p50_ms, 500.0);
        assert_eq!(report.time_per_output_token.p99_ms, 500.0);
        assert_eq!(report.inter_token.count, 4);
        assert_eq!(report.goodput, Some(1.0 / 3.5));
    }
}
