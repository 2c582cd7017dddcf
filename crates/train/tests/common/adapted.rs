//! A network with adapters that are not zero, and the same with the adapters merged in.

use kernels::HalfKind;
use models::*;
use std::sync::Arc;
use tensor::{MatrixKind, PANEL_ROWS, Parameters, QuantBlock, Storage, pack_panel};

pub const VOCAB: usize = 70;
const F: usize = 64;

pub fn base(kind: MlpConfig, lora: Option<LoraConfig>) -> TransformerConfig {
    TransformerConfig {
        hidden_size: 32,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        intermediate_size: F,
        norm: NormConfig::Rms,
        positions: PositionConfig::Rotary,
        mlp: kind,
        bias: false,
        qkv_bias: Some(true),
        qk_norm: true,
        post_norm: true,
        tie_word_embeddings: kind != MlpConfig::Gelu,
        final_logit_softcapping: Some(4.0),
        lora,
        ..TransformerConfig::email(VOCAB, 40)
    }
}

pub fn adapters(kind: MlpConfig) -> LoraConfig {
    let targets = LoraTarget::ALL.into_iter();
    let targets = targets.filter(|t| t.is_in(&base(kind, None))).collect();
    LoraConfig { rank: 3, alpha: 6.0, targets }
}

fn bits_of(row: usize, column: usize) -> u64 {
    kernels::mix((row * 1000 + column) as u64)
}

/// A matrix of a kind, packed; and its values.
fn matrix(kind: MatrixKind, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let half = |row: usize, column: usize| {
        let (sign, rest) = ((bits_of(row, column) & 1) << 15, bits_of(row, column) / 2);
        // Of 0.03 to 0.25 in either kind.
        let bf16 = kind == MatrixKind::Half(HalfKind::Bf16);
        (sign + if bf16 { 0x3D00 + rest % 0x180 } else { 0x2800 + rest % 0xC00 }) as u16
    };
    let block = |row: usize, index: usize| {
        let codes = std::array::from_fn(|i| bits_of(row, index * 32 + i) as u8);
        QuantBlock { codes, d: 0x1000, ..QuantBlock::ZERO }
    };
    let mut panels = vec![0; kind.matrix_bytes(rows, cols)];
    for (p, panel) in panels.chunks_exact_mut(kind.panel_bytes(cols)).enumerate() {
        let first = p * PANEL_ROWS;
        match kind {
            MatrixKind::Half(kind) => {
                kind.pack_panel(cols, panel, |row, column| half(first + row, column));
            }
            MatrixKind::Quant(kind) => {
                pack_panel(kind, cols, panel, |row| {
                    Some(move |_, index| block(first + row, index))
                });
            }
        }
    }
    let value = |at: usize| match kind {
        MatrixKind::Half(kind) => kind.value(half(at / cols, at % cols)),
        MatrixKind::Quant(kind) => block(at / cols, at % cols / 32).values(kind)[at % 32],
    };
    (panels, (0..rows * cols).map(value).collect())
}

/// A model with adapters whose B is not zero, kept as `kind` says; and the same with all weights as
/// values and the adapters merged in.
pub fn pair(kind: MlpConfig, kept: Option<MatrixKind>) -> (Model, Model) {
    let lora = adapters(kind);
    let full = ModelConfig::Transformer(base(kind, None));
    let mut merged = Model::new(&full).unwrap();
    merged.weights_mut().initialise(5);
    let mut config = base(kind, Some(lora.clone()));
    let layout = Arc::clone(merged.layout());
    let matrices = || layout.specs().iter().filter(|s| s.shape.len() == 2);
    config.storage = match kept {
        Some(kind) => matrices().map(|s| (s.name.clone(), vec![(kind, s.shape[0])])).collect(),
        None => Storage::new(),
    };
    if let Some(kind) = kept {
        for spec in matrices() {
            let (_, values) = matrix(kind, spec.shape[0], spec.shape[1]);
            merged.weights_mut().flat_mut()[spec.range.clone()].copy_from_slice(&values);
        }
    }
    let mut frozen = Model::new(&ModelConfig::Transformer(config)).unwrap();
    let own = Arc::clone(frozen.layout());
    for spec in own.specs() {
        let (_, values, blocks) = frozen.weights_mut().parts_mut();
        let place = &mut values[spec.range.clone()];
        if let Some(part) = spec.parts.first() {
            blocks[part.bytes.clone()]
                .copy_from_slice(&matrix(part.kind, spec.shape[0], spec.shape[1]).0);
        } else if is_adapter(&spec.name) {
            let key = spec.name.len() as u64;
            place
                .iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v = 0.2 * kernels::normal(key, i as u64));
        } else {
            let same = layout.specs().iter().find(|s| s.name == spec.name).unwrap();
            place.copy_from_slice(&merged.weights().flat()[same.range.clone()]);
        }
    }
    let c = base(kind, None);
    for i in 0..c.num_hidden_layers {
        for &target in &lora.targets {
            let name = format!("layers.{i}.{}", target.matrix());
            let spec = layout.specs().iter().find(|s| s.name == name).unwrap();
            let (rows, inputs) = target.shape(&c);
            let (a, b) = ab(frozen.weights(), i, target);
            let start = spec.range.start + rows.start * inputs;
            let w = &mut merged.weights_mut().flat_mut()[start..start + rows.len() * inputs];
            for (at, w) in w.iter_mut().enumerate() {
                let (row, col) = (at / inputs, at % inputs);
                *w += (0..3).map(|r| 2.0 * b[row * 3 + r] * a[r * inputs + col]).sum::<f32>();
            }
        }
    }
    (frozen, merged)
}

/// A (3×inputs) and B (rows×3) of an adapter, or their gradients.
pub fn ab(of: &Parameters, layer: usize, target: LoraTarget) -> (&[f32], &[f32]) {
    let get = |part: &str| {
        let name = format!("layers.{layer}.{}.{part}.weight", target.prefix());
        let spec = of.layout().specs().iter().find(|s| s.name == name).unwrap();
        &of.flat()[spec.range.clone()]
    };
    (get("lora_a"), get("lora_b"))
}
