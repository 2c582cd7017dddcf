//! The output projection fused with softmax and cross-entropy: logits are never stored whole.
//!
//! 64 rows at a time. A task owns a run of the vocabulary: it ends the chunk before (gradients) and
//! begins the next (logits) while its weights are in the cache. Logits are kept transposed (a
//! vocabulary entry a line, the rows as lanes), so that softmax needs no sum across lanes and all
//! three products read memory in order. A row's result is built from the runs in ascending order,
//! whoever computed them.

mod lines;

use lines::{add_line_sums, bias_and_max, combine, exp_and_sum, find_best, scale_lines};

use crate::lanes::LANES;
use crate::matmul::{Init, Strided, block};
use crate::split::Split;
use crate::team::Team;

/// Rows that are in work at a time.
pub const HEAD_ROWS: usize = 64;
/// Vocabulary entries that are in work at a time: their logits have a maximum and a sum.
const STEP: usize = 64;
/// Entries a task takes at least; its share of d_x is a sum over them.
const GROUP: usize = 256;
/// Tasks at most, so that the shares of d_x do not grow with V.
const MAX_GROUPS: usize = 64;
/// Lines of statistics a step: maxima, sums, best entries.
const STATS: usize = 3;
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
    /// Logits z become this·tanh(z/this); as they are when absent.
    pub soft_cap: Option<f32>,
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
        /// R, written: log Σ e^z of each row, 0 without a target.
        log_z: &'a mut [f32],
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
    /// Vocabulary entries a share of d_x sums over.
    group: usize,
    groups: usize,
    turned: usize,
    stats: usize,
    target: usize,
    max: usize,
    factor: usize,
    d_x: usize,
    total: usize,
}

fn layout(width: usize, vocab: usize, gradients: bool) -> Layout {
    let group = vocab.div_ceil(MAX_GROUPS).next_multiple_of(STEP).max(GROUP);
    let groups = vocab.div_ceil(group);
    let turned = vocab * HEAD_ROWS;
    let stats = turned + width * HEAD_ROWS;
    let target = stats + vocab.div_ceil(STEP) * STATS * HEAD_ROWS;
    let max = target + HEAD_ROWS;
    let factor = max + HEAD_ROWS;
    let d_x = factor + HEAD_ROWS;
    let total = d_x + if gradients { groups * HEAD_ROWS * width } else { 0 };
    Layout { group, groups, turned, stats, target, max, factor, d_x, total }
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
    let HeadShape { rows, width, vocab, soft_cap } = shape;
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
    let mut no_ids = Vec::new();
    let (scale, d_x, d_weight, d_bias, ids, best) = match output {
        HeadOutput::Gradients { scale, d_x, d_weight, d_bias, log_z } => {
            assert!(d_x.len() == x.len() && d_weight.len() == weight.len(), "head: gradients");
            assert!(d_bias.len() == bias.len() && log_z.len() == rows, "head: bias, log-sums");
            (*scale, &mut **d_x, &mut **d_weight, &mut **d_bias, &mut no_ids[..], &mut **log_z)
        }
        HeadOutput::Best { ids, probabilities } => {
            assert!(ids.len() == rows && probabilities.len() == rows, "head: best a row");
            (1.0, &mut [][..], &mut [][..], &mut [][..], &mut **ids, &mut **probabilities)
        }
    };
    let head = Head {
        width,
        vocab,
        weight,
        bias,
        scale,
        soft_cap,
        gradients,
        layout: &layout,
        work: Split::new(&mut workspace[..layout.total]),
    };
    let (losses, ids, best) = (Split::new(losses), Split::new(ids), Split::new(best));
    let (d_x, d_weight, d_bias) = (Split::new(d_x), Split::new(d_weight), Split::new(d_bias));
    let chunk = |i: usize| {
        let range = i * HEAD_ROWS..rows.min((i + 1) * HEAD_ROWS);
        Chunk { x: &x[range.start * width..range.end * width], targets: &targets[range] }
    };
    let chunks = rows.div_ceil(HEAD_ROWS);
    let row_tasks = HEAD_ROWS / LANES;
    let lanes = |task: usize| task * LANES..(task + 1) * LANES;
    if rows > 0 {
        // SAFETY: each task writes its own lanes.
        team.tasks(row_tasks, |task| unsafe { head.turn(&chunk(0), lanes(task)) });
    }
    for stage in 0..chunks + usize::from(gradients) {
        let (now, before) = (stage < chunks, stage > 0 && gradients);
        team.tasks(layout.groups, |group| {
            // SAFETY: a task writes the logits, statistics, gradients and share of its own group.
            unsafe {
                if before {
                    head.gradients(&chunk(stage - 1), group, &d_weight, &d_bias);
                }
                if now {
                    head.logits(&chunk(stage), group);
                }
            }
        });
        team.tasks(row_tasks, |task| {
            // SAFETY: a task writes what belongs to its own lanes and rows.
            unsafe {
                if before {
                    head.gather_d_x(&d_x, (stage - 1) * HEAD_ROWS, rows, lanes(task));
                }
                if now {
                    head.combine(lanes(task));
                    head.conclude(
                        &chunk(stage),
                        lanes(task),
                        stage * HEAD_ROWS,
                        [&losses, &best],
                        &ids,
                    );
                }
                if stage + 1 < chunks {
                    head.turn(&chunk(stage + 1), lanes(task));
                }
            }
        });
    }
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
    let HeadShape { rows, width, vocab, soft_cap } = shape;
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
                        let z = tile[i * HEAD_ROWS + r] + b;
                        *out = soft_cap.map_or(z, |limit| capped(z, limit));
                    }
                }
            }
        });
    }
}

/// Losses, most probable ids (ties to the lowest) and their probabilities of rows whose logits are
/// there (R×V). A row without a target (`u32::MAX`) has loss 0.
pub fn row_losses(
    team: &Team,
    logits: &[f32],
    targets: &[u32],
    losses: &mut [f32],
    ids: &mut [u32],
    best: &mut [f32],
) {
    let rows = targets.len();
    assert!(losses.len() == rows && ids.len() == rows && best.len() == rows, "one a row");
    assert!(rows > 0 && logits.len().is_multiple_of(rows), "R×V");
    let vocab = logits.len() / rows;
    let (losses, ids, best) = (Split::new(losses), Split::new(ids), Split::new(best));
    team.tasks(rows, |r| {
        let z = &logits[r * vocab..(r + 1) * vocab];
        let (mut id, mut top) = (0, f32::NEG_INFINITY);
        for (i, &z) in z.iter().enumerate() {
            if z > top {
                (id, top) = (i, z);
            }
        }
        let sum: f64 = z.iter().map(|&z| f64::from(z - top).exp()).sum();
        // SAFETY: each task writes its own row.
        unsafe {
            ids.part(r..r + 1)[0] = id as u32;
            best.part(r..r + 1)[0] = (1.0 / sum) as f32;
            losses.part(r..r + 1)[0] = match targets[r] {
                u32::MAX => 0.0,
                t => (sum.ln() - f64::from(z[t as usize] - top)) as f32,
            };
        }
    });
}

/// Losses and log Σ e^z of rows whose logits are there (R×V), which become their gradients of
/// Σ scale·loss. Logits that are already bent by `soft_cap` become gradients of what they were before
/// it. A row without a target (`u32::MAX`) has loss, log-sum and gradient 0.
pub fn row_gradients(
    team: &Team,
    logits: &mut [f32],
    targets: &[u32],
    (scale, soft_cap): (f32, Option<f32>),
    [losses, log_z]: [&mut [f32]; 2],
) {
    let rows = targets.len();
    assert!(losses.len() == rows && log_z.len() == rows, "one a row");
    assert!(rows > 0 && logits.len().is_multiple_of(rows), "R×V");
    let vocab = logits.len() / rows;
    let (losses, log_z, logits) = (Split::new(losses), Split::new(log_z), Split::new(logits));
    team.tasks(rows, |r| {
        // SAFETY: each task writes its own row.
        let (loss, log_z, z) = unsafe {
            let z = logits.part(r * vocab..(r + 1) * vocab);
            (&mut losses.part(r..r + 1)[0], &mut log_z.part(r..r + 1)[0], z)
        };
        (*loss, *log_z) = (0.0, 0.0);
        let target = targets[r];
        if target == u32::MAX {
            return z.fill(0.0);
        }
        let top = z.iter().fold(f32::NEG_INFINITY, |top, &z| top.max(z));
        let sum: f64 = z.iter().map(|&z| f64::from(z - top).exp()).sum();
        *loss = (sum.ln() - f64::from(z[target as usize] - top)) as f32;
        *log_z = (f64::from(top) + sum.ln()) as f32;
        for (i, z) in z.iter_mut().enumerate() {
            let share = f64::from(*z - top).exp() / sum;
            let right = if i == target as usize { 1.0 } else { 0.0 };
            let slope = soft_cap.map_or(1.0, |limit| 1.0 - (*z / limit) * (*z / limit));
            *z = scale * (share - right) as f32 * slope;
        }
    });
}

/// What all chunks share.
struct Head<'a> {
    width: usize,
    vocab: usize,
    weight: &'a [f32],
    bias: &'a [f32],
    scale: f32,
    soft_cap: Option<f32>,
    gradients: bool,
    layout: &'a Layout,
    work: Split<'a, f32>,
}

/// Up to 64 rows.
struct Chunk<'a> {
    x: &'a [f32],
    targets: &'a [u32],
}

impl Head<'_> {
    /// The vocabulary entries of a group, a step at a time.
    fn steps(&self, group: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let to = self.vocab.min((group + 1) * self.layout.group);
        (group * self.layout.group..to).step_by(STEP).map(move |v| v..to.min(v + STEP))
    }

    /// The statistics of the step that starts at entry v.
    fn stats(&self, v: usize) -> std::ops::Range<usize> {
        let at = self.layout.stats + v / STEP * STATS * HEAD_ROWS;
        at..at + STATS * HEAD_ROWS
    }

    /// xᵀ, C×64, columns past the chunk's rows zero.
    unsafe fn turn(&self, chunk: &Chunk, rows: std::ops::Range<usize>) {
        for c in 0..self.width {
            let at = self.layout.turned + c * HEAD_ROWS;
            // SAFETY: each task turns its own rows.
            let line = unsafe { self.work.part(at + rows.start..at + rows.end) };
            for (v, r) in line.iter_mut().zip(rows.clone()) {
                *v = chunk.x.get(r * self.width + c).copied().unwrap_or(0.0);
            }
        }
    }

    /// A group: e^{z - max} in place of the logits, a step's maxima and sums beside them.
    unsafe fn logits(&self, chunk: &Chunk, group: usize) {
        let width = self.width;
        for step in self.steps(group) {
            // SAFETY: a group's logits, statistics and target logits belong to one task; the
            // turned chunk is only read here.
            unsafe {
                let part = self.work.part(step.start * HEAD_ROWS..step.end * HEAD_ROWS);
                let stats = self.work.part(self.stats(step.start));
                let start = self.weight.as_ptr().add(step.start * width);
                let a = Strided { start, row: width, col: 1 };
                let turned = self.work.pointer().add(self.layout.turned);
                let (c, n) = (part.as_mut_ptr(), step.len());
                block(a, turned, HEAD_ROWS, c, HEAD_ROWS, n, HEAD_ROWS, width, Init::Zero);
                let bias = if self.bias.is_empty() { &[] } else { &self.bias[step.clone()] };
                bias_and_max(part, bias, &mut stats[..HEAD_ROWS]);
                if let Some(limit) = self.soft_cap {
                    part.iter_mut().for_each(|z| *z = capped(*z, limit));
                    // The bend is monotonic, so the largest stays the largest.
                    stats[..HEAD_ROWS].iter_mut().for_each(|z| *z = capped(*z, limit));
                }
                for (r, &t) in chunk.targets.iter().enumerate() {
                    let t = t as usize;
                    if step.contains(&t) {
                        let at = self.layout.target + r;
                        self.work.part(at..at + 1)[0] = part[(t - step.start) * HEAD_ROWS + r];
                    }
                }
                if !self.gradients {
                    find_best(part, stats, step.start as f32);
                }
                exp_and_sum(part, stats);
            }
        }
    }

    /// The softmax of some lanes, put together from all steps in ascending order: the maximum and
    /// the sum.
    unsafe fn combine(&self, rows: std::ops::Range<usize>) {
        let l = self.layout;
        // SAFETY: the statistics are only read now; each task writes its own lanes.
        unsafe {
            let stats = self.work.read(l.stats..l.target);
            let max = self.work.part(l.max + rows.start..l.max + rows.end);
            let sum = self.work.part(l.factor + rows.start..l.factor + rows.end);
            combine(&stats[rows.start..], max, sum);
        }
    }

    /// Loss and best entry of some rows; leaves what their gradients are multiplied by.
    unsafe fn conclude(
        &self,
        chunk: &Chunk,
        rows: std::ops::Range<usize>,
        first: usize,
        [losses, best]: [&Split<f32>; 2],
        ids: &Split<u32>,
    ) {
        let l = self.layout;
        for r in rows {
            // SAFETY: each task writes its own rows.
            unsafe {
                let factor = self.work.part(l.factor + r..l.factor + r + 1);
                let sum = factor[0];
                factor[0] = 0.0;
                let Some(&target) = chunk.targets.get(r) else { continue };
                let max = self.work.read(l.max + r..l.max + r + 1)[0];
                let row = first + r..first + r + 1;
                let loss = &mut losses.part(row.clone())[0];
                *loss = 0.0;
                if self.gradients {
                    best.part(row.clone())[0] =
                        if target == u32::MAX { 0.0 } else { max + sum.ln() };
                }
                if target != u32::MAX {
                    *loss = max + sum.ln() - self.work.read(l.target + r..l.target + r + 1)[0];
                    factor[0] = self.scale / sum;
                }
                if !self.gradients {
                    best.part(row.clone())[0] = 1.0 / sum;
                    let of_max =
                        (0..self.vocab).step_by(STEP).map(|v| self.work.read(self.stats(v)));
                    let step = of_max.into_iter().find(|stats| stats[r] == max);
                    ids.part(row)[0] =
                        step.map_or(0, |stats| (TOP - stats[2 * HEAD_ROWS + r]) as u32);
                }
            }
        }
    }

    /// A group: d_logits in place, added to d_weight and d_bias, its share of d_x put aside.
    unsafe fn gradients(
        &self,
        chunk: &Chunk,
        group: usize,
        d_weight: &Split<f32>,
        d_bias: &Split<f32>,
    ) {
        let (width, l, count) = (self.width, self.layout, chunk.targets.len());
        // SAFETY: a group's logits, gradients and share of d_x belong to one task.
        unsafe {
            let share_at = l.d_x + group * HEAD_ROWS * width;
            let share = self.work.part(share_at..share_at + HEAD_ROWS * width);
            let line = |at: usize| self.work.read(at..at + HEAD_ROWS);
            let mut start = Init::Zero;
            for step in self.steps(group) {
                let n = step.len();
                let part = self.work.part(step.start * HEAD_ROWS..step.end * HEAD_ROWS);
                let stats = self.work.read(self.stats(step.start));
                let (max, factor) = (line(l.max), line(l.factor));
                if let Some(limit) = self.soft_cap {
                    bend_lines(part, &stats[..HEAD_ROWS], limit);
                }
                scale_lines(part, &stats[..HEAD_ROWS], max, factor);
                for (r, &t) in chunk.targets.iter().enumerate() {
                    let t = t as usize;
                    if step.contains(&t) {
                        let slope =
                            self.soft_cap.map_or(1.0, |limit| slope_of(line(l.target)[r], limit));
                        part[(t - step.start) * HEAD_ROWS + r] -= self.scale * slope;
                    }
                }
                if d_bias.len() > 0 {
                    add_line_sums(part, d_bias.part(step.clone()));
                }
                let dw = d_weight.part(step.start * width..step.end * width).as_mut_ptr();
                let lines = Strided { start: part.as_ptr(), row: HEAD_ROWS, col: 1 };
                block(lines, chunk.x.as_ptr(), width, dw, width, n, width, count, Init::Keep);
                let rows = Strided { start: part.as_ptr(), row: 1, col: HEAD_ROWS };
                let w = self.weight.as_ptr().add(step.start * width);
                block(rows, w, width, share.as_mut_ptr(), width, count, width, n, start);
                start = Init::Keep;
            }
        }
    }

    /// d_x of some rows of the chunk that starts at row `first`: the groups' shares in order.
    unsafe fn gather_d_x(
        &self,
        d_x: &Split<f32>,
        first: usize,
        all: usize,
        rows: std::ops::Range<usize>,
    ) {
        let end = all.min(first + rows.end) - first;
        if rows.start >= end {
            return;
        }
        let (width, l) = (self.width, self.layout);
        let range = rows.start * width..end * width;
        // SAFETY: each task gathers its own rows; the shares are only read.
        unsafe {
            let out = d_x.part((first + rows.start) * width..(first + end) * width);
            for group in 0..l.groups {
                let at = l.d_x + group * HEAD_ROWS * width;
                let share = self.work.read(at + range.start..at + range.end);
                if group == 0 {
                    out.copy_from_slice(share);
                } else {
                    out.iter_mut().zip(share).for_each(|(o, s)| *o += s);
                }
            }
        }
    }
}

/// limit·tanh(z/limit).
fn capped(z: f32, limit: f32) -> f32 {
    limit * (z / limit).tanh()
}

/// The derivative of [`capped`] by z, from what it made: 1 - tanh².
fn slope_of(made: f32, limit: f32) -> f32 {
    let t = made / limit;
    (1.0 - t) * (1.0 + t)
}

/// Every e^{z - max} times the slope at z, the capped logit, which its logarithm gives back.
fn bend_lines(lines: &mut [f32], max: &[f32], limit: f32) {
    for line in lines.chunks_exact_mut(HEAD_ROWS) {
        for (e, max) in line.iter_mut().zip(max) {
            if *e > 0.0 {
                *e *= slope_of(max + e.ln(), limit);
            }
        }
    }
}

#[cfg(test)]
mod tests;
