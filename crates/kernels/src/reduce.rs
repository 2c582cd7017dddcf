//! Sums over rows, and rows looked up in a table with the gradient that flows back.

use crate::elementwise::row_chunks;
use crate::lanes::{LANES, Lanes, stamp};
use crate::matmul::Init;
use crate::split::Split;
use crate::team::Team;

/// Columns a task takes.
const COLUMNS: usize = 64;

/// `out[c] += Σ over rows of x[r, from + c]`, row after row.
pub fn column_sums(
    team: &Team,
    x: &[f32],
    rows: usize,
    row_stride: usize,
    from: usize,
    out: &mut [f32],
) {
    let width = out.len();
    assert!(rows == 0 || (rows - 1) * row_stride + from + width <= x.len(), "columns lie inside x");
    let out = Split::new(out);
    team.tasks(width.div_ceil(COLUMNS), |i| {
        let range = i * COLUMNS..((i + 1) * COLUMNS).min(width);
        // SAFETY: windows of columns do not overlap.
        let sums = unsafe { out.part(range.clone()) };
        for r in 0..rows {
            let row = &x[r * row_stride + from + range.start..][..sums.len()];
            sums.iter_mut().zip(row).for_each(|(s, v)| *s += v);
        }
    });
}

/// `out[r, :] = (init) + table[ids[r], :]`. `table`: N×width; every id is below N.
pub fn embedding_forward(
    team: &Team,
    table: &[f32],
    ids: &[u32],
    width: usize,
    init: Init,
    out: &mut [f32],
) {
    assert_eq!(out.len(), ids.len() * width, "embedding: R×width");
    row_chunks(team, out, width, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            let entry = &table[ids[first + i] as usize * width..][..width];
            match init {
                Init::Keep => row.iter_mut().zip(entry).for_each(|(x, e)| *x += e),
                Init::Zero => row.copy_from_slice(entry),
                Init::Bias(bias) => {
                    row.iter_mut().zip(entry).zip(bias).for_each(|((x, e), b)| *x = e + b);
                }
            }
        }
    });
}

/// `d_table[ids[r], :] += d_out[r, :]`, row after row for each entry.
pub fn embedding_backward(
    team: &Team,
    ids: &[u32],
    d_out: &[f32],
    width: usize,
    d_table: &mut [f32],
) {
    assert_eq!(d_out.len(), ids.len() * width, "embedding: R×width");
    let entries = d_table.len() / width;
    let d_table = Split::new(d_table);
    // Each task owns a run of the table's entries and walks all rows.
    let tasks = team.threads().min(entries.max(1));
    team.tasks(tasks, |t| {
        let (from, to) = (entries * t / tasks, entries * (t + 1) / tasks);
        // SAFETY: runs of entries do not overlap.
        let part = unsafe { d_table.part(from * width..to * width) };
        for (r, &id) in ids.iter().enumerate() {
            let id = id as usize;
            if (from..to).contains(&id) {
                let entry = &mut part[(id - from) * width..][..width];
                entry.iter_mut().zip(&d_out[r * width..]).for_each(|(e, d)| *e += d);
            }
        }
    });
}

/// Reads every value once, the workers side by side: what a processor gets from its memory.
pub fn read_all(team: &Team, x: &[f32]) {
    let part = x.len().div_ceil(team.threads()).max(1);
    team.tasks(team.threads(), |worker| {
        let x = x.chunks(part).nth(worker).unwrap_or_default();
        // SAFETY: sums of a slice.
        std::hint::black_box(unsafe { read_raw(x) });
    });
}

#[inline(always)]
unsafe fn read_body<S: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: whole vectors.
    unsafe {
        let mut top = [S::splat(0.0); 4];
        for chunk in x.chunks_exact(4 * LANES) {
            for (i, top) in top.iter_mut().enumerate() {
                *top = top.max(S::load(chunk.as_ptr().add(i * LANES)));
            }
        }
        top[0].max(top[1]).max(top[2].max(top[3])).sum()
    }
}
stamp!(fn read_raw(x: &[f32]) -> f32 = read_body);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_and_its_gradient() {
        let _level = crate::isa::hold();
        let team = Team::new(3);
        let table = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0];
        let mut out = [0.0; 8];
        embedding_forward(&team, &table, &[2, 0, 2, 1], 2, Init::Zero, &mut out);
        assert_eq!(out, [20.0, 21.0, 0.0, 1.0, 20.0, 21.0, 10.0, 11.0]);
        let mut d = [0.0; 6];
        embedding_backward(
            &team,
            &[2, 0, 2, 1],
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            2,
            &mut d,
        );
        assert_eq!(d, [3.0, 4.0, 7.0, 8.0, 6.0, 8.0]);
    }

    #[test]
    fn sums_of_a_window() {
        let _level = crate::isa::hold();
        let team = Team::new(2);
        let x: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut out = [1.0, 0.0];
        column_sums(&team, &x, 3, 4, 1, &mut out);
        assert_eq!(out, [1.0 + 1.0 + 5.0 + 9.0, 2.0 + 6.0 + 10.0]);
    }
}
