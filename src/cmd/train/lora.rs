//! `--lora`: adapters beside a frozen model, as a PEFT folder and merged into a model.

use super::TrainArgs;
use crate::cmd::init::{EXPORTED, Init};
use crate::error::CliError;
use families::{Adapter, write_peft};
use models::{LoraConfig, LoraTarget, Model};
use std::path::PathBuf;

/// The folder in a run folder that PEFT loads.
pub const ADAPTER: &str = "adapter";

/// What `--lora` says; all maps that the model has where no targets are named.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedLora {
    rank: usize,
    alpha: f32,
    targets: Vec<LoraTarget>,
}

/// Reads `rank=8,alpha=16,targets=q,v`; alpha is twice the rank where it is not said.
pub fn asked(text: &str) -> Result<AskedLora, String> {
    let (mut rank, mut alpha, mut targets) = (None, None, Vec::new());
    let mut key = "";
    for part in text.split(',') {
        let value = match part.split_once('=') {
            Some((name, value)) => {
                key = name.trim();
                value.trim()
            }
            None if key == "targets" => part.trim(),
            None => return Err(format!("{part:?} has no value; give it like rank=8")),
        };
        match key {
            "rank" => rank = Some(value.parse().map_err(|_| "rank is a whole number")?),
            "alpha" => alpha = Some(value.parse().map_err(|_| "alpha is a number")?),
            "targets" => targets.extend(named(value)?),
            _ => return Err(format!("no key {key:?}; there are rank, alpha and targets")),
        }
    }
    let rank: usize = rank.ok_or("rank is missing; give it like rank=8")?;
    targets.sort();
    targets.dedup();
    Ok(AskedLora { rank, alpha: alpha.unwrap_or(2.0 * rank as f32), targets })
}

/// The targets of a word: `all`, `q`, or as Hugging Face names modules, `q_proj`.
fn named(word: &str) -> Result<Vec<LoraTarget>, String> {
    if word == "all" {
        return Ok(LoraTarget::ALL.to_vec());
    }
    let short = word.strip_suffix("_proj").unwrap_or(word);
    let found = LoraTarget::ALL.into_iter().find(|target| target.name() == short);
    let found = found.map(|target| vec![target]);
    found.ok_or_else(|| format!("no target {word:?}; there are q, k, v, o, gate, up, down and all"))
}

/// Makes a model that is gone on from one that learns adapters: its weights stay as stored.
pub fn freeze(init: &mut Init, asked: &AskedLora) -> Result<(), CliError> {
    let known = init.lora_targets()?;
    let whole = asked.targets.is_empty() || asked.targets == LoraTarget::ALL;
    let targets = if whole { known.clone() } else { asked.targets.clone() };
    if let Some(odd) = targets.iter().find(|target| !known.contains(target)) {
        let known: Vec<&str> = known.iter().map(|target| target.name()).collect();
        return Err(CliError::input(format!(
            "--lora: this model has no matrix for target {}; there are {}",
            odd.name(),
            known.join(", ")
        )));
    }
    init.freeze(LoraConfig { rank: asked.rank, alpha: asked.alpha, targets })
}

/// Whatever a run of adapters leaves behind beside its checkpoints.
pub struct Written {
    /// The PEFT folder.
    pub adapter: PathBuf,
    /// The merged model.
    pub merged: Option<PathBuf>,
}

/// Writes the adapters, and the model with them where that was asked for.
pub fn write(args: &TrainArgs, init: &Init, model: Model) -> Result<Written, CliError> {
    let Some(path) = &args.init else { return Err(CliError::input("--lora needs --init")) };
    let adapter = args.out.join(ADAPTER);
    let base = path.display().to_string();
    let family = init.family()?;
    write_peft(&adapter, family, &model, &base).map_err(CliError::failed)?;
    drop(model);
    if !args.merge {
        return Ok(Written { adapter, merged: None });
    }
    let mut fresh = Init::open(path)?;
    let models::ModelConfig::Transformer(config) = &fresh.config else {
        return Err(CliError::input("--merge needs a transformer"));
    };
    let read = Adapter::open(&adapter, family, config).map_err(CliError::failed)?;
    let threads = args.threads.unwrap_or_else(kernels::Team::available);
    let mut model = fresh.take_weights().load(threads)?;
    read.merge(&mut model).map_err(CliError::failed)?;
    let merged = fresh.export(&args.out, &model)?;
    debug_assert!(merged.as_ref().is_none_or(|path| path.ends_with(EXPORTED)));
    Ok(Written { adapter, merged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read() {
        let q = LoraTarget::Query;
        let all = asked("rank=8,alpha=16,targets=v,q_proj,q").unwrap();
        let right = AskedLora { rank: 8, alpha: 16.0, targets: vec![q, LoraTarget::Value] };
        assert_eq!(all, right);
        assert_eq!(asked("rank=4").unwrap().alpha, 8.0);
        assert_eq!(asked("targets=all,rank=4").unwrap().targets, LoraTarget::ALL);
        for (bad, says) in [
            ("", "no value"),
            ("8", "no value"),
            ("alpha=8", "rank is missing"),
            ("rank=x", "whole number"),
            ("rank=8,beta=1", "\"beta\""),
            ("rank=8,targets=w", "no target \"w\""),
        ] {
            let error = asked(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
