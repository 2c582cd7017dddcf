//! What the sliders of a page work with, from what ran: ledgers carry it, so that a diagnosis works other
//! settings out by the same lists as a plan.

use crate::running::{self, Runtime};
use crate::{
    Architecture, Error, Layout, NumberKind, Optimizer, Precision, ServeAsk, Sheet, TrainAsk,
};
use engine::serving::Limits;
use kernels::KvKind;
use ledger::{Account, Plan};
use models::ModelConfig;
use serde_json::Value;
use train::{BatchShape, OptimizerKind, Place, TrainConfig};

/// What ran, beside its own numbers.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// The model's name.
    pub name: &'a str,
    /// What was allocated for it.
    pub plan: &'a Plan,
    /// What the process held beside that.
    pub runtime_bytes: u64,
    /// Workers.
    pub threads: usize,
}

/// Of a server of this program.
///
/// # Errors
/// A model without keys and values; numbers that make no server.
pub fn of_serving(ran: Ran<'_>, config: &ModelConfig, limits: &Limits) -> Result<Value, Error> {
    let architecture = Architecture::of(ran.name, config.clone(), true)?;
    let kv = match architecture.transformer()?.kv {
        KvKind::F32 => NumberKind::F32,
        KvKind::F16 => NumberKind::F16,
        KvKind::Q8 => NumberKind::Q8,
    };
    let ask = ServeAsk {
        context: (limits.pages / limits.sequences.max(1)).max(1) as u64 * limits.page_tokens as u64,
        requests: limits.sequences as u64,
        weights: architecture.own_weights(),
        kv,
        step_tokens: limits.step_tokens as u64,
        threads: ran.threads as u64,
        page_tokens: limits.page_tokens as u64,
        drafts: limits.drafts as u64,
        budget: None,
    };
    let runtime = Runtime { bytes: ran.runtime_bytes };
    let plan = running::serve(&architecture, &ask, runtime, None)?;
    Ok(Sheet::serve(&architecture, &ask, &plan, true)?.into_value())
}

/// Of a training by this program. Batches count as whole ones of the longest sequences.
///
/// # Errors
/// A training that the formulas have no numbers for: half precision, adapters.
pub fn of_training(
    ran: Ran<'_>,
    config: &TrainConfig,
    shape: BatchShape,
    place: Place,
) -> Result<Value, Error> {
    let refuse = |what: &str| Err(Error::Unanswerable(format!("{}: {what}", ran.name)));
    let precision = match config.train.precision {
        train::Precision::F32 => Precision::F32,
        train::Precision::Bf16 => Precision::Bf16,
        _ => return refuse("no plan is made of half precision"),
    };
    if matches!(&config.model, ModelConfig::Transformer(c) if c.lora.is_some()) {
        return refuse("its adapters may be on some matrices alone");
    }
    let architecture = Architecture::of(ran.name, config.model.clone(), true)?;
    let (batch, ranks) = (shape.sequences as u64, place.size as u64);
    let ask = TrainAsk {
        optimizer: match config.train.optimizer {
            OptimizerKind::Adamw => Optimizer::Adamw,
            OptimizerKind::Muon => Optimizer::Muon,
        },
        precision,
        batch,
        length: (shape.longest.saturating_sub(1)).max(1) as u64,
        accumulate: (config.train.batch as u64).div_ceil(batch * ranks).max(1),
        pieces: config.train.pieces > 0,
        recompute: shape.recompute,
        layout: Layout { stage: place.stage.number(), ranks },
        threads: ran.threads as u64,
        ..TrainAsk::default()
    };
    // Mapped tokens stay as they are whatever the sliders say.
    let bytes = ran.runtime_bytes;
    let plan = running::train(&architecture, &ask, Runtime { bytes })?;
    let sheet = Sheet::train(&architecture, &ask, &plan, true)?;
    Ok(sheet.with_data(ran.plan.of(Account::Data)).into_value())
}
