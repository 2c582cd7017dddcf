//! Rows of matrices in panels as f32, for products that read them the other way round: the gradient
//! by the input of a matrix that does not learn.

use crate::elementwise::row_chunks;
use crate::halves::HalfMatrix;
use crate::quant::{BLOCK, PANEL_ROWS, QuantMatrix, unpack_block};
use crate::team::Team;

/// Writes rows `first ..` of a quantised matrix, as many as `out` holds (n×K).
///
/// # Panics
/// When the matrix has fewer.
pub fn unpack_quant_rows(team: &Team, matrix: &QuantMatrix, first: usize, out: &mut [f32]) {
    let (kind, cols) = (matrix.kind, matrix.cols);
    row_chunks(team, out, cols, |row, rows| {
        for (i, out) in rows.chunks_exact_mut(cols).enumerate() {
            let row = first + row + i;
            let panel = &matrix.panels[row / PANEL_ROWS * kind.panel_bytes(cols)..];
            for (index, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                let block = unpack_block(kind, panel, row % PANEL_ROWS, index);
                out.copy_from_slice(&block.values(kind));
            }
        }
    });
}

/// The same of a matrix in 16 bits.
///
/// # Panics
/// When the matrix has fewer.
pub fn unpack_half_rows(team: &Team, matrix: &HalfMatrix, first: usize, out: &mut [f32]) {
    let (kind, cols) = (matrix.kind, matrix.cols);
    row_chunks(team, out, cols, |row, rows| {
        for (i, out) in rows.chunks_exact_mut(cols).enumerate() {
            let row = first + row + i;
            let panel = &matrix.panels[row / PANEL_ROWS * kind.panel_bytes(cols)..];
            out.iter_mut().enumerate().for_each(|(c, v)| *v = kind.at(panel, row % PANEL_ROWS, c));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HalfKind, QuantBlock, QuantKind, pack_panel};

    #[test]
    fn rows_come_out_as_they_were_packed() {
        let (team, rows, cols) = (Team::new(2), 40, 64);
        let code = |row: usize, column: usize| ((row * 7 + column * 3) % 16) as u8;
        let kind = QuantKind::Q4_0;
        let mut panels = vec![0; kind.matrix_bytes(rows, cols)];
        for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(cols)).enumerate() {
            let block = |row: usize, index: usize| {
                let codes = std::array::from_fn(|i| code(row, index * BLOCK + i));
                QuantBlock { codes, d: 0x3C00, ..QuantBlock::ZERO }
            };
            pack_panel(kind, cols, panel, |row| {
                Some(move |_, index| block(p * PANEL_ROWS + row, index))
            });
        }
        let mut out = vec![9.0; 21 * cols];
        unpack_quant_rows(&team, &QuantMatrix { kind, rows, cols, panels: &panels }, 19, &mut out);
        let right = |i: usize| f32::from(code(19 + i / cols, i % cols)) - 8.0;
        assert!(out.iter().enumerate().all(|(i, &v)| v == right(i)));

        let kind = HalfKind::Bf16;
        let bits = |row: usize, column: usize| 0x3F80 + (row * 5 + column) as u16;
        let mut panels = vec![0; kind.matrix_bytes(rows, cols)];
        for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(cols)).enumerate() {
            kind.pack_panel(cols, panel, |row, column| bits(p * PANEL_ROWS + row, column));
        }
        unpack_half_rows(&team, &HalfMatrix { kind, rows, cols, panels: &panels }, 19, &mut out);
        let right = |i: usize| kind.value(bits(19 + i / cols, i % cols));
        assert!(out.iter().enumerate().all(|(i, &v)| v == right(i)));
    }
}
