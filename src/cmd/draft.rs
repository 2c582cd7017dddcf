//! A second, smaller model that guesses ahead (`--draft`): opened, and held against the model whose
//! tokens it is to guess.

use crate::cmd::model::Opened;
use crate::error::CliError;
use kernels::KvKind;
use models::ModelConfig;
use std::path::Path;
use tokenizer::Tokenizer;

/// Tokens guessed at a time where `--draft` is given and `--draft-tokens` is not.
pub const USUAL_DRAFTS: u8 = 5;

/// Opens a model that is to guess for another.
pub fn open(path: &Path, kv: KvKind, model: &Opened) -> Result<Opened, CliError> {
    can_take_back(&model.saved.config(), &model.dir)?;
    let draft = Opened::open_with(path, kv)?;
    can_take_back(&draft.saved.config(), path)?;
    same_vocabulary(&draft, model)?;
    Ok(draft)
}

/// Guesses that do not hold are taken back, which a recurrent state cannot do.
fn can_take_back(config: &ModelConfig, path: &Path) -> Result<(), CliError> {
    match config {
        ModelConfig::Rnn(_) => Err(CliError::input(format!(
            "--draft: {} is recurrent, and its state cannot take a wrong guess back; use transformers \
             or count models",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Guesses are token ids: they must mean the same to both.
fn same_vocabulary(draft: &Opened, model: &Opened) -> Result<(), CliError> {
    let (a, b) = (&draft.tokenizer, &model.tokenizer);
    if a.sha256() == b.sha256() {
        return Ok(());
    }
    let told = |tokenizer: &Tokenizer, id: u32| {
        tokenizer.token(id).map_or_else(|| "nothing".to_owned(), |token| format!("{token:?}"))
    };
    let last = a.vocab_size().max(b.vocab_size()) as u32;
    match (0..last).find(|&id| a.token(id) != b.token(id)) {
        None => Ok(()),
        Some(id) => Err(CliError::input(format!(
            "--draft: {} has another vocabulary than {}: token {id} is {} there and {} here; use a \
             model of the same family",
            draft.dir.display(),
            model.dir.display(),
            told(a, id),
            told(b, id),
        ))),
    }
}
