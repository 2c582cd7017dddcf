//! In which numbers a network is trained, and the scale that keeps half-precision gradients in range.

use kernels::HalfKind;
use serde::{Deserialize, Serialize};

/// In which numbers products are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// FP32 throughout.
    #[default]
    F32,
    /// Weights as computation reads them, and factors of products, in bf16; master weights, sums,
    /// gradients, moments, norms, softmax and loss in FP32.
    Bf16,
    /// The same in half precision, with a scaled loss.
    F16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

    /// Its name.
    pub fn name(self) -> &'static str {
        self.half().map_or("f32", HalfKind::name)
    }

    /// Its 16 bits.
    pub fn half(self) -> Option<HalfKind> {
        match self {
            Precision::F32 => None,
            Precision::Bf16 => Some(HalfKind::Bf16),
            Precision::F16 => Some(HalfKind::F16),
        }
    }
}

/// The factor of the loss in half precision: gradients are then large enough for 16 bits. It is halved
/// when a gradient overflows, and that step changes nothing; it is doubled after 2,000 steps without
/// (Micikevicius et al., arXiv 1710.03740).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// A power of two.
    pub factor: f32,
    /// Steps since it last changed.
    pub steady: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { factor: 65_536.0, steady: 0 }
    }
}

impl LossScale {
    const GROWS_AFTER: u32 = 2000;
    const LARGEST: f32 = 16_777_216.0;

    /// After a step whose gradient was finite.
    pub(crate) fn keep(&mut self) {
        self.steady += 1;
        if self.steady >= LossScale::GROWS_AFTER && self.factor < LossScale::LARGEST {
            *self = LossScale { factor: 2.0 * self.factor, steady: 0 };
        }
    }

    /// After a step whose gradient was not; whether there is a smaller factor to try.
    pub(crate) fn fall(&mut self) -> bool {
        *self = LossScale { factor: 0.5 * self.factor, steady: 0 };
        self.factor >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_halves_on_overflow_and_doubles_after_calm() {
        let mut scale = LossScale::default();
        (0..16).for_each(|_| assert!(scale.fall()));
        assert_eq!(scale.factor, 1.0);
        for _ in 0..1999 {
            scale.keep();
        }
        assert_eq!((scale.factor, scale.steady), (1.0, 1999));
        scale.keep();
        assert_eq!((scale.factor, scale.steady), (2.0, 0));
        assert!(scale.fall() && !scale.fall());
    }

    #[test]
    fn names_go_both_ways() {
        for precision in Precision::ALL {
            let text = serde_json::to_string(&precision).unwrap();
            assert_eq!(text, format!("{:?}", precision.name()));
            assert_eq!(serde_json::from_str::<Precision>(&text).unwrap(), precision);
        }
    }
}
