//! From scores by seed and group to estimates with intervals: bookkeeping on slices of numbers,
//! no models and no files.
//!
//! [`bootstrap`] resamples seeds and groups, [`student`] has the quantiles that few seeds need,
//! [`power`] says what a run could have detected, [`correction`] is for several comparisons at
//! once, [`verdict`] is the rule.

pub mod bootstrap;
pub mod correction;
pub mod power;
mod random;
pub mod student;
pub mod verdict;

pub use bootstrap::{Bootstrap, Contrast, Draws, Interval, Metric, Panel};
pub use verdict::{Evidence, Outcome, Verdict};
