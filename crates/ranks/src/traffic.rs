//! What was sent, how long it took, and how much of that somebody waited.

use serde::Serialize;

/// What is done by all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank gets the parameters that the others hold.
    GatherParameters,
    /// Every rank gets the sum of all gradients.
    AllReduceGradients,
    /// Every rank gets its part of the sum of all gradients.
    ReduceScatterGradients,
    /// Weights on their way to a file.
    GatherForSaving,
    /// Losses, norms, agreements: some bytes of each.
    Words,
}

impl Collective {
    /// All, in the order of reports.
    pub const ALL: [Collective; 5] = [
        Collective::GatherParameters,
        Collective::AllReduceGradients,
        Collective::ReduceScatterGradients,
        Collective::GatherForSaving,
        Collective::Words,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Collective::GatherParameters => "all-gather parameters",
            Collective::AllReduceGradients => "all-reduce gradients",
            Collective::ReduceScatterGradients => "reduce-scatter gradients",
            Collective::GatherForSaving => "all-gather for saving",
            Collective::Words => "words",
        }
    }
}

/// The sums of one kind of collective on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// How often.
    pub calls: u64,
    /// Bytes that this rank sent to others.
    pub bytes: u64,
    /// Seconds in which the courier was at it.
    pub seconds: f64,
    /// Seconds of those in which computation waited for it.
    pub waited: f64,
}

impl Traffic {
    /// The share of the time in which computation went on.
    pub fn overlap(&self) -> f64 {
        if self.seconds > 0.0 { (1.0 - self.waited / self.seconds).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Adds another sum.
    pub fn add(&mut self, more: &Traffic) {
        self.calls += more.calls;
        self.bytes += more.bytes;
        self.seconds += more.seconds;
        self.waited += more.waited;
    }

    /// What was added since an earlier state of the same sums.
    #[must_use]
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        Traffic {
            calls: self.calls - earlier.calls,
            bytes: self.bytes - earlier.bytes,
            seconds: self.seconds - earlier.seconds,
            waited: self.waited - earlier.waited,
        }
    }
}

/// All sums of a rank.
pub(crate) type Sums = [Traffic; Collective::ALL.len()];
