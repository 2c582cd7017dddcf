//! `autoreg train`: one model on one data set, into a run folder.

mod board;
mod counts;
mod lora;
mod material;
mod memory;
mod over_ranks;
mod sample;
mod tensorboard;
mod watch;

use crate::cmd::compare::data_hash;
use crate::cmd::documents::{self, Encoding, Files};
use crate::cmd::init::{Init, Weights};
use crate::cmd::{config_file, fit, hold, json, recording, team};
use crate::error::CliError;
use crate::term::{self, Progress, mib, thousands};
use clap::{Args, ValueEnum};
use corpus::{Dataset, Side};
use formats::Hold;
use ledger::Report;
use lora::AskedLora;
pub use material::plan_token_files;
use material::{plan_documents, plan_mapped, planned};
use memory::Asked;
use models::{ModelConfig, NgramConfig, RnnConfig, TransformerConfig};
use over_ranks::{Rank, RankArgs};
use plan::what_if::{self, Ran};
use sample::{SampleArgs, Sampler};
use serde_json::json;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;
use train::{
    BatchShape, OptimizerKind, Outcome, Place, Precision, RankOutcome, Recipe, RunOptions,
    Schedule, Sequences, Stage, Start, TrainConfig, Trainer,
};
use watch::{Screen, Watch};

/// Models that have a name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ModelName {
    /// The small causal transformer: 2 layers, width 64, 4 heads
    Transformer,
    /// The simple RNN: embedding 64, one tanh layer of 96
    Rnn,
    /// Counts of pairs, smoothing chosen on the validation side
    Bigram,
    /// Interpolated Kneser–Ney; --order sets how many tokens a run holds
    Ngram,
}

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg train --data DATA --model transformer --out runs/t1
  autoreg train --data DATA --config my.toml --seed 2 --out runs/t2
  autoreg train --data DATA --model transformer --out runs/t1 --resume
  autoreg train --init model.gguf --chat talks.jsonl --out runs/f1 --recompute auto --memory 4GiB
  autoreg train --init model.gguf --text notes.txt --lora rank=8,alpha=16 --out runs/a1
  autoreg generate model.gguf hello --adapter runs/a1/adapter

With --init the defaults are those of fine-tuning: --epochs 1 --batch 8 --micro-batch 1
--learning-rate 2e-5 (with --lora 2e-4) --warmup-steps 10. The run folder then also holds
huggingface/, which transformers loads; with --lora it holds adapter/, which PEFT loads, and no model.

A configuration file holds [model] and [train]:
  [model]
  kind = \"transformer\"        # or \"rnn\", \"ngram\"
  hidden_size = 64
  num_hidden_layers = 2
  num_attention_heads = 4
  intermediate_size = 256
  max_position_embeddings = 64
  [train]
  epochs = 8
  learning_rate = 1e-2")]
pub struct TrainArgs {
    /// A folder made by `autoreg data prepare`
    #[arg(long, value_name = "DIR", required_unless_present_any = ["text", "chat"])]
    pub data: Option<PathBuf>,
    /// A model to go on from: a GGUF file (dequantised), a Hugging Face folder or a run folder
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["model", "config"])]
    pub init: Option<PathBuf>,
    /// Plain texts, one document a file; of a .jsonl file the `text` of each line
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "init", conflicts_with = "data")]
    pub text: Vec<PathBuf>,
    /// Conversations, a JSON object with `messages` a line: the assistant's tokens are learnt
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "init", conflicts_with = "data")]
    pub chat: Vec<PathBuf>,
    /// Files of the validation side, of the kind of --text, else of --chat
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "data")]
    pub valid: Vec<PathBuf>,
    /// Share of the documents that validates where there is no --valid: one at least, or the end of a
    /// single text; 0 for none, then the last weights are kept
    #[arg(long, value_name = "X", default_value_t = 0.05, conflicts_with = "data")]
    pub valid_share: f64,
    /// Tokens that a pack of documents holds [default: 1024, or the model's context]
    #[arg(long, value_name = "N", conflicts_with = "data")]
    pub max_len: Option<usize>,
    /// Train adapters (LoRA) beside frozen weights, which stay as they are stored: rank=N, with
    /// alpha=X [default: twice the rank] and targets=q,k,v,o,gate,up,down [default: all]
    #[arg(long, value_name = "rank=N,...", value_parser = lora::asked, requires = "init")]
    pub lora: Option<AskedLora>,
    /// Also write the model with the adapters merged in, as a Hugging Face folder in F32
    #[arg(long, requires = "lora")]
    pub merge: bool,
    /// What the backward pass computes again instead of keeping it: none, attention, block, or auto
    /// for the least that fits; no bit changes
    #[arg(long, value_name = "WORD", value_parser = memory::asked, default_value = "none")]
    pub recompute: Asked,
    /// Memory that training may take, like 2GiB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub memory: Option<u64>,
    /// A model by name; or use --config
    #[arg(long, value_enum, conflicts_with = "config")]
    pub model: Option<ModelName>,
    /// A TOML file with tables `[model]` and `[train]`; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The run folder to make
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Go on from the newest checkpoint in --out, to the bit
    #[arg(long)]
    pub resume: bool,
    /// Replace an existing run folder
    #[arg(long, conflicts_with = "resume")]
    pub force: bool,
    /// Tokens a run holds, for --model ngram
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub order: usize,
    /// Settings of the optimisation
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// What the model writes while it is trained
    #[command(flatten)]
    pub sample: SampleArgs,
    /// Newest checkpoints that are kept [default: 2]; the best weights stay in any case
    #[arg(long, value_name = "N")]
    pub keep: Option<NonZeroUsize>,
    /// Write event files for TensorBoard into this folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Show the run on the whole terminal; lines where there is none
    #[arg(long, conflicts_with_all = ["quiet", "json"])]
    pub tui: bool,
    /// Several ranks that train one model
    #[command(flatten)]
    pub company: RankArgs,
    /// Workers of each rank (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print predicted and measured bytes, term by term, and record them over the run and over a step;
    /// ledger.json and ledger.html in the run folder have them
    #[arg(long)]
    pub ledger: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Settings of the optimisation, over those of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Optimisation")]
pub struct RecipeArgs {
    /// Where everything random starts
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Passes over the training side [default: 8]
    #[arg(long, value_name = "N")]
    pub epochs: Option<u64>,
    /// Sequences an optimizer step [default: 64]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Sequences computed at once; the result is the same, the memory smaller [default: 64]
    #[arg(long, value_name = "N")]
    pub micro_batch: Option<usize>,
    /// Largest learning rate [default: 0.01]
    #[arg(long, value_name = "X")]
    pub learning_rate: Option<f64>,
    /// Steps over which the learning rate rises [default: 100]
    #[arg(long, value_name = "N")]
    pub warmup_steps: Option<u64>,
    /// How it goes on: constant, cosine, linear or wsd [default: cosine]
    #[arg(long, value_name = "WORD", value_parser = schedule)]
    pub schedule: Option<Schedule>,
    /// Share of the steps over which wsd falls at the end [default: 0.2]
    #[arg(long, value_name = "X")]
    pub decay_share: Option<f64>,
    /// Decay of matrices [default: 0.01]
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f64>,
    /// Decay of embeddings, a tied output projection among them [default: 0]
    #[arg(long, value_name = "X")]
    pub embedding_decay: Option<f64>,
    /// What changes weights: adamw, or muon for the matrices of the layers with adamw for the rest
    /// [default: adamw]
    #[arg(long, value_name = "WORD", value_parser = optimizer)]
    pub optimizer: Option<OptimizerKind>,
    /// Muon's largest learning rate [default: 0.02]
    #[arg(long, value_name = "X")]
    pub muon_learning_rate: Option<f64>,
    /// Decay of the matrices that Muon changes [default: 0.01]
    #[arg(long, value_name = "X")]
    pub muon_weight_decay: Option<f64>,
    /// Largest norm of the gradient, 0 for none [default: 1]
    #[arg(long, value_name = "X")]
    pub clip: Option<f64>,
    /// Share of values zeroed [default: 0]
    #[arg(long, value_name = "X")]
    pub dropout: Option<f32>,
    /// Share of values zeroed of what a transformer's output projection reads [default: 0]
    #[arg(long, value_name = "X")]
    pub hidden_dropout: Option<f32>,
    /// Evaluate and save an average of the weights that keeps this share of itself at each step, like
    /// 0.998; 0 for the weights as they are [default: 0]
    #[arg(long, value_name = "X")]
    pub average: Option<f64>,
    /// Steps between evaluations on the validation side, 0 for once an epoch [default: 0]
    #[arg(long, value_name = "N")]
    pub eval_every: Option<u64>,
    /// Stop after this many evaluations without a better one, 0 for never [default: 0]
    #[arg(long, value_name = "N")]
    pub patience: Option<u64>,
    /// Steps between checkpoints, 0 for once an epoch [default: 0]
    #[arg(long, value_name = "N")]
    pub checkpoint_every: Option<u64>,
    /// Stop after this many steps, 0 for the epochs [default: 0]
    #[arg(long, value_name = "N")]
    pub max_steps: Option<u64>,
    /// In which numbers products are taken: f32, bf16 or f16. In 16 bits weights are kept in 16 bits
    /// and as FP32 master weights; sums, gradients, moments, norms and loss stay FP32; f32 alone with
    /// --lora [default: f32]
    #[arg(long, value_name = "WORD", value_parser = precision)]
    pub precision: Option<Precision>,
}

/// Reads `f32`, `bf16` or `f16`.
pub fn precision(word: &str) -> Result<Precision, String> {
    let found = Precision::ALL.into_iter().find(|p| p.name() == word);
    found.ok_or_else(|| "choose f32, bf16 or f16".to_owned())
}

fn schedule(word: &str) -> Result<Schedule, String> {
    match word {
        "constant" => Ok(Schedule::Constant),
        "cosine" => Ok(Schedule::Cosine),
        "linear" => Ok(Schedule::Linear),
        "wsd" => Ok(Schedule::Wsd),
        _ => Err("choose constant, cosine, linear or wsd".to_owned()),
    }
}

fn optimizer(word: &str) -> Result<OptimizerKind, String> {
    match word {
        "adamw" => Ok(OptimizerKind::Adamw),
        "muon" => Ok(OptimizerKind::Muon),
        _ => Err("choose adamw or muon".to_owned()),
    }
}

impl RecipeArgs {
    /// Puts what was given over a recipe.
    pub fn apply(&self, recipe: &mut train::Recipe) {
        macro_rules! set {
            ($($field:ident),+) => { $(if let Some(x) = self.$field { recipe.$field = x; })+ };
        }
        set!(seed, epochs, batch, micro_batch, learning_rate, warmup_steps, schedule);
        set!(
            decay_share,
            weight_decay,
            embedding_decay,
            optimizer,
            muon_learning_rate,
            muon_weight_decay,
            clip,
            dropout,
            hidden_dropout,
            average,
            eval_every,
            patience,
            checkpoint_every,
            max_steps,
            precision
        );
    }
}

/// The recipe of fine-tuning, before what was asked for.
fn fine_tuning() -> Recipe {
    Recipe {
        epochs: 1,
        batch: 8,
        micro_batch: 1,
        learning_rate: 2e-5,
        warmup_steps: 10,
        ..Recipe::default()
    }
}

/// The configuration of a model that is gone on from.
fn config_of(args: &TrainArgs, init: &Init) -> Result<TrainConfig, CliError> {
    let mut config = TrainConfig { model: init.config.clone(), train: fine_tuning() };
    if args.lora.is_some() {
        config.train.learning_rate = 2e-4;
    }
    args.recipe.apply(&mut config.train);
    config.check_recipe().map_err(CliError::input)?;
    config.model.check_trainable().map_err(CliError::input)?;
    Ok(config)
}

/// The configuration that arguments and data make.
fn config(args: &TrainArgs, data: &Dataset) -> Result<TrainConfig, CliError> {
    let vocab = data.tokenizer().vocab_size();
    let max_len = data.manifest().max_len;
    let mut config = match (&args.config, args.model) {
        (Some(path), _) => config_file::read(path)?,
        (None, name) => {
            let model = match name.unwrap_or(ModelName::Transformer) {
                ModelName::Transformer => {
                    ModelConfig::Transformer(TransformerConfig::email(vocab, max_len))
                }
                ModelName::Rnn => ModelConfig::Rnn(RnnConfig::email(vocab)),
                ModelName::Bigram => {
                    ModelConfig::Ngram(NgramConfig { vocab_size: vocab, order: 2, smoothing: None })
                }
                ModelName::Ngram => ModelConfig::Ngram(NgramConfig {
                    vocab_size: vocab,
                    order: args.order,
                    smoothing: None,
                }),
            };
            TrainConfig { model, train: train::Recipe::default() }
        }
    };
    if config.model.vocab_size() == 0 {
        config.model = config.model.with_vocab_size(vocab);
    }
    if config.model.vocab_size() != vocab {
        return Err(CliError::input(format!(
            "vocab_size is {}, but the data's tokenizer has {vocab} entries; leave it away or set it so",
            config.model.vocab_size()
        )));
    }
    args.recipe.apply(&mut config.train);
    config.check_recipe().map_err(CliError::input)?;
    config.model.check().map_err(CliError::input)?;
    Ok(config)
}

/// Trains as told.
pub fn run(args: TrainArgs) -> Result<(), CliError> {
    over_ranks::each(&args.company, |rank| run_one(&args, rank))
}

/// Trains as one process, or as one rank of several.
fn run_one(args: &TrainArgs, rank: Option<&Rank>) -> Result<(), CliError> {
    let data = args.data.as_deref().map(Dataset::open).transpose().map_err(CliError::input)?;
    let mut init = args.init.as_deref().map(Init::open).transpose()?;
    if init.is_none() && args.lora.is_some() {
        return Err(CliError::input("--lora: adapters stand beside a model: give it with --init"));
    }
    if let (Some(init), Some(asked)) = (&mut init, &args.lora) {
        if args.merge {
            families::can_export(&init.config).map_err(CliError::input)?;
        }
        lora::freeze(init, asked)?;
    }
    let mut config = match (&init, &data) {
        (Some(init), _) => config_of(args, init)?,
        (None, Some(data)) => config(args, data)?,
        (None, None) => return Err(CliError::input("no --data and no --init")),
    };
    args.company.apply(&mut config.train);
    let summary = match (&config.model, &data) {
        (ModelConfig::Ngram(_), _) if rank.is_some() => {
            return Err(CliError::input("a count model is made by one process: leave --zero away"));
        }
        (ModelConfig::Ngram(ngram), Some(data)) => counts::run(args, &config, ngram, data)?,
        _ => descend(args, &config, data.as_ref(), init, rank)?,
    };
    if rank.is_some_and(|rank| !rank.is_first()) {
        return Ok(());
    }
    let (text, mut told) = (json(&summary.json)?, summary.text);
    write(&args.out.join(RESULT), &text)?;
    let (report, known) = summary.ledger;
    recording::write(&args.out, &format!("train {}", args.out.display()), &report, known)?;
    drop(summary.hold);
    if args.ledger && !args.json {
        told += &recording::table(&report);
    }
    term::print(if args.json { &text } else { &told });
    Ok(())
}

/// Holds the run folder against other processes, made where there is none. A run that is there is
/// removed when that was asked for; anything else is left alone. Called when nothing else can be wrong
/// with the input.
fn make_room(args: &TrainArgs) -> Result<Option<Hold>, CliError> {
    let out = args.out.display();
    let there = !formats::is_vacant(&args.out);
    if args.resume && !there {
        return Ok(None);
    }
    if there && !args.resume {
        if !args.force {
            // Whoever writes into it is a better reason than that it is there.
            if args.out.join(formats::HOLD_FILE).exists() {
                hold(&args.out)?;
            }
            return Err(CliError::input(format!(
                "{out} exists; give --resume to go on, --force to replace it, or another --out"
            )));
        }
        may_be_replaced(args)?;
    }
    let hold = hold(&args.out)?;
    if args.force {
        hold.clear().map_err(|e| CliError::failed(format!("{out}: {e}")))?;
    }
    Ok(Some(hold))
}

/// Refuses to replace what no run has made, and what this run reads.
fn may_be_replaced(args: &TrainArgs) -> Result<(), CliError> {
    let out = args.out.display();
    only_a_run(args)?;
    for read in read_by(args) {
        let lies_in = |out: PathBuf| read.canonicalize().is_ok_and(|read| read.starts_with(out));
        if args.out.canonicalize().is_ok_and(lies_in) {
            return Err(CliError::input(format!(
                "{out} holds {}, which this run reads, so --force does not replace it; give another \
                 --out",
                read.display()
            )));
        }
    }
    Ok(())
}

const RESULT: &str = "result.json";

/// What a run writes into its folder; other files are somebody's.
const RUN_FILES: [&str; 13] = [
    formats::HOLD_FILE,
    train::CONFIG_FILE,
    train::ADAPTER_FILE,
    train::RECIPE_FILE,
    "model.safetensors",
    "tokenizer.json",
    "metrics.jsonl",
    RESULT,
    "ledger.json",
    "ledger.html",
    "checkpoints",
    "huggingface",
    "adapter",
];

/// Refuses a folder that `train` did not make, and one into which somebody put something.
fn only_a_run(args: &TrainArgs) -> Result<(), CliError> {
    let out = args.out.display();
    let kept = |why: String| {
        CliError::input(format!("{out} {why}, so --force does not replace it; give another --out"))
    };
    let failed = |e: std::io::Error| CliError::failed(format!("{out}: {e}"));
    if ![train::RECIPE_FILE, RESULT].iter().any(|mark| args.out.join(mark).is_file()) {
        return Err(kept("is not a run folder".to_owned()));
    }
    for entry in std::fs::read_dir(&args.out).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let watched = || args.tensorboard.iter().any(|dir| dir.starts_with(entry.path()));
        // What is being written ends so until it is whole.
        if !RUN_FILES.contains(&name.as_ref()) && !name.ends_with(".tmp") && !watched() {
            return Err(kept(format!("holds {name}, which no run writes")));
        }
    }
    Ok(())
}

/// The files and folders that a run reads.
fn read_by(args: &TrainArgs) -> impl Iterator<Item = &Path> {
    let one = [&args.data, &args.init, &args.config].into_iter().flatten();
    one.chain(&args.text).chain(&args.chat).chain(&args.valid).map(PathBuf::as_path)
}

/// Checks the ids that training reads: a damaged one must not become an index. Called after the
/// runtime's memory was measured, for it brings the files into memory.
fn verify(data: &Dataset) -> Result<(), CliError> {
    let sides = [Side::Train, Side::Valid];
    sides.iter().try_for_each(|&side| data.side(side).verify()).map_err(CliError::input)
}

/// Writes a file whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), CliError> {
    formats::replace_file(path, |file| file.write_all(text.as_bytes()))
        .map_err(|e| CliError::input(format!("{}: {e}{}", path.display(), formats::hint(&e))))
}

struct Summary {
    json: serde_json::Value,
    text: String,
    ledger: (Report, recording::Known),
    /// The run folder, held until all of it is written.
    hold: Option<Hold>,
}

/// What a run reads.
struct Material<'a> {
    train: &'a dyn Sequences,
    valid: &'a dyn Sequences,
    tokenizer: &'a Tokenizer,
    /// Names the data, and the model that is gone on from.
    hash: String,
    /// The same for people.
    name: String,
    synthetic: bool,
    /// Bytes of documents.
    documents: u64,
}

/// The documents named by the arguments, encoded by the model's tokenizer.
fn read_documents(args: &TrainArgs, init: &Init, quiet: bool) -> Result<documents::Read, CliError> {
    let template = init.template()?;
    if args.valid_share == 0.0 && args.valid.is_empty() {
        let asked =
            [("--eval-every", args.recipe.eval_every), ("--patience", args.recipe.patience)];
        if let Some((name, _)) = asked.iter().find(|(_, asked)| asked.is_some_and(|n| n > 0)) {
            return Err(CliError::input(format!(
                "{name}: nothing is evaluated with --valid-share 0; leave one of them away, or give --valid"
            )));
        }
    }
    let limit = init.config.context_limit().unwrap_or(usize::MAX);
    let max_len = args.max_len.unwrap_or(1024.min(limit.saturating_add(1)));
    let files = Files {
        texts: &args.text,
        chats: &args.chat,
        valid: &args.valid,
        valid_share: args.valid_share,
    };
    let (tokenizer, ends) = (&init.tokenizer, &init.ends[..]);
    let encoding = Encoding { tokenizer, ends, template: template.as_ref(), max_len };
    let read = documents::read(&files, &encoding)?;
    if !quiet {
        read.notes.iter().for_each(|note| term::note(note));
    }
    Ok(read)
}

/// Paths, one after another.
fn names<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> String {
    let names: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// Whether a data set's ids mean to the model what they mean there.
fn same_words(init: &Init, data: &Dataset) -> Result<(), CliError> {
    if init.tokenizer.sha256() == data.tokenizer().sha256() {
        return Ok(());
    }
    Err(CliError::input(format!(
        "{} was prepared with another tokenizer than the model of --init has; prepare it with \
         `data prepare --tokenizer`, or give the texts themselves with --text",
        data.dir().display()
    )))
}

/// Sees that a schedule has the steps that it asks for; what people should know where the one that
/// nobody asked for has not.
///
/// # Errors
/// `--warmup-steps` that the data never gets through.
fn schedule_fits(
    args: &TrainArgs,
    config: &TrainConfig,
    steps: u64,
    in_data: u64,
) -> Result<Vec<String>, CliError> {
    let recipe = &config.train;
    let (warm, most) = (recipe.warmup_steps, recipe.max_steps);
    let mut notes = Vec::new();
    if warm > steps {
        if args.recipe.warmup_steps.is_some() && warm > in_data {
            return Err(CliError::input(format!(
                "--warmup-steps {warm}: the data gives {in_data} steps, so the learning rate would only \
                 rise; give fewer, or more --epochs"
            )));
        }
        let share = 100.0 * steps as f64 / warm as f64;
        notes.push(format!(
            "the run has {steps} steps and its learning rate rises over {warm}: it gets to {share:.0} % \
             of {}; give --warmup-steps",
            recipe.learning_rate
        ));
    }
    if most > steps {
        let epochs = recipe.epochs;
        notes.push(format!(
            "--max-steps {most} is more than the {steps} steps of {epochs} epochs, which end the run"
        ));
    }
    Ok(notes)
}

/// Gradient descent, in a run folder.
fn descend(
    args: &TrainArgs,
    config: &TrainConfig,
    data: Option<&Dataset>,
    mut init: Option<Init>,
    rank: Option<&Rank>,
) -> Result<Summary, CliError> {
    let first = rank.is_none_or(Rank::is_first);
    let quiet = args.quiet || args.json || !first;
    let team = team(rank.map_or(args.threads, |rank| rank.threads(args.threads)))?;
    Trainer::warm_up(config, &team);
    let runtime = ledger::resident_bytes();
    let recorder = args.ledger.then(ledger::Recorder::start);
    let weights = init.as_mut().map(Init::take_weights);
    let mut from = weights.as_ref().map_or(Ok(String::new()), Weights::digest)?;
    // A resumed run has weights of its own; adapters stand beside those of the model.
    let weights = weights.filter(|_| !args.resume || args.lora.is_some());
    if let Some(weights) = weights.as_ref().filter(|_| first) {
        weights.check(&config.model)?;
    }
    from.extend(args.lora.iter().map(|lora| format!("{lora:?}")));
    let with_init = |data: String| match &args.init {
        Some(init) => format!("{data} from {}", init.display()),
        None => data,
    };
    let read;
    let material = match (data, &init) {
        (Some(data), _) => {
            init.as_ref().map_or(Ok(()), |init| same_words(init, data))?;
            verify(data)?;
            Material {
                train: data.side(Side::Train),
                valid: data.side(Side::Valid),
                tokenizer: data.tokenizer(),
                hash: format!("{}{from}", data_hash(data.manifest())),
                name: with_init(data.dir().display().to_string()),
                synthetic: data.manifest().synthetic,
                documents: 0,
            }
        }
        (None, Some(init)) => {
            read = read_documents(args, init, quiet)?;
            Material {
                train: &read.train,
                valid: &read.valid,
                tokenizer: &init.tokenizer,
                hash: format!("{}{from}", read.hash),
                name: with_init(names(args.text.iter().chain(&args.chat).chain(&args.valid))),
                synthetic: false,
                documents: read.train.bytes() + read.valid.bytes(),
            }
        }
        (None, None) => return Err(CliError::input("no --data and no --init")),
    };
    let (train, valid) = (material.train, material.valid);
    train::check(config, train, valid).map_err(CliError::input)?;
    let steps = train::total_steps(config, train.len());
    let mut whole = config.clone();
    whole.train.max_steps = 0;
    let notes = schedule_fits(args, config, steps, train::total_steps(&whole, train.len()))?;
    let place = rank.map_or(Place::ALONE, Rank::place);
    place.check(config).map_err(CliError::input)?;
    if place.stage == Stage::Three && args.sample.sample_every.is_some() {
        let why = "at --zero 3 no rank has the whole model; give --zero 2, or leave it away";
        return Err(CliError::input(format!("--sample-every: {why}")));
    }
    let shape = BatchShape::of_place(&config.train, train, valid, place);
    let plan_of = |shape: BatchShape| match rank {
        Some(_) => Trainer::plan_ranks(config, shape, team.threads(), place),
        None => Trainer::plan(config, shape, team.threads()),
    };
    let free = ledger::available_bytes().unwrap_or(u64::MAX) / rank.map_or(1, Rank::together);
    let (recompute, mut plan) = match (args.recompute, args.memory) {
        (Asked::Exactly(way), None) => {
            let shape = shape.recomputing(way);
            let plan = plan_of(shape).map_err(CliError::input)?;
            fit(
                &plan,
                &format!("training this {}", config.model.kind()),
                "make the model or micro_batch smaller, or give --recompute auto",
            )?;
            (way, plan)
        }
        (asked, memory) => {
            // Ranks of one process share what it may take beside its runtime.
            let together = rank.map_or(1, Rank::together);
            let share = |all: u64| match all.checked_sub(runtime) {
                Some(beside) => beside / together + runtime,
                None => all,
            };
            memory::choose(asked, memory.map_or(free, share), runtime, |way| {
                let shape = shape.recomputing(way);
                plan_of(shape).map_err(CliError::input)
            })?
        }
    };
    let _files = match data {
        Some(data) => plan_token_files(&mut plan, data),
        None => plan_documents(&mut plan, train, material.documents),
    };
    if args.recompute == Asked::Auto && !quiet {
        term::note(&format!("--recompute {}: predicted {}", recompute.name(), mib(plan.total())));
    }
    let ends: Vec<u32> = match &init {
        Some(init) => init.ends.clone(),
        None => material.tokenizer.specials().eos.into_iter().collect(),
    };
    let words = (material.tokenizer, &ends[..]);
    let silent = SampleArgs::default();
    let sample = if first { &args.sample } else { &silent };
    let sampler = Sampler::new(sample, &config.model, words, config.train.seed, &team)?;
    if let Some(sampler) = &sampler {
        plan.extend(sampler.plan(&config.model)?);
    }
    let hold = if first { make_room(args)? } else { None };
    if !quiet && !args.resume {
        notes.iter().for_each(|note| term::note(note));
    }
    let stop = crate::stop::on_signals()?;
    let tokenizer = material.tokenizer.to_bytes();
    let synthetic = material.synthetic;
    let options = RunOptions {
        config,
        train,
        valid,
        tokenizer: &tokenizer,
        data_hash: &material.hash,
        data_name: &material.name,
        dir: &args.out,
        resume: args.resume,
        team: &team,
        stop: &stop,
    };
    let model = match weights {
        Some(weights) => {
            let threads = team.threads();
            Some(match Trainer::room(config, place).map_err(CliError::failed)? {
                Some(room) => weights.load_into(room, threads)?,
                None => {
                    let mut model = weights.load(threads)?;
                    let adapter = |spec: &tensor::ParameterSpec| models::is_adapter(&spec.name);
                    model.weights_mut().initialise_some(config.train.seed, adapter);
                    model
                }
            })
        }
        None => None,
    };
    let total = train::total_steps(config, train.len());
    let start = Start { model, recompute, sample_every: args.sample.sample_every, keep: args.keep };
    let screen = screen(args, config, total, quiet)?;
    let boards = args.tensorboard.clone().filter(|_| first);
    let mut watch = Watch::new(screen, sampler, boards);
    recorder.iter().for_each(|r| r.begin_step("step 1, what is allocated for it included"));
    let mut tell = |event: train::Event| {
        recorder.iter().for_each(|r| recorded(r, &event));
        if first {
            watch.tell(&event);
        }
    };
    let outcome = match rank {
        None => train::run_from(start, &options, &mut tell).map(|o| Ended::Alone(Box::new(o))),
        Some(rank) => rank.train(start, &options, &mut tell).map(|o| Ended::Rank(Box::new(o))),
    };
    watch.finish();
    let ended = outcome.map_err(|e| match (e, rank) {
        (e, Some(rank)) => rank.error(e),
        (e @ train::Error::NotFinite { .. }, None) => CliError::failed(e),
        (e, None) => CliError::input(e),
    })?;
    let (state, stopped_by) = match &ended {
        Ended::Alone(outcome) => (outcome.state.clone(), outcome.stopped_by),
        Ended::Rank(outcome) => (outcome.state.clone(), outcome.stopped_by),
    };
    if let (Some(signal), false) = (stopped_by, first) {
        return Err(CliError::told(CliError::stopped(signal, "").code));
    }
    if let Some(signal) = stopped_by {
        return Err(CliError::stopped(
            signal,
            format!(
                "stopped at step {} of {total}; the same command with --resume goes on",
                state.step
            ),
        ));
    }
    let name = args.out.display().to_string();
    let ran = Ran { name: &name, plan: &plan, runtime_bytes: runtime, threads: team.threads() };
    // Of what no plan is made, pages say that their sliders know no model.
    let what_if = what_if::of_training(ran, config, shape.recomputing(recompute), place).ok();
    // Ranks of one process have its books in common.
    let mut of_process = plan.clone();
    (1..rank.map_or(1, Rank::together)).for_each(|_| of_process.extend(plan.clone()));
    let report = Report::new(&of_process, &ledger::snapshot(), runtime, ledger::peak_bytes());
    let report = match recorder {
        Some(recorder) => report.recorded(recorder.finish()),
        None => report,
    };
    let (model, company) = match (ended, rank) {
        (Ended::Alone(outcome), _) => (Some(outcome.model), None),
        (Ended::Rank(outcome), Some(rank)) => {
            let company = rank.company(config, &plan, &outcome, runtime)?;
            (outcome.adapters, Some(company))
        }
        (Ended::Rank(_), None) => (None, None),
    };
    let layout = models::Model::layout_of(&config.model).map_err(CliError::failed)?;
    let parameters = layout.count();
    let learns = |spec: &&tensor::ParameterSpec| config.model.trains(&spec.name);
    let trained: usize = layout.specs().iter().filter(learns).map(|s| s.count()).sum();
    let (exported, adapter) = match (&init, model) {
        (Some(init), Some(model)) if args.lora.is_some() => {
            let written = lora::write(args, init, model)?;
            (written.merged, Some(written.adapter))
        }
        // What is trained is in the run folder, be it one process or several ranks that did it.
        (Some(init), model) if first => {
            drop(model);
            (init.export_run(&args.out)?, None)
        }
        _ => (None, None),
    };
    let speed = state.tokens as f64 / state.seconds.max(1e-9);
    let mut json = json!({
        "model": config.model.kind(),
        "parameters": parameters,
        "trained_parameters": trained,
        "parameter_bytes": 4 * parameters,
        "adapter": adapter,
        "valid_loss_nats": state.best_loss,
        "best_step": state.best_step,
        "steps": state.step,
        "train_tokens": state.tokens,
        "train_seconds": state.seconds,
        "data_seconds": state.data_seconds,
        "tokens_per_second": speed,
        "peak_process_bytes": report.peak_process_bytes,
        "predicted_process_bytes": report.predicted_process_bytes,
        "clipped_steps": state.clipped,
        "skipped_steps": state.skipped,
        "synthetic": synthetic,
        "recompute": recompute.name(),
        "precision": config.train.precision.name(),
        "overflowed_steps": state.overflowed,
        "huggingface": exported,
        "threads": team.threads(),
        "isa": kernels::Isa::current().name(),
        "curve": state.curve,
    });
    if let Some(company) = &company {
        json["ranks"] = company.json();
    }
    let of_all = match adapter {
        Some(_) => format!(" ({} of them learnt)", thousands(trained as u64)),
        None => String::new(),
    };
    let mut text = format!(
        "{} with {} parameters{of_all}: {} at step {} of {}\n{} tokens in {}: {} tokens/s; peak memory {}\nrun folder: {}\n",
        config.model.kind(),
        thousands(parameters as u64),
        match state.best_loss {
            Some(loss) => format!("validation loss {loss:.4} nats/token"),
            None => "not validated, the weights".to_owned(),
        },
        state.best_step,
        state.step,
        thousands(state.tokens),
        term::duration(state.seconds),
        thousands(speed as u64),
        mib(report.peak_process_bytes),
        args.out.display(),
    );
    if state.overflowed > 0 {
        text += &format!(
            "{} of {} steps changed nothing, because the gradient of the scaled loss overflowed half \
             precision; bf16 has no such steps\n",
            thousands(state.overflowed),
            thousands(state.step)
        );
    }
    let known = recording::Known {
        parameters: Some(parameters as u64),
        budget: args.memory,
        ranks: company.as_ref().map(|company| (company.ranks(), company.sent_per_step())),
        what_if,
    };
    text.extend(company.map(|company| company.text()));
    Ok(Summary { json, text, ledger: (report, known), hold })
}

/// How training ended.
enum Ended {
    Alone(Box<Outcome>),
    Rank(Box<RankOutcome>),
}

/// What a recording of the bytes takes note of.
fn recorded(recorder: &ledger::Recorder, event: &train::Event) {
    match event {
        train::Event::Step { .. } => recorder.end_step(),
        train::Event::Evaluated { point, .. } => {
            recorder.mark(&format!("evaluation after step {}", point.step));
        }
        _ => {}
    }
}

/// Where a run is shown.
fn screen(
    args: &TrainArgs,
    config: &TrainConfig,
    total: u64,
    quiet: bool,
) -> Result<Screen, CliError> {
    if args.tui && !quiet && std::io::stderr().is_terminal() {
        let title = format!("{} in {}", config.model.kind(), args.out.display());
        let board = board::Board::new(title, total);
        let board = board.map_err(|e| CliError::failed(format!("--tui: {e}")))?;
        return Ok(Screen::Board(Box::new(board)));
    }
    Ok(Screen::Lines(Progress::new(total, quiet)))
}
