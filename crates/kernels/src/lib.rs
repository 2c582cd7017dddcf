//! Arithmetic on slices: one source for every instruction set, chosen at run time.
//!
//! Every kernel is written once over sixteen virtual lanes ([`lanes`](self)) and stamped for each
//! instruction set by `stamp!`. Nothing here knows tensors, files or models. Each result is a
//! chain of operations that depends on its own row alone, so the bits do not change with the
//! batch, the chunking or the number of workers. Every level gives the same bits in f32 and for
//! quantised matrices; products in 16 bits differ between AMX, AVX-512 and the others within
//! [`MIXED_TOLERANCE`].
//!
//! Shape letters: B sequences, T tokens, R rows (all tokens of a batch), C hidden size, H query
//! heads, G K/V heads, D head size, F MLP size, V vocabulary.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod elementwise;
mod halves;
mod head;
mod isa;
mod kept;
mod kv;
mod lanes;
mod math;
mod matmul;
mod mixed;
mod muon;
mod norm;
mod optimizer;
mod quant;
mod random;
mod recurrent;
mod reduce;
pub mod reference;
mod split;
mod team;
mod unpack;

pub use attention::{
    AttentionShape, KEY_TILE, Segment, attention_backward, attention_forward, attention_workspace,
    largest_score,
};
pub use elementwise::{
    add_assign, add_bias_rows, clear, copy, dropout, geglu_tanh_backward, geglu_tanh_forward,
    gelu_backward, gelu_forward, gelu_tanh_backward, gelu_tanh_forward, relu2_backward,
    relu2_forward, rope, scale, soft_cap, swiglu_backward, swiglu_forward,
};
pub use halves::{HalfKind, HalfMatrix, half_matmul};
pub use head::{
    HEAD_ROWS, HeadOutput, HeadShape, head_cross_entropy, head_logits, head_workspace,
    logits_workspace, row_gradients, row_losses,
};
pub use isa::Isa;
pub use kv::{Kv, KvKind, key_lanes, store_keys};
pub use matmul::{Init, Mat, matmul, pack_transposed, packed_len};
pub use mixed::{
    Factor, Stored, TOLERANCE as MIXED_TOLERANCE, adam_mixed, half_embedding,
    mixed_attention_backward, mixed_attention_forward, mixed_attention_workspace, mixed_matmul,
    mixed_workspace, round_both, round_halves, rounded_values, softmax_gradient, widen_halves,
};
pub use muon::{MuonStep, muon, muon_workspace};
pub use norm::{
    HeadPlace, NormShape, head_norm, head_norm_backward, layer_norm_backward, layer_norm_forward,
    rms_norm_backward, rms_norm_forward,
};
pub use optimizer::{AdamStep, adam, sum_of_squares};
pub use quant::{
    BLOCK as QUANT_BLOCK, PANEL_ROWS, QuantBlock, QuantKind, QuantMatrix, QuantRow, QuantRows,
    pack_panel, quant_matmul, quant_rows_len, quantise_rows, unpack_block,
};
pub use random::{mix, normal, stream_key, uniform, uniform_bits};
pub use recurrent::{RnnShape, rnn_backward, rnn_forward, rnn_workspace};
pub use reduce::{column_sums, embedding_backward, embedding_forward, read_all};
pub use team::Team;
pub use unpack::{unpack_half_rows, unpack_quant_rows};
