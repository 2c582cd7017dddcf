//! Which tensors make which parameter, and how they are stored there.

use formats::{StoredTensor, dequantise};
use std::ops::Range;

/// How a tensor is stored in the file, seen from the parameter that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As it is used.
    Plain,
    /// Inputs by outputs: rows and columns exchanged.
    Transposed,
    /// Without the 1 that a gain has.
    LessOne,
    /// The two halves of each head's rows taken in turn, as rotary positions over neighbours need
    /// them; used here are rotary positions over halves.
    Interleaved,
}

/// A tensor of the file that makes some rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The parameter's place in the layout.
    pub parameter: usize,
    /// The parameter's rows (its elements, where it has one dimension).
    pub rows: Range<usize>,
    /// The tensor's name in the file.
    pub tensor: String,
    /// How it is stored.
    pub stored: Stored,
    /// Rows a head has (D), for [`Stored::Interleaved`].
    pub head_rows: usize,
}

impl Binding {
    /// The row of the tensor that makes row `row` of its part of the parameter.
    pub fn row_in_file(&self, row: usize) -> usize {
        if self.stored != Stored::Interleaved {
            return row;
        }
        let (head, at, half) = (row / self.head_rows, row % self.head_rows, self.head_rows / 2);
        head * self.head_rows + 2 * (at % half) + at / half
    }

    /// Writes the tensor's values to its rows of the parameter. Shapes were checked.
    pub(crate) fn fill(&self, tensor: &StoredTensor<'_>, out: &mut [f32]) {
        let rows = self.rows.len();
        let width = out.len().checked_div(rows).unwrap_or(0);
        match self.stored {
            Stored::Plain => dequantise(tensor.kind, tensor.bytes, out),
            Stored::LessOne => {
                dequantise(tensor.kind, tensor.bytes, out);
                out.iter_mut().for_each(|v| *v += 1.0);
            }
            Stored::Interleaved => {
                let bytes = tensor.bytes.len().checked_div(rows).unwrap_or(0);
                if width < tensor.kind.block_len() {
                    // Single values (a bias): no rows to take apart.
                    let mut all = vec![0.0; out.len()];
                    dequantise(tensor.kind, tensor.bytes, &mut all);
                    let value = |(row, v): (usize, &mut f32)| *v = all[self.row_in_file(row)];
                    out.iter_mut().enumerate().for_each(value);
                    return;
                }
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    let from = self.row_in_file(row) * bytes;
                    dequantise(tensor.kind, &tensor.bytes[from..from + bytes], out);
                }
            }
            Stored::Transposed => {
                let mut all = vec![0.0; out.len()];
                dequantise(tensor.kind, tensor.bytes, &mut all);
                for (row, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
                    out.iter_mut().enumerate().for_each(|(c, v)| *v = all[c * rows + row]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::TensorKind;

    #[test]
    fn rows_and_columns_end_where_they_belong() {
        let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let fill = |stored, shape: &[usize], rows| {
            let tensor_name = "t".to_owned();
            let binding =
                Binding { parameter: 0, rows: 0..rows, tensor: tensor_name, stored, head_rows: 4 };
            let mut out = vec![0.0; 16];
            let tensor = StoredTensor { kind: TensorKind::F32, shape, bytes: &bytes };
            binding.fill(&tensor, &mut out);
            out
        };
        // Two heads of four rows: in the file 0 2 1 3 are halves (0, 1) and (2, 3) in turn.
        let rows: Vec<f32> =
            fill(Stored::Interleaved, &[8, 2], 8).chunks(2).map(|r| r[0] / 2.0).collect();
        assert_eq!(rows, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        let turned = fill(Stored::Transposed, &[2, 8], 8);
        assert_eq!(turned[..4], [0.0, 8.0, 1.0, 9.0]);
        assert_eq!(fill(Stored::LessOne, &[16], 16)[3], 4.0);
    }
}
