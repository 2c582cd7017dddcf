//! How the values of a tensor are stored: plain numbers, or blocks that share scales.

use std::fmt;

/// How values are stored. Blocks run along the innermost dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorKind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats (IEEE half).
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 4 bits around 0, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits around 0, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits around 0, a scale for 32.
    Q8_0,
    /// 4 bits; scales and minima of 32 in 6 bits, a scale of both for 256.
    Q4K,
    /// 5 bits; scales and minima of 32 in 6 bits, a scale of both for 256.
    Q5K,
    /// 6 bits around 0; scales of 16 in 8 bits, a scale of them for 256.
    Q6K,
}

impl TensorKind {
    /// All kinds.
    pub const ALL: [TensorKind; 11] = [
        TensorKind::F32,
        TensorKind::F16,
        TensorKind::Bf16,
        TensorKind::Q4_0,
        TensorKind::Q4_1,
        TensorKind::Q5_0,
        TensorKind::Q5_1,
        TensorKind::Q8_0,
        TensorKind::Q4K,
        TensorKind::Q5K,
        TensorKind::Q6K,
    ];

    /// (number in a GGUF file, name, values a block, bytes a block).
    #[inline]
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            TensorKind::F32 => (0, "F32", 1, 4),
            TensorKind::F16 => (1, "F16", 1, 2),
            TensorKind::Bf16 => (30, "BF16", 1, 2),
            TensorKind::Q4_0 => (2, "Q4_0", 32, 18),
            TensorKind::Q4_1 => (3, "Q4_1", 32, 20),
            TensorKind::Q5_0 => (6, "Q5_0", 32, 22),
            TensorKind::Q5_1 => (7, "Q5_1", 32, 24),
            TensorKind::Q8_0 => (8, "Q8_0", 32, 34),
            TensorKind::Q4K => (12, "Q4_K", 256, 144),
            TensorKind::Q5K => (13, "Q5_K", 256, 176),
            TensorKind::Q6K => (14, "Q6_K", 256, 210),
        }
    }

    /// Its usual name.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// Values a block holds.
    #[inline]
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes a block takes.
    #[inline]
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Bytes of `values` values; none when they are no whole blocks or too many to count.
    pub const fn bytes_of(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_len()) {
            return None;
        }
        (values / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Its number in a GGUF file.
    pub(crate) const fn number(self) -> u32 {
        self.facts().0
    }

    /// The kind with that number in a GGUF file; otherwise what to call it.
    pub(crate) fn from_gguf(number: u32) -> Result<TensorKind, String> {
        if let Some(kind) = TensorKind::ALL.into_iter().find(|k| k.facts().0 == number) {
            return Ok(kind);
        }
        Err(match OTHERS.iter().find(|other| other.0 == number) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("number {number}"),
        })
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kinds that GGUF files may hold and this reader refuses.
const OTHERS: [(u32, &str); 25] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked_and_unknown_kinds_named() {
        assert_eq!(TensorKind::Q4K.bytes_of(512), Some(288));
        assert_eq!(TensorKind::Q4K.bytes_of(500), None);
        assert_eq!(TensorKind::F32.bytes_of(usize::MAX / 2), None);
        for kind in TensorKind::ALL {
            assert_eq!(TensorKind::from_gguf(kind.facts().0), Ok(kind));
        }
        assert_eq!(TensorKind::from_gguf(10), Err("Q2_K".to_owned()));
        assert_eq!(TensorKind::from_gguf(4), Err("number 4".to_owned()));
    }
}
