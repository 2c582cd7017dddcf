//! A rank at work: parameters come before they are read, gradients leave when they are whole.
//!
//! Buffers go to the courier and come back by ownership, so nothing is read while it is written. The
//! next unit's parameters are on their way while a unit is computed, and so are the last one's
//! gradients.
//!
//! With pieces every piece's gradient leaves unit by unit and is added up onto those before it, in the
//! order of pieces: ranks compute neighbours in the same round, so a round is a run of that order, and
//! the sum is one chain whatever the number of ranks.

use super::map::{OwnMatrix, UnitMap};
use super::memory::{Memory, Rooms};
use super::{Flow, Place, ShardMap, Shared, Stage, Truth};
use crate::average::{Average, Averaged};
use crate::config::Recipe;
use crate::muon::{MatrixSpot, Muon};
use crate::optimizer::{AdamW, Applied, Spot, decay_of};
use kernels::{HalfKind, Team};
use ledger::Buffer;
use models::{Keeper, Model};
use ranks::{Collective, Lost, Pending, Ranks};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Layout, ParameterSpec, Parameters};

/// What a rank of several keeps beside its model.
pub(crate) struct Zero {
    pub(crate) ranks: Arc<Ranks>,
    pub(crate) place: Place,
    pub(crate) map: ShardMap,
    half: Option<HalfKind>,
    team: Arc<Team>,
    truth: Truth,
    /// Where what an optimizer changes is, piece by piece, from stage 1 on.
    spots: Vec<Spot>,
    /// Those of AdamW.
    adams: Vec<Spot>,
    /// Muon's matrices.
    muons: Vec<MatrixSpot>,
    /// Which unit stands where units take turns.
    holds: Vec<Option<usize>>,
    /// Here, or with the courier.
    gather_room: Option<Buffer<f32>>,
    coming: Option<(usize, Pending)>,
    reduce_room: Option<Buffer<f32>>,
    leaving: Option<Leaving>,
    /// Whether this is the last batch of a piece, or of the step where there are none.
    ends: bool,
    /// Whether this is the step's last batch, after which gradients are whole.
    last: bool,
    flow: Flow,
    lost: Option<Lost>,
    said: f64,
    heard: f64,
}

/// What ranks tell each other of a step. All are added up in the order of ranks, or of pieces, but for
/// the largest score and the signal.
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

/// A loss, nats, and a mean of log Σ e^z: of a rank, or of one of its pieces.
pub(crate) type Losses = [f64; 2];

/// Gradients on their way.
struct Leaving {
    unit: usize,
    /// Whether all of the unit comes back, not this rank's block alone.
    whole: bool,
    pending: Pending,
}

impl Zero {
    pub(crate) fn new(
        shared: &Shared,
        map: ShardMap,
        memory: (Truth, Rooms),
        (half, team): (Option<HalfKind>, &Arc<Team>),
        flow: Flow,
    ) -> Zero {
        let place = shared.place();
        let (truth, rooms) = memory;
        let spots = spots(&map, place, half, flow);
        let (adams, muons) = (adams(&map, &spots), muons(&map, &spots));
        let turns = map.units.iter().map(|unit| unit.turn + 1).max().unwrap_or(0);
        Zero {
            ranks: Arc::clone(&shared.ranks),
            spots,
            adams,
            muons,
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
            ends: false,
            last: false,
            flow,
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

    /// Where the backward pass adds up a unit's gradients.
    fn gradient_place(&self, unit: &UnitMap) -> Range<usize> {
        let at = if self.flow.takes_turns() { unit.window_at } else { unit.resident_at };
        at..at + unit.len
    }

    /// Where this rank's block of a unit stands in the sums.
    fn own_sums(&self, unit: &UnitMap) -> Range<usize> {
        let own = self.own(unit);
        let at = match self.flow.shares_gradients() {
            true => unit.shard_at,
            false => unit.resident_at + own.start,
        };
        at..at + own.len()
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

    /// Before a batch of a step: whether it is the last of its piece, and of the step.
    pub(crate) fn begin(&mut self, ends: bool, last: bool) {
        (self.ends, self.last) = (ends, last);
    }

    /// Takes in gradients that have come back.
    fn absorb(&mut self, gradients: &mut Parameters) {
        let Some(Leaving { unit, whole, pending }) = self.leaving.take() else { return };
        let Some(room) = self.wait(pending) else { return };
        let unit = &self.map.units[unit];
        let (own, sums) = (self.own(unit), self.own_sums(unit));
        match &mut self.truth.gradients {
            Some(shard) if !self.flow.pieces => {
                kernels::add_assign(&self.team, &mut shard.flat_mut()[sums], &room[own]);
            }
            held => {
                let held = held.as_mut().unwrap_or(gradients);
                let (from, to) = match whole {
                    true => (0..unit.len, unit.resident_at..unit.resident_at + unit.len),
                    false => (own, sums),
                };
                kernels::copy(&self.team, &room[from], &mut held.flat_mut()[to]);
            }
        }
        self.reduce_room = Some(room);
    }

    /// After a batch: sees that what must have come back has.
    pub(crate) fn end(&mut self, gradients: &mut Parameters) {
        if self.last {
            self.absorb(gradients);
        }
        if self.map.vectors_len == 0 || !self.ends {
            return;
        }
        match self.flow.pieces {
            false => self.reduce_vectors(gradients),
            true => self.reduce_vectors_onto(gradients),
        }
    }

    /// Adds up the vectors' gradients of all ranks.
    fn reduce_vectors(&mut self, gradients: &mut Parameters) {
        let Some(mut room) = self.reduce_room.take() else { return };
        let len = self.map.vectors_len;
        let vectors = self.map.vectors_of(gradients.layout());
        kernels::copy(&self.team, &gradients.flat()[vectors.clone()], &mut room[..len]);
        let pending = self.ranks.all_reduce(room, &self.map.vector_parts(self.place));
        let Some(room) = self.wait(pending) else { return };
        kernels::copy(&self.team, &room[..len], &mut gradients.flat_mut()[vectors]);
        if let Some(own) = &mut self.truth.gradients {
            let vectors = self.map.vectors_of(&self.map.shard);
            kernels::copy(&self.team, &room[..len], &mut own.flat_mut()[vectors]);
        }
        self.reduce_room = Some(room);
    }

    /// Adds the vectors' gradients of a round of pieces onto those before.
    fn reduce_vectors_onto(&mut self, gradients: &mut Parameters) {
        self.absorb(gradients);
        let vectors = self.map.vectors_of(gradients.layout());
        let Some(held) = &mut self.truth.gradients else { return };
        let sums = self.map.vectors_of(held.layout());
        let (sums, piece) = (&mut held.flat_mut()[sums], &mut gradients.flat_mut()[vectors]);
        if self.place.is_alone() {
            kernels::add_assign(&self.team, sums, piece);
        } else {
            let Some(mut room) = self.reduce_room.take() else { return };
            let len = piece.len();
            let parts = self.map.vector_parts(self.place);
            let own = parts[self.place.rank].clone();
            kernels::copy(&self.team, piece, &mut room[..len]);
            kernels::copy(&self.team, &sums[own.clone()], &mut room[len..len + own.len()]);
            let pending = self.ranks.all_reduce_onto(room, &parts, len);
            match self.ranks.wait(pending) {
                Ok(room) => {
                    kernels::copy(&self.team, &room[..len], sums);
                    self.reduce_room = Some(room);
                }
                Err(lost) => self.lost = Some(lost),
            }
        }
        kernels::clear(&self.team, piece);
    }

    /// The gradients that this rank changes weights by.
    pub(crate) fn own_gradients<'a>(&'a self, gradients: &'a Parameters) -> &'a Parameters {
        self.truth.gradients.as_ref().unwrap_or(gradients)
    }

    /// Multiplies the gradients.
    pub(crate) fn scale(&mut self, gradients: &mut Parameters, factor: f32) {
        let own = self.truth.gradients.as_mut().unwrap_or(gradients);
        kernels::scale(&self.team, own.flat_mut(), factor);
    }

    /// The sums of all ranks, from this rank's losses and score and from its gradients. The same numbers
    /// at every stage: squares are added cut by cut. `losses`: of this rank, or of each of its pieces.
    pub(crate) fn agree(&mut self, losses: &[Losses], score: f64, gradients: &Parameters) -> Sums {
        let flat = self.own_gradients(gradients).flat();
        let cuts = self.map.units.first().map_or(0, |unit| unit.own_cuts.len());
        let squares = (0..cuts).map(|cut| {
            let of = |unit: &UnitMap| {
                let cut = &unit.own_cuts[cut];
                let at = self.own_sums(unit).start;
                kernels::sum_of_squares(&self.team, &flat[at + cut.start..at + cut.end])
            };
            self.map.units.iter().map(of).sum::<f64>()
        });
        let own: Vec<f64> = [score, self.said]
            .into_iter()
            .chain(squares)
            .chain(losses.iter().copied().flatten())
            .collect();
        let vectors = &flat[self.map.vectors_of(self.own_gradients(gradients).layout())];
        let vectors = kernels::sum_of_squares(&self.team, vectors);
        let told = self.tell(&own);
        self.heard = 0.0;
        let mut all = Sums { squares: vectors, score: f64::NEG_INFINITY, ..Sums::default() };
        let mut rounds = vec![Vec::new(); losses.len()];
        for said in told {
            let [score, heard, sums @ ..] = &said[..] else { continue };
            self.heard = self.heard.max(*heard);
            all.score = all.score.max(*score);
            let (squares, losses) = sums.split_at(cuts.min(sums.len()));
            squares.iter().for_each(|square| all.squares += square);
            for (round, own) in rounds.iter_mut().zip(losses.chunks_exact(2)) {
                round.push([own[0], own[1]]);
            }
        }
        // Ranks take turns at pieces.
        for [loss, log_z] in rounds.into_iter().flatten() {
            all.loss += loss;
            all.log_z += log_z;
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
        (optimizer, muon): (&mut AdamW, Option<&mut Muon>),
        (recipe, rate, norm): (&Recipe, f64, f64),
        weights: &mut Parameters,
        gradients: &Parameters,
    ) -> Applied {
        let (values, halves) = weights.values_and_halves_mut();
        let Truth { master, bits, gradients: own } = &mut self.truth;
        let values = master.as_mut().map_or(values, Parameters::flat_mut);
        let mut halves = match (bits, self.half) {
            (Some(bits), Some(kind)) => Some((kind, bytemuck::cast_slice_mut(bits))),
            _ => halves,
        };
        let gradients = own.as_ref().unwrap_or(gradients).flat();
        let again = halves.as_mut().map(|(kind, bits)| (*kind, &mut **bits));
        let (team, how) = (&self.team, (recipe, rate, norm));
        let mut applied = optimizer.apply(team, how, &self.adams, (&mut *values, again), gradients);
        if let Some(muon) = muon.filter(|_| norm.is_finite()) {
            let how = (recipe, rate / recipe.learning_rate, applied.factor);
            let more = muon.apply(team, how, &self.muons, (values, halves), gradients);
            applied.lost = applied.lost.map(|lost| lost + more);
        }
        applied
    }

    /// Fills this rank's blocks of the weights' truth, from stage 1 on; [`Zero::publish`] is due then.
    /// `read` is given a parameter, its first value and the place for it.
    pub(crate) fn fill<E>(
        &mut self,
        weights: &mut Parameters,
        mut read: impl FnMut(&ParameterSpec, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let values = match &mut self.truth.master {
            Some(master) => master.flat_mut(),
            None => weights.flat_mut(),
        };
        for (piece, spot) in self.map.pieces.iter().zip(&self.spots) {
            let spec = &self.map.whole.specs()[piece.param];
            read(spec, piece.from, &mut values[spot.values.clone()])?;
        }
        self.round(weights);
        Ok(())
    }

    /// Rounds this rank's blocks to the 16 bits that are read, where there are any.
    fn round(&mut self, weights: &mut Parameters) {
        let (values, halves) = weights.values_and_halves_mut();
        let Truth { master, bits, .. } = &mut self.truth;
        let values = master.as_ref().map_or(&*values, Parameters::flat);
        let halves = match (bits, self.half) {
            (Some(bits), Some(kind)) => Some((kind, bytemuck::cast_slice_mut::<f32, u16>(bits))),
            _ => halves,
        };
        let Some((kind, bits)) = halves else { return };
        for spot in &self.spots {
            let (values, bits) = (&values[spot.values.clone()], &mut bits[spot.bits.clone()]);
            kernels::round_halves(&self.team, kind, values, bits);
        }
    }

    /// Puts an average in the place of this rank's part of the weights' truth, and the other way round;
    /// [`Zero::publish`] is due then.
    pub(crate) fn swap(&mut self, average: &mut Average, weights: &mut Parameters) {
        match &mut self.truth.master {
            Some(master) => average.swap(master.flat_mut()),
            None => average.swap(weights.flat_mut()),
        }
        if self.place.stage > Stage::Zero {
            self.round(weights);
        }
    }

    /// Where this rank's average has what it is the average of, from stage 1 on.
    pub(crate) fn averaged(&self) -> Vec<Averaged> {
        let pairs = self.map.pieces.iter().zip(&self.spots);
        pairs
            .map(|(piece, spot)| Averaged { at: piece.at.clone(), of: spot.values.start })
            .collect()
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
        let is = |layout: &Arc<Layout>| Arc::ptr_eq(held.layout(), layout);
        let (blocks, moments) = (is(&self.map.shard), is(&self.map.moments));
        let momentum = is(&self.map.momentum);
        let first = self.ranks.is_first();
        let pieces = self.map.pieces.iter().filter(move |piece| first || !piece.everywhere);
        pieces.filter_map(move |piece| {
            let name = &self.map.whole.specs()[piece.param].name;
            let at = match blocks {
                true => piece.at.clone(),
                _ if moments || momentum => {
                    (piece.muon == momentum).then(|| piece.moment.clone())?
                }
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
        if map.len == 0 {
            return Ok(());
        }
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
fn spots(map: &ShardMap, place: Place, half: Option<HalfKind>, flow: Flow) -> Vec<Spot> {
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
            gradient: at(!flow.shares_gradients()),
            moment: piece.moment.clone(),
            counts: place.rank == 0 || !piece.everywhere,
        }
    };
    map.pieces.iter().map(spot).collect()
}

/// Where AdamW finds what it changes.
fn adams(map: &ShardMap, spots: &[Spot]) -> Vec<Spot> {
    let all = map.pieces.iter().zip(spots).filter(|(piece, _)| !piece.muon);
    all.map(|(_, spot)| spot.clone()).collect()
}

/// Where Muon finds its matrices.
fn muons(map: &ShardMap, spots: &[Spot]) -> Vec<MatrixSpot> {
    let spot = |own: &OwnMatrix| {
        let Spot { values, bits, gradient, moment, .. } = &spots[own.piece];
        MatrixSpot {
            rows: own.rows,
            cols: own.cols,
            values: values.start + own.from,
            bits: bits.start + own.from,
            gradient: gradient.start + own.from,
            momentum: moment.start + own.from,
        }
    };
    map.matrices.iter().map(spot).collect()
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
        // With pieces a piece's gradients leave together, without them each batch's where they do early.
        let leaves = self.ends || (self.flow.leaves_early() && !self.flow.pieces);
        if !leaves || self.map.units[unit].len == 0 {
            return;
        }
        if self.flow.pieces && self.place.is_alone() {
            return self.add_own(gradients, unit);
        }
        self.absorb(gradients);
        let Some(mut room) = self.reduce_room.take() else { return };
        let map = &self.map.units[unit];
        let place = self.gradient_place(map);
        kernels::copy(&self.team, &gradients.flat()[place.clone()], &mut room[..map.len]);
        if self.flow.leaves_early() {
            kernels::clear(&self.team, &mut gradients.flat_mut()[place]);
        }
        let whole = self.place.stage == Stage::Zero && self.last;
        let held = self.truth.gradients.as_ref().filter(|_| self.flow.pieces);
        let pending = match (held, whole) {
            (None, true) => self.ranks.all_reduce(room, &map.parts),
            (None, false) => self.ranks.reduce_scatter(room, &map.parts),
            (Some(held), whole) => {
                let sums = self.own_sums(map);
                let behind = map.len..map.len + sums.len();
                kernels::copy(&self.team, &held.flat()[sums], &mut room[behind]);
                match whole {
                    true => self.ranks.all_reduce_onto(room, &map.parts, map.len),
                    false => self.ranks.reduce_scatter_onto(room, &map.parts, map.len),
                }
            }
        };
        self.leaving = Some(Leaving { unit, whole, pending });
    }
}

impl Zero {
    /// Adds a unit's gradients of a piece onto those before, where there are no other ranks.
    fn add_own(&mut self, gradients: &mut Parameters, unit: usize) {
        let unit = &self.map.units[unit];
        let place = self.gradient_place(unit);
        let Some(held) = &mut self.truth.gradients else { return };
        let sums = &mut held.flat_mut()[unit.resident_at..unit.resident_at + unit.len];
        let piece = &mut gradients.flat_mut()[place];
        kernels::add_assign(&self.team, sums, piece);
        kernels::clear(&self.team, piece);
    }
}

impl Drop for Zero {
    /// Buffers that are under way are the courier's to give back.
    fn drop(&mut self) {
        let coming = self.coming.take().map(|(_, pending)| pending);
        let leaving = self.leaving.take().map(|leaving| leaving.pending);
        for pending in coming.into_iter().chain(leaving) {
            drop(self.ranks.wait(pending));
        }
    }
}

/// The buffers and the map of a rank, from which [`Zero`] is made.
pub(crate) fn memory_of(
    map: &ShardMap,
    place: Place,
    mixed: Option<tensor::Mixed>,
    flow: Flow,
) -> Memory<'_> {
    Memory { map, place, mixed, flow }
}
