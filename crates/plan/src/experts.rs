//! Mixtures of experts: a layer has many MLPs, of which a token goes through some. The configuration
//! beside it is that of what a token goes through, so that arithmetic and activations are its; the other
//! experts are added where weights are counted.

use crate::Error;
use crate::term::{product, sum};
use models::TransformerConfig;

/// The experts of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u64,
    /// Of them, those that a token goes through.
    pub active: u64,
    /// F of one expert.
    pub inner: u64,
    /// F of the expert that every token goes through, 0 where there is none; it has a gate of its own.
    pub shared: u64,
}

impl Experts {
    /// F of what a token goes through.
    pub(crate) fn active_inner(&self) -> u64 {
        self.active.saturating_mul(self.inner).saturating_add(self.shared)
    }

    /// Parameters of a layer that the configuration of what a token goes through does not have: the
    /// other experts, the router, the gate of the shared expert.
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub(crate) fn more_of_a_layer(&self, config: &TransformerConfig) -> Result<u64, Error> {
        let (what, c) = ("the experts", config.hidden_size as u64);
        let others = product(what, &[self.count - self.active, 3, c, self.inner])?;
        let gate = if self.shared > 0 { c } else { 0 };
        sum(what, &[others, product(what, &[c, self.count])?, gate])
    }

    /// The share of a layer's experts that `tokens` tokens read, on average, if the router has no
    /// favourites.
    pub(crate) fn read_share(&self, tokens: f64) -> f64 {
        1.0 - (1.0 - self.active as f64 / self.count as f64).powf(tokens)
    }

    /// Parameters of all experts of a layer, the shared one apart.
    pub(crate) fn of_a_layer(&self, config: &TransformerConfig) -> f64 {
        3.0 * self.count as f64 * self.inner as f64 * config.hidden_size as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_its_own_experts_and_many_read_all() {
        let experts = Experts { count: 8, active: 2, inner: 10, shared: 0 };
        assert_eq!(experts.read_share(1.0), 0.25);
        assert!(experts.read_share(64.0) > 0.999);
        assert_eq!(Experts { shared: 7, ..experts }.active_inner(), 27);
    }
}
