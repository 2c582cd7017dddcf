//! AdamW with gradient clipping, and the learning rate of each step.

use crate::config::{Recipe, Schedule};
use kernels::{AdamStep, HalfKind, Team, adam, adam_mixed, sum_of_squares};
use ledger::{Account, Plan};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Layout, ParameterSpec, Parameters};

/// AdamW: two moments a parameter. Matrices decay, embeddings where the recipe says so, biases and norms never.
#[derive(Debug)]
pub struct AdamW {
    /// The places in the weights' layout of the parameters that it changes.
    places: Vec<usize>,
    /// The first moment.
    pub first: Parameters,
    /// The second moment.
    pub second: Parameters,
    /// Steps taken.
    pub steps: u64,
}

/// What a step did.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// The norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// What the gradient was multiplied by.
    pub factor: f64,
    /// Whether it was clipped.
    pub clipped: bool,
    /// Weights that moved while their 16 bits stayed, in mixed precision.
    pub lost: Option<u64>,
}

/// Where a run of values that are changed alike stands in each buffer.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) decay: fn(&Recipe) -> f64,
    pub(crate) values: Range<usize>,
    /// In the buffer of 16-bit words, where there is one.
    pub(crate) bits: Range<usize>,
    pub(crate) gradient: Range<usize>,
    pub(crate) moment: Range<usize>,
    /// Whether its lost updates are counted here.
    pub(crate) counts: bool,
}

/// Which of a recipe's decays is a parameter's.
pub(crate) fn decay_of(spec: &ParameterSpec) -> fn(&Recipe) -> f64 {
    match spec.decay {
        true => |recipe| recipe.weight_decay,
        false if spec.name.ends_with("_emb.weight") => |recipe| recipe.embedding_decay,
        false => |_| 0.0,
    }
}

impl AdamW {
    /// What [`AdamW::new`] will allocate; the same for [`AdamW::of_some`] with the layout of those.
    pub fn plan(layout: &Layout) -> Plan {
        let mut plan = Plan::default();
        plan.add(&layout.buffer_spec("first moment", Account::Optimizer));
        plan.add(&layout.buffer_spec("second moment", Account::Optimizer));
        plan
    }

    /// Zero moments.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn new(layout: &Arc<Layout>) -> Result<AdamW, ledger::Error> {
        AdamW::of(layout, (0..layout.specs().len()).collect())
    }

    /// Zero moments for the parameters at some places of a layout; the others are left alone.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn of_some(layout: &Layout, places: Vec<usize>) -> Result<AdamW, ledger::Error> {
        AdamW::of(&Arc::new(layout.of_some(places.iter().copied())), places)
    }

    fn of(layout: &Arc<Layout>, places: Vec<usize>) -> Result<AdamW, ledger::Error> {
        Ok(AdamW {
            first: Parameters::zeros(layout, "first moment", Account::Optimizer)?,
            second: Parameters::zeros(layout, "second moment", Account::Optimizer)?,
            steps: 0,
            places,
        })
    }

    /// One step at learning rate `rate`. The gradients' layout has the weights' parameters, with room
    /// for those that learn. The gradient is scaled down to norm `recipe.clip` where
    /// it is larger; a gradient that is not finite changes nothing and is seen in its norm.
    pub fn step(
        &mut self,
        team: &Team,
        recipe: &Recipe,
        rate: f64,
        weights: &mut Parameters,
        gradients: &Parameters,
    ) -> Applied {
        let gradient_norm = sum_of_squares(team, gradients.flat()).sqrt();
        self.step_of_norm(team, (recipe, rate, gradient_norm), weights, gradients)
    }

    /// The same for a gradient whose norm is known.
    pub(crate) fn step_of_norm(
        &mut self,
        team: &Team,
        how: (&Recipe, f64, f64),
        weights: &mut Parameters,
        gradients: &Parameters,
    ) -> Applied {
        let layout = Arc::clone(weights.layout());
        let own = self.first.layout().specs();
        let spot = |(&place, own): (&usize, &ParameterSpec)| {
            let spec = &layout.specs()[place];
            Spot {
                decay: decay_of(spec),
                values: spec.range.clone(),
                bits: spec.range.clone(),
                gradient: gradients.layout().specs()[place].range.clone(),
                moment: own.range.clone(),
                counts: true,
            }
        };
        let spots: Vec<Spot> = self.places.iter().zip(own).map(spot).collect();
        self.apply(team, how, &spots, weights.values_and_halves_mut(), gradients.flat())
    }

    /// The same at given places, of a gradient whose norm is known.
    pub(crate) fn apply(
        &mut self,
        team: &Team,
        (recipe, rate, gradient_norm): (&Recipe, f64, f64),
        spots: &[Spot],
        (values, mut halves): (&mut [f32], Option<(HalfKind, &mut [u16])>),
        gradients: &[f32],
    ) -> Applied {
        if !gradient_norm.is_finite() {
            return Applied { gradient_norm, factor: 0.0, clipped: false, lost: None };
        }
        let factor =
            if recipe.clip > 0.0 { (recipe.clip / (gradient_norm + 1e-6)).min(1.0) } else { 1.0 };
        self.steps += 1;
        let t = self.steps.min(1 << 30) as i32;
        let mut lost = halves.as_ref().map(|_| 0);
        for spot in spots {
            let step = AdamStep {
                rate: rate as f32,
                beta1: recipe.beta1,
                beta2: recipe.beta2,
                epsilon: recipe.epsilon as f32,
                decay: (spot.decay)(recipe) as f32,
                correction1: (1.0 - recipe.beta1.powi(t)) as f32,
                correction2: (1.0 - recipe.beta2.powi(t)) as f32,
                gradient_scale: factor as f32,
            };
            let (w, g) = (&mut values[spot.values.clone()], &gradients[spot.gradient.clone()]);
            let m = &mut self.first.flat_mut()[spot.moment.clone()];
            let v = &mut self.second.flat_mut()[spot.moment.clone()];
            match (&mut halves, &mut lost) {
                (Some((kind, bits)), Some(lost)) => {
                    let bits = (*kind, &mut bits[spot.bits.clone()]);
                    let more = adam_mixed(team, step, bits, w, g, m, v);
                    *lost += if spot.counts { more } else { 0 };
                }
                _ => adam(team, step, w, g, m, v),
            }
        }
        Applied { gradient_norm, factor, clipped: factor < 1.0, lost }
    }
}

/// The learning rate of step `step` (from 0) of `total`: a linear rise over the warm-up, then as
/// the schedule says.
pub fn learning_rate(recipe: &Recipe, step: u64, total: u64) -> f64 {
    let peak = recipe.learning_rate;
    if step < recipe.warmup_steps {
        return peak * (step + 1) as f64 / recipe.warmup_steps as f64;
    }
    let after = (step - recipe.warmup_steps) as f64;
    let length = total.saturating_sub(recipe.warmup_steps).max(1) as f64;
    let progress = (after / length).min(1.0);
    let floor = recipe.final_share;
    match recipe.schedule {
        Schedule::Constant => peak,
        Schedule::Cosine => {
            peak * (floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()))
        }
        Schedule::Linear => peak * (1.0 - (1.0 - floor) * progress),
        Schedule::Wsd => {
            let falls = (total as f64 * recipe.decay_share).min(length).max(1.0);
            let progress = (1.0 - (total as f64 - step as f64) / falls).clamp(0.0, 1.0);
            peak * (1.0 - (1.0 - floor) * progress)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Initial;

    #[test]
    fn decay_touches_what_it_is_given_for() {
        // Field case: zero gradients, rate 0.1, decay 0.1: matrices shrink by exactly 0.99.
        let team = Team::new(1);
        let mut layout = Layout::default();
        let matrix = layout.add("w", &[2, 3], Initial::Constant(2.0), true);
        let bias = layout.add("b", &[3], Initial::Constant(2.0), false);
        let table = layout.add("tok_emb.weight", &[2, 3], Initial::Constant(2.0), false);
        let layout = Arc::new(layout);
        let mut weights = Parameters::zeros(&layout, "w", Account::Weights).unwrap();
        weights.initialise(0);
        let gradients = Parameters::zeros(&layout, "g", Account::Gradients).unwrap();
        let recipe = Recipe { weight_decay: 0.1, embedding_decay: 0.2, ..Recipe::default() };
        AdamW::new(&layout).unwrap().step(&team, &recipe, 0.1, &mut weights, &gradients);
        assert!(weights.get(matrix).iter().all(|&w| w == 2.0 * 0.99));
        assert!(weights.get(bias).iter().all(|&w| w == 2.0));
        assert!(weights.get(table).iter().all(|&w| w == 2.0 * 0.98));
    }

    #[test]
    fn schedules_rise_and_fall() {
        let recipe = Recipe {
            learning_rate: 1.0,
            warmup_steps: 10,
            schedule: Schedule::Cosine,
            final_share: 0.1,
            ..Recipe::default()
        };
        assert!((learning_rate(&recipe, 0, 110) - 0.1).abs() < 1e-12);
        assert!((learning_rate(&recipe, 9, 110) - 1.0).abs() < 1e-12);
        assert!((learning_rate(&recipe, 60, 110) - 0.55).abs() < 1e-12);
        assert!((learning_rate(&recipe, 110, 110) - 0.1).abs() < 1e-12);
        let wsd = Recipe { schedule: Schedule::Wsd, decay_share: 0.2, ..recipe.clone() };
        for (step, right) in [(9, 1.0), (10, 1.0), (80, 1.0), (90, 0.55), (100, 0.1)] {
            assert!((learning_rate(&wsd, step, 100) - right).abs() < 1e-12, "{step}");
        }
        let all = Recipe { decay_share: 1.0, ..wsd };
        assert!((learning_rate(&all, 10, 100) - 1.0).abs() < 1e-12);
        let constant = Recipe { schedule: Schedule::Constant, ..recipe };
        assert!((learning_rate(&constant, 90, 110) - 1.0).abs() < 1e-12);
    }
}
