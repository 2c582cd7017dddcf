//! The units of a network: parameters that are read together, one after another in a forward pass and
//! the other way round in a backward pass. Where ranks share weights out, those of a unit come before
//! it is read and its gradients leave when they are whole.

use crate::batch::Batch;
use crate::runner::{Dropout, Pass};
use crate::{ModelConfig, runner};
use kernels::Team;
use std::cell::RefCell;
use tensor::{Layout, Packed, Parameters};

/// Brings a unit's weights to their place and takes its gradients away.
pub trait Keeper {
    /// Unit `unit` is read next, and `next` after it.
    fn fetch(&mut self, weights: &mut Parameters, unit: usize, next: Option<usize>);

    /// The batch has added all that it adds to the gradients of `unit`.
    fn reduce(&mut self, gradients: &mut Parameters, unit: usize);
}

/// Where the weights of a network are while it is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// All are in place.
    #[default]
    Whole,
    /// Those of some units at a time, brought by a [`Keeper`].
    ByUnit,
}

/// When matrices take the form that the forward pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// All of them, after weights have changed.
    Whole,
    /// Those of a unit each time that it is read, in room for one unit: weights that change with every
    /// step are read once between, and those of other units may not be there.
    ByUnit,
}

/// The parameters of each unit, by their places in the layout, in the order of a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    /// Ascending places.
    pub members: Vec<Vec<usize>>,
    /// Units with the same number here are not read at the same time.
    pub turns: Vec<usize>,
}

impl Units {
    /// The units of a network: embeddings, each layer, the last norm and the output projection; one
    /// of all parameters for a network without layers.
    pub fn of(config: &ModelConfig, layout: &Layout) -> Units {
        let ModelConfig::Transformer(c) = config else {
            return Units { members: vec![(0..layout.specs().len()).collect()], turns: vec![0] };
        };
        let layers = c.own_layers();
        let mut members = vec![Vec::new(); layers + 2];
        for (i, spec) in layout.specs().iter().enumerate() {
            let layer = spec.name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
            let unit = match layer.and_then(|number| number.parse::<usize>().ok()) {
                Some(layer) => 1 + layer,
                None if spec.name.contains("_emb") => 0,
                None => layers + 1,
            };
            members[unit].push(i);
        }
        // A tied output projection reads the first unit while it reads the last.
        let last = if c.tie_word_embeddings { 2 } else { 0 };
        let turns = (0..layers + 2).map(|unit| match unit {
            0 => 0,
            unit if unit == layers + 1 => last,
            _ => 1,
        });
        Units { turns: turns.collect(), members }
    }
}

/// Weights of a pass: all in place, or brought by a keeper.
pub(crate) enum Source<'a> {
    Whole(&'a Parameters),
    Kept(&'a mut Parameters, &'a mut dyn Keeper),
}

impl Source<'_> {
    pub(crate) fn weights(&self) -> &Parameters {
        match self {
            Source::Whole(weights) => weights,
            Source::Kept(weights, _) => weights,
        }
    }

    pub(crate) fn fetch(&mut self, unit: usize, next: Option<usize>) {
        if let Source::Kept(weights, keeper) = self {
            keeper.fetch(weights, unit, next);
        }
    }

    fn reduce(&mut self, gradients: &mut Parameters, unit: usize) {
        if let Source::Kept(_, keeper) = self {
            keeper.reduce(gradients, unit);
        }
    }
}

/// A batch on its way through a network.
pub(crate) struct Course<'a, 's> {
    pub(crate) team: &'a Team,
    pub(crate) batch: &'a Batch,
    pub(crate) dropout: Option<Dropout>,
    pub(crate) source: &'a mut Source<'s>,
    pub(crate) packing: Packing,
    pub(crate) room: runner::Room<'a>,
}

impl Course<'_, '_> {
    /// Sees that a unit's weights are in place; `next` is read after it.
    pub(crate) fn fetch(&mut self, unit: usize, next: Option<usize>) {
        self.source.fetch(unit, next);
    }

    /// Has `pack` write the packed forms of a unit's matrices, where that is done as it is read.
    pub(crate) fn pack(&mut self, pack: impl FnOnce(&Team, &Parameters, &mut [f32])) {
        if self.packing == Packing::ByUnit {
            pack(self.team, self.source.weights(), self.room.packed);
        }
    }

    /// What operations read; `from`: where the unit's packed forms begin among those of all.
    pub(crate) fn parts(&mut self, from: usize) -> (Pass<'_>, Packed<'_>) {
        let from = if self.packing == Packing::ByUnit { from } else { 0 };
        let packed = Packed {
            matrices: &*self.room.packed,
            from,
            rounded: RefCell::new(&mut *self.room.rounded),
            work: RefCell::new(&mut *self.room.work),
        };
        let (team, batch, dropout) = (self.team, self.batch, self.dropout);
        (Pass { team, weights: self.source.weights(), batch, dropout }, packed)
    }

    /// The gradients of a unit are whole.
    pub(crate) fn reduce(&mut self, gradients: &mut Parameters, unit: usize) {
        self.source.reduce(gradients, unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, TransformerConfig};

    #[test]
    fn every_parameter_is_in_one_unit() {
        for tied in [false, true] {
            let mut config = TransformerConfig::email(50, 8);
            config.tie_word_embeddings = tied;
            let config = ModelConfig::Transformer(config);
            let layout = Model::layout_of(&config).unwrap();
            let units = Units::of(&config, &layout);
            let mut all: Vec<usize> = units.members.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..layout.specs().len()));
            assert_eq!(units.turns, if tied { [0, 1, 1, 2] } else { [0, 1, 1, 0] });
            let name = |unit: usize| &layout.specs()[units.members[unit][0]].name;
            assert!(name(0).starts_with("tok_emb") && name(2).starts_with("layers.1."));
            assert_eq!(name(3), "norm.weight");
        }
    }
}
