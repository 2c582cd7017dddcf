//! Products with quantised matrices, multiplied as they are: integer dot products a block.
//!
//! A matrix is repacked once into panels of sixteen rows. Blocks of 32 columns follow each other
//! in a panel; in a block, the codes of four neighbouring columns of all sixteen rows stand
//! together, so that one instruction takes a step of four columns for sixteen outputs. Rows of x
//! are rounded to 12 bits, a scale for 32 values.
//!
//! The numerics: the dot of a block is an exact integer; blocks are added in ascending order, each by
//! one fused multiply-add in f32, so that every instruction set and any batch give the same bits. y
//! differs from that of f32 activations by their rounding alone:
//! |x - x̂| is at most 1/4064 of the largest |x| of the block.

mod pack;
mod product;
mod quads;
mod rows;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use pack::{QuantBlock, QuantRow, pack_panel, unpack_block};
pub use product::{QuantMatrix, quant_matmul};
pub use rows::{QuantRows, quant_rows_len, quantise_rows};

/// Rows a panel holds.
pub const PANEL_ROWS: usize = 16;
/// Columns a block holds.
pub const BLOCK: usize = 32;
/// Blocks under one scale of scales, where a kind has such.
const SUPER: usize = 8;

/// How the codes and scales of a matrix are stored; names as in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantKind {
    /// value = d·(code - 8), 4 bits, d in f16
    Q4_0,
    /// value = d·code + m, 4 bits, d and m in f16
    Q4_1,
    /// value = d·(code - 16), 5 bits
    Q5_0,
    /// value = d·code + m, 5 bits
    Q5_1,
    /// value = d·(code - 128), 8 bits
    Q8_0,
    /// value = (d·scale)·code - (m·min), 4 bits, scale and min whole numbers, d and m for 256
    Q4K,
    /// As [`QuantKind::Q4K`], 5 bits
    Q5K,
    /// value = (d·scale)·(code - 32), 6 bits, a signed whole scale for 16, d for 256
    Q6K,
}

/// Which numbers turn codes into values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    /// f16 d
    One,
    /// f16 d, f16 m
    WithMin,
    /// u8 scale, u8 min; f16 d and m a super-block
    Super,
    /// Two i8 scales; f16 d a super-block
    Sixteen,
}

impl QuantKind {
    /// Every kind.
    pub const ALL: [QuantKind; 8] = [
        QuantKind::Q4_0,
        QuantKind::Q4_1,
        QuantKind::Q5_0,
        QuantKind::Q5_1,
        QuantKind::Q8_0,
        QuantKind::Q4K,
        QuantKind::Q5K,
        QuantKind::Q6K,
    ];

    /// Columns that a row's length is a multiple of.
    pub const fn granule(self) -> usize {
        match self.scales() {
            Scales::One | Scales::WithMin => BLOCK,
            Scales::Super | Scales::Sixteen => BLOCK * SUPER,
        }
    }

    /// Bytes of a panel whose rows have `cols` values.
    pub const fn panel_bytes(self, cols: usize) -> usize {
        cols / BLOCK * self.block_bytes() + cols / (BLOCK * SUPER) * self.super_bytes()
    }

    /// Bytes of a matrix of `rows` rows, the last panel filled up.
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(PANEL_ROWS) * self.panel_bytes(cols)
    }

    const fn scales(self) -> Scales {
        match self {
            QuantKind::Q4_0 | QuantKind::Q5_0 | QuantKind::Q8_0 => Scales::One,
            QuantKind::Q4_1 | QuantKind::Q5_1 => Scales::WithMin,
            QuantKind::Q4K | QuantKind::Q5K => Scales::Super,
            QuantKind::Q6K => Scales::Sixteen,
        }
    }

    /// Bits a stored code takes: 6-bit codes take a byte.
    const fn bits(self) -> usize {
        match self {
            QuantKind::Q4_0 | QuantKind::Q4_1 | QuantKind::Q4K => 4,
            QuantKind::Q5_0 | QuantKind::Q5_1 | QuantKind::Q5K => 5,
            QuantKind::Q8_0 | QuantKind::Q6K => 8,
        }
    }

    /// The code that stands for 0, as a power of two; none where there is a minimum.
    const fn zero_bits(self) -> Option<u32> {
        match self {
            QuantKind::Q4_0 => Some(3),
            QuantKind::Q5_0 => Some(4),
            QuantKind::Q6K => Some(5),
            QuantKind::Q8_0 => Some(7),
            _ => None,
        }
    }

    const fn code_bytes(self) -> usize {
        PANEL_ROWS * BLOCK * self.bits() / 8
    }

    /// Bytes of a block's numbers, which stand before its codes.
    const fn scale_bytes(self) -> usize {
        match self.scales() {
            Scales::One | Scales::Super | Scales::Sixteen => 2 * PANEL_ROWS,
            Scales::WithMin => 4 * PANEL_ROWS,
        }
    }

    const fn block_bytes(self) -> usize {
        self.scale_bytes() + self.code_bytes()
    }

    /// Bytes of a super-block's numbers, which stand before its blocks.
    const fn super_bytes(self) -> usize {
        match self.scales() {
            Scales::One | Scales::WithMin => 0,
            Scales::Super => 4 * PANEL_ROWS,
            Scales::Sixteen => 2 * PANEL_ROWS,
        }
    }

    /// Where block `index` of a panel starts, and the numbers of its super-block.
    const fn block_at(self, index: usize) -> (usize, usize) {
        let start = index / SUPER * (SUPER * self.block_bytes() + self.super_bytes());
        (start + self.super_bytes() + index % SUPER * self.block_bytes(), start)
    }
}
