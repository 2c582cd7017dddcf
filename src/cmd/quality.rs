//! What other weights cost: two models over the same text, distribution against distribution.

use crate::cmd::model::{AnySource, Opened, engine_error};
use crate::error::CliError;
use engine::Source;
use plan::diagnose::Quality;
use std::path::Path;
use train::SavedModel;

/// Tokens of a window: both models' distributions of one are in memory at a time.
const WINDOW: usize = 128;
/// Tokens of the text that are compared at most.
const MOST: usize = 8192;

/// Measures a model against the one that would take its place, on a text.
pub fn measure(original: &Path, instead: &Path, text: &Path) -> Result<Quality, CliError> {
    let words = std::fs::read_to_string(text)
        .map_err(|e| CliError::input(format!("{}: {e}; give UTF-8 text", text.display())))?;
    let (first, second) = (Opened::open(original)?, Opened::open(instead)?);
    if first.tokenizer.sha256() != second.tokenizer.sha256() {
        return Err(CliError::input(format!(
            "{} and {} have different tokenizers: their tokens cannot be compared",
            original.display(),
            instead.display()
        )));
    }
    let ids = first.tokenizer.encode(&words);
    let bos = first.tokenizer.specials().bos;
    let (mut a, mut b) = (first.source(None)?, second.source(None)?);
    let mut sums = Sums::default();
    let limit = a.context_limit().unwrap_or(WINDOW).min(WINDOW);
    let begin = usize::from(bos.is_some());
    for piece in ids[..ids.len().min(MOST)].chunks(limit.saturating_sub(begin).max(1)) {
        let window: Vec<u32> = bos.into_iter().chain(piece.iter().copied()).collect();
        sums.add(&mut a, &mut b, &window)?;
    }
    if sums.tokens == 0 {
        return Err(CliError::input(format!("{}: no token to predict in it", text.display())));
    }
    let n = sums.tokens as f64;
    Ok(Quality {
        original: original.display().to_string(),
        instead: instead.display().to_string(),
        text: text.display().to_string(),
        tokens: sums.tokens,
        perplexity: (sums.nats / n).exp(),
        perplexity_instead: (sums.nats_instead / n).exp(),
        divergence_nats: sums.divergence / n,
        same_best_share: sums.same_best as f64 / n,
        bytes: bytes(&first),
        bytes_instead: bytes(&second),
    })
}

/// Bytes of a model's weights in memory.
fn bytes(opened: &Opened) -> u64 {
    match &opened.saved {
        SavedModel::Network(model) => model.layout().weight_specs().total(),
        SavedModel::Counts(model) => model.bytes(),
    }
}

#[derive(Default)]
struct Sums {
    tokens: u64,
    nats: f64,
    nats_instead: f64,
    divergence: f64,
    same_best: u64,
}

impl Sums {
    /// Adds a window: each token but the first is predicted by both.
    fn add(
        &mut self,
        a: &mut AnySource<'_>,
        b: &mut AnySource<'_>,
        window: &[u32],
    ) -> Result<(), CliError> {
        let inputs = &window[..window.len().saturating_sub(1)];
        if inputs.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::with_capacity(inputs.len());
        let mut keep = |_: usize, logits: &[f32]| {
            kept.push(logprobs(logits));
            Ok(())
        };
        a.pass(inputs, &mut keep).map_err(engine_error)?;
        let mut compare = |place: usize, logits: &[f32]| {
            let (p, q) = (&kept[place], logprobs(logits));
            let target = window[place + 1] as usize;
            self.tokens += 1;
            self.nats -= f64::from(p[target]);
            self.nats_instead -= f64::from(q[target]);
            self.divergence += divergence(p, &q);
            self.same_best += u64::from(best(p) == best(&q));
            Ok(())
        };
        b.pass(inputs, &mut compare).map_err(engine_error)
    }
}

/// Logits as log-probabilities.
fn logprobs(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&z| f64::from(z - most).exp()).sum();
    let norm = f64::from(most) + sum.ln();
    logits.iter().map(|&z| (f64::from(z) - norm) as f32).collect()
}

/// Σ p (ln p - ln q), in nats (Kullback and Leibler).
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let terms = p.iter().zip(q).filter(|(p, _)| p.is_finite());
    terms.map(|(&p, &q)| f64::from(p).exp() * (f64::from(p) - f64::from(q))).sum()
}

fn best(p: &[f32]) -> usize {
    let best = p.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_two_distributions() {
        let (p, q) = (logprobs(&[0.0, 0.0]), logprobs(&[3f32.ln(), 0.0]));
        // ½ ln(½ / ¾) + ½ ln(½ / ¼)
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * 2f64.ln();
        assert!((divergence(&p, &q) - expected).abs() < 1e-6);
        assert_eq!(divergence(&p, &p), 0.0);
        assert_eq!((best(&q), best(&logprobs(&[1.0, 5.0, 2.0]))), (0, 1));
    }
}
