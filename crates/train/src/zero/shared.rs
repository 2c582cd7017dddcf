//! A rank at work: parameters come before they are read, gradients leave when they are whole.
//!
//! Buffers go to the courier and come back by ownership, so nothing is read while it is written. The
//! next unit's parameters are on their way while a unit is computed, and so are the last one's
//! gradients.

use super::map::UnitMap;
use super::memory::{Memory, Rooms};
use super::{Place, ShardMap, Shared, Stage, Truth};
use crate::config::Recipe;
use crate::optimizer::{AdamW, Applied, Spot, decay_of};
use kernels::{HalfKind, Team};
use ledger::Buffer;
use models::{Keeper, Model};
use ranks::{Collective, Lost, Pending, Ranks};
use std::ops::Range;
use std::sync::Arc;
use tensor::{ParameterSpec, Parameters};

/// What a rank of several keeps beside its model.
pub(crate) struct Zero {
    pub(crate) ranks: Arc<Ranks>,
    pub(crate) place: Place,
    pub(crate) map: ShardMap,
    half: Option<HalfKind>,
    team: Arc<Team>,
    truth: Truth,
    /// Where the optimizer finds what it changes, from stage 1 on.
    spots: Vec<Spot>,
    /// Which unit stands where units take turns.
    holds: Vec<Option<usize>>,
    /// Here, or with the courier.
    gather_room: Option<Buffer<f32>>,
    coming: Option<(usize, Pending)>,
    reduce_room: Option<Buffer<f32>>,
    leaving: Option<(usize, Pending)>,
    /// Whether this is the step's last batch, after which gradients are whole.
    last: bool,
    lost: Option<Lost>,
    said: f64,
    heard: f64,
}

/// What ranks tell each other of a step. All are added up in the order of ranks but for the largest
/// score and the signal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Losses of real targets, nats.
    pub(crate) loss: f64,
    /// Means of log Σ e^z.
    pub(crate) log_z: f64,
    /// Squares of the gradient.
    pub(crate) squares: f64,
    /// The largest attention score.
    pub(crate) score: f64,
}

impl Zero {
    pub(crate) fn new(
        shared: &Shared,
        map: ShardMap,
        memory: (Truth, Rooms),
        (half, team): (Option<HalfKind>, &Arc<Team>),
    ) -> Zero {
        let place = shared.place();
        let (truth, rooms) = memory;
        let turns = map.units.iter().map(|unit| unit.turn + 1).max().unwrap_or(0);
        Zero {
            ranks: Arc::clone(&shared.ranks),
            spots: spots(&map, place, half),
            holds: vec![None; turns],
            place,
            map,
            half,
            team: Arc::clone(team),
            truth,
            gather_room: Some(rooms.gather),
            coming: None,
            reduce_room: Some(rooms.reduce),
            leaving: None,
            last: false,
            lost: None,
            said: 0.0,
            heard: 0.0,
        }
    }

    /// Whether a rank has gone: all that is computed from then on is worth nothing.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// This rank among the others.
    pub(crate) fn shared(&self) -> Shared {
        Shared { ranks: Arc::clone(&self.ranks), stage: self.place.stage }
    }

    fn is_three(&self) -> bool {
        self.place.stage == Stage::Three
    }

    /// A count of parameters in values of four bytes, as they are sent.
    fn words(&self, count: usize) -> usize {
        if self.half.is_some() { count / 2 } else { count }
    }

    fn parts(&self, unit: usize) -> &Arc<[Range<usize>]> {
        let unit = &self.map.units[unit];
        if self.half.is_some() { &unit.half_parts } else { &unit.parts }
    }

    fn own(&self, unit: &UnitMap) -> Range<usize> {
        unit.parts[self.place.rank].clone()
    }

    /// Told to all ranks with the next step's sums; the largest that was told is heard by all.
    pub(crate) fn say(&mut self, number: usize) {
        self.said = number as f64;
    }

    /// What was heard with the last step's sums.
    pub(crate) fn heard(&self) -> usize {
        self.heard as usize
    }

    /// Waits for a buffer; without one when a rank has gone.
    fn wait(&mut self, pending: Pending) -> Option<Buffer<f32>> {
        match self.ranks.wait(pending) {
            Ok(buffer) => Some(buffer),
            Err(lost) => {
                self.lost = Some(lost);
                None
            }
        }
    }

    /// Sends this rank's block of a unit's parameters, and asks for the others.
    fn start_gather(&mut self, weights: &mut Parameters, unit: usize) -> Option<Pending> {
        let mut room = self.gather_room.take()?;
        let parts = Arc::clone(self.parts(unit));
        let own = parts[self.place.rank].clone();
        let map = &self.map.units[unit];
        let from = if self.is_three() { map.shard_at } else { map.resident_at };
        let from = self.words(from) + if self.is_three() { 0 } else { own.start };
        let source = match (&self.truth.bits, &self.truth.master, self.is_three()) {
            (Some(bits), ..) => bits,
            (None, Some(master), true) => master.flat(),
            _ => words_of(weights),
        };
        kernels::copy(&self.team, &source[from..from + own.len()], &mut room[own]);
        Some(self.ranks.all_gather(Collective::GatherParameters, room, &parts))
    }

    /// Puts a unit that has come to its place.
    fn settle(&mut self, weights: &mut Parameters, unit: usize, pending: Pending) {
        let Some(room) = self.wait(pending) else { return };
        let map = &self.map.units[unit];
        let at = self.words(if self.is_three() { map.window_at } else { map.resident_at });
        let len = self.words(map.len);
        kernels::copy(&self.team, &room[..len], &mut words_of(weights)[at..at + len]);
        if self.is_three() {
            self.holds[map.turn] = Some(unit);
        }
        self.gather_room = Some(room);
    }

    /// Every rank gets what the others have changed; at stage 3, when it is read.
    pub(crate) fn publish(&mut self, weights: &mut Parameters) {
        self.holds.fill(None);
        if self.place.stage == Stage::Zero {
            return;
        }
        if let Some(master) = &self.truth.master
            && self.half.is_some()
        {
            let vectors = self.map.vectors_of(&self.map.shard);
            weights.flat_mut().copy_from_slice(&master.flat()[vectors]);
        }
        if self.is_three() {
            return;
        }
        for unit in 0..self.map.units.len() {
            if self.map.units[unit].len > 0
                && let Some(pending) = self.start_gather(weights, unit)
            {
                self.settle(weights, unit, pending);
            }
        }
    }

    /// Before a step's gradients.
    pub(crate) fn clear(&mut self) {
        if let Some(own) = &mut self.truth.gradients {
            own.clear(&self.team);
        }
    }

    /// Before a batch of a step: whether it is the last.
    pub(crate) fn begin(&mut self, last: bool) {
        self.last = last;
    }

    /// Takes in gradients that have come back.
    fn absorb(&mut self, gradients: &mut Parameters) {
        let Some((unit, pending)) = self.leaving.take() else { return };
        let Some(room) = self.wait(pending) else { return };
        let unit = &self.map.units[unit];
        let (own, at) = (self.own(unit), unit.resident_at);
        match &mut self.truth.gradients {
            Some(shard) => {
                let place = unit.shard_at..unit.shard_at + own.len();
                kernels::add_assign(&self.team, &mut shard.flat_mut()[place], &room[own]);
            }
            None => {
                let changed = if self.place.stage == Stage::Zero { 0..unit.len } else { own };
                let place = at + changed.start..at + changed.end;
                kernels::copy(&self.team, &room[changed], &mut gradients.flat_mut()[place]);
            }
        }
        self.reduce_room = Some(room);
    }

    /// Sees that all gradients have come back, vectors too.
    pub(crate) fn drain(&mut self, gradients: &mut Parameters) {
        self.absorb(gradients);
        let len = self.map.vectors_len;
        let Some(mut room) = self.reduce_room.take_if(|_| len > 0) else { return };
        let vectors = self.map.vectors_of(gradients.layout());
        kernels::copy(&self.team, &gradients.flat()[vectors.clone()], &mut room[..len]);
        let block = len.div_ceil(self.place.size);
        let part = |i: usize| (i * block).min(len)..((i + 1) * block).min(len);
        let pending = self.ranks.all_reduce(room, &(0..self.place.size).map(part).collect());
        let Some(room) = self.wait(pending) else { return };
        kernels::copy(&self.team, &room[..len], &mut gradients.flat_mut()[vectors]);
        if let Some(own) = &mut self.truth.gradients {
            let vectors = self.map.vectors_of(&self.map.shard);
            kernels::copy(&self.team, &room[..len], &mut own.flat_mut()[vectors]);
        }
        self.reduce_room = Some(room);
    }

    /// The gradients that this rank changes weights by.
    fn own_gradients<'a>(&'a self, gradients: &'a Parameters) -> &'a Parameters {
        self.truth.gradients.as_ref().unwrap_or(gradients)
    }

    /// Multiplies the gradients.
    pub(crate) fn scale(&mut self, gradients: &mut Parameters, factor: f32) {
        let own = self.truth.gradients.as_mut().unwrap_or(gradients);
        kernels::scale(&self.team, own.flat_mut(), factor);
    }

    /// The sums of all ranks, from this rank's loss, log-sums and score and from its gradients. The
    /// same numbers at every stage: squares are added block by block.
    pub(crate) fn agree(&mut self, own: Sums, gradients: &Parameters) -> Sums {
        let flat = self.own_gradients(gradients).flat();
        let at = |unit: &UnitMap| match self.place.stage < Stage::Two {
            true => unit.resident_at + self.own(unit).start,
            false => unit.shard_at,
        };
        let blocks = self.map.units.iter().map(|unit| {
            let at = at(unit);
            kernels::sum_of_squares(&self.team, &flat[at..at + self.own(unit).len()])
        });
        let squares = blocks.sum::<f64>();
        let vectors = &flat[self.map.vectors_of(self.own_gradients(gradients).layout())];
        let vectors = kernels::sum_of_squares(&self.team, vectors);
        let told = self.tell(&[own.loss, own.log_z, squares, own.score, self.said]);
        self.heard = 0.0;
        let mut all = Sums { squares: vectors, score: f64::NEG_INFINITY, ..Sums::default() };
        for said in told {
            let [loss, log_z, squares, score, heard] = said[..] else { continue };
            self.heard = self.heard.max(heard);
            all.loss += loss;
            all.log_z += log_z;
            all.squares += squares;
            all.score = all.score.max(score);
        }
        all
    }

    /// What every rank says, number by number; nothing when one has gone.
    pub(crate) fn tell(&mut self, own: &[f64]) -> Vec<Vec<f64>> {
        match self.ranks.gather_bytes(bytemuck::cast_slice(own)) {
            Ok(all) => all.iter().map(|said| numbers(said)).collect(),
            Err(lost) => {
                self.lost = Some(lost);
                Vec::new()
            }
        }
    }

    /// Changes this rank's blocks by its gradients, from stage 1 on.
    pub(crate) fn optimize(
        &mut self,
        optimizer: &mut AdamW,
        (recipe, rate, norm): (&Recipe, f64, f64),
        weights: &mut Parameters,
        gradients: &Parameters,
    ) -> Applied {
        let (values, halves) = weights.values_and_halves_mut();
        let Truth { master, bits, gradients: own } = &mut self.truth;
        let values = master.as_mut().map_or(values, Parameters::flat_mut);
        let halves = match (bits, self.half) {
            (Some(bits), Some(kind)) => Some((kind, bytemuck::cast_slice_mut(bits))),
            _ => halves,
        };
        let gradients = own.as_ref().unwrap_or(gradients).flat();
        optimizer.apply(&self.team, (recipe, rate, norm), &self.spots, (values, halves), gradients)
    }

    /// Fills this rank's blocks of the weights' truth, from stage 1 on; [`Zero::publish`] is due then.
    /// `read` is given a parameter, its first value and the place for it.
    pub(crate) fn fill<E>(
        &mut self,
        weights: &mut Parameters,
        mut read: impl FnMut(&ParameterSpec, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (values, halves) = weights.values_and_halves_mut();
        let Truth { master, bits, .. } = &mut self.truth;
        let values = master.as_mut().map_or(values, Parameters::flat_mut);
        for (piece, spot) in self.map.pieces.iter().zip(&self.spots) {
            let spec = &self.map.whole.specs()[piece.param];
            read(spec, piece.from, &mut values[spot.values.clone()])?;
        }
        let halves = match (bits, self.half) {
            (Some(bits), Some(kind)) => Some((kind, bytemuck::cast_slice_mut::<f32, u16>(bits))),
            _ => halves,
        };
        if let Some((kind, bits)) = halves {
            for spot in &self.spots {
                let (values, bits) = (&values[spot.values.clone()], &mut bits[spot.bits.clone()]);
                kernels::round_halves(&self.team, kind, values, bits);
            }
        }
        Ok(())
    }

    /// The weights' truth: this rank's blocks, or all of them.
    pub(crate) fn truth_of<'a>(&'a self, model: &'a Model) -> &'a Parameters {
        self.truth.master.as_ref().unwrap_or(model.weights())
    }

    /// This rank's pieces of what all ranks hold together, for saving: each with its parameter's name
    /// and first value. `held` is of the blocks' layout, or has every parameter by name.
    pub(crate) fn pieces_of<'a>(
        &'a self,
        held: &'a Parameters,
    ) -> impl Iterator<Item = (&'a str, usize, &'a [f32])> {
        let blocks = Arc::ptr_eq(held.layout(), &self.map.shard);
        let first = self.ranks.is_first();
        let pieces = self.map.pieces.iter().filter(move |piece| first || !piece.everywhere);
        pieces.filter_map(move |piece| {
            let name = &self.map.whole.specs()[piece.param].name;
            let at = match blocks {
                true => piece.at.clone(),
                false => {
                    let spec = held.layout().specs().iter().find(|spec| spec.name == *name)?;
                    let start = spec.range.start + piece.from;
                    start..start + piece.at.len()
                }
            };
            Some((name.as_str(), piece.from, &held.flat()[at]))
        })
    }

    /// A parameter that every rank holds whole.
    pub(crate) fn vector(&self, name: &str) -> Option<&[f32]> {
        let mut whole = self.map.pieces.iter().filter(|piece| piece.everywhere);
        let piece = whole.find(|piece| self.map.whole.specs()[piece.param].name == name)?;
        Some(&self.truth.master.as_ref()?.flat()[piece.at.clone()])
    }

    /// The first of all ranks' gradients that is not finite; the last parameter's is computed first.
    pub(crate) fn first_not_finite(&mut self, gradients: &Parameters) -> Option<String> {
        let own = self.own_gradients(gradients);
        let bad = self.pieces_of(own).filter(|(_, _, g)| g.iter().any(|x| !x.is_finite()));
        let name = bad.last().map_or(String::new(), |(name, ..)| name.to_owned());
        let told = self.ranks.gather_bytes(name.as_bytes()).ok()?;
        let names = told.into_iter().filter_map(|name| String::from_utf8(name).ok());
        names.rev().find(|name| !name.is_empty())
    }

    /// Values of the unit that was gathered last.
    pub(crate) fn gathered(&self, place: Range<usize>) -> &[f32] {
        self.reduce_room.as_ref().map_or(&[], |room| &room[place])
    }

    /// Gathers the master weights of a unit from all ranks, for saving.
    pub(crate) fn gather_master(&mut self, unit: usize) -> Result<(), Lost> {
        let map = &self.map.units[unit];
        let own = self.own(map);
        let (Some(mut room), Some(master)) = (self.reduce_room.take(), &self.truth.master) else {
            return Err(Lost { rank: self.place.rank });
        };
        let from = map.shard_at;
        room[own.clone()].copy_from_slice(&master.flat()[from..from + own.len()]);
        let parts = Arc::clone(&map.parts);
        let pending = self.ranks.all_gather(Collective::GatherForSaving, room, &parts);
        self.reduce_room = Some(self.ranks.wait(pending)?);
        Ok(())
    }
}

/// Weights as they are sent: 16-bit words two at a time, or values.
fn words_of(weights: &mut Parameters) -> &mut [f32] {
    match weights.values_and_halves_mut() {
        (_, Some((_, bits))) => bytemuck::cast_slice_mut(bits),
        (values, None) => values,
    }
}

/// Numbers of eight bytes.
fn numbers(bytes: &[u8]) -> Vec<f64> {
    let eight = bytes.chunks_exact(8);
    eight.map(|chunk| chunk.try_into().map_or(f64::NAN, f64::from_le_bytes)).collect()
}

/// Where the optimizer finds each piece, from stage 1 on.
fn spots(map: &ShardMap, place: Place, half: Option<HalfKind>) -> Vec<Spot> {
    let stage = place.stage;
    let spot = |piece: &super::map::Piece| {
        let spec = &map.resident.specs()[piece.param];
        let start = spec.range.start + piece.from;
        let resident = start..start + piece.at.len();
        let at = |resides: bool| if resides { resident.clone() } else { piece.at.clone() };
        Spot {
            decay: decay_of(spec),
            values: at(half.is_none() && stage < Stage::Three),
            bits: at(stage < Stage::Three),
            gradient: at(stage < Stage::Two),
            moment: piece.at.clone(),
            counts: place.rank == 0 || !piece.everywhere,
        }
    };
    map.pieces.iter().map(spot).collect()
}

impl Keeper for Zero {
    fn fetch(&mut self, weights: &mut Parameters, unit: usize, next: Option<usize>) {
        if !self.is_three() || self.lost.is_some() {
            return;
        }
        let missing = |zero: &Zero, unit: usize| {
            let map = &zero.map.units[unit];
            map.len > 0 && zero.holds[map.turn] != Some(unit)
        };
        if missing(self, unit) {
            let pending = match self.coming.take() {
                Some((other, pending)) if other == unit => Some(pending),
                Some((_, unwanted)) => {
                    self.gather_room = self.wait(unwanted);
                    self.start_gather(weights, unit)
                }
                None => self.start_gather(weights, unit),
            };
            if let Some(pending) = pending {
                self.settle(weights, unit, pending);
            }
        }
        if let Some(next) = next.filter(|&next| missing(self, next))
            && let Some(pending) = self.start_gather(weights, next)
        {
            self.coming = Some((next, pending));
        }
    }

    fn reduce(&mut self, gradients: &mut Parameters, unit: usize) {
        let by_unit = self.place.stage >= Stage::Two;
        if !(by_unit || self.last) || self.map.units[unit].len == 0 {
            return;
        }
        self.absorb(gradients);
        let Some(mut room) = self.reduce_room.take() else { return };
        let map = &self.map.units[unit];
        let at = if by_unit { map.window_at } else { map.resident_at };
        let place = at..at + map.len;
        kernels::copy(&self.team, &gradients.flat()[place.clone()], &mut room[..map.len]);
        if by_unit {
            kernels::clear(&self.team, &mut gradients.flat_mut()[place]);
        }
        let pending = match self.place.stage {
            Stage::Zero => self.ranks.all_reduce(room, &map.parts),
            _ => self.ranks.reduce_scatter(room, &map.parts),
        };
        self.leaving = Some((unit, pending));
    }
}

impl Drop for Zero {
    /// Buffers that are under way are the courier's to give back.
    fn drop(&mut self) {
        let (coming, leaving) = (self.coming.take(), self.leaving.take());
        for (_, pending) in coming.into_iter().chain(leaving) {
            drop(self.ranks.wait(pending));
        }
    }
}

/// The buffers and the map of a rank, from which [`Zero`] is made.
pub(crate) fn memory_of(map: &ShardMap, place: Place, mixed: Option<tensor::Mixed>) -> Memory<'_> {
    Memory { map, place, mixed }
}
