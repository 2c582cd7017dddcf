//! The blocks of quantised tensors as codes and scales, for products with them as they are.

use crate::TensorKind;
use tensor::{QUANT_BLOCK, QuantBlock, QuantKind, QuantRow};

impl TensorKind {
    /// The same as a kind of quantised matrix; none for plain numbers.
    pub fn quant_kind(self) -> Option<QuantKind> {
        Some(match self {
            TensorKind::F32 | TensorKind::F16 | TensorKind::Bf16 => return None,
            TensorKind::Q4_0 => QuantKind::Q4_0,
            TensorKind::Q4_1 => QuantKind::Q4_1,
            TensorKind::Q5_0 => QuantKind::Q5_0,
            TensorKind::Q5_1 => QuantKind::Q5_1,
            TensorKind::Q8_0 => QuantKind::Q8_0,
            TensorKind::Q4K => QuantKind::Q4K,
            TensorKind::Q5K => QuantKind::Q5K,
            TensorKind::Q6K => QuantKind::Q6K,
        })
    }
}

/// A row of a quantised tensor, as GGUF files have it.
///
/// Its blocks panic where the row has no such block: a reader has checked that.
#[derive(Clone, Copy, Debug)]
pub struct StoredRow<'a>(pub &'a [u8]);

impl QuantRow for StoredRow<'_> {
    #[inline(always)]
    fn block(self, kind: QuantKind, index: usize) -> QuantBlock {
        quant_block(kind, self.0, index)
    }

    #[inline(always)]
    fn place(self, kind: QuantKind, index: usize) -> *const u8 {
        let (bytes, blocks) = layout(kind);
        self.0.as_ptr().wrapping_add(index / blocks * bytes + index % blocks * bytes / blocks)
    }
}

/// Bytes of a block of a file, and how many blocks of 32 values it holds.
#[inline(always)]
const fn layout(kind: QuantKind) -> (usize, usize) {
    let stored = match kind {
        QuantKind::Q4_0 => TensorKind::Q4_0,
        QuantKind::Q4_1 => TensorKind::Q4_1,
        QuantKind::Q5_0 => TensorKind::Q5_0,
        QuantKind::Q5_1 => TensorKind::Q5_1,
        QuantKind::Q8_0 => TensorKind::Q8_0,
        QuantKind::Q4K => TensorKind::Q4K,
        QuantKind::Q5K => TensorKind::Q5K,
        QuantKind::Q6K => TensorKind::Q6K,
    };
    (stored.block_bytes(), stored.block_len() / QUANT_BLOCK)
}

#[inline(always)]
fn quant_block(kind: QuantKind, row: &[u8], index: usize) -> QuantBlock {
    let (bytes, blocks) = layout(kind);
    let b = &row[index / blocks * bytes..][..bytes];
    let mut out = QuantBlock::ZERO;
    match kind {
        QuantKind::Q4_0 => {
            out.d = bits(b, 0);
            four_bits(&b[2..], &mut out.codes);
        }
        QuantKind::Q4_1 => {
            (out.d, out.m) = (bits(b, 0), bits(b, 2));
            four_bits(&b[4..], &mut out.codes);
        }
        QuantKind::Q5_0 => {
            out.d = bits(b, 0);
            four_bits(&b[6..], &mut out.codes);
            fifth_bits(&b[2..6], &mut out.codes);
        }
        QuantKind::Q5_1 => {
            (out.d, out.m) = (bits(b, 0), bits(b, 2));
            four_bits(&b[8..], &mut out.codes);
            fifth_bits(&b[4..8], &mut out.codes);
        }
        QuantKind::Q8_0 => {
            out.d = bits(b, 0);
            for (code, q) in out.codes.iter_mut().zip(&b[2..34]) {
                *code = q ^ 0x80;
            }
        }
        QuantKind::Q4K => {
            k_scales(b, index % 8, &mut out);
            nibble_half(&b[16..], index % 8, &mut out.codes);
        }
        QuantKind::Q5K => {
            k_scales(b, index % 8, &mut out);
            nibble_half(&b[48..], index % 8, &mut out.codes);
            for (code, high) in out.codes.iter_mut().zip(&b[16..48]) {
                *code |= (high >> (index % 8) & 1) << 4;
            }
        }
        QuantKind::Q6K => {
            let scales = &b[192..208];
            let (n, quarter) = (index % 8 / 4, index % 4);
            out.d = bits(b, 208);
            out.scale = [scales[8 * n + 2 * quarter], scales[8 * n + 2 * quarter + 1]];
            let low = &b[64 * n + 32 * (quarter % 2)..][..QUANT_BLOCK];
            let high = &b[128 + 32 * n..][..QUANT_BLOCK];
            let (four, two) = (4 * (quarter / 2) as u32, 2 * quarter as u32);
            for ((code, low), high) in out.codes.iter_mut().zip(low).zip(high) {
                *code = low >> four & 15 | (high >> two & 3) << 4;
            }
        }
    }
    out
}

#[inline(always)]
fn bits(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Sixteen bytes: the low halves are the first sixteen codes.
#[inline(always)]
fn four_bits(bytes: &[u8], codes: &mut [u8; QUANT_BLOCK]) {
    // Of a length that the compiler knows, for one instruction instead of sixteen.
    let Some((bytes, _)) = bytes.split_first_chunk::<{ QUANT_BLOCK / 2 }>() else { return };
    let (low, high) = codes.split_at_mut(QUANT_BLOCK / 2);
    low.iter_mut().zip(bytes).for_each(|(code, q)| *code = q & 15);
    high.iter_mut().zip(bytes).for_each(|(code, q)| *code = q >> 4);
}

#[inline(always)]
fn fifth_bits(bytes: &[u8], codes: &mut [u8; QUANT_BLOCK]) {
    let bits = bytes.iter().rev().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> j & 1) as u8) << 4;
    }
}

/// The numbers of block j of eight, of the kinds with whole scales and minima in six bits.
fn k_scales(b: &[u8], j: usize, out: &mut QuantBlock) {
    (out.d, out.m) = (bits(b, 0), bits(b, 2));
    (out.scale[0], out.min) = crate::dequantise::six_bits(&b[4..16], j);
}

/// Block j of eight: half of each byte of a run of 32.
#[inline(always)]
fn nibble_half(bytes: &[u8], j: usize, codes: &mut [u8; QUANT_BLOCK]) {
    let Some((bytes, _)) = bytes[32 * (j / 2)..].split_first_chunk::<QUANT_BLOCK>() else { return };
    let shift = 4 * (j % 2) as u32;
    codes.iter_mut().zip(bytes).for_each(|(code, q)| *code = q >> shift & 15);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantise;

    #[test]
    fn codes_stand_for_the_values_of_the_formulas() {
        for kind in TensorKind::ALL {
            let Some(quant) = kind.quant_kind() else { continue };
            let values = 512;
            let mut state = 7u32;
            let mut row: Vec<u8> = (0..kind.bytes_of(values).unwrap())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            // Scales that are finite: the upper byte of each half-precision number.
            let ends: &[usize] = match kind {
                TensorKind::Q6K => &[209],
                TensorKind::Q4_0 | TensorKind::Q5_0 | TensorKind::Q8_0 => &[1],
                _ => &[1, 3],
            };
            for block in row.chunks_exact_mut(kind.block_bytes()) {
                ends.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x20);
            }
            let mut right = vec![0.0; values];
            dequantise(kind, &row, &mut right);
            for (index, right) in right.chunks_exact(QUANT_BLOCK).enumerate() {
                assert_eq!(quant_block(quant, &row, index).values(quant)[..], *right, "{kind}");
            }
        }
    }
}
