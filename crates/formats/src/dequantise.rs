//! Stored values as 32-bit floats: the formulas of the GGUF block formats.
//!
//! Half-precision numbers are widened exactly; every other step is one f32 operation in the order
//! of the reference, so that the values are the reference's to the bit.

use crate::TensorKind;
use half::{bf16, f16};

/// Writes the values of `bytes` to `out`, one a place.
///
/// # Panics
/// When `bytes` are not exactly the blocks of `out.len()` values: a reader has checked that.
pub fn dequantise(kind: TensorKind, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(kind.bytes_of(out.len()), Some(bytes.len()), "whole blocks of {kind}");
    match kind {
        TensorKind::F32 => numbers(bytes, out, f32::from_le_bytes),
        TensorKind::F16 => numbers(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        TensorKind::Bf16 => numbers(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        TensorKind::Q4_0 => blocks(bytes, out, q4_0),
        TensorKind::Q4_1 => blocks(bytes, out, q4_1),
        TensorKind::Q5_0 => blocks(bytes, out, q5_0),
        TensorKind::Q5_1 => blocks(bytes, out, q5_1),
        TensorKind::Q8_0 => blocks(bytes, out, q8_0),
        TensorKind::Q4K => blocks(bytes, out, q4_k),
        TensorKind::Q5K => blocks(bytes, out, q5_k),
        TensorKind::Q6K => blocks(bytes, out, q6_k),
    }
}

fn numbers<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (v, b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *v = number(*b);
    }
}

fn blocks<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    for (b, v) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<VALUES>().0) {
        block(b, v);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (j, q) in b[2..].iter().enumerate() {
        y[j] = d * (f32::from(q & 15) - 8.0);
        y[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (j, q) in b[4..].iter().enumerate() {
        y[j] = d * f32::from(q & 15) + m;
        y[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The 32 five-bit numbers of low halves `low` (16 bytes) and fifth bits `high`.
fn five_bits(high: u32, low: &[u8], y: &mut [f32; 32]) {
    for (j, q) in low.iter().enumerate() {
        let fifth = |at: usize| ((high >> at) as u8 & 1) << 4;
        y[j] = f32::from(q & 15 | fifth(j));
        y[j + 16] = f32::from(q >> 4 | fifth(j + 16));
    }
}

fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    five_bits(u32::from_le_bytes([b[2], b[3], b[4], b[5]]), &b[6..], y);
    y.iter_mut().for_each(|v| *v = d * (*v - 16.0));
}

fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    five_bits(u32::from_le_bytes([b[4], b[5], b[6], b[7]]), &b[8..], y);
    y.iter_mut().for_each(|v| *v = d * *v + m);
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (v, q) in y.iter_mut().zip(&b[2..]) {
        *v = d * f32::from(q.cast_signed());
    }
}

/// Scale and minimum number `j` of eight, six bits each in twelve bytes.
pub(crate) fn six_bits(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4;
        (scale, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, m, packed) = (half_at(b, 0), half_at(b, 2), &b[4..16]);
    for (pair, (q, y)) in b[16..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        for half in 0..2 {
            let (scale, min) = six_bits(packed, 2 * pair + half);
            let (scale, min) = (d * f32::from(scale), m * f32::from(min));
            for (v, q) in y[32 * half..].iter_mut().zip(q) {
                *v = scale * f32::from(q >> (4 * half) & 15) - min;
            }
        }
    }
}

fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, m, packed, high) = (half_at(b, 0), half_at(b, 2), &b[4..16], &b[16..48]);
    for (pair, (q, y)) in b[48..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        for half in 0..2 {
            let (scale, min) = six_bits(packed, 2 * pair + half);
            let (scale, min) = (d * f32::from(scale), m * f32::from(min));
            for ((v, q), h) in y[32 * half..].iter_mut().zip(q).zip(high) {
                let fifth = (h >> (2 * pair + half) & 1) << 4;
                *v = scale * f32::from(q >> (4 * half) & 15 | fifth) - min;
            }
        }
    }
}

fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (n, y) in y.chunks_exact_mut(128).enumerate() {
        for (j, v) in y.iter_mut().enumerate() {
            let (quarter, l) = (j / 32, j % 32);
            let four = low[64 * n + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
            let two = high[32 * n + l] >> (2 * quarter) & 3;
            let scale = d * f32::from(scales[8 * n + j / 16].cast_signed());
            *v = scale * (f32::from(four | two << 4) - 32.0);
        }
    }
}
