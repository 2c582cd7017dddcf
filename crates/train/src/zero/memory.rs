//! The buffers of a rank: the list that predicts them allocates them.

use super::{Flow, Place, ShardMap, Stage};
use crate::average::Average;
use crate::config::{OptimizerKind, Recipe};
use crate::muon::Muon;
use crate::optimizer::AdamW;
use ledger::{Account, Buffer, Plan, Spec};
use models::{Model, ModelConfig, Residence};
use ranks::Ranks;
use std::ops::Range;
use std::sync::Arc;
use tensor::{Layout, Mixed, Parameters};

/// What of the weights' truth a rank holds beside the weights that computation reads.
#[derive(Debug)]
pub(crate) struct Truth {
    /// Its blocks of master weights; at stage 3 in FP32, of weights.
    pub(crate) master: Option<Parameters>,
    /// Their 16 bits, at stage 3.
    pub(crate) bits: Option<Buffer<f32>>,
    /// What a step has added up, where gradients leave before its last batch: all of it, or its blocks
    /// where gradients are shared out.
    pub(crate) gradients: Option<Parameters>,
}

/// Buffers on their way to other ranks and back.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// A unit's parameters.
    pub(crate) gather: Buffer<f32>,
    /// A unit's gradients.
    pub(crate) reduce: Buffer<f32>,
}

/// Where a buffer of a layout belongs.
struct Line {
    name: &'static str,
    account: Account,
}

const fn line(name: &'static str, account: Account) -> Line {
    Line { name, account }
}

impl Line {
    fn zeros(&self, layout: &Arc<Layout>) -> Result<Parameters, ledger::Error> {
        Parameters::zeros(layout, self.name, self.account)
    }

    fn plan(&self, plan: &mut Plan, layout: &Layout) {
        plan.add(&layout.buffer_spec(self.name, self.account));
    }
}

/// What one rank allocates of a model's state, and how.
pub(crate) struct Memory<'a> {
    pub(crate) map: &'a ShardMap,
    pub(crate) place: Place,
    pub(crate) mixed: Option<Mixed>,
    pub(crate) flow: Flow,
}

impl Memory<'_> {
    fn by_unit(&self) -> bool {
        self.place.stage == Stage::Three
    }

    /// Weights that are read, from stage 1 on: values, and where they stand. Those that take turns
    /// stand beside those that do not learn, where there are any.
    fn values(&self) -> (Line, Arc<Layout>) {
        let weights = line("weights", Account::Weights);
        match (self.mixed, self.by_unit()) {
            (Some(_), _) => {
                (line("norms and biases", Account::Weights), Arc::clone(&self.map.vectors))
            }
            (None, false) => (weights, self.map.with_frozen(&self.map.resident)),
            (None, true) if self.map.frozen.is_empty() => {
                let gathered = line("gathered weights", Account::Communication);
                (gathered, Arc::clone(&self.map.window))
            }
            (None, true) => (weights, self.map.with_frozen(&self.map.window)),
        }
    }

    /// 16-bit weights that are read, from stage 1 on.
    fn halves(&self) -> (Account, &Arc<Layout>) {
        match self.by_unit() {
            false => (Account::Weights, &self.map.resident),
            true => (Account::Communication, &self.map.window),
        }
    }

    fn gradients(&self) -> (Line, &Arc<Layout>) {
        match (self.flow.leaves_early(), self.flow.takes_turns()) {
            (false, _) => (line("gradients", Account::Gradients), &self.map.resident),
            (true, false) => (line("gradients of a piece", Account::Workspace), &self.map.resident),
            (true, true) => (line("gradients of a unit", Account::Workspace), &self.map.window),
        }
    }

    fn master(&self) -> Option<Line> {
        match (self.place.stage, self.mixed) {
            (Stage::Zero, _) | (Stage::One | Stage::Two, None) => None,
            (_, Some(_)) => Some(line("own master weights", Account::Master)),
            (Stage::Three, None) => Some(line("own weights", Account::Weights)),
        }
    }

    fn bits(&self) -> Option<Spec> {
        let len = self.map.shard.len().div_ceil(2);
        let held = self.by_unit() && self.mixed.is_some();
        held.then(|| Spec::new("own 16-bit weights", Account::Weights, len))
    }

    fn own_gradients(&self) -> Option<(Line, &Arc<Layout>)> {
        match self.flow.shares_gradients() {
            true => Some((line("own gradients", Account::Gradients), &self.map.shard)),
            false if self.flow.pieces => {
                Some((line("gradients", Account::Gradients), &self.map.resident))
            }
            false => None,
        }
    }

    fn rooms(&self) -> [Spec; 2] {
        let largest = self.map.largest();
        let words = self.mixed.map_or(largest, |_| largest.div_ceil(2));
        let gathers = if self.place.stage == Stage::Zero { 0 } else { words };
        let reduced = match (self.flow.pieces, self.place.is_alone()) {
            (false, _) => largest,
            (true, false) => self.map.largest_with_own(self.place),
            (true, true) => 0,
        };
        let spec = |name: &str, len| Spec::new(name, Account::Communication, len);
        [spec("parameters on their way", gathers), spec("gradients on their way", reduced)]
    }

    /// All but the optimizer's, and what computation works with.
    pub(crate) fn plan(&self) -> Plan {
        let mut plan = Ranks::plan(self.place.size);
        if self.place.stage == Stage::Zero {
            plan.extend(match self.mixed {
                Some(mixed) => self.map.whole.mixed_specs(mixed),
                None => self.map.whole.weight_specs(),
            });
        } else {
            let (line, layout) = self.values();
            line.plan(&mut plan, &layout);
            plan.add(&layout.block_spec());
            if let Some(mixed) = self.mixed {
                let (account, layout) = self.halves();
                layout.half_specs(account, mixed).iter().for_each(|spec| plan.add(spec));
            }
        }
        let (gradients, layout) = self.gradients();
        gradients.plan(&mut plan, layout);
        self.master().iter().for_each(|line| line.plan(&mut plan, &self.map.shard));
        self.own_gradients().iter().for_each(|(line, layout)| line.plan(&mut plan, layout));
        self.bits().iter().chain(&self.rooms()).for_each(|spec| plan.add(spec));
        plan
    }

    /// The moments, from stage 1 on, Muon's momentum where it changes matrices, and the average.
    pub(crate) fn plan_moments(&self, recipe: &Recipe) -> Plan {
        let mut plan = AdamW::plan(&self.map.moments);
        if recipe.optimizer == OptimizerKind::Muon {
            plan.extend(Muon::plan_rank(self.map));
        }
        plan.extend(Average::plan(recipe, &self.map.shard));
        plan
    }

    /// A model with places for what does not learn, from stage 1 on beside adapters.
    pub(crate) fn room(&self, config: &ModelConfig) -> Result<Model, models::Error> {
        self.model_of(config, Parameters::weights(&self.values().1)?)
    }

    /// A model whose weights are read as this stage has them, from stage 1 on.
    fn model_of(
        &self,
        config: &ModelConfig,
        mut weights: Parameters,
    ) -> Result<Model, models::Error> {
        if let Some(mixed) = self.mixed {
            let (account, layout) = self.halves();
            weights.hold_halves(layout, account, mixed)?;
        }
        let residence = if self.by_unit() { Residence::ByUnit } else { Residence::Whole };
        Model::of_weights(config, weights, residence)
    }

    /// The same with what does not learn, which was read into [`Memory::room`], or comes from another
    /// model, whose panels go over. Answers with what is left of that one.
    pub(crate) fn model(
        &self,
        config: &ModelConfig,
        mut from: Option<Model>,
    ) -> Result<(Model, Option<Model>), models::Error> {
        let ranges = |layout: &Layout| -> Vec<Range<usize>> {
            layout.specs().iter().map(|spec| spec.range.clone()).collect()
        };
        let frozen = &self.map.frozen;
        let is_room = |model: &mut Model| ranges(model.layout()) == ranges(&self.values().1);
        if let Some(room) = from.take_if(|model| !frozen.is_empty() && is_room(model)) {
            return Ok((room, None));
        }
        let (line, layout) = self.values();
        let mut weights = line.zeros(&layout)?;
        if let Some(from) = from.as_mut().filter(|_| !frozen.is_empty()) {
            weights.take_panels(from.weights_mut());
            for &param in frozen {
                let place = |layout: &Layout| layout.specs()[param].range.clone();
                let values = &from.weights().flat()[place(from.layout())];
                weights.flat_mut()[place(&layout)].copy_from_slice(values);
            }
        }
        Ok((self.model_of(config, weights)?, from))
    }

    /// What the backward pass adds to.
    pub(crate) fn new_gradients(&self) -> Result<Parameters, ledger::Error> {
        let (line, layout) = self.gradients();
        line.zeros(layout)
    }

    pub(crate) fn truth(&self) -> Result<Truth, ledger::Error> {
        let master = self.master().map(|line| line.zeros(&self.map.shard));
        let gradients = self.own_gradients().map(|(line, layout)| line.zeros(layout));
        Ok(Truth {
            master: master.transpose()?,
            bits: self.bits().map(|spec| Buffer::new(&spec)).transpose()?,
            gradients: gradients.transpose()?,
        })
    }

    pub(crate) fn new_rooms(&self) -> Result<Rooms, ledger::Error> {
        let [gather, reduce] = self.rooms();
        Ok(Rooms { gather: Buffer::new(&gather)?, reduce: Buffer::new(&reduce)? })
    }
}
