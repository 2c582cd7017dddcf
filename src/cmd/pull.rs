//! `autoreg pull`: the files of a model, from a hub into the usual cache.

use crate::cmd::json;
use crate::error::CliError;
use crate::stop::on_signals;
use crate::term::{self, mib};
use clap::Args;
use hub::{Hub, Place, Progress, Wanted};
use serde_json::json;
use std::sync::atomic::Ordering;

/// Arguments of `pull`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg pull HuggingFaceTB/SmolLM2-135M-Instruct          config, tokenizer and safetensors
  autoreg pull owner/name-GGUF:q4_k_m                       the one GGUF file whose name has that in it
  autoreg chat $(autoreg pull owner/name-GGUF:q4_k_m)       the path is what is printed

Files go where other programs of the hub have them (HF_HUB_CACHE, HF_HOME, else
~/.cache/huggingface) and are fetched once. A token for models that are not public is read from
HF_TOKEN or from the file that `hf auth login` writes; it is sent to the hub alone. HF_ENDPOINT names
another hub. What breaks off goes on where it was when the same command is given again. Without a
network, with --offline or HF_HUB_OFFLINE=1, the cache is used, and a line says so.")]
pub struct PullArgs {
    /// OWNER/NAME, or OWNER/NAME:FILE for one GGUF file (its name or a part of it)
    #[arg(value_name = "REPO[:FILE]")]
    pub repo: String,
    /// A branch, tag or commit
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub revision: String,
    /// Use the cache alone
    #[arg(long)]
    pub offline: bool,
    /// Print what is here now as JSON
    #[arg(long)]
    pub json: bool,
}

/// Pulls as told.
pub fn run(args: &PullArgs) -> Result<(), CliError> {
    let mut wanted: Wanted = args.repo.parse().map_err(CliError::input)?;
    let revision: Wanted = args.revision.parse().map_err(|_| {
        CliError::input(format!("--revision {:?}: no branch, tag or commit", args.revision))
    })?;
    wanted.revision = Some(revision.repo);
    let mut place = Place::from_env().map_err(CliError::input)?;
    place.offline |= args.offline;
    let hub = Hub::new(place).map_err(CliError::failed)?;
    let stop = on_signals()?;
    let mut bar: Option<(String, term::Progress)> = None;
    let mut watch = |at: Progress<'_>| {
        let signal = stop.load(Ordering::Relaxed);
        if signal != 0 {
            // The library cannot be stopped between two reads; what has come is in the cache.
            term::error("stopped; what has arrived is kept, the same command goes on with it");
            std::process::exit(128 + i32::try_from(signal).unwrap_or(0));
        }
        let same = bar.as_ref().is_some_and(|(file, _)| file == at.file);
        if !same {
            bar.take().inspect(|(_, bar)| bar.finish());
            bar = Some((at.file.to_owned(), term::Progress::new(at.total >> 20, args.json)));
        }
        if let Some((file, bar)) = &mut bar {
            bar.at(at.done >> 20, at.total >> 20, || format!("MiB {file}"));
        }
    };
    let pulled = hub.pull(&wanted, &mut watch).map_err(|error| {
        if error.is_failure() { CliError::failed(error) } else { CliError::input(error) }
    })?;
    bar.take().inspect(|(_, bar)| bar.finish());
    if let Some(reason) = &pulled.offline {
        let commit = &pulled.commit;
        term::note(&format!("note: {reason}; this is what the cache has, commit {commit}"));
    }
    if args.json {
        let value = json!({
            "model": pulled.model,
            "files": pulled.files,
            "commit": pulled.commit,
            "fetched_bytes": pulled.fetched_bytes,
            "offline": pulled.offline,
        });
        term::print(&json(&value)?);
        return Ok(());
    }
    if pulled.offline.is_none() {
        let came = match pulled.fetched_bytes {
            0 => "all there already".to_owned(),
            bytes => format!("{} fetched", mib(bytes)),
        };
        term::note(&format!("{wanted}: {came}"));
    }
    term::print(&format!("{}\n", pulled.model.display()));
    Ok(())
}
