//! Every level against arithmetic lane by lane.

use super::{LANES, Lanes, plain_fma};
use crate::{HalfKind, Isa};
use proptest::prelude::*;

type Sixteen = [f32; LANES];

/// What is asked of a level and of each lane: a, b and c are any numbers.
#[inline(always)]
unsafe fn arithmetic_body<S: Lanes>(a: &Sixteen, b: &Sixteen, c: &Sixteen) -> [Sixteen; 9] {
    // SAFETY: the arrays hold sixteen values.
    unsafe {
        let [x, y, z] = [S::load(a.as_ptr()), S::load(b.as_ptr()), S::load(c.as_ptr())];
        [
            x.add(y).to_array(),
            x.sub(y).to_array(),
            x.mul(y).to_array(),
            x.div(y).to_array(),
            x.max(y).to_array(),
            x.min(y).to_array(),
            x.fma(y, z).to_array(),
            x.sqrt().to_array(),
            x.keep_at_least(y, z).to_array(),
        ]
    }
}
stamp!(fn arithmetic(a: &Sixteen, b: &Sixteen, c: &Sixteen) -> [Sixteen; 9] = arithmetic_body);

fn lane_by_lane(a: f32, b: f32, c: f32) -> [f32; 9] {
    [
        a + b,
        a - b,
        a * b,
        a / b,
        if a > b { a } else { b },
        if a < b { a } else { b },
        a.mul_add(b, c),
        a.sqrt(),
        if b >= c { a } else { 0.0 },
    ]
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

const AWKWARD: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    f32::MIN_POSITIVE,
    -1e-42,
    3e38,
    -3e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    0.1,
];

#[test]
fn arithmetic_is_that_of_each_lane() {
    let _level = crate::isa::hold();
    let some = |i: usize, salt: u64| match i % 3 {
        0 => AWKWARD[crate::mix(i as u64 ^ salt) as usize % AWKWARD.len()],
        _ => crate::normal(salt, i as u64),
    };
    for isa in Isa::available() {
        isa.force();
        for round in 0..400 {
            let of = |salt| std::array::from_fn(|i| some(round * LANES + i, salt));
            let [a, b, c]: [Sixteen; 3] = [of(1), of(2), of(3)];
            // SAFETY: the level is one of those that are there.
            let found = unsafe { arithmetic(&a, &b, &c) };
            for lane in 0..LANES {
                let (a, b, c) = (a[lane], b[lane], c[lane]);
                for (what, right) in lane_by_lane(a, b, c).into_iter().enumerate() {
                    let found = found[what][lane];
                    assert!(same(found, right), "{isa:?} {what}: {a:e} {b:e} {c:e} {found:e}");
                }
            }
        }
    }
}

/// Whole numbers, powers of two and the first n; the sum and the largest. Writes half of the n.
#[inline(always)]
unsafe fn reductions_body<S: Lanes>(
    a: &Sixteen,
    n: usize,
    part: &mut Sixteen,
) -> ([Sixteen; 3], [f32; 2]) {
    // SAFETY: the arrays hold sixteen values, n at most.
    unsafe {
        let (x, first) = (S::load(a.as_ptr()), S::load_part(a.as_ptr(), n));
        first.store_part(part.as_mut_ptr(), n / 2);
        let whole = x.round();
        let powers = S::splat(1.5).scale2(whole);
        ([whole.to_array(), powers.to_array(), first.to_array()], [x.sum(), x.largest()])
    }
}
stamp!(fn reductions(
    a: &Sixteen, n: usize, part: &mut Sixteen
) -> ([Sixteen; 3], [f32; 2]) = reductions_body);

#[test]
fn whole_numbers_sums_and_parts_are_the_same_at_every_level() {
    let _level = crate::isa::hold();
    for isa in Isa::available() {
        isa.force();
        for n in 0..=LANES {
            let mut a: Sixteen = std::array::from_fn(|i| 25.0 * crate::normal(n as u64, i as u64));
            (a[3], a[9]) = (2.5, -126.0);
            let mut part = [7.0; LANES];
            // SAFETY: the level is one of those that are there.
            let ([whole, powers, first], [sum, largest]) = unsafe { reductions(&a, n, &mut part) };
            let mut tree = a;
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| tree[i] += tree[i + half]);
            }
            assert_eq!(sum.to_bits(), tree[0].to_bits(), "{isa:?}");
            assert_eq!(largest, a.into_iter().fold(f32::NEG_INFINITY, f32::max), "{isa:?}");
            for i in 0..LANES {
                let right = a[i].round_ties_even();
                assert_eq!((whole[i], powers[i]), (right, 1.5 * right.exp2()), "{isa:?}");
                assert_eq!(first[i], if i < n { a[i] } else { 0.0 }, "{isa:?} {n} {i}");
                assert_eq!(part[i], if i < n / 2 { a[i] } else { 7.0 }, "{isa:?} {n} {i}");
            }
        }
    }
}

#[inline(always)]
unsafe fn widen_body<S: Lanes>(halves: &[u16; LANES]) -> [Sixteen; 2] {
    // SAFETY: the array holds sixteen halves.
    unsafe { [S::load_f16(halves.as_ptr()).to_array(), S::load_bf16(halves.as_ptr()).to_array()] }
}
stamp!(fn widen(halves: &[u16; LANES]) -> [Sixteen; 2] = widen_body);

/// Rounded alone and in pairs, first to f16, then to bf16.
#[inline(always)]
unsafe fn narrow_body<S: Lanes>(a: &Sixteen, b: &Sixteen) -> [([u16; LANES], [u32; LANES]); 2] {
    let mut out = [([0; LANES], [0; LANES]); 2];
    // SAFETY: the arrays hold sixteen values.
    unsafe {
        let (x, y) = (S::load(a.as_ptr()), S::load(b.as_ptr()));
        x.store_f16(out[0].0.as_mut_ptr());
        x.store_f16_pairs(y, out[0].1.as_mut_ptr());
        x.store_bf16(out[1].0.as_mut_ptr());
        x.store_bf16_pairs(y, out[1].1.as_mut_ptr());
    }
    out
}
stamp!(fn narrow(a: &Sixteen, b: &Sixteen) -> [([u16; LANES], [u32; LANES]); 2] = narrow_body);

#[test]
fn every_half_goes_in_and_the_nearest_comes_out() {
    let _level = crate::isa::hold();
    const KINDS: [HalfKind; 2] = [HalfKind::F16, HalfKind::Bf16];
    let nearest = |kind: HalfKind, x: f32, found: u16, isa: Isa| {
        let right = kind.bits(x);
        let none = x.is_nan() && kind.value(found).is_nan();
        assert!(found == right || none, "{isa:?} {kind:?} {x:e}: {found:x}, not {right:x}");
    };
    for isa in Isa::available() {
        isa.force();
        for first in (0..=u16::MAX).step_by(LANES) {
            let halves = std::array::from_fn(|i| first + i as u16);
            // SAFETY: the level is one of those that are there.
            let wide = unsafe { widen(&halves) };
            for (kind, values) in KINDS.into_iter().zip(wide) {
                for (bits, value) in halves.into_iter().zip(values) {
                    assert!(same(value, kind.value(bits)), "{isa:?} {kind:?} {bits:x}: {value:e}");
                }
                // On the halves, between them and a step to either side.
                let step = if kind == HalfKind::F16 { 1 << 12 } else { 1 << 15 };
                for by in [0, 1, step - 1, step, step + 1] {
                    let a = values.map(|x| f32::from_bits(x.to_bits().wrapping_add(by)));
                    let b = values.map(|x| f32::from_bits(x.to_bits().wrapping_sub(by)));
                    // SAFETY: as above.
                    let narrow = unsafe { narrow(&a, &b) };
                    for (kind, (alone, pairs)) in KINDS.into_iter().zip(narrow) {
                        for i in 0..LANES {
                            nearest(kind, a[i], alone[i], isa);
                            nearest(kind, a[i], pairs[i] as u16, isa);
                            nearest(kind, b[i], (pairs[i] >> 16) as u16, isa);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn bytes_body<S: Lanes>(codes: &[i8; LANES], out: &mut [i8; LANES]) -> Sixteen {
    // SAFETY: the arrays hold sixteen bytes.
    unsafe {
        let x = S::load_i8(codes.as_ptr());
        x.store_i8(out.as_mut_ptr());
        x.to_array()
    }
}
stamp!(fn bytes(codes: &[i8; LANES], out: &mut [i8; LANES]) -> Sixteen = bytes_body);

#[inline(always)]
unsafe fn turn_body<S: Lanes>(words: &mut [u32; LANES * LANES]) {
    // SAFETY: the array holds 256 words.
    unsafe { S::turn_words(words.as_mut_ptr()) }
}
stamp!(fn turn(words: &mut [u32; LANES * LANES]) = turn_body);

#[test]
fn bytes_go_in_and_out_and_lines_become_columns() {
    let _level = crate::isa::hold();
    for isa in Isa::available() {
        isa.force();
        for first in (i8::MIN..=i8::MAX).step_by(LANES) {
            let codes = std::array::from_fn(|i| first + i as i8);
            let mut out = [0; LANES];
            // SAFETY: the level is one of those that are there.
            let values = unsafe { bytes(&codes, &mut out) };
            assert_eq!((values, out), (codes.map(f32::from), codes), "{isa:?}");
        }
        let mut words = std::array::from_fn(|i| i as u32);
        // SAFETY: as above.
        unsafe { turn(&mut words) };
        for (i, word) in words.into_iter().enumerate() {
            assert_eq!(word as usize, i % LANES * LANES + i / LANES, "{isa:?}");
        }
    }
}

proptest! {
    /// Any bits, and sums whose last bits meet the half between two floats.
    #[test]
    fn plain_fma_rounds_once(
        a in any::<u32>(), b in any::<u32>(), c in any::<u32>(), near in -60i32..60,
    ) {
        let [a, b, c] = [a, b, c].map(f32::from_bits);
        let half = (a * b).abs() * (near as f32).exp2();
        for c in [c, half, -half, 1.0f32.copysign(c), f32::INFINITY] {
            let (found, right) = (plain_fma(a, b, c), a.mul_add(b, c));
            prop_assert!(same(found, right), "{a:e}·{b:e} + {c:e}: {found:e}, not {right:e}");
        }
    }
}
