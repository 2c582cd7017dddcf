//! An exponential average of the weights along a run: what is evaluated and saved where the recipe
//! asks for it (Polyak and Juditsky, 1992, with a fixed horizon). Training goes on from the weights
//! themselves.

use crate::config::Recipe;
use ledger::{Account, Plan};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Layout, Parameters};

/// The average so far.
#[derive(Debug)]
pub struct Average {
    /// Its values; nothing before the first step.
    pub weights: Parameters,
    runs: Vec<Averaged>,
}

/// A run of values that is averaged.
#[derive(Clone, Debug)]
pub(crate) struct Averaged {
    /// Where it stands in the average.
    pub(crate) at: Range<usize>,
    /// Where it begins among the weights.
    pub(crate) of: usize,
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

    /// Nothing yet, of the parameters at some places of the weights' layout; none where the recipe
    /// averages nothing.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn of(
        recipe: &Recipe,
        layout: &Layout,
        places: &[usize],
    ) -> Result<Option<Average>, ledger::Error> {
        let own = Arc::new(layout.of_some(places.iter().copied()));
        let weights = places.iter().map(|&place| layout.specs()[place].range.start);
        let pairs = own.specs().iter().zip(weights);
        let runs = pairs.map(|(spec, of)| Averaged { at: spec.range.clone(), of }).collect();
        Average::of_runs(recipe, &own, runs)
    }

    /// The same of some runs of values.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub(crate) fn of_runs(
        recipe: &Recipe,
        layout: &Arc<Layout>,
        runs: Vec<Averaged>,
    ) -> Result<Option<Average>, ledger::Error> {
        let make = || Parameters::zeros(layout, "averaged weights", Account::Optimizer);
        let made = (recipe.average > 0.0).then(make).transpose()?;
        Ok(made.map(|weights| Average { weights, runs }))
    }

    /// Adds the weights (all values of their buffer) after step `step` (from 1): the average keeps
    /// `share` of itself, less at first, so that the first weights do not stay in it.
    pub fn add(&mut self, weights: &[f32], step: u64, share: f64) {
        let first = (step as f64 - 1.0) / (step as f64 + 9.0);
        let part = (1.0 - share.min(first)) as f32;
        for Averaged { at, of } in &self.runs {
            let own = self.weights.flat_mut()[at.clone()].iter_mut();
            let pairs = own.zip(&weights[*of..*of + at.len()]);
            pairs.for_each(|(average, weight)| *average += part * (weight - *average));
        }
    }

    /// Changes places with the weights.
    pub(crate) fn swap(&mut self, weights: &mut [f32]) {
        for Averaged { at, of } in &self.runs {
            let own = &mut self.weights.flat_mut()[at.clone()];
            own.swap_with_slice(&mut weights[*of..*of + at.len()]);
        }
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
        let mut average = Average::of(&recipe, &layout, &[0]).unwrap().unwrap();
        let mut weights = Parameters::zeros(&layout, "w", Account::Weights).unwrap();
        // 8; then 1/11 of it and 10/11 of 19; from then on a tenth.
        for (step, (value, right)) in (1..).zip([(8.0, 8.0), (19.0, 18.0), (28.0, 27.0)]) {
            weights.flat_mut()[..3].fill(value);
            average.add(weights.flat(), step, recipe.average);
            let found = &average.weights.flat()[..3];
            assert!(found.iter().all(|x: &f32| (x - right).abs() < 1e-5), "{step}: {found:?}");
        }
        assert!(Average::of(&Recipe::default(), &layout, &[0]).unwrap().is_none());
    }
}
