//! 32-bit floats as stored values: the encoders of the GGUF block formats.
//!
//! The kinds with one scale for 32 values round as the reference does, so that the bytes are the
//! reference's. Kinds of 256 values leave the choice of their scales to the encoder; ours is a
//! search (see `search.rs`) whose squared error is at most that of plain rounding.

mod search;

use crate::TensorKind;
use half::{bf16, f16};

/// Writes the blocks of `values` to `out`. Values must be finite, and within ±65,504 for what holds
/// them or their scales in half precision: the caller has checked with [`largest`].
///
/// # Panics
/// When `out` is not exactly the bytes of so many values.
pub fn quantise(kind: TensorKind, values: &[f32], out: &mut [u8]) {
    assert_eq!(kind.bytes_of(values.len()), Some(out.len()), "whole blocks of {kind}");
    match kind {
        TensorKind::F32 => numbers(values, out, f32::to_le_bytes),
        TensorKind::F16 => numbers(values, out, |v| f16::from_f32(v).to_le_bytes()),
        TensorKind::Bf16 => numbers(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        TensorKind::Q4_0 => blocks(values, out, q4_0),
        TensorKind::Q4_1 => blocks(values, out, q4_1),
        TensorKind::Q5_0 => blocks(values, out, q5_0),
        TensorKind::Q5_1 => blocks(values, out, q5_1),
        TensorKind::Q8_0 => blocks(values, out, q8_0),
        TensorKind::Q4K => blocks(values, out, search::q4_k),
        TensorKind::Q5K => blocks(values, out, search::q5_k),
        TensorKind::Q6K => blocks(values, out, search::q6_k),
    }
}

/// The largest magnitude among values; NaN where one is not a number.
pub fn largest(values: &[f32]) -> f32 {
    // A comparison with what is no number is false: it is taken and never given up again.
    values
        .iter()
        .fold(0.0, |most: f32, v| if v.abs() <= most || most.is_nan() { most } else { v.abs() })
}

fn numbers<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (v, b) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *b = bytes(*v);
    }
}

fn blocks<const VALUES: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    block: impl Fn(&[f32; VALUES], &mut [u8; BYTES]),
) {
    for (v, b) in values.as_chunks::<VALUES>().0.iter().zip(out.as_chunks_mut::<BYTES>().0) {
        block(v, b);
    }
}

fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The first value of the largest magnitude, with its sign.
fn peak(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, &v| if v.abs() > most.abs() { v } else { most })
}

fn bounds(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

/// Low halves of 32 codes, the first sixteen in the low halves of the bytes.
fn put_low(codes: &[u8; 32], out: &mut [u8]) {
    for (j, b) in out.iter_mut().enumerate() {
        *b = codes[j] & 15 | (codes[j + 16] & 15) << 4;
    }
}

/// The fifth bits of 32 codes.
fn put_fifth(codes: &[u8; 32], out: &mut [u8]) {
    let bits =
        codes.iter().enumerate().fold(0u32, |bits, (j, c)| bits | u32::from(c >> 4 & 1) << j);
    out.copy_from_slice(&bits.to_le_bytes());
}

/// Codes around 0: the value of the largest magnitude becomes the lowest code.
fn around_zero(x: &[f32; 32], half: f32) -> (f32, [u8; 32]) {
    let d = peak(x) / -half;
    let id = inverse(d);
    (d, x.map(|v| ((v * id + (half + 0.5)) as u8).min((2.0 * half) as u8 - 1)))
}

/// Codes from the smallest value up.
fn from_minimum(x: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let (lo, hi) = bounds(x);
    let d = (hi - lo) / f32::from(top);
    let id = inverse(d);
    (d, lo, x.map(|v| (((v - lo) * id + 0.5) as u8).min(top)))
}

fn q4_0(x: &[f32; 32], b: &mut [u8; 18]) {
    let (d, codes) = around_zero(x, 8.0);
    put_half(b, 0, d);
    put_low(&codes, &mut b[2..]);
}

fn q4_1(x: &[f32; 32], b: &mut [u8; 20]) {
    let (d, m, codes) = from_minimum(x, 15);
    put_half(b, 0, d);
    put_half(b, 2, m);
    put_low(&codes, &mut b[4..]);
}

fn q5_0(x: &[f32; 32], b: &mut [u8; 22]) {
    let (d, codes) = around_zero(x, 16.0);
    put_half(b, 0, d);
    put_fifth(&codes, &mut b[2..6]);
    put_low(&codes, &mut b[6..]);
}

fn q5_1(x: &[f32; 32], b: &mut [u8; 24]) {
    let (d, m, codes) = from_minimum(x, 31);
    put_half(b, 0, d);
    put_half(b, 2, m);
    put_fifth(&codes, &mut b[4..8]);
    put_low(&codes, &mut b[8..]);
}

fn q8_0(x: &[f32; 32], b: &mut [u8; 34]) {
    let d = peak(x).abs() / 127.0;
    let id = inverse(d);
    put_half(b, 0, d);
    for (v, q) in x.iter().zip(&mut b[2..]) {
        *q = ((v * id).round() as i8).cast_unsigned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantise;
    use proptest::prelude::*;

    fn back(kind: TensorKind, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; kind.bytes_of(values.len()).unwrap()];
        quantise(kind, values, &mut bytes);
        let mut out = vec![0.0; values.len()];
        dequantise(kind, &bytes, &mut out);
        out
    }

    /// Steps that a value may be away by: half a step, and one where the lowest code is the peak and
    /// its opposite is cut off; a little more for the rounding of scales.
    fn error_bound(kind: TensorKind, block: &[f32]) -> f32 {
        let top = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let (lo, hi) = bounds(block);
        match kind {
            TensorKind::F32 => 0.0,
            TensorKind::F16 => top / 2048.0 + 3e-8,
            TensorKind::Bf16 => top / 256.0,
            TensorKind::Q8_0 => top / 127.0 * 0.57 + 4e-6,
            TensorKind::Q4_0 => top / 8.0 * 1.01 + 1e-6,
            TensorKind::Q5_0 => top / 16.0 * 1.02 + 1e-6,
            TensorKind::Q4_1 => (hi - lo) / 15.0 * 0.51 + top / 1000.0 + 1e-6,
            TensorKind::Q5_1 => (hi - lo) / 31.0 * 0.52 + top / 1000.0 + 1e-6,
            TensorKind::Q4K => top * 2.0 / 15.0 * 1.5,
            TensorKind::Q5K => top * 2.0 / 31.0 * 1.7,
            TensorKind::Q6K => top / 31.0 * 1.5 + 6e-8 * 128.0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn what_comes_back_is_near(
            values in prop::collection::vec(-1.0f32..1.0, 256),
            exponent in -6i32..4,
        ) {
            let scale = 10f32.powi(exponent);
            let values: Vec<f32> = values.iter().map(|v| v * scale).collect();
            for kind in TensorKind::ALL {
                let found = back(kind, &values);
                // K kinds share their scale among 256 values.
                let span = if kind.block_len() == 256 { 256 } else { 32 };
                for (values, found) in values.chunks(span).zip(found.chunks(span)) {
                    let bound = error_bound(kind, values);
                    for (v, f) in values.iter().zip(found) {
                        prop_assert!((v - f).abs() <= bound + 1e-5 * scale.min(1.0), "{} {} {} {}", kind, v, f, bound);
                    }
                }
            }
        }

        #[test]
        fn plain_kinds_keep_what_they_can_hold(values in prop::collection::vec(any::<u16>(), 32)) {
            let finite = |number: fn(u16) -> f32| -> Vec<f32> {
                values.iter().map(|&v| number(v)).filter(|v| v.is_finite()).collect()
            };
            let halves = finite(|bits| f16::from_bits(bits).to_f32());
            prop_assert_eq!(&back(TensorKind::F16, &halves), &halves);
            let values = finite(|bits| bf16::from_bits(bits).to_f32());
            prop_assert_eq!(&back(TensorKind::Bf16, &values), &values);
            prop_assert_eq!(&back(TensorKind::F32, &values), &values);
        }
    }

    #[test]
    fn zeros_and_single_peaks_hold() {
        for kind in TensorKind::ALL {
            assert!(back(kind, &[0.0; 512]).iter().all(|&v| v == 0.0), "{kind}");
            for peak in [1.0, -1.0] {
                let mut one = [0.0; 256];
                one[77] = peak;
                let found = back(kind, &one);
                assert!((found[77] - peak).abs() <= 0.02, "{kind} {}", found[77]);
                assert!(found.iter().enumerate().all(|(i, v)| i == 77 || v.abs() < 0.07), "{kind}");
            }
        }
    }

    #[test]
    fn the_largest_magnitude_tells_of_what_is_no_number() {
        assert_eq!(largest(&[1.0, -3.0, 2.0]), 3.0);
        assert_eq!(largest(&[]), 0.0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..3 {
                let mut values = [1.0, -3.0, 2.0];
                values[at] = bad;
                assert!(!largest(&values).is_finite(), "{bad} at {at}");
            }
        }
    }
}
