//! What a step of a server runs, and how long that takes: by a model of it, or as it was measured.

use serde::Serialize;

/// What runs in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens.
    pub rows: u64,
    /// Tokens before them whose keys and values are read, of all sequences together.
    pub past: u64,
    /// Pairs of a token and one that it sees, itself among them.
    pub pairs: u64,
    /// Rows of logits.
    pub logits: u64,
}

impl StepShape {
    /// A sequence extends by `tokens` after `from` others, with `logits` rows of logits.
    pub fn add(&mut self, from: u64, tokens: u64, logits: u64) {
        self.rows += tokens;
        self.past += from;
        self.pairs += tokens * from + tokens * (tokens + 1) / 2;
        self.logits += logits;
    }

    /// Of one sequence.
    #[must_use]
    pub fn of(from: u64, tokens: u64, logits: u64) -> StepShape {
        let mut shape = StepShape::default();
        shape.add(from, tokens, logits);
        shape
    }
}

/// Seconds of a step.
pub trait StepCost {
    /// Of what runs in it.
    fn seconds(&self, shape: &StepShape) -> f64;

    /// From its end, with so many tokens to hand out, to where the next may begin.
    fn beside(&self, _tokens: u64) -> f64 {
        0.0
    }

    /// Of a request's way to the first step that may read it and its first token's way back.
    fn request(&self) -> f64 {
        0.0
    }
}

/// Times that were measured: of a step's rows, of its rows of logits with the choices made of them,
/// both straight between two neighbours; and what a token of the past and a pair add.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredSteps {
    /// (rows, seconds without logits, past and pairs), rising.
    pub by_rows: Vec<(u64, f64)>,
    /// (rows of logits, seconds that they add), rising.
    pub by_logits: Vec<(u64, f64)>,
    /// Seconds a token of the past.
    pub past_s: f64,
    /// Seconds a pair of tokens.
    pub pair_s: f64,
    /// What passes beside steps.
    pub beside: Beside,
}

/// What passes between a server and its clients beside steps, with clients on the same machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Beside {
    /// (tokens handed out, seconds from a step to the next), rising.
    pub steps: Vec<(u64, f64)>,
    /// Seconds of a request's way in and its first token's way out.
    pub request_s: f64,
    /// Seconds from a client's last token to its next request before the engine.
    pub turnaround_s: f64,
}

impl StepCost for MeasuredSteps {
    fn seconds(&self, shape: &StepShape) -> f64 {
        let choices = if shape.logits == 0 { 0.0 } else { between(&self.by_logits, shape.logits) };
        let seen = self.past_s * shape.past as f64 + self.pair_s * shape.pairs as f64;
        between(&self.by_rows, shape.rows) + choices + seen
    }

    fn beside(&self, tokens: u64) -> f64 {
        between(&self.beside.steps, tokens).max(0.0)
    }

    fn request(&self) -> f64 {
        self.beside.request_s
    }
}

/// What stands at `n` on the straight lines through rising points; the first point's before it.
fn between(points: &[(u64, f64)], n: u64) -> f64 {
    let line = |a: (u64, f64), b: (u64, f64)| {
        let share = (n as f64 - a.0 as f64) / (b.0 - a.0).max(1) as f64;
        a.1 + share * (b.1 - a.1)
    };
    let above = points.iter().position(|&(at, _)| at >= n);
    match (above, points.len()) {
        (_, 0) => 0.0,
        (Some(0), _) | (None, 1) => points[0].1,
        (Some(i), _) => line(points[i - 1], points[i]),
        (None, count) => line(points[count - 2], points[count - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_are_straight_between_neighbours() {
        let steps = MeasuredSteps {
            by_rows: vec![(1, 1.0), (3, 2.0), (5, 4.0)],
            by_logits: vec![(1, 0.25), (3, 0.75)],
            past_s: 0.5,
            ..MeasuredSteps::default()
        };
        let of = |rows, past, logits| {
            steps.seconds(&StepShape { rows, past, logits, ..StepShape::default() })
        };
        assert_eq!((of(1, 0, 0), of(2, 0, 0), of(4, 0, 0), of(7, 0, 0)), (1.0, 1.5, 3.0, 6.0));
        assert_eq!((of(1, 4, 0), of(3, 0, 2)), (3.0, 2.5));
    }

    #[test]
    fn every_token_sees_those_before_it_and_itself() {
        let mut shape = StepShape::of(10, 3, 1);
        assert_eq!((shape.rows, shape.past, shape.pairs, shape.logits), (3, 10, 11 + 12 + 13, 1));
        shape.add(0, 2, 0);
        assert_eq!((shape.rows, shape.past, shape.pairs, shape.logits), (5, 10, 36 + 3, 1));
    }
}
