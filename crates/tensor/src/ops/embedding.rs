//! Rows looked up in a table by id: tokens, and learned positions.

use crate::{Initial, Layout, ParamId, Parameters};
use kernels::{Init, Team, embedding_backward, embedding_forward, half_embedding};

/// A table of `entries` rows of `width` values.
#[derive(Clone, Debug)]
pub struct Embedding {
    table: ParamId,
    width: usize,
}

impl Embedding {
    /// Adds `name.weight` to the layout.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        entries: usize,
        width: usize,
        initial: Initial,
    ) -> Self {
        let table = layout.add(&format!("{name}.weight"), &[entries, width], initial, false);
        Embedding { table, width }
    }

    /// The table, for a tied output projection.
    pub fn table(&self) -> ParamId {
        self.table
    }

    /// `out[r, :] = (init) + table[ids[r], :]`; out: R×width.
    pub fn forward(
        &self,
        team: &Team,
        weights: &Parameters,
        ids: &[u32],
        init: Init,
        out: &mut [f32],
    ) {
        if weights.layout().is_packed(self.table) {
            return self.packed_rows(weights, ids, init, out);
        }
        if let (Some(kind), Some(bits)) = (weights.halves_kind(), weights.half(self.table)) {
            return half_embedding(team, (kind, bits), ids, self.width, init, out);
        }
        embedding_forward(team, weights.get(self.table), ids, self.width, init, out);
    }

    fn packed_rows(&self, weights: &Parameters, ids: &[u32], init: Init, out: &mut [f32]) {
        let adds = matches!(init, Init::Keep);
        let mut row = [0.0; kernels::QUANT_BLOCK];
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.width)) {
            for (index, out) in out.chunks_mut(row.len()).enumerate() {
                weights.packed_block(self.table, id as usize, index, &mut row);
                for (out, &value) in out.iter_mut().zip(&row) {
                    *out = if adds { *out + value } else { value };
                }
            }
        }
    }

    /// `d_table[ids[r], :] += d_out[r, :]`, where the table learns. Saved: the ids.
    pub fn backward(&self, team: &Team, gradients: &mut Parameters, ids: &[u32], d_out: &[f32]) {
        let d_table = gradients.get_mut(self.table);
        if !d_table.is_empty() {
            embedding_backward(team, ids, d_out, self.width, d_table);
        }
    }
}
