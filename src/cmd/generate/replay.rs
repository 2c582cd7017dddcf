//! `autoreg replay`: runs a record again and compares to the bit.

use super::record::{Record, SequenceRecord};
use super::{room_for_prompt, search};
use crate::cmd::model::{Opened, engine_error};
use crate::error::CliError;
use crate::term;
use clap::Args;
use engine::{Generator, Source};
use kernels::KvKind;
use std::path::PathBuf;

/// Arguments of `replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg replay answer.json")]
pub struct ReplayArgs {
    /// What `autoreg generate --json` printed
    pub file: PathBuf,
    /// The model's folder, if it is no longer where the record says
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Workers; they change no bit
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Repeats a record, or names the first difference (exit code 1).
pub fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let at = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| CliError::input(format!("{at}: {e}; give what `generate --json` printed")))?;
    let old = recorded(&text).map_err(|e| {
        CliError::input(format!("{at}: {e}; expected what `generate --json` printed"))
    })?;
    let dir = args.model.as_deref().unwrap_or(old.model.path.as_ref());
    let kv = match &old.model.kv {
        None => KvKind::F32,
        Some(name) => {
            KvKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
                CliError::input(format!("{at}: model.kv is {name:?}, expected f32, f16 or q8"))
            })?
        }
    };
    let opened = Opened::open_with(dir, kv)?;
    let request = old.request();
    let fresh = Record::new(&opened, &request, old.search, &old.prompt)?;
    let differ = |what: String| CliError::failed(format!("{at}: cannot be repeated: {what}"));
    if let Some(what) = circumstances(&old, &fresh) {
        return Err(differ(what));
    }
    let source = opened.source(args.threads)?;
    if !gives(&opened, &old, source.context_limit()) {
        return Err(differ("the text of its prompt does not give the tokens of its prompt".into()));
    }
    let mut generator = Generator::new(source, &opened.tokenizer);
    search::fit(&generator, &request, old.search.as_ref())?;
    let done = search::run(&mut generator, &request, old.search.as_ref(), &mut |_| {})
        .map_err(engine_error)?;
    let again = fresh.with(done, &request);
    for (old_one, new_one) in old.sequences.iter().zip(&again.sequences) {
        if let Some(what) = first_difference(old_one, new_one) {
            let isa = (old.isa != again.isa)
                .then(|| format!("; recorded with --isa {}, repeated with {}", old.isa, again.isa));
            return Err(differ(what + &isa.unwrap_or_default()));
        }
    }
    let (was, is) = (old.sequences.len(), again.sequences.len());
    if was != is {
        return Err(differ(format!("it had {was} sequences, has {is}")));
    }
    let tokens: usize = old.sequences.iter().map(|one| one.tokens.len()).sum();
    term::print(&format!("{} sequences, {tokens} tokens: the same\n", old.sequences.len()));
    Ok(())
}

/// The record, or the free side of what `generate --teacher --json` printed.
fn recorded(text: &str) -> Result<Record, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Taught {
        free: Record,
    }
    let error = match serde_json::from_str::<Record>(text) {
        Ok(record) => return Ok(record),
        Err(error) => error,
    };
    let taught: Taught = serde_json::from_str(text).map_err(|_| error)?;
    term::note(
        "note: a record of --teacher; its free side, what the model writes alone, is repeated",
    );
    Ok(taught.free)
}

/// Whether the text of the prompt has the prompt's tokens behind `<bos>`, as plain text or with names
/// of control tokens; a part of them where it was cut.
fn gives(opened: &Opened, old: &Record, limit: Option<usize>) -> bool {
    let (ids, bos) = (&old.prompt_ids[..], opened.begin);
    let is_cut = limit.is_some_and(|limit| ids.len() == room_for_prompt(limit, old.max_tokens));
    let behind = if bos.is_some() && ids.first().copied() == bos { &ids[1..] } else { ids };
    [false, true].into_iter().any(|control_tokens| {
        let all = opened.encode(&old.prompt, control_tokens);
        let is_whole = all == behind || all == ids;
        is_whole || is_cut && (all.starts_with(behind) || all.ends_with(behind))
    })
}

/// What must be the same before anything runs.
fn circumstances(old: &Record, new: &Record) -> Option<String> {
    let pairs = [
        ("the model's digest", &old.model.digest, &new.model.digest),
        ("the tokenizer's digest", &old.model.tokenizer, &new.model.tokenizer),
        ("the version", &old.version, &new.version),
    ];
    let (what, old, new) = pairs.into_iter().find(|(_, old, new)| old != new)?;
    Some(format!("{what} was {old}, is {new}"))
}

/// The first thing that is not the same, to the bit.
fn first_difference(old: &SequenceRecord, new: &SequenceRecord) -> Option<String> {
    let at = old.sequence;
    let tokens = old.tokens.iter().zip(&new.tokens);
    if let Some((step, (a, b))) = tokens.enumerate().find(|(_, (a, b))| a != b) {
        let told = |token| serde_json::to_string(token).unwrap_or_default();
        return Some(format!("sequence {at}, token {step}: was {}, is {}", told(a), told(b)));
    }
    let (was, is) = (old.tokens.len(), new.tokens.len());
    if was != is {
        return Some(format!("sequence {at}: had {was} tokens, has {is}"));
    }
    if old.finish != new.finish || old.stop != new.stop {
        let (was, is) = (old.finish.name(), new.finish.name());
        return Some(format!("sequence {at}: ended by {was}, ends by {is}"));
    }
    (old != new).then(|| format!("sequence {at}: its text or sum differs"))
}
