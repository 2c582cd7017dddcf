//! What a run could have detected, and how many seeds would settle it.
//!
//! The estimate's variance has a part that more seeds shrink and one that only more test groups
//! shrink. A difference is detectable when it is (t(level) + t(power)) standard errors, with
//! Welch–Satterthwaite degrees of freedom.

use super::Draws;
use super::student::{satterthwaite, t_quantile};

/// The chance of detecting the difference that is called detectable.
pub const POWER: f64 = 0.8;

/// More seeds than this are reported as out of reach.
pub const MOST_SEEDS: usize = 1000;

/// The two variances behind an estimate.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Variance of one seed's value.
    pub of_one_seed: f64,
    /// Seeds.
    pub seeds: usize,
    /// Variance that the choice of groups gives the mean.
    pub of_groups: f64,
    /// Groups.
    pub groups: usize,
}

impl Spread {
    /// The spread behind these draws; `None` where one seed or one group cannot say.
    pub fn of(draws: &Draws) -> Option<Spread> {
        if draws.groups < 2 {
            return None;
        }
        let seeds = draws.seeds.unwrap_or(1);
        let of_one_seed = draws.seed_variance()? * seeds as f64;
        Some(Spread { of_one_seed, seeds, of_groups: draws.group_variance(), groups: draws.groups })
    }

    /// The smallest difference that an interval at `confidence` would have told from zero with
    /// probability [`POWER`].
    pub fn detectable(&self, confidence: f64) -> f64 {
        self.detectable_with(confidence, self.seeds)
    }

    /// The fewest seeds with which `difference` would be detectable on the same test groups;
    /// `None` where no number up to [`MOST_SEEDS`] is enough.
    pub fn seeds_needed(&self, confidence: f64, difference: f64) -> Option<usize> {
        let enough = |seeds: &usize| self.detectable_with(confidence, *seeds) <= difference;
        (2..=MOST_SEEDS).find(enough)
    }

    fn detectable_with(&self, confidence: f64, seeds: usize) -> f64 {
        let of_seeds = self.of_one_seed / seeds as f64;
        let free_seeds = (seeds.max(2) - 1) as f64;
        let parts = [(of_seeds, free_seeds), (self.of_groups, (self.groups - 1) as f64)];
        let freedom = satterthwaite(&parts);
        let quantiles = t_quantile((1.0 + confidence) / 2.0, freedom) + t_quantile(POWER, freedom);
        quantiles * (of_seeds + self.of_groups).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_alone_follow_the_t_formula() {
        let spread = Spread { of_one_seed: 4.0, seeds: 6, of_groups: 0.0, groups: 50 };
        // (t(0.975, 5) + t(0.8, 5)) · 2 / √6, quantiles from printed tables.
        let expected = (2.5706 + 0.9195) * 2.0 / 6f64.sqrt();
        assert!((spread.detectable(0.95) - expected).abs() < 1e-3);
    }

    #[test]
    fn many_groups_follow_the_normal_formula() {
        let spread = Spread { of_one_seed: 0.0, seeds: 1, of_groups: 0.01, groups: 1_000_001 };
        assert!((spread.detectable(0.95) - 0.1 * (1.95996 + 0.84162)).abs() < 1e-4);
    }

    #[test]
    fn the_seeds_named_are_the_fewest_that_settle_it() {
        let spread = Spread { of_one_seed: 0.0009, seeds: 6, of_groups: 1e-6, groups: 500 };
        let needed = spread.seeds_needed(0.95, 0.02).unwrap();
        assert!(spread.detectable_with(0.95, needed) <= 0.02);
        assert!(spread.detectable_with(0.95, needed - 1) > 0.02);
        assert!(needed > 6 && needed < 40, "{needed}");
        let noisy = Spread { of_groups: 0.01, ..spread };
        assert_eq!(noisy.seeds_needed(0.95, 0.02), None);
    }
}
