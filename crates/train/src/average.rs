//! An exponential average of the weights along a run: what is evaluated and saved where the recipe
//! asks for it (Polyak and Juditsky, 1992, with a fixed horizon). Training goes on from the weights
//! themselves.

use crate::config::Recipe;
use ledger::{Account, Plan};
use std::sync::Arc;
use tensor::{Layout, Parameters};

/// The average so far.
#[derive(Debug)]
pub struct Average {
    /// Its values; nothing before the first step.
    pub weights: Parameters,
}

impl Average {
    /// What [`Average::of`] will allocate.
    pub fn plan(recipe: &Recipe, layout: &Layout) -> Plan {
        let mut plan = Plan::default();
        if recipe.average > 0.0 {
            plan.add(&layout.buffer_spec("averaged weights", Account::Optimizer));
        }
        plan
    }

    /// Nothing yet; none where the recipe averages nothing.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn of(recipe: &Recipe, layout: &Arc<Layout>) -> Result<Option<Average>, ledger::Error> {
        let make = || Parameters::zeros(layout, "averaged weights", Account::Optimizer);
        Ok((recipe.average > 0.0).then(make).transpose()?.map(|weights| Average { weights }))
    }

    /// Adds the weights after step `step` (from 1): the average keeps `share` of itself, less at
    /// first, so that the first weights do not stay in it.
    pub fn add(&mut self, weights: &Parameters, step: u64, share: f64) {
        let first = (step as f64 - 1.0) / (step as f64 + 9.0);
        let part = (1.0 - share.min(first)) as f32;
        let pairs = self.weights.flat_mut().iter_mut().zip(weights.flat());
        pairs.for_each(|(average, weight)| *average += part * (weight - *average));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Initial;

    #[test]
    fn the_first_weights_do_not_stay_in_it() {
        let mut layout = Layout::default();
        layout.add("w", &[3], Initial::Constant(0.0), false);
        let layout = Arc::new(layout);
        let recipe = Recipe { average: 0.1, ..Recipe::default() };
        let mut average = Average::of(&recipe, &layout).unwrap().unwrap();
        let mut weights = Parameters::zeros(&layout, "w", Account::Weights).unwrap();
        // 8; then 1/11 of it and 10/11 of 19; from then on a tenth.
        for (step, (value, right)) in (1..).zip([(8.0, 8.0), (19.0, 18.0), (28.0, 27.0)]) {
            weights.flat_mut()[..3].fill(value);
            average.add(&weights, step, recipe.average);
            let found = &average.weights.flat()[..3];
            assert!(found.iter().all(|x: &f32| (x - right).abs() < 1e-5), "{step}: {found:?}");
        }
        assert!(Average::of(&Recipe::default(), &layout).unwrap().is_none());
    }
}
