//! What other weights cost: both models read the same text, and their predictions are compared.
//!
//! The first model runs on a thread of its own and hands over one row of logits at a time, so that
//! no more than a few rows of either are held.

use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term::{self, thousands};
use decoding::divergence;
use engine::Source;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokenizer::Tokenizer;

/// Predictions of two models on the same text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Quality {
    text: PathBuf,
    windows: usize,
    window_tokens: usize,
    /// Tokens that were predicted.
    pub tokens: usize,
    /// Σ of KL(first ‖ second) in nats, and the largest.
    kl: f64,
    largest_kl: f64,
    /// Σ of −log p of what comes next, by the first and by the second.
    nats: [f64; 2],
    /// Places where both hold the same token most likely.
    same_top: usize,
}

impl Quality {
    fn mean(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }

    /// Mean divergence of the second's predictions from the first's, nats a token.
    pub fn mean_kl(&self) -> f64 {
        self.mean(self.kl)
    }

    /// Share of places where both hold the same token most likely.
    pub fn same_top_share(&self) -> f64 {
        self.mean(self.same_top as f64)
    }

    /// Of the first and of the second.
    pub fn perplexities(&self) -> [f64; 2] {
        self.nats.map(|nats| self.mean(nats).exp())
    }

    fn change(&self) -> f64 {
        let [before, after] = self.perplexities();
        after / before - 1.0
    }

    /// As an object.
    pub fn as_json(&self) -> Value {
        let [before, after] = self.perplexities();
        json!({
            "text": self.text,
            "tokens": self.tokens,
            "windows": self.windows,
            "window_tokens": self.window_tokens,
            "mean_kl_nats": self.mean_kl(),
            "largest_kl_nats": self.largest_kl,
            "perplexity_before": before,
            "perplexity_after": after,
            "perplexity_change": self.change(),
            "same_most_likely_token": self.same_top_share(),
        })
    }

    /// As lines.
    pub fn as_text(&self) -> String {
        let [before, after] = self.perplexities();
        format!(
            "on {} ({} tokens in windows of {}):\n\
             mean KL of the predictions {:.5} nats (largest {:.3}); the same most likely token in \
             {:.1} %\nperplexity {before:.3} before, {after:.3} after: {:+.2} %\n",
            self.text.display(),
            thousands(self.tokens as u64),
            self.window_tokens,
            self.mean_kl(),
            self.largest_kl,
            100.0 * self.same_top_share(),
            100.0 * self.change(),
        )
    }

    /// Adds one place: the logits of both, and the token that comes next.
    fn add(&mut self, first: &[f32], second: &[f32], next: u32) -> Result<(), CliError> {
        let Some(found) = divergence(first, second, next) else {
            let what = format!("the logits after token {} are no numbers", self.tokens);
            return Err(CliError::failed(what));
        };
        self.kl += found.kl;
        self.largest_kl = self.largest_kl.max(found.kl);
        self.nats.iter_mut().zip(found.nats).for_each(|(sum, nats)| *sum += nats);
        self.same_top += usize::from(found.same_top);
        self.tokens += 1;
        Ok(())
    }
}

/// What is read, and how.
pub struct Ask<'a> {
    /// The text.
    pub text: &'a Path,
    /// Tokens a window, the beginning token counted; the models' contexts may lower it.
    pub window: usize,
    /// Tokens of the text that are read at most.
    pub most: usize,
    /// Workers.
    pub threads: Option<usize>,
    /// Without progress.
    pub quiet: bool,
}

/// The text in windows.
pub struct Windows {
    /// Ids, the beginning token among them.
    all: Vec<Vec<u32>>,
    /// Tokens that a window holds at most.
    tokens: usize,
}

impl Windows {
    /// Reads the text, for models whose contexts are no longer than `limit`.
    ///
    /// # Errors
    /// A text that cannot be read or in which nothing is to be predicted, and a window too short.
    pub fn of(
        tokenizer: &Tokenizer,
        limit: Option<usize>,
        ask: &Ask<'_>,
    ) -> Result<Windows, CliError> {
        let name = ask.text.display();
        let text = std::fs::read_to_string(ask.text)
            .map_err(|e| CliError::input(format!("{name}: {e}; give UTF-8 text")))?;
        let tokens = limit.map_or(ask.window, |limit| limit.min(ask.window));
        let bos = tokenizer.specials().bos;
        let lead = usize::from(bos.is_some());
        if tokens < lead + 2 {
            let what = format!("--window {}: give at least {}", ask.window, lead + 2);
            return Err(CliError::input(what));
        }
        let ids = tokenizer.encode(&text);
        let all: Vec<Vec<u32>> = ids[..ids.len().min(ask.most)]
            .chunks(tokens - lead)
            .map(|piece| bos.into_iter().chain(piece.iter().copied()).collect::<Vec<u32>>())
            .filter(|window| window.len() > 1)
            .collect();
        if all.is_empty() {
            let what = "no token to predict in it; give a longer text";
            return Err(CliError::input(format!("{name}: {what}")));
        }
        Ok(Windows { all, tokens })
    }
}

/// Runs both models on the text.
pub fn measure(first: &Opened, second: &Opened, ask: &Ask<'_>) -> Result<Quality, CliError> {
    let threads = ask.threads;
    let limit = |opened: &Opened| Ok(opened.source(threads)?.context_limit());
    let limit = [limit(first)?, limit(second)?].into_iter().flatten().min();
    let Windows { all: windows, tokens } = Windows::of(&first.tokenizer, limit, ask)?;
    let mut quality = Quality {
        text: ask.text.to_owned(),
        windows: windows.len(),
        window_tokens: tokens,
        ..Quality::default()
    };
    let mut bar = term::Progress::new(windows.len() as u64, ask.quiet);
    let (send, rows) = sync_channel(2);
    std::thread::scope(|scope| {
        let windows = &windows;
        let reading = scope.spawn(move || hand_over(first, threads, windows, &send));
        let told = compared(second, threads, windows, &rows, &mut quality, &mut bar);
        // Whoever waits to send must hear that nobody listens.
        drop(rows);
        let read = reading.join().unwrap_or_else(|_| Err(CliError::failed("a model failed")));
        told.and(read)
    })?;
    bar.finish();
    Ok(quality)
}

/// Sends the logits after every token of every window but the last of each.
fn hand_over(
    opened: &Opened,
    threads: Option<usize>,
    windows: &[Vec<u32>],
    rows: &SyncSender<Vec<f32>>,
) -> Result<(), CliError> {
    let mut source = opened.source(threads)?;
    for window in windows {
        let mut listened = true;
        let mut each = |_: usize, logits: &[f32]| {
            listened = listened && rows.send(logits.to_vec()).is_ok();
            Ok(())
        };
        source.pass(&window[..window.len() - 1], &mut each).map_err(engine_error)?;
        if !listened {
            break;
        }
    }
    Ok(())
}

fn compared(
    opened: &Opened,
    threads: Option<usize>,
    windows: &[Vec<u32>],
    rows: &Receiver<Vec<f32>>,
    quality: &mut Quality,
    bar: &mut term::Progress,
) -> Result<(), CliError> {
    let mut source = opened.source(threads)?;
    for (done, window) in windows.iter().enumerate() {
        let mut failed = None;
        let mut each = |place: usize, logits: &[f32]| {
            if failed.is_none() {
                failed = match rows.recv() {
                    Ok(first) => quality.add(&first, logits, window[place + 1]).err(),
                    Err(_) => Some(CliError::failed("the model that was converted stopped early")),
                };
            }
            Ok(())
        };
        source.pass(&window[..window.len() - 1], &mut each).map_err(engine_error)?;
        if let Some(error) = failed {
            return Err(error);
        }
        bar.at(done as u64 + 1, windows.len() as u64, || "quality".to_owned());
    }
    Ok(())
}
