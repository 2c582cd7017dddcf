//! The output projection fused with softmax and cross-entropy: logits are never stored whole.
//!
//! 64 rows at a time. Each worker owns a run of the vocabulary, so that its weights and their
//! gradient stay in its own cache; logits are kept transposed (a vocabulary entry a line, the
//! rows as lanes), so that softmax needs no sum across lanes and all three products read memory
//! in order. A row's result is built from blocks of 256 entries in ascending order, whatever the
//! number of workers.

use crate::lanes::{LANES, Lanes, stamp};
use crate::math;
use crate::matmul::{Init, Strided, block};
use crate::split::Split;
use crate::team::Team;

/// Rows that are in work at a time.
pub const HEAD_ROWS: usize = 64;
/// Vocabulary entries whose maximum, sum and share of d_x belong together.
const BLOCK: usize = 256;
/// Entries between two looks at memory.
const STEP: usize = 64;
/// Larger than any id, and exact in f32 with any id subtracted.
const TOP: f32 = 8_388_608.0;

/// Sizes of the head.
#[derive(Clone, Copy, Debug)]
pub struct HeadShape {
    /// R.
    pub rows: usize,
    /// C.
    pub width: usize,
    /// V.
    pub vocab: usize,
}

/// What the head is to compute beside the loss of each row.
pub enum HeadOutput<'a> {
    /// For training: gradients of Σ scale·loss.
    Gradients {
        /// The factor of every row's loss, 1 / (target tokens of the whole batch).
        scale: f32,
        /// R×C, written.
        d_x: &'a mut [f32],
        /// V×C, added to.
        d_weight: &'a mut [f32],
        /// V, added to; empty without a bias.
        d_bias: &'a mut [f32],
    },
    /// For evaluation: the most probable id of each row (ties to the lowest) and its probability.
    Best {
        /// R.
        ids: &'a mut [u32],
        /// R.
        probabilities: &'a mut [f32],
    },
}

/// Where the parts of the workspace start; the logits of the chunk come first.
struct Layout {
    blocks: usize,
    turned: usize,
    per_block: usize,
    target: usize,
    d_x: usize,
    total: usize,
}

fn layout(width: usize, vocab: usize, gradients: bool) -> Layout {
    let blocks = vocab.div_ceil(BLOCK);
    let turned = vocab * HEAD_ROWS;
    let per_block = turned + width * HEAD_ROWS;
    let target = per_block + blocks * 3 * HEAD_ROWS;
    let d_x = target + HEAD_ROWS;
    let total = d_x + if gradients { blocks * HEAD_ROWS * width } else { 0 };
    Layout { blocks, turned, per_block, target, d_x, total }
}

/// Values of workspace that [`head_cross_entropy`] needs: it grows with V, not with R.
pub fn head_workspace(width: usize, vocab: usize, gradients: bool) -> usize {
    layout(width, vocab, gradients).total
}

/// `loss[r] = log Σ_v e^{z_v} - z_target` with z = W·x_r + b, in nats; 0 for rows whose target is
/// `u32::MAX` (ignored: no loss, no gradient).
///
/// `x`: R×C, `weight`: V×C, `bias`: V or empty, `targets`: R, each below V or ignored.
pub fn head_cross_entropy(
    team: &Team,
    shape: HeadShape,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    targets: &[u32],
    losses: &mut [f32],
    output: &mut HeadOutput,
    workspace: &mut [f32],
) {
    let HeadShape { rows, width, vocab } = shape;
    assert!(x.len() == rows * width && weight.len() == vocab * width, "head: R×C and V×C");
    assert!(bias.is_empty() || bias.len() == vocab, "head: a bias an entry");
    assert!(targets.len() == rows && losses.len() == rows, "head: a target and a loss a row");
    assert!(
        targets.iter().all(|&t| t == u32::MAX || (t as usize) < vocab),
        "head: targets below V"
    );
    let gradients = matches!(output, HeadOutput::Gradients { .. });
    let layout = layout(width, vocab, gradients);
    assert!(workspace.len() >= layout.total, "head: workspace");
    let (mut no_f32, mut no_ids) = (Vec::new(), Vec::new());
    let (scale, d_x, d_weight, d_bias, ids, best) = match output {
        HeadOutput::Gradients { scale, d_x, d_weight, d_bias } => {
            assert!(d_x.len() == x.len() && d_weight.len() == weight.len(), "head: gradients");
            assert_eq!(d_bias.len(), bias.len(), "head: bias gradient");
            let empty: &mut [f32] = &mut no_f32;
            (*scale, &mut **d_x, &mut **d_weight, &mut **d_bias, &mut no_ids[..], empty)
        }
        HeadOutput::Best { ids, probabilities } => {
            assert!(ids.len() == rows && probabilities.len() == rows, "head: best a row");
            (1.0, &mut [][..], &mut [][..], &mut [][..], &mut **ids, &mut **probabilities)
        }
    };
    let work = Split::new(&mut workspace[..layout.total]);
    let (losses, ids, best) = (Split::new(losses), Split::new(ids), Split::new(best));
    let (d_x, d_weight, d_bias) = (Split::new(d_x), Split::new(d_weight), Split::new(d_bias));
    let barrier = team.barrier();
    let workers = team.threads();
    team.run(|worker| {
        let own = |n: usize| n * worker / workers..n * (worker + 1) / workers;
        let mut done: Option<(usize, usize)> = None;
        for first in (0..rows).step_by(HEAD_ROWS) {
            let count = HEAD_ROWS.min(rows - first);
            let chunk = Chunk {
                x: &x[first * width..(first + count) * width],
                count,
                width,
                layout: &layout,
            };
            let targets = &targets[first..first + count];
            // SAFETY: between barriers each worker writes its own columns, blocks or rows only.
            unsafe {
                if let Some((first, count)) = done.filter(|_| gradients) {
                    chunk.gather_d_x(&work, &d_x, first, own(count));
                }
                chunk.turn(&work, own(width));
                barrier.wait();
                for b in own(layout.blocks) {
                    chunk.logits(&work, weight, bias, targets, b, vocab, !gradients);
                }
                barrier.wait();
                let total = chunk.combine(&work);
                if worker == 0 {
                    let out = losses.part(first..first + count);
                    let target = work.part(layout.target..layout.target + HEAD_ROWS);
                    for (r, loss) in out.iter_mut().enumerate() {
                        let ignored = targets[r] == u32::MAX;
                        *loss = if ignored { 0.0 } else { total.log_sum[r] - target[r] };
                    }
                    if !gradients {
                        let (ids, best) =
                            (ids.part(first..first + count), best.part(first..first + count));
                        ids.copy_from_slice(&total.ids[..count]);
                        best.copy_from_slice(&total.best[..count]);
                    }
                }
                if gradients {
                    for b in own(layout.blocks) {
                        chunk.gradients(
                            &work, &total, targets, b, vocab, scale, weight, &d_weight, &d_bias,
                        );
                    }
                }
                barrier.wait();
            }
            done = Some((first, count));
        }
        if let Some((first, count)) = done.filter(|_| gradients) {
            let chunk = Chunk { x: &[], count, width, layout: &layout };
            // SAFETY: each worker writes its own rows.
            unsafe { chunk.gather_d_x(&work, &d_x, first, own(count)) };
        }
    });
}

/// Values of workspace that [`head_logits`] needs.
pub fn logits_workspace(width: usize, threads: usize) -> usize {
    width * HEAD_ROWS + threads * STEP * HEAD_ROWS
}

/// z = W·x_r + b for every row, R×V: the same bits that [`head_cross_entropy`] computes inside.
pub fn head_logits(
    team: &Team,
    shape: HeadShape,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    logits: &mut [f32],
    workspace: &mut [f32],
) {
    let HeadShape { rows, width, vocab } = shape;
    assert!(x.len() == rows * width && weight.len() == vocab * width, "logits: R×C and V×C");
    assert!(bias.is_empty() || bias.len() == vocab, "logits: a bias an entry");
    assert!(logits.len() == rows * vocab, "logits: R×V");
    assert!(workspace.len() >= logits_workspace(width, team.threads()), "logits: workspace");
    let (turned, tiles) = workspace.split_at_mut(width * HEAD_ROWS);
    let (logits, tiles) = (Split::new(logits), Split::new(tiles));
    for first in (0..rows).step_by(HEAD_ROWS) {
        let count = HEAD_ROWS.min(rows - first);
        for (c, line) in turned.chunks_exact_mut(HEAD_ROWS).enumerate() {
            for (r, v) in line[..count].iter_mut().enumerate() {
                *v = x[(first + r) * width + c];
            }
        }
        let turned = &*turned;
        team.worker_tasks(vocab.div_ceil(STEP), |worker, task| {
            let v = task * STEP;
            let n = STEP.min(vocab - v);
            // SAFETY: a worker's tile is its own; a task writes its own columns of every row.
            unsafe {
                let tile = tiles.part(worker * STEP * HEAD_ROWS..(worker + 1) * STEP * HEAD_ROWS);
                let a = Strided { start: weight[v * width..].as_ptr(), row: width, col: 1 };
                let c = tile.as_mut_ptr();
                block(a, turned.as_ptr(), HEAD_ROWS, c, HEAD_ROWS, n, count, width, Init::Zero);
                for r in 0..count {
                    let at = (first + r) * vocab + v;
                    for (i, out) in logits.part(at..at + n).iter_mut().enumerate() {
                        let b = if bias.is_empty() { 0.0 } else { bias[v + i] };
                        *out = tile[i * HEAD_ROWS + r] + b;
                    }
                }
            }
        });
    }
}

/// The softmax of a chunk's rows, put together from all blocks.
struct Total {
    max: [f32; HEAD_ROWS],
    sum: [f32; HEAD_ROWS],
    log_sum: [f32; HEAD_ROWS],
    ids: [u32; HEAD_ROWS],
    best: [f32; HEAD_ROWS],
}

struct Chunk<'a> {
    x: &'a [f32],
    count: usize,
    width: usize,
    layout: &'a Layout,
}

impl Chunk<'_> {
    /// xᵀ, C×64, columns past the chunk's rows zero.
    unsafe fn turn(&self, work: &Split<f32>, columns: std::ops::Range<usize>) {
        let at = self.layout.turned;
        // SAFETY: each worker turns its own columns.
        let out =
            unsafe { work.part(at + columns.start * HEAD_ROWS..at + columns.end * HEAD_ROWS) };
        for (line, c) in out.chunks_exact_mut(HEAD_ROWS).zip(columns) {
            for (r, v) in line.iter_mut().enumerate() {
                *v = if r < self.count { self.x[r * self.width + c] } else { 0.0 };
            }
        }
    }

    /// Block b: e^{z - max} in place of the logits, the rows' maxima and sums beside them.
    unsafe fn logits(
        &self,
        work: &Split<f32>,
        weight: &[f32],
        bias: &[f32],
        targets: &[u32],
        b: usize,
        vocab: usize,
        best: bool,
    ) {
        let (from, to) = (b * BLOCK, ((b + 1) * BLOCK).min(vocab));
        let width = self.width;
        // SAFETY: a block's logits, statistics and target logits belong to one worker; the
        // turned chunk is only read here.
        unsafe {
            let logits = work.part(from * HEAD_ROWS..to * HEAD_ROWS);
            let turned = work.pointer().add(self.layout.turned);
            let at = self.layout.per_block + b * 3 * HEAD_ROWS;
            let stats = work.part(at..at + 3 * HEAD_ROWS);
            stats[..HEAD_ROWS].fill(f32::NEG_INFINITY);
            for v in (from..to).step_by(STEP) {
                let n = STEP.min(to - v);
                let part = &mut logits[(v - from) * HEAD_ROWS..(v - from + n) * HEAD_ROWS];
                let a = Strided { start: weight.as_ptr().add(v * width), row: width, col: 1 };
                block(
                    a,
                    turned,
                    HEAD_ROWS,
                    part.as_mut_ptr(),
                    HEAD_ROWS,
                    n,
                    HEAD_ROWS,
                    width,
                    Init::Zero,
                );
                let bias = if bias.is_empty() { bias } else { &bias[v..v + n] };
                bias_and_max(part, bias, &mut stats[..HEAD_ROWS]);
            }
            for (r, &t) in targets.iter().enumerate() {
                let t = t as usize;
                if (from..to).contains(&t) {
                    work.part(self.layout.target + r..self.layout.target + r + 1)[0] =
                        logits[(t - from) * HEAD_ROWS + r];
                }
            }
            if best {
                find_best(logits, stats, from as f32);
            }
            exp_and_sum(logits, stats);
        }
    }

    /// Puts the blocks of every row together, in ascending order.
    unsafe fn combine(&self, work: &Split<f32>) -> Total {
        let l = self.layout;
        // SAFETY: only read between these barriers.
        let stats: &[f32] =
            unsafe { work.part(l.per_block..l.per_block + l.blocks * 3 * HEAD_ROWS) };
        let mut total = Total {
            max: [f32::NEG_INFINITY; HEAD_ROWS],
            sum: [0.0; HEAD_ROWS],
            log_sum: [0.0; HEAD_ROWS],
            ids: [0; HEAD_ROWS],
            best: [0.0; HEAD_ROWS],
        };
        for stats in stats.chunks_exact(3 * HEAD_ROWS) {
            for (r, max) in total.max.iter_mut().enumerate() {
                if stats[r] > *max {
                    *max = stats[r];
                    total.ids[r] = (TOP - stats[2 * HEAD_ROWS + r]) as u32;
                }
            }
        }
        let mut factor = [0.0f32; HEAD_ROWS];
        for stats in stats.chunks_exact(3 * HEAD_ROWS) {
            factors(&mut factor, &stats[..HEAD_ROWS], &total.max);
            for r in 0..HEAD_ROWS {
                total.sum[r] += stats[HEAD_ROWS + r] * factor[r];
            }
        }
        for r in 0..HEAD_ROWS {
            total.log_sum[r] = total.max[r] + total.sum[r].ln();
            total.best[r] = 1.0 / total.sum[r];
        }
        total
    }

    /// Block b: d_logits in place, added to d_weight and d_bias, its share of d_x put aside.
    unsafe fn gradients(
        &self,
        work: &Split<f32>,
        total: &Total,
        targets: &[u32],
        b: usize,
        vocab: usize,
        scale: f32,
        weight: &[f32],
        d_weight: &Split<f32>,
        d_bias: &Split<f32>,
    ) {
        let (from, to) = (b * BLOCK, ((b + 1) * BLOCK).min(vocab));
        let (width, l) = (self.width, self.layout);
        // SAFETY: a block's logits, gradients and share of d_x belong to one worker.
        unsafe {
            let logits = work.part(from * HEAD_ROWS..to * HEAD_ROWS);
            let stats =
                work.part(l.per_block + b * 3 * HEAD_ROWS..l.per_block + (b * 3 + 1) * HEAD_ROWS);
            let mut factor = [0.0f32; HEAD_ROWS];
            factors(&mut factor, stats, &total.max);
            for (r, f) in factor.iter_mut().enumerate() {
                let counted = r < self.count && targets[r] != u32::MAX;
                *f = if counted { *f * (scale / total.sum[r]) } else { 0.0 };
            }
            let share_at = l.d_x + b * HEAD_ROWS * width;
            let share = work.part(share_at..share_at + HEAD_ROWS * width);
            for v in (from..to).step_by(STEP) {
                let n = STEP.min(to - v);
                let part = &mut logits[(v - from) * HEAD_ROWS..(v - from + n) * HEAD_ROWS];
                scale_lines(part, &factor);
                for (r, &t) in targets.iter().enumerate() {
                    let t = t as usize;
                    if (v..v + n).contains(&t) {
                        part[(t - v) * HEAD_ROWS + r] -= scale;
                    }
                }
                if d_bias.len() > 0 {
                    add_line_sums(part, d_bias.part(v..v + n));
                }
                let dw = d_weight.part(v * width..(v + n) * width);
                let lines = Strided { start: part.as_ptr(), row: HEAD_ROWS, col: 1 };
                block(
                    lines,
                    self.x.as_ptr(),
                    width,
                    dw.as_mut_ptr(),
                    width,
                    n,
                    width,
                    self.count,
                    Init::Keep,
                );
                let rows = Strided { start: part.as_ptr(), row: 1, col: HEAD_ROWS };
                let start = if v == from { Init::Zero } else { Init::Keep };
                let w = weight.as_ptr().add(v * width);
                block(rows, w, width, share.as_mut_ptr(), width, self.count, width, n, start);
            }
        }
    }

    /// d_x of rows `rows` of the chunk that started at `first`: the blocks' shares in order.
    unsafe fn gather_d_x(
        &self,
        work: &Split<f32>,
        d_x: &Split<f32>,
        first: usize,
        rows: std::ops::Range<usize>,
    ) {
        let (width, l) = (self.width, self.layout);
        let range = rows.start * width..rows.end * width;
        // SAFETY: each worker gathers its own rows; the shares are only read.
        unsafe {
            let out = d_x.part((first + rows.start) * width..(first + rows.end) * width);
            for b in 0..l.blocks {
                let at = l.d_x + b * HEAD_ROWS * width;
                let share: &[f32] = work.part(at + range.start..at + range.end);
                if b == 0 {
                    out.copy_from_slice(share);
                } else {
                    out.iter_mut().zip(share).for_each(|(o, s)| *o += s);
                }
            }
        }
    }
}

const VECS: usize = HEAD_ROWS / LANES;

#[inline(always)]
unsafe fn bias_and_max_body<S: Lanes>(lines: &mut [f32], bias: &[f32], max: &mut [f32]) {
    // SAFETY: lines and max hold whole lines of 64 values.
    unsafe {
        let mut top = [S::splat(0.0); VECS];
        for (i, t) in top.iter_mut().enumerate() {
            *t = S::load(max.as_ptr().add(i * LANES));
        }
        for (v, line) in lines.chunks_exact_mut(HEAD_ROWS).enumerate() {
            let b = S::splat(if bias.is_empty() { 0.0 } else { bias[v] });
            for (i, t) in top.iter_mut().enumerate() {
                let p = line.as_mut_ptr().add(i * LANES);
                let z = S::load(p).add(b);
                z.store(p);
                *t = t.max(z);
            }
        }
        for (i, t) in top.iter().enumerate() {
            t.store(max.as_mut_ptr().add(i * LANES));
        }
    }
}
stamp!(fn bias_and_max_raw(lines: &mut [f32], bias: &[f32], max: &mut [f32]) = bias_and_max_body);
fn bias_and_max(lines: &mut [f32], bias: &[f32], max: &mut [f32]) {
    assert!(max.len() == HEAD_ROWS && lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { bias_and_max_raw(lines, bias, max) }
}

#[inline(always)]
unsafe fn find_best_body<S: Lanes>(lines: &[f32], stats: &mut [f32], from: f32) {
    // SAFETY: lines hold whole lines, stats three of them.
    unsafe {
        for i in 0..VECS {
            let max = S::load(stats.as_ptr().add(i * LANES));
            let mut best = S::splat(0.0);
            for (v, line) in lines.chunks_exact(HEAD_ROWS).enumerate() {
                let z = S::load(line.as_ptr().add(i * LANES));
                let mark = S::splat(TOP - from - v as f32);
                best = best.max(mark.keep_at_least(z, max));
            }
            best.store(stats.as_mut_ptr().add(2 * HEAD_ROWS + i * LANES));
        }
    }
}
stamp!(fn find_best_raw(lines: &[f32], stats: &mut [f32], from: f32) = find_best_body);
fn find_best(lines: &[f32], stats: &mut [f32], from: f32) {
    assert_eq!(stats.len(), 3 * HEAD_ROWS);
    // SAFETY: whole lines.
    unsafe { find_best_raw(lines, stats, from) }
}

#[inline(always)]
unsafe fn exp_and_sum_body<S: Lanes>(lines: &mut [f32], stats: &mut [f32]) {
    // SAFETY: lines hold whole lines, stats three of them.
    unsafe {
        let mut max = [S::splat(0.0); VECS];
        let mut sum = [S::splat(0.0); VECS];
        for (i, m) in max.iter_mut().enumerate() {
            *m = S::load(stats.as_ptr().add(i * LANES));
        }
        for line in lines.chunks_exact_mut(HEAD_ROWS) {
            for i in 0..VECS {
                let p = line.as_mut_ptr().add(i * LANES);
                let e = math::exp_share(S::load(p).sub(max[i]));
                e.store(p);
                sum[i] = sum[i].add(e);
            }
        }
        for (i, s) in sum.iter().enumerate() {
            s.store(stats.as_mut_ptr().add(HEAD_ROWS + i * LANES));
        }
    }
}
stamp!(fn exp_and_sum_raw(lines: &mut [f32], stats: &mut [f32]) = exp_and_sum_body);
fn exp_and_sum(lines: &mut [f32], stats: &mut [f32]) {
    assert!(stats.len() == 3 * HEAD_ROWS && lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { exp_and_sum_raw(lines, stats) }
}

#[inline(always)]
unsafe fn factors_body<S: Lanes>(out: &mut [f32], local: &[f32], max: &[f32]) {
    // SAFETY: three lines of 64 values.
    unsafe {
        for i in 0..VECS {
            let difference =
                S::load(local.as_ptr().add(i * LANES)).sub(S::load(max.as_ptr().add(i * LANES)));
            math::exp_share(difference).store(out.as_mut_ptr().add(i * LANES));
        }
    }
}
stamp!(fn factors_raw(out: &mut [f32], local: &[f32], max: &[f32]) = factors_body);
/// out = e^{local - max}
fn factors(out: &mut [f32], local: &[f32], max: &[f32]) {
    assert!(out.len() == HEAD_ROWS && local.len() == HEAD_ROWS && max.len() == HEAD_ROWS);
    // SAFETY: whole lines.
    unsafe { factors_raw(out, local, max) }
}

#[inline(always)]
unsafe fn scale_lines_body<S: Lanes>(lines: &mut [f32], factor: &[f32]) {
    // SAFETY: whole lines.
    unsafe {
        let mut f = [S::splat(0.0); VECS];
        for (i, f) in f.iter_mut().enumerate() {
            *f = S::load(factor.as_ptr().add(i * LANES));
        }
        for line in lines.chunks_exact_mut(HEAD_ROWS) {
            for (i, f) in f.iter().enumerate() {
                let p = line.as_mut_ptr().add(i * LANES);
                S::load(p).mul(*f).store(p);
            }
        }
    }
}
stamp!(fn scale_lines_raw(lines: &mut [f32], factor: &[f32]) = scale_lines_body);
fn scale_lines(lines: &mut [f32], factor: &[f32]) {
    assert!(factor.len() == HEAD_ROWS && lines.len().is_multiple_of(HEAD_ROWS));
    // SAFETY: whole lines.
    unsafe { scale_lines_raw(lines, factor) }
}

#[inline(always)]
unsafe fn add_line_sums_body<S: Lanes>(lines: &[f32], out: &mut [f32]) {
    // SAFETY: whole lines.
    unsafe {
        for (line, out) in lines.chunks_exact(HEAD_ROWS).zip(out) {
            let mut sum = S::load(line.as_ptr());
            for i in 1..VECS {
                sum = sum.add(S::load(line.as_ptr().add(i * LANES)));
            }
            *out += sum.sum();
        }
    }
}
stamp!(fn add_line_sums_raw(lines: &[f32], out: &mut [f32]) = add_line_sums_body);
fn add_line_sums(lines: &[f32], out: &mut [f32]) {
    assert_eq!(lines.len(), out.len() * HEAD_ROWS);
    // SAFETY: whole lines.
    unsafe { add_line_sums_raw(lines, out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, reference};

    fn values(n: usize, seed: u64, scale: f32) -> Vec<f32> {
        (0..n as u64).map(|i| scale * crate::normal(seed, i)).collect()
    }
    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }

    fn plain(x: &[f64], w: &[f64], b: &[f64], width: usize, targets: &[u32]) -> Vec<f64> {
        x.chunks(width)
            .zip(targets)
            .map(|(x, &t)| {
                if t == u32::MAX {
                    return 0.0;
                }
                let z: Vec<f64> = w
                    .chunks(width)
                    .enumerate()
                    .map(|(v, w)| {
                        w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()
                            + b.get(v).copied().unwrap_or(0.0)
                    })
                    .collect();
                let top = z.iter().copied().fold(f64::MIN, f64::max);
                top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln() - z[t as usize]
            })
            .collect()
    }

    #[test]
    fn loss_and_gradients_agree_with_finite_differences() {
        let _level = crate::isa::hold();
        let (rows, width, vocab) = (70, 5, 9);
        let (x, w, b) =
            (values(rows * width, 1, 1.0), values(vocab * width, 2, 1.0), values(vocab, 3, 1.0));
        let mut targets: Vec<u32> = (0..rows as u32).map(|r| r * 7 % 9).collect();
        targets[3] = u32::MAX;
        for isa in Isa::available() {
            isa.force();
            let team = Team::new(2);
            let shape = HeadShape { rows, width, vocab };
            let mut losses = vec![0.0; rows];
            let (mut dx, mut dw, mut db) =
                (vec![7.0; rows * width], vec![0.0; vocab * width], vec![0.0; vocab]);
            let mut work = vec![0.0; head_workspace(width, vocab, true)];
            let mut out = HeadOutput::Gradients {
                scale: 0.5,
                d_x: &mut dx,
                d_weight: &mut dw,
                d_bias: &mut db,
            };
            head_cross_entropy(
                &team,
                shape,
                &x,
                &w,
                &b,
                &targets,
                &mut losses,
                &mut out,
                &mut work,
            );
            let (x64, w64, b64) = (wide(&x), wide(&w), wide(&b));
            reference::assert_close(
                &losses,
                &plain(&x64, &w64, &b64, width, &targets),
                1e-6,
                "loss",
            );
            let sum = |l: Vec<f64>| 0.5 * l.iter().sum::<f64>();
            let right =
                reference::numeric_gradient(&x64, |x| sum(plain(x, &w64, &b64, width, &targets)));
            reference::assert_close(&dx, &right, 1e-6, "d_x");
            let right =
                reference::numeric_gradient(&w64, |w| sum(plain(&x64, w, &b64, width, &targets)));
            reference::assert_close(&dw, &right, 3e-6, "d_weight");
            let right =
                reference::numeric_gradient(&b64, |b| sum(plain(&x64, &w64, b, width, &targets)));
            reference::assert_close(&db, &right, 3e-6, "d_bias");
        }
    }

    #[test]
    fn best_is_the_lowest_of_equals_and_bits_do_not_depend_on_threads() {
        let _level = crate::isa::hold();
        let (rows, width, vocab) = (130, 24, 1000);
        let x = values(rows * width, 1, 1.0);
        let mut w = values(vocab * width, 2, 1.0);
        // Entry 900 repeats entry 17: a tie wherever one of them is best.
        let copy: Vec<f32> = w[17 * width..18 * width].iter().map(|v| v * 3.0).collect();
        w[17 * width..18 * width].copy_from_slice(&copy);
        w[900 * width..901 * width].copy_from_slice(&copy);
        let targets: Vec<u32> = (0..rows as u32).collect();
        let mut seen = Vec::new();
        for isa in Isa::available().filter(|&i| i != Isa::Plain) {
            isa.force();
            for threads in [1, 2, 3] {
                let team = Team::new(threads);
                let (mut ids, mut p, mut losses) =
                    (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
                let mut work = vec![0.0; head_workspace(width, vocab, true)];
                let shape = HeadShape { rows, width, vocab };
                let mut out = HeadOutput::Best { ids: &mut ids, probabilities: &mut p };
                head_cross_entropy(
                    &team,
                    shape,
                    &x,
                    &w,
                    &[],
                    &targets,
                    &mut losses,
                    &mut out,
                    &mut work,
                );
                for r in 0..rows {
                    let z: Vec<f64> = reference::matmul_transposed(
                        &x[r * width..(r + 1) * width],
                        &w,
                        None,
                        1,
                        vocab,
                        width,
                    );
                    let top = z.iter().copied().fold(f64::MIN, f64::max);
                    let right = z.iter().position(|&z| z == top).unwrap();
                    assert_eq!(ids[r] as usize, right, "row {r}");
                }
                assert!(ids.contains(&17) && !ids.contains(&900));
                let (mut dx, mut dw) = (vec![0.0; rows * width], vec![0.0; vocab * width]);
                let mut out = HeadOutput::Gradients {
                    scale: 0.01,
                    d_x: &mut dx,
                    d_weight: &mut dw,
                    d_bias: &mut [],
                };
                head_cross_entropy(
                    &team,
                    shape,
                    &x,
                    &w,
                    &[],
                    &targets,
                    &mut losses,
                    &mut out,
                    &mut work,
                );
                let bits: Vec<u32> =
                    losses.iter().chain(&dx).chain(&dw).chain(&p).map(|x| x.to_bits()).collect();
                seen.push(bits);
            }
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
