//! Rotary positions: queries and keys are turned by an angle that grows with the position.

use kernels::{Team, rope};

/// Cosines and sines for every position: D values each (D/2 cosines, then D/2 sines).
#[derive(Clone, Debug)]
pub struct Rotary {
    table: Vec<f32>,
    head_dim: usize,
}

impl Rotary {
    /// Angles position·θ^(-2i/D) in f64, for positions below `positions`.
    pub fn new(head_dim: usize, positions: usize, theta: f64) -> Rotary {
        let half = head_dim / 2;
        let mut table = vec![0.0; positions * head_dim];
        for (position, row) in table.chunks_exact_mut(head_dim).enumerate() {
            for i in 0..half {
                let angle = position as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64);
                row[i] = angle.cos() as f32;
                row[half + i] = angle.sin() as f32;
            }
        }
        Rotary { table, head_dim }
    }

    /// Turns `heads` heads from column `from` of rows `stride` apart, each by its row's position.
    pub fn forward(
        &self,
        team: &Team,
        x: &mut [f32],
        stride: usize,
        from: usize,
        heads: usize,
        positions: &[u32],
    ) {
        rope(team, x, stride, from, heads, self.head_dim, positions, &self.table, false);
    }

    /// Turns the gradient back, in place. Saved: nothing.
    pub fn backward(
        &self,
        team: &Team,
        d: &mut [f32],
        stride: usize,
        from: usize,
        heads: usize,
        positions: &[u32],
    ) {
        rope(team, d, stride, from, heads, self.head_dim, positions, &self.table, true);
    }
}
