//! The questions asked backwards: what fits a budget, and how much of it.

use crate::serve::over;
use crate::{Architecture, Error, Prediction, Published, TrainAsk, both};
use models::Recompute;
use serde::Serialize;

/// The largest n of 1..=limit that fits, where what is taken grows with n; none where 1 does not.
///
/// # Errors
/// Those of `total`, but an overflow is too much.
pub fn most(
    limit: u64,
    budget: u64,
    total: impl Fn(u64) -> Result<u64, Error>,
) -> Result<Option<u64>, Error> {
    let fits = |n| match total(n) {
        Ok(bytes) => Ok(bytes <= budget),
        Err(Error::Overflow { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    if limit == 0 || !fits(1)? {
        return Ok(None);
    }
    let (mut low, mut high) = (1, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle)? { low = middle } else { high = middle - 1 }
    }
    Ok(Some(low))
}

/// The published model with most parameters that fits, with its total.
///
/// # Errors
/// Those of `total`, but an overflow is too much.
pub fn largest_published(
    budget: u64,
    total: impl Fn(&Architecture) -> Result<u64, Error>,
) -> Result<Option<(&'static str, u64, u64)>, Error> {
    let mut best: Option<(&'static str, u64, u64)> = None;
    for row in Published::all() {
        let architecture = row.architecture()?;
        let parameters = architecture.parameters()?;
        let bytes = match total(&architecture) {
            Ok(bytes) if bytes <= budget => bytes,
            Ok(_) | Err(Error::Overflow { .. }) => continue,
            Err(error) => return Err(error),
        };
        if best.is_none_or(|(_, most, _)| parameters > most) {
            best = Some((row.name, parameters, bytes));
        }
    }
    Ok(best)
}

/// One way to train.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Its flags.
    pub flags: String,
    /// A rank's bytes.
    pub total_bytes: u64,
    /// Whether they fit.
    pub fits: bool,
    /// The largest term.
    pub limiting_term: String,
    /// Why it fails, or what is left.
    pub reason: String,
    /// Arithmetic beside what training needs, as a share; and bytes sent a token: what it costs.
    pub extra_compute_share: f64,
    /// Bytes that a rank sends a token of its own.
    pub communication_bytes_per_token: f64,
}

/// What a search found.
#[derive(Clone, Debug, Serialize)]
pub struct Searched {
    /// Ways that fit, the cheapest first.
    pub fit: Vec<Candidate>,
    /// Ways that do not, each with its reason.
    pub fail: Vec<Candidate>,
}

/// What a training takes, by lists or by formulas.
pub type Predict<'a> = dyn Fn(&TrainAsk) -> Result<Prediction, Error> + 'a;

/// Tries stage × recomputation × micro-batch × adapters; the step's sequences stay the same.
///
/// # Errors
/// Numbers that make no training.
pub fn search(
    architecture: &Architecture,
    ask: &TrainAsk,
    budget: u64,
    predict: &Predict<'_>,
) -> Result<Searched, Error> {
    let mut found = Searched { fit: Vec::new(), fail: Vec::new() };
    let stages = if ask.layout.ranks > 1 { 0..=3u8 } else { 0..=0 };
    let adapters: &[Option<u64>] = match ask.lora {
        Some(_) => &[ask.lora],
        None if architecture.experts.is_some() => &[None],
        None => &[None, Some(16)],
    };
    let mut batches = vec![ask.batch];
    while let Some(&last) = batches.last().filter(|&&last| last > 1) {
        batches.push(last.div_ceil(2));
    }
    for &lora in adapters {
        for stage in stages.clone() {
            for recompute in Recompute::ALL {
                for &batch in &batches {
                    let mut other = TrainAsk { lora, recompute, batch, ..*ask };
                    other.accumulate = ask.accumulate.saturating_mul(ask.batch.div_ceil(batch));
                    other.layout.stage = stage;
                    let candidate = candidate(architecture, &other, budget, predict)?;
                    let list = if candidate.fits { &mut found.fit } else { &mut found.fail };
                    list.push(candidate);
                }
            }
        }
    }
    found.fit.sort_by(|a, b| {
        let adapters = |c: &Candidate| c.flags.contains("--lora");
        (adapters(a).cmp(&adapters(b)))
            .then(a.extra_compute_share.total_cmp(&b.extra_compute_share))
            .then(a.communication_bytes_per_token.total_cmp(&b.communication_bytes_per_token))
    });
    Ok(found)
}

fn candidate(
    architecture: &Architecture,
    ask: &TrainAsk,
    budget: u64,
    predict: &Predict<'_>,
) -> Result<Candidate, Error> {
    let plan = predict(&TrainAsk { budget: Some(budget), ..*ask })?;
    let (needed, again) = crate::machine::token_arithmetic(architecture, ask)?;
    let rows = ask.tokens_per_step()? as f64 / ask.layout.ranks as f64;
    let mut flags = format!("--batch {}", ask.batch);
    if ask.accumulate > 1 {
        flags += &format!(" --accumulate {}", ask.accumulate);
    }
    flags += if ask.pieces { " --pieces" } else { "" };
    flags += &format!(" --recompute {}", ask.recompute.name());
    if ask.layout.ranks > 1 {
        flags += &format!(" --zero {}", ask.layout.stage);
    }
    if let Some(rank) = ask.lora {
        flags += &format!(" --lora {rank}");
    }
    let largest = plan.balance.terms.limiting().map_or(0, |term| term.bytes);
    let reason = match plan.balance.total_bytes <= budget {
        true => over(plan.balance.total_bytes, budget),
        false => format!(
            "{}; {} alone takes {}",
            over(plan.balance.total_bytes, budget),
            plan.balance.limiting_term,
            both(largest)
        ),
    };
    Ok(Candidate {
        flags,
        total_bytes: plan.balance.total_bytes,
        fits: plan.balance.total_bytes <= budget,
        limiting_term: plan.balance.limiting_term,
        reason,
        extra_compute_share: again / needed,
        communication_bytes_per_token: plan.balance.communication_bytes_per_step.unwrap_or(0)
            as f64
            / rows,
    })
}

/// The fewest ranks, a power of two up to 4096, at which a stage fits; and the stage.
///
/// # Errors
/// Numbers that make no training.
pub fn fewest_ranks(
    ask: &TrainAsk,
    budget: u64,
    predict: &Predict<'_>,
) -> Result<Option<(u64, u8)>, Error> {
    for power in 0..=12 {
        let ranks = 1u64 << power;
        for stage in 0..=3 {
            let mut other = *ask;
            other.layout.ranks = ranks;
            other.layout.stage = stage;
            if predict(&other)?.balance.total_bytes <= budget {
                return Ok(Some((ranks, stage)));
            }
        }
    }
    Ok(None)
}
