//! From an arm of an experiment to the configuration of a training run.

use crate::cmd::config_file::explain_unknown;
use crate::error::CliError;
use compare::{Arm, ArmKind, Experiment};
use corpus::{Dataset, Side};
use models::{ModelConfig, NgramConfig, RnnConfig, TransformerConfig};
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use train::{Recipe, Sequences, TrainConfig, Trainer};

/// Points of the learning curve an epoch, where the experiment does not say.
const POINTS_AN_EPOCH: u64 = 4;

/// Where a run of an arm lives; its name is fit for any file system.
pub fn folder(out: &Path, experiment: &Experiment, arm: &Arm, seed: u64) -> PathBuf {
    let at = experiment.arms.iter().position(|other| other.name == arm.name).unwrap_or(0);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = arm.name.chars().take(40).map(plain).collect();
    out.join("runs").join(format!("{:02}-{name}-seed{seed}", at + 1))
}

/// Checks every arm before the first run: its configuration, that it takes the data's sequences,
/// and that the prompts fit.
pub fn check(experiment: &Experiment, data: &Dataset) -> Result<(), CliError> {
    let longest = Side::ALL.iter().map(|&side| Sequences::longest(data.side(side))).max();
    let longest = longest.unwrap_or(0);
    for arm in &experiment.arms {
        let wrong = |what: String| CliError::input(format!("arm `{}`: {what}", arm.name));
        let config = config(experiment, arm, 0, data)?;
        config.train.check().map_err(|e| wrong(e.to_string()))?;
        // Order 0, every token alike, is an anchor here and no model to train by itself.
        if arm.kind != ArmKind::Uniform {
            config.model.check().map_err(|e| wrong(e.to_string()))?;
        }
        if let Some(limit) = config.model.context_limit()
            && longest > limit + 1
        {
            return Err(wrong(format!(
                "the data has sequences of {longest} tokens, but max_position_embeddings is {limit}; raise it to {}",
                longest - 1
            )));
        }
        if !matches!(config.model, ModelConfig::Ngram(_)) {
            train::check(&config, data.side(Side::Train), data.side(Side::Valid))
                .map_err(|e| wrong(e.to_string()))?;
            let shape = train::BatchShape::full(&config.train, longest);
            let plan = Trainer::plan(&config, shape, 1).map_err(|e| wrong(e.to_string()))?;
            crate::cmd::fit(
                &plan,
                &format!("arm `{}`", arm.name),
                "make the model or micro_batch smaller",
            )?;
        }
    }
    for prompt in &experiment.prompts {
        let tokens = data.tokenizer().encode(prompt).len();
        if tokens + 1 >= data.manifest().max_len.max(2) {
            return Err(CliError::input(format!(
                "the prompt `{prompt}` has {tokens} tokens; a message has {} at most",
                data.manifest().max_len
            )));
        }
    }
    Ok(())
}

/// The configuration of one run.
pub fn config(
    experiment: &Experiment,
    arm: &Arm,
    seed: u64,
    data: &Dataset,
) -> Result<TrainConfig, CliError> {
    let vocab = data.tokenizer().vocab_size();
    let name = format!("arm `{}`", arm.name);
    let model = [(name.clone() + ", model", &arm.model)];
    let ngram = |order: usize| NgramConfig { vocab_size: vocab, order, smoothing: None };
    let counts = |order| Ok(ModelConfig::Ngram(overlay(&ngram(order), &model)?));
    let model: Result<ModelConfig, CliError> = match arm.kind {
        ArmKind::Uniform => counts(0),
        ArmKind::Unigram => counts(1),
        ArmKind::Bigram => counts(2),
        ArmKind::Ngram => counts(3),
        ArmKind::Rnn => Ok(ModelConfig::Rnn(overlay(&RnnConfig::email(vocab), &model)?)),
        ArmKind::Transformer => {
            let base = TransformerConfig::email(vocab, data.manifest().max_len);
            Ok(ModelConfig::Transformer(overlay(&base, &model)?))
        }
    };
    let model = model?;
    if model.vocab_size() != vocab {
        return Err(CliError::input(format!(
            "{name}: vocab_size is {}, but the data's tokenizer has {vocab} entries; leave it away",
            model.vocab_size()
        )));
    }
    let tables = [("[train]".to_owned(), &experiment.train), (name + ", train", &arm.train)];
    for (place, table) in &tables {
        if let Some(key) = ["seed", "epochs"].into_iter().find(|key| table.contains_key(*key)) {
            return Err(CliError::input(format!(
                "{place}: {key} belongs at the top of the experiment, the same for every arm"
            )));
        }
    }
    let mut train: Recipe = overlay(&Recipe::default(), &tables)?;
    (train.seed, train.epochs) = (seed, u64::from(experiment.epochs));
    if train.eval_every == 0 {
        let steps = Sequences::len(data.side(Side::Train)).div_ceil(train.batch.max(1)) as u64;
        train.eval_every = steps.div_ceil(POINTS_AN_EPOCH).max(1);
    }
    Ok(TrainConfig { model, train })
}

/// A value with the keys of tables put over its own; an unknown key is named with the nearest.
fn overlay<T: Serialize + DeserializeOwned>(
    base: &T,
    tables: &[(String, &toml::Table)],
) -> Result<T, CliError> {
    let mut all = toml::Table::try_from(base).map_err(CliError::failed)?;
    let mut value = read(&all, "defaults")?;
    for (place, table) in tables {
        all.extend((*table).clone());
        value = read(&all, place)?;
    }
    Ok(value)
}

fn read<T: DeserializeOwned>(table: &toml::Table, place: &str) -> Result<T, CliError> {
    serde_path_to_error::deserialize(table.clone()).map_err(|error| {
        let key = error.path().to_string();
        let message = explain_unknown(error.into_inner().message());
        let named = if message.contains(&key) { message } else { format!("{key}: {message}") };
        CliError::input(format!("{place}: {named}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use models::Model;

    #[test]
    fn the_tuned_row_stays_within_the_parameters_of_the_small_transformer() {
        let arm = Experiment::tuned();
        let table = |table| [(String::new(), table)];
        let email = TransformerConfig::email(4000, 64);
        let tuned: TransformerConfig = overlay(&email, &table(&arm.model)).unwrap();
        let count = |c| Model::count_parameters(&ModelConfig::Transformer(c)).unwrap();
        assert_eq!((count(tuned), count(email)), (615_904, 620_192));
        let recipe: Recipe = overlay(&Recipe::default(), &table(&arm.train)).unwrap();
        recipe.check().unwrap();
        let budget = |r: &Recipe| (r.epochs, r.max_steps, r.batch);
        assert_eq!(budget(&recipe), budget(&Recipe::default()));
    }
}
