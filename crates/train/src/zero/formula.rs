//! What a step sends, by formula: gradients in FP32, parameters as computation reads them.

use super::{Flow, Place, Stage};
use crate::config::{Recipe, TrainConfig};
use models::{Model, ModelConfig, Units};
use tensor::Layout;

/// What a rank sends a step. What is rounded up, norms in 16 bits and what is still in its place are
/// left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentBytes {
    /// Bytes a parameter that learns; of them a rank sends (N−1)/N.
    pub per_parameter: u64,
    /// Bytes that it sends.
    pub per_step: u64,
}

impl SentBytes {
    /// Of a training on so many ranks.
    ///
    /// # Errors
    /// When the configuration makes no network.
    pub fn of(config: &TrainConfig, place: Place) -> Result<SentBytes, models::Error> {
        let layout = Model::layout_of(&config.model)?;
        let Recipe { batch, micro_batch, pieces, precision, .. } = config.train;
        let (size, word) = (place.size.max(1), if precision.half().is_some() { 2 } else { 4 });
        // A rank has a share of the batch, or some pieces, each of some batches that are computed at once.
        let shares = pieces.max(size);
        let own = shares.div_ceil(size) as u128;
        let passes = own * (batch / shares).div_ceil(micro_batch.max(1)) as u128;
        let flow = Flow::new(config, place);
        let reduced = match flow.shares_gradients() {
            _ if flow.pieces => own,
            true => passes,
            false => 1,
        };
        let (learnt, read) = parameters(&config.model, &layout);
        let gathered = match place.stage {
            Stage::Zero => 4 * learnt,
            Stage::One | Stage::Two => word * learnt,
            Stage::Three => (2 * word * read).saturating_mul(passes),
        };
        let all = (4 * learnt).saturating_mul(reduced).saturating_add(gathered);
        let sent = all.saturating_mul(size as u128 - 1) / size as u128;
        let number = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Ok(SentBytes { per_parameter: number(all / learnt.max(1)), per_step: number(sent) })
    }
}

/// Parameters that learn; and those of a forward pass, each as often as it is read.
fn parameters(config: &ModelConfig, layout: &Layout) -> (u128, u128) {
    let specs = layout.specs();
    let visits = |unit: usize| match config {
        ModelConfig::Transformer(c) if (1..=c.own_layers()).contains(&unit) => {
            (c.num_hidden_layers + 1 - unit).div_ceil(c.own_layers())
        }
        _ => 1,
    };
    let (mut learnt, mut read) = (0, 0);
    for (unit, members) in Units::of(config, layout).members.iter().enumerate() {
        let learns = members.iter().filter(|&&param| config.trains(&specs[param].name));
        let count = learns.map(|&param| specs[param].count() as u128).sum::<u128>();
        learnt += count;
        read += count * visits(unit) as u128;
    }
    (learnt, read)
}
