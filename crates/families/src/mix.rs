//! Which tensor of a GGUF file is stored how.
//!
//! Vectors stay floats: they are small and everything passes through them. The output projection,
//! some value and down projections of Q4_K_M are stored finer, as files by that name are known to
//! have them; rows that are no whole blocks fall back to a kind with blocks of 32, then to F16.

use formats::TensorKind;

/// A rule for all tensors of a file, by its usual name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Everything in F32.
    F32,
    /// Matrices in F16.
    F16,
    /// Matrices in BF16.
    Bf16,
    /// Matrices in Q8_0.
    Q8_0,
    /// Matrices in Q4_0, the output projection in Q6_K.
    Q4_0,
    /// Matrices in Q4_K, those that matter most in Q6_K.
    Q4KM,
}

impl Mix {
    /// All rules.
    pub const ALL: [Mix; 6] = [Mix::F32, Mix::F16, Mix::Bf16, Mix::Q8_0, Mix::Q4_0, Mix::Q4KM];

    /// Its usual name, in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Mix::F32 => "f32",
            Mix::F16 => "f16",
            Mix::Bf16 => "bf16",
            Mix::Q8_0 => "q8_0",
            Mix::Q4_0 => "q4_0",
            Mix::Q4KM => "q4_k_m",
        }
    }

    /// The number of `general.file_type`.
    pub(crate) const fn file_type(self) -> u32 {
        match self {
            Mix::F32 => 0,
            Mix::F16 => 1,
            Mix::Q4_0 => 2,
            Mix::Q8_0 => 7,
            Mix::Q4KM => 15,
            Mix::Bf16 => 32,
        }
    }

    /// How a tensor is stored, by its name in a GGUF file with `layers` layers.
    pub(crate) fn kind_of(
        self,
        name: &str,
        shape: &[usize],
        layers: usize,
        tied: bool,
    ) -> TensorKind {
        if shape.len() < 2 || name.ends_with("_norm.weight") || name == "position_embd.weight" {
            return TensorKind::F32;
        }
        let head = if tied { "token_embd.weight" } else { "output.weight" };
        let wanted = match self {
            Mix::F32 => TensorKind::F32,
            Mix::F16 => TensorKind::F16,
            Mix::Bf16 => TensorKind::Bf16,
            Mix::Q8_0 => TensorKind::Q8_0,
            _ if name == head => TensorKind::Q6K,
            Mix::Q4_0 => TensorKind::Q4_0,
            Mix::Q4KM => in_q4_k_m(name, layers),
        };
        fitting(wanted, shape.last().copied().unwrap_or(1))
    }
}

fn in_q4_k_m(name: &str, layers: usize) -> TensorKind {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((Ok(layer), part)) = layer.map(|(n, part)| (n.parse::<usize>(), part)) else {
        return TensorKind::Q4K;
    };
    match part {
        "attn_qkv.weight" => TensorKind::Q5K,
        "attn_v.weight" | "ffn_down.weight" if is_finer(layer, layers) => TensorKind::Q6K,
        _ => TensorKind::Q4K,
    }
}

/// The first and last eighth of the layers, and every third between.
fn is_finer(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The same, or what comes next where rows are no whole blocks.
fn fitting(wanted: TensorKind, row: usize) -> TensorKind {
    let next = match wanted {
        TensorKind::Q4K => TensorKind::Q5_0,
        TensorKind::Q5K => TensorKind::Q5_1,
        TensorKind::Q6K => TensorKind::Q8_0,
        TensorKind::F16 | TensorKind::Bf16 | TensorKind::F32 => return wanted,
        _ => TensorKind::F16,
    };
    if row.is_multiple_of(wanted.block_len()) { wanted } else { fitting(next, row) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_stored_by_what_they_are() {
        let check = |mix: Mix, name: &str, shape: &[usize], expected: TensorKind| {
            assert_eq!(mix.kind_of(name, shape, 30, true), expected, "{mix:?} {name} {shape:?}");
        };
        for mix in Mix::ALL {
            check(mix, "blk.0.attn_norm.weight", &[64], TensorKind::F32);
            check(mix, "position_embd.weight", &[64, 256], TensorKind::F32);
        }
        check(Mix::F16, "blk.0.attn_q.weight", &[64, 33], TensorKind::F16);
        check(Mix::Q8_0, "blk.0.attn_q.weight", &[64, 64], TensorKind::Q8_0);
        check(Mix::Q8_0, "blk.0.attn_q.weight", &[64, 33], TensorKind::F16);
        check(Mix::Q4_0, "token_embd.weight", &[64, 256], TensorKind::Q6K);
        check(Mix::Q4_0, "token_embd.weight", &[64, 96], TensorKind::Q8_0);
        check(Mix::Q4KM, "blk.10.attn_q.weight", &[64, 512], TensorKind::Q4K);
        check(Mix::Q4KM, "blk.10.attn_q.weight", &[64, 576], TensorKind::Q5_0);
        check(Mix::Q4KM, "blk.0.attn_v.weight", &[64, 512], TensorKind::Q6K);
        check(Mix::Q4KM, "blk.3.attn_v.weight", &[64, 512], TensorKind::Q4K);
        check(Mix::Q4KM, "blk.5.ffn_down.weight", &[64, 512], TensorKind::Q6K);
        check(Mix::Q4KM, "blk.29.ffn_down.weight", &[64, 512], TensorKind::Q6K);
        check(Mix::Q4KM, "blk.3.attn_qkv.weight", &[64, 256], TensorKind::Q5K);
        let untied = Mix::Q4KM.kind_of("token_embd.weight", &[64, 256], 30, false);
        assert_eq!(untied, TensorKind::Q4K);
    }
}
