//! Number formats and the bytes that they take.

use crate::Error;
use serde::Serialize;

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberKind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with 8 bits of exponent.
    Bf16,
    /// 16-bit floats with 5 bits of exponent.
    F16,
    /// 8-bit floats.
    Fp8,
    /// GGUF block formats: 32 values with a scale.
    #[serde(rename = "q8_0")]
    Q8,
    /// GGUF: 32 values of 5 bits with a scale.
    #[serde(rename = "q5_0")]
    Q5,
    /// GGUF: 32 values of 4 bits with a scale and a minimum.
    #[serde(rename = "q4_1")]
    Q41,
    /// GGUF: 32 values of 4 bits with a scale.
    #[serde(rename = "q4_0")]
    Q4,
    /// GGUF: 256 values of 4 bits with scales of their own.
    Q4K,
    /// GGUF: 256 values of 6 bits with scales of their own.
    Q6K,
}

impl NumberKind {
    /// Every kind, the widest first.
    pub const ALL: [NumberKind; 10] = [
        NumberKind::F32,
        NumberKind::Bf16,
        NumberKind::F16,
        NumberKind::Fp8,
        NumberKind::Q8,
        NumberKind::Q6K,
        NumberKind::Q5,
        NumberKind::Q41,
        NumberKind::Q4K,
        NumberKind::Q4,
    ];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            NumberKind::F32 => "f32",
            NumberKind::Bf16 => "bf16",
            NumberKind::F16 => "f16",
            NumberKind::Fp8 => "fp8",
            NumberKind::Q8 => "q8_0",
            NumberKind::Q6K => "q6_k",
            NumberKind::Q5 => "q5_0",
            NumberKind::Q41 => "q4_1",
            NumberKind::Q4K => "q4_k",
            NumberKind::Q4 => "q4_0",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<NumberKind> {
        NumberKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// (values of a block, bytes of a block).
    pub(crate) fn block(self) -> (u64, u64) {
        match self {
            NumberKind::F32 => (1, 4),
            NumberKind::Bf16 | NumberKind::F16 => (1, 2),
            NumberKind::Fp8 => (1, 1),
            NumberKind::Q8 => (32, 34),
            NumberKind::Q5 => (32, 22),
            NumberKind::Q41 => (32, 20),
            NumberKind::Q4 => (32, 18),
            NumberKind::Q4K => (256, 144),
            NumberKind::Q6K => (256, 210),
        }
    }

    /// Bytes that `values` values take, the last block filled up.
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub fn bytes(self, values: u64) -> Result<u64, Error> {
        let (per_block, bytes) = self.block();
        let what = "a number of bytes";
        values.div_ceil(per_block).checked_mul(bytes).ok_or(Error::Overflow { what })
    }

    /// Bytes a value, on average.
    pub fn width(self) -> f64 {
        let (values, bytes) = self.block();
        bytes as f64 / values as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_filled_up() {
        assert_eq!(NumberKind::Bf16.bytes(3).unwrap(), 6);
        assert_eq!(NumberKind::Q8.bytes(33).unwrap(), 68);
        assert_eq!(NumberKind::Q4K.bytes(256).unwrap(), 144);
        assert!(NumberKind::F32.bytes(u64::MAX / 2).is_err());
        for kind in NumberKind::ALL {
            assert_eq!(NumberKind::from_name(kind.name()), Some(kind));
        }
    }
}
