//! Who holds what: the parameters of each unit end to end, cut into as many blocks as there are
//! ranks.
//!
//! Whatever is shared out, a rank's block is the same, so stages differ in what is kept and not in
//! what is added to what. Where a batch is added up in pieces, units are cut as for so many ranks, and
//! a rank's block is a run of these cuts: sums over them are the same at any number of ranks.
//! Parameters that computation reads in FP32 beside 16-bit weights (norms, biases: vectors) stay whole
//! on every rank.

use super::Place;
use models::{HiddenMatrix, ModelConfig, Units};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Layout, ParameterSpec};

/// Blocks begin at multiples of this many values, as parameters do.
const ALIGN: usize = 16;

/// One unit.
#[derive(Clone, Debug)]
pub(crate) struct UnitMap {
    /// Values, gaps between parameters included.
    pub(crate) len: usize,
    /// Each rank's block, in values.
    pub(crate) parts: Arc<[Range<usize>]>,
    /// The cuts of this rank's block, from its beginning.
    pub(crate) own_cuts: Arc<[Range<usize>]>,
    /// Each rank's block of 16-bit words, in values of four bytes.
    pub(crate) half_parts: Arc<[Range<usize>]>,
    /// Where the unit begins when all are in place.
    pub(crate) resident_at: usize,
    /// Where it begins when units take turns.
    pub(crate) window_at: usize,
    /// Where this rank's block of it begins among its blocks.
    pub(crate) shard_at: usize,
    /// Units with the same number stand in the same place.
    pub(crate) turn: usize,
}

/// What this rank holds of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The parameter's place in the model's layout.
    pub(crate) param: usize,
    /// Its first value that this rank holds.
    pub(crate) from: usize,
    /// Where this stands among the rank's blocks.
    pub(crate) at: Range<usize>,
    /// Whether every rank holds it.
    pub(crate) everywhere: bool,
    /// Whether Muon changes it.
    pub(crate) muon: bool,
    /// Where its moments stand among those of the rank, or its momentum.
    pub(crate) moment: Range<usize>,
}

/// One of Muon's matrices in a rank's block.
#[derive(Clone, Debug)]
pub(crate) struct OwnMatrix {
    /// Which of the rank's pieces has it.
    pub(crate) piece: usize,
    /// Its first value in the piece.
    pub(crate) from: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Whose map it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Cuts of each unit: as many as ranks, or a multiple.
    pub(crate) cuts: usize,
    /// Whether Muon changes matrices: none is cut then.
    pub(crate) muon: bool,
}

/// The map of one rank.
#[derive(Clone, Debug)]
pub(crate) struct ShardMap {
    pub(crate) units: Vec<UnitMap>,
    pub(crate) pieces: Vec<Piece>,
    /// Values of vectors, gaps included.
    pub(crate) vectors_len: usize,
    /// The model's own layout.
    pub(crate) whole: Arc<Layout>,
    /// Every parameter in its place, unit after unit, vectors last.
    pub(crate) resident: Arc<Layout>,
    /// Units that take turns, vectors last.
    pub(crate) window: Arc<Layout>,
    /// Vectors alone.
    pub(crate) vectors: Arc<Layout>,
    /// This rank's pieces, each named by its parameter.
    pub(crate) shard: Arc<Layout>,
    /// Those that AdamW changes: all, but for Muon's.
    pub(crate) moments: Arc<Layout>,
    /// Those that Muon changes.
    pub(crate) momentum: Arc<Layout>,
    /// Muon's matrices in this rank's blocks.
    pub(crate) matrices: Vec<OwnMatrix>,
    /// Parameters that do not learn: whole on every rank.
    pub(crate) frozen: Vec<usize>,
}

/// A parameter in a unit, or among vectors.
struct Member {
    param: usize,
    at: usize,
    count: usize,
}

/// Parameters end to end; answers with their length too.
fn end_to_end(
    specs: &[ParameterSpec],
    params: impl Iterator<Item = usize>,
) -> (Vec<Member>, usize) {
    let mut len = 0_usize;
    let members = params.map(|param| {
        let (at, count) = (len, specs[param].count());
        len = (at + count).next_multiple_of(ALIGN);
        Member { param, at, count }
    });
    (members.collect(), len)
}

impl ShardMap {
    /// The map of a rank, of the parameters that learn; `mixed` where computation reads 16 bits.
    pub(crate) fn new(
        config: &ModelConfig,
        layout: &Arc<Layout>,
        mixed: bool,
        Split { rank, size, cuts, muon }: Split,
    ) -> ShardMap {
        let each = cuts / size;
        let specs = layout.specs();
        let matrices = if muon { models::hidden_matrices(config, layout) } else { Vec::new() };
        let is_vector = |&param: &usize| mixed && specs[param].shape.len() == 1;
        let learns = |&param: &usize| config.trains(&specs[param].name);
        let Units { members, turns } = Units::of(config, layout);
        let unit = |params: &Vec<usize>| {
            let cut = |param: &usize| learns(param) && !is_vector(param);
            end_to_end(specs, params.iter().copied().filter(cut))
        };
        let members: Vec<(Vec<Member>, usize)> = members.iter().map(unit).collect();
        let (vectors, vectors_len) = end_to_end(specs, (0..specs.len()).filter(is_vector));
        let mut room = vec![0; turns.iter().max().map_or(0, |most| most + 1)];
        for ((_, len), &turn) in members.iter().zip(&turns) {
            room[turn] = len.max(&room[turn]).to_owned();
        }
        let (mut resident_at, mut shard_at) = (0, 0);
        let units: Vec<UnitMap> = members
            .iter()
            .zip(turns)
            .map(|((members, len), turn)| {
                let block = len.div_ceil(cuts).next_multiple_of(ALIGN);
                let solid = solid(specs, members, &matrices);
                let at = |i: usize| beside(&solid, (i * block).min(*len));
                let cut = |i: usize| at(i)..at(i + 1);
                let part = |i: usize| cut(i * each).start..cut((i + 1) * each - 1).end;
                let from = part(rank).start;
                let own = (rank * each..(rank + 1) * each).map(cut);
                let unit = UnitMap {
                    len: *len,
                    parts: (0..size).map(part).collect(),
                    own_cuts: own.map(|cut| cut.start - from..cut.end - from).collect(),
                    half_parts: (0..size).map(|i| part(i).start / 2..part(i).end / 2).collect(),
                    resident_at,
                    window_at: room[..turn].iter().sum(),
                    shard_at,
                    turn,
                };
                resident_at += len;
                shard_at += part(rank).len();
                unit
            })
            .collect();
        let mut pieces = Vec::new();
        for (unit, (members, _)) in units.iter().zip(&members) {
            let own = unit.parts[rank].clone();
            for Member { param, at, count } in members {
                let (start, end) = (own.start.max(*at), own.end.min(at + count));
                if start < end {
                    let place = unit.shard_at + start - own.start;
                    let at_shard = place..place + end - start;
                    let from = start - at;
                    let param = *param;
                    let muon = matrices.iter().any(|m| m.parameter == param);
                    let moment = 0..0;
                    let at = at_shard;
                    pieces.push(Piece { param, from, at, everywhere: false, muon, moment });
                }
            }
        }
        for Member { param, at, count } in &vectors {
            let at = shard_at + at..shard_at + at + count;
            let (param, moment) = (*param, 0..0);
            pieces.push(Piece { param, from: 0, at, everywhere: true, muon: false, moment });
        }
        let placed = |unit_at: &dyn Fn(&UnitMap) -> usize, vectors_at: Option<usize>| {
            let mut starts = vec![None; specs.len()];
            for (unit, (members, _)) in units.iter().zip(&members) {
                members.iter().for_each(|m| starts[m.param] = Some(unit_at(unit) + m.at));
            }
            let at = vectors_at.unwrap_or(0);
            vectors.iter().for_each(|m| starts[m.param] = Some(at + m.at));
            Arc::new(Layout::of_specs(specs.iter().zip(starts).map(at_start).collect()))
        };
        let only_vectors = {
            let mut starts = vec![None; specs.len()];
            vectors.iter().for_each(|m| starts[m.param] = Some(m.at));
            Layout::of_specs(specs.iter().zip(starts).map(at_start).collect())
        };
        let piece = |piece: &Piece| ParameterSpec {
            shape: vec![piece.at.len()],
            range: piece.at.clone(),
            parts: Vec::new(),
            ..specs[piece.param].clone()
        };
        let shard = Arc::new(Layout::of_specs(pieces.iter().map(piece).collect()));
        let of = |muon: bool| {
            let some = (0..pieces.len()).filter(|&i| pieces[i].muon == muon);
            Arc::new(shard.of_some(some))
        };
        let [moments, momentum] = match muon {
            true => [of(false), of(true)],
            false => [Arc::clone(&shard), Arc::default()],
        };
        let mut ranges = [&moments, &momentum].map(|layout| layout.specs().iter());
        for piece in &mut pieces {
            let spec = ranges[usize::from(piece.muon)].next();
            piece.moment = spec.map_or(0..0, |spec| spec.range.clone());
        }
        ShardMap {
            matrices: own_matrices(specs, &pieces, &matrices),
            moments,
            momentum,
            resident: placed(&|unit| unit.resident_at, Some(resident_at)),
            window: placed(&|unit| unit.window_at, Some(room.iter().sum())),
            vectors: Arc::new(only_vectors),
            shard,
            whole: Arc::clone(layout),
            frozen: (0..specs.len()).filter(|param| !learns(param)).collect(),
            vectors_len,
            units,
            pieces,
        }
    }

    /// A layout of weights: what learns where `learnt` has it, the values of what does not learn behind
    /// it, panels as they are.
    pub(crate) fn with_frozen(&self, learnt: &Arc<Layout>) -> Arc<Layout> {
        if self.frozen.is_empty() {
            return Arc::clone(learnt);
        }
        let mut specs = learnt.specs().to_vec();
        let mut end = learnt.len();
        for &param in &self.frozen {
            let whole = &self.whole.specs()[param];
            let start = end.next_multiple_of(ALIGN);
            end = start + whole.range.len();
            specs[param] = ParameterSpec { range: start..end, ..whole.clone() };
        }
        Arc::new(Layout::of_specs(specs))
    }

    /// Values of the largest unit, or of all vectors where they are more.
    pub(crate) fn largest(&self) -> usize {
        self.units.iter().map(|unit| unit.len).max().unwrap_or(0).max(self.vectors_len)
    }

    /// Values of the largest unit with this rank's block behind it, or of all vectors in the same way.
    pub(crate) fn largest_with_own(&self, place: Place) -> usize {
        let units = self.units.iter().map(|unit| unit.len + unit.parts[place.rank].len());
        let vectors = self.vectors_len + self.vector_parts(place)[place.rank].len();
        units.max().unwrap_or(0).max(vectors)
    }

    /// Which of all vectors' values each rank adds up.
    pub(crate) fn vector_parts(&self, Place { size, .. }: Place) -> Arc<[Range<usize>]> {
        let len = self.vectors_len;
        let block = len.div_ceil(size);
        (0..size).map(|i| (i * block).min(len)..((i + 1) * block).min(len)).collect()
    }

    /// The unit of a parameter that is cut, and its place in it.
    pub(crate) fn place_of(&self, param: usize) -> (usize, Range<usize>) {
        let range = &self.resident.specs()[param].range;
        let within = |unit: &UnitMap| range.start < unit.resident_at + unit.len;
        let unit = self.units.iter().position(within).unwrap_or(0);
        let start = range.start - self.units[unit].resident_at;
        (unit, start..start + range.len())
    }

    /// The vectors of a buffer of the resident, the window or the shard's layout: its end.
    pub(crate) fn vectors_of(&self, layout: &Layout) -> Range<usize> {
        layout.len() - self.vectors_len..layout.len()
    }
}

/// Where a unit is not cut: Muon's matrices, ends rounded up. Those that end where no block begins are
/// one with what follows.
fn solid(
    specs: &[ParameterSpec],
    members: &[Member],
    matrices: &[HiddenMatrix],
) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for member in members {
        for matrix in matrices.iter().filter(|m| m.parameter == member.param) {
            let cols = specs[member.param].shape[1];
            let (start, end) = (matrix.rows.start * cols, matrix.rows.end * cols);
            match all.last_mut().filter(|_| !start.is_multiple_of(ALIGN)) {
                Some(before) => before.end = (member.at + end).next_multiple_of(ALIGN),
                None => all.push(member.at + start..(member.at + end).next_multiple_of(ALIGN)),
            }
        }
    }
    all
}

/// The place for a cut that is nearest to `at`: beside what is not cut.
fn beside(solid: &[Range<usize>], at: usize) -> usize {
    match solid.iter().find(|solid| solid.start < at && at < solid.end) {
        Some(solid) if at - solid.start < solid.end - at => solid.start,
        Some(solid) => solid.end,
        None => at,
    }
}

/// Muon's matrices that lie in a rank's pieces.
fn own_matrices(
    specs: &[ParameterSpec],
    pieces: &[Piece],
    matrices: &[HiddenMatrix],
) -> Vec<OwnMatrix> {
    let mut own = Vec::new();
    for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.muon) {
        let cols = specs[piece.param].shape[1];
        let held = piece.from..piece.from + piece.at.len();
        for HiddenMatrix { rows, .. } in matrices.iter().filter(|m| m.parameter == piece.param) {
            let (start, end) = (rows.start * cols, rows.end * cols);
            if held.contains(&start) && end <= held.end {
                let from = start - held.start;
                own.push(OwnMatrix { piece: index, from, rows: rows.len(), cols });
            }
        }
    }
    own
}

/// A parameter from `start` on; nowhere without.
fn at_start((spec, start): (&ParameterSpec, Option<usize>)) -> ParameterSpec {
    let count = start.map_or(0, |_| spec.count());
    let start = start.unwrap_or(0);
    ParameterSpec { range: start..start + count, parts: Vec::new(), ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use models::{Model, TransformerConfig, hidden_matrices};

    #[test]
    fn every_value_has_one_holder() {
        for (mixed, tied, muon) in [(false, false, false), (true, true, false), (true, true, true)]
        {
            let mut config = TransformerConfig::email(53, 9);
            config.tie_word_embeddings = tied;
            let config = ModelConfig::Transformer(config);
            let layout = Arc::new(Model::layout_of(&config).unwrap());
            for (size, cuts) in [(1, 1), (2, 2), (3, 3), (5, 5), (1, 4), (2, 4), (4, 4)] {
                let mut holders = vec![0; layout.len()];
                let mut all_cuts: Vec<Vec<Range<usize>>> = Vec::new();
                let mut matrices = Vec::new();
                for rank in 0..size {
                    let map =
                        ShardMap::new(&config, &layout, mixed, Split { rank, size, cuts, muon });
                    all_cuts.resize(map.units.len(), Vec::new());
                    for (unit, all) in map.units.iter().zip(&mut all_cuts) {
                        let from = unit.parts[rank].start;
                        let own = unit.own_cuts.iter();
                        all.extend(own.map(|cut| from + cut.start..from + cut.end));
                        assert_eq!(all.last().unwrap().end, unit.parts[rank].end);
                    }
                    matrices.extend(map.matrices.iter().map(|own| {
                        let piece = &map.pieces[own.piece];
                        assert!(piece.muon && own.from + own.rows * own.cols <= piece.at.len());
                        (piece.param, (piece.from + own.from) / own.cols, own.rows)
                    }));
                    for piece in &map.pieces {
                        let start = layout.specs()[piece.param].range.start + piece.from;
                        let count = if piece.everywhere && rank > 0 { 0 } else { 1 };
                        holders[start..start + piece.at.len()].iter_mut().for_each(|h| *h += count);
                        // A piece of a unit stands there as it does in the parameter.
                        assert_eq!(piece.from % ALIGN, 0);
                    }
                    let is_vector = |p: &&Piece| layout.specs()[p.param].shape.len() == 1;
                    let vectors = map.pieces.iter().filter(is_vector);
                    assert!(vectors.clone().all(|p| p.everywhere == mixed));
                    assert!(!mixed || vectors.count() > 0);
                    for unit in &map.units {
                        assert!(
                            unit.resident_at + unit.len + map.vectors_len <= map.resident.len()
                        );
                        assert!(unit.window_at + unit.len + map.vectors_len <= map.window.len());
                    }
                    assert_eq!(map.vectors.len(), map.vectors_len);
                    let share = map.shard.len() as f64 / (map.resident.len() as f64);
                    // Whole matrices are of unequal sizes.
                    assert!(muon || share < 1.02 / size as f64 + 0.03, "{size} ranks: {share}");
                }
                let all = hidden_matrices(&config, &layout);
                let all = all.into_iter().map(|m| (m.parameter, m.rows.start, m.rows.len()));
                matrices.sort_unstable();
                assert!(if muon { all.eq(matrices) } else { matrices.is_empty() });
                // Cuts are the same whoever has them.
                let whole =
                    ShardMap::new(&config, &layout, mixed, Split { rank: 0, size: 1, cuts, muon });
                for (unit, all) in whole.units.iter().zip(&all_cuts) {
                    assert_eq!((&unit.own_cuts[..], all.len()), (&all[..], cuts));
                }
                for spec in layout.specs() {
                    assert!(holders[spec.range.clone()].iter().all(|&h| h == 1), "{}", spec.name);
                }
            }
        }
    }

    #[test]
    fn units_that_take_turns_overlap_and_others_do_not() {
        let config = ModelConfig::Transformer(TransformerConfig::email(53, 9));
        let layout = Arc::new(Model::layout_of(&config).unwrap());
        let split = Split { rank: 0, size: 2, cuts: 2, muon: false };
        let map = ShardMap::new(&config, &layout, false, split);
        let [outer, first, second, head] = &map.units[..] else { panic!("four units") };
        assert_eq!((outer.window_at, first.window_at), (head.window_at, second.window_at));
        assert!(first.window_at >= outer.len.max(head.len));
        assert_eq!(map.window.len(), outer.len.max(head.len) + first.len);
        assert_eq!(second.resident_at, outer.len + first.len);
    }
}
