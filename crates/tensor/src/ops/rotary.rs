//! Rotary positions: queries and keys are turned by an angle that grows with the position.

use kernels::{Team, rope};

/// Frequencies of D/2 pairs: pair i of position p is turned by p times frequency i.
#[derive(Clone, Debug)]
pub struct Rotary {
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by; 1 as a rule.
    factor: f64,
}

impl Rotary {
    /// Frequencies θ^(-2i/D).
    pub fn new(head_dim: usize, theta: f64) -> Rotary {
        let half = head_dim / 2;
        let frequency = |i| theta.powf(-2.0 * i as f64 / head_dim as f64);
        Rotary { frequencies: (0..half).map(frequency).collect(), factor: 1.0 }
    }

    /// The same with each frequency changed by a function of its index, and all cosines and sines
    /// multiplied by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f64, change: impl Fn(usize, f64) -> f64) -> Rotary {
        for (i, frequency) in self.frequencies.iter_mut().enumerate() {
            *frequency = change(i, *frequency);
        }
        self.factor = factor;
        self
    }

    /// Values a row of angles takes: D.
    pub fn width(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines and sines of a batch's positions, R×D: D/2 cosines, then D/2 sines a row. The
    /// angle is taken in f64, so that far positions are as exact as near ones.
    pub fn angles(&self, positions: &[u32], out: &mut [f32]) {
        let half = self.frequencies.len();
        for (row, &position) in out.chunks_exact_mut(self.width()).zip(positions) {
            let (cosines, sines) = row.split_at_mut(half);
            for ((c, s), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                *c = (cos * self.factor) as f32;
                *s = (sin * self.factor) as f32;
            }
        }
    }
}

/// Turns `heads` heads from column `from` of rows `stride` apart by the rows' angles.
pub fn turn(team: &Team, x: &mut [f32], stride: usize, from: usize, heads: usize, angles: &[f32]) {
    let d = angles.len() / (x.len() / stride).max(1);
    rope(team, x, stride, from, heads, d, angles, false);
}

/// Turns the gradient back, in place. Saved: nothing.
pub fn turn_back(
    team: &Team,
    d_x: &mut [f32],
    stride: usize,
    from: usize,
    heads: usize,
    angles: &[f32],
) {
    let d = angles.len() / (d_x.len() / stride).max(1);
    rope(team, d_x, stride, from, heads, d, angles, true);
}
