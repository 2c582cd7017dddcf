//! The perplexity of a text file: windows that do not overlap, each from the beginning token.

use super::EvalArgs;
use crate::cmd::json;
use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term::{self, thousands};
use engine::{Route, Source, score};
use serde_json::json;
use std::path::Path;

/// Scores as told.
pub(super) fn run(args: &EvalArgs, path: &Path) -> Result<(), CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| CliError::input(format!("{}: {e}; give UTF-8 text", path.display())))?;
    let opened = Opened::open_with(&args.model, args.kv.kind())?;
    let mut source = opened.source(args.threads)?;
    let bos = opened.tokenizer.specials().bos;
    let most = source.context_limit().map_or(args.window, |limit| args.window.min(limit));
    let first = usize::from(bos.is_some());
    if most < first + 2 {
        return Err(CliError::input(format!(
            "--window {}: a window of {most} tokens predicts nothing; give at least {}",
            args.window,
            first + 2
        )));
    }
    let ids = opened.tokenizer.encode(&text);
    let (mut nats, mut tokens, mut windows) = (0.0, 0u64, 0u64);
    for piece in ids.chunks(most - first) {
        let window: Vec<u32> = bos.into_iter().chain(piece.iter().copied()).collect();
        let scores = score(&mut source, &window, Route::OnePass).map_err(engine_error)?;
        nats -= scores.iter().map(|one| one.logprob).sum::<f64>();
        tokens += scores.len() as u64;
        windows += 1;
    }
    if tokens == 0 {
        return Err(CliError::input(format!("{}: no token to predict in it", path.display())));
    }
    let (loss, per_byte) = (nats / tokens as f64, nats / text.len() as f64);
    if args.json {
        let value = json!({
            "model": opened.saved.config().kind(),
            "windows": windows,
            "window_tokens": most,
            "tokens": tokens,
            "bytes": text.len(),
            "nats_per_token": loss,
            "perplexity": loss.exp(),
            "nats_per_byte": per_byte,
            "peak_process_bytes": ledger::peak_bytes(),
        });
        term::print(&json(&value)?);
        return Ok(());
    }
    term::print(&format!(
        "{}: {} tokens in {} windows of {most}\n{loss:.4} nats/token, perplexity {:.2}, {per_byte:.4} \
         nats/byte\n",
        path.display(),
        thousands(tokens),
        thousands(windows),
        loss.exp(),
    ));
    Ok(())
}
