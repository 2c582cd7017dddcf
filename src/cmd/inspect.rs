//! `autoreg inspect`: what is in a model's files, and what running it will take. No weight is read.

use crate::cmd::model::{located, predicted};
use crate::cmd::{KvArgs, json};
use crate::error::CliError;
use crate::term::{self, mib, thousands};
use clap::Args;
use families::{Checkpoint, Source};
use formats::TensorKind;
use kernels::Team;
use ledger::Account;
use models::{Model, ModelConfig};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;

/// Arguments of `inspect`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg inspect models/smollm2-135m-q4_1.gguf
  autoreg inspect runs/t1 --context 64 --json")]
pub struct InspectArgs {
    /// A GGUF file, a Hugging Face folder or a run folder of `autoreg train`
    pub model: PathBuf,
    /// Tokens of context that memory is predicted for (default: 4096, or the model's limit)
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// Workers that memory is predicted for (default: the processors this process may use)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Tokens of context where nothing is said.
const CONTEXT: usize = 4096;

/// What there is to tell.
struct Facts {
    format: &'static str,
    family: String,
    name: Option<String>,
    config: ModelConfig,
    /// (kind, tensors, values, bytes).
    types: Vec<(TensorKind, usize, usize, usize)>,
    tokenizer: Tokenizer,
    tokenizer_kind: String,
    ends: Vec<u32>,
    template: Option<String>,
    notes: Vec<String>,
}

/// Tells as told.
pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let model = located(&args.model)?;
    let mut facts =
        if families::is_published(&model) { published(&model)? } else { run_folder(&model)? };
    if let ModelConfig::Transformer(config) = &mut facts.config {
        config.kv = args.kv.kind();
    }
    let limit = facts.config.context_limit().unwrap_or(CONTEXT);
    let context = args.context.unwrap_or(CONTEXT).min(limit).max(1);
    let threads = args.threads.map_or_else(Team::available, usize::from);
    let plan = match facts.config {
        ModelConfig::Ngram(_) => ledger::Plan::default(),
        _ => predicted(&facts.config, context, threads)?,
    };
    let memory: Vec<(Account, u64)> = Account::ALL
        .into_iter()
        .map(|account| (account, plan.of(account)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    if args.json {
        term::print(&json(&as_json(&facts, context, threads, &memory)?)?);
    } else {
        term::print(&as_text(&facts, context, threads, &memory)?);
    }
    Ok(())
}

fn published(path: &Path) -> Result<Facts, CliError> {
    let mut checkpoint = Checkpoint::open(path).map_err(CliError::input)?;
    checkpoint.keep_as_stored().map_err(CliError::input)?;
    let config = checkpoint.model_config();
    Ok(Facts {
        notes: checkpoint.notes.clone(),
        format: match checkpoint.source {
            Source::Gguf => "GGUF",
            Source::Folder => "Hugging Face folder",
        },
        family: checkpoint.family.name.to_owned(),
        name: checkpoint.name.clone(),
        config,
        types: checkpoint.tensors.census(),
        tokenizer: checkpoint.tokenizer,
        tokenizer_kind: checkpoint.tokenizer_kind,
        ends: checkpoint.ends,
        template: checkpoint.chat_template,
    })
}

fn run_folder(path: &Path) -> Result<Facts, CliError> {
    let saved = train::SavedModel::open(path).map_err(CliError::input)?;
    let config = saved.config();
    let tokenizer =
        Tokenizer::from_file(&path.join(train::TOKENIZER_FILE)).map_err(CliError::input)?;
    let count = match &saved {
        train::SavedModel::Network(model) => model.layout().count(),
        train::SavedModel::Counts(_) => 0,
    };
    let tensors = match &saved {
        train::SavedModel::Network(model) => model.layout().specs().len(),
        train::SavedModel::Counts(_) => 0,
    };
    let types = (tensors > 0).then_some((TensorKind::F32, tensors, count, 4 * count));
    Ok(Facts {
        format: "run folder",
        family: config.kind().to_owned(),
        name: None,
        config,
        types: types.into_iter().collect(),
        ends: tokenizer.specials().eos.into_iter().collect(),
        tokenizer,
        tokenizer_kind: train::TOKENIZER_FILE.to_owned(),
        template: None,
        notes: Vec::new(),
    })
}

/// Parameters; none for count models, which hold counts.
fn parameters(config: &ModelConfig) -> Result<Option<usize>, CliError> {
    match config {
        ModelConfig::Ngram(_) => Ok(None),
        _ => Model::count_parameters(config).map(Some).map_err(CliError::input),
    }
}

fn as_json(
    facts: &Facts,
    context: usize,
    threads: usize,
    memory: &[(Account, u64)],
) -> Result<Value, CliError> {
    let types = facts.types.iter().map(|(kind, tensors, values, bytes)| {
        json!({"type": kind.name(), "tensors": tensors, "values": values, "bytes": bytes})
    });
    let accounts: serde_json::Map<String, Value> = memory
        .iter()
        .map(|(account, bytes)| (account.name().to_owned(), (*bytes).into()))
        .collect();
    Ok(json!({
        "format": facts.format,
        "family": facts.family,
        "name": facts.name,
        "config": facts.config,
        "parameters": parameters(&facts.config)?,
        "tensor_types": types.collect::<Vec<_>>(),
        "file_bytes": facts.types.iter().map(|t| t.3).sum::<usize>(),
        "tokenizer": {
            "kind": facts.tokenizer_kind,
            "tokens": facts.tokenizer.vocab_size(),
            "begins_with": facts.tokenizer.specials().bos,
            "ends_with": facts.ends,
        },
        "chat_template": facts.template,
        "notes": facts.notes,
        "memory": {
            "context": context,
            "threads": threads,
            "predicted_bytes": memory.iter().map(|m| m.1).sum::<u64>(),
            "accounts": accounts,
        },
    }))
}

fn as_text(
    facts: &Facts,
    context: usize,
    threads: usize,
    memory: &[(Account, u64)],
) -> Result<String, CliError> {
    let mut out = String::new();
    let mut line = |what: &str, text: String| {
        let _ = writeln!(out, "{what:<12}{text}");
    };
    let name = facts.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    line("model", format!("{}{name}, {}", facts.family, facts.format));
    if let Some(count) = parameters(&facts.config)? {
        line("parameters", thousands(count as u64));
    }
    for text in shape(&facts.config) {
        line("", text);
    }
    for (kind, tensors, values, bytes) in &facts.types {
        let (values, bytes) = (thousands(*values as u64), mib(*bytes as u64));
        line(kind.name(), format!("{tensors:>5} tensors{values:>16} values{bytes:>14}"));
    }
    line(
        "tokenizer",
        format!(
            "{}, {} tokens",
            facts.tokenizer_kind,
            thousands(facts.tokenizer.vocab_size() as u64)
        ),
    );
    let label = |id: u32| facts.tokenizer.token(id).unwrap_or_else(|| format!("#{id}"));
    let begin = facts.tokenizer.specials().bos.map_or("nothing".to_owned(), label);
    let ends: Vec<String> = facts.ends.iter().map(|&id| label(id)).collect();
    line("", format!("begins with {begin}, ends with {}", ends.join(" ")));
    line(
        "template",
        facts.template.as_ref().map_or("none".to_owned(), |t| format!("{} bytes", t.len())),
    );
    for note in &facts.notes {
        line("note", note.clone());
    }
    if !memory.is_empty() {
        let total = memory.iter().map(|m| m.1).sum();
        line("memory", format!("{} for {context} tokens on {threads} threads", mib(total)));
        for (account, bytes) in memory {
            line("", format!("{:<20}{:>14}", account.name(), mib(*bytes)));
        }
    }
    Ok(out)
}

/// The shape of a network, a line or two.
fn shape(config: &ModelConfig) -> Vec<String> {
    let ModelConfig::Transformer(c) = config else { return Vec::new() };
    let mut lines = vec![format!(
        "{} layers of {} with {} heads of {} ({} for keys and values), MLP {}",
        c.num_hidden_layers,
        c.hidden_size,
        c.num_attention_heads,
        c.head_size(),
        c.kv_heads(),
        c.intermediate_size
    )];
    let tied = if c.tie_word_embeddings { "tied heads" } else { "untied heads" };
    lines.push(format!(
        "vocabulary {}, context {}, {tied}",
        thousands(c.vocab_size as u64),
        thousands(c.max_position_embeddings as u64)
    ));
    if let Some(window) = &c.sliding_window {
        lines.push(format!(
            "{} layers see only the last {} tokens (their keys and values are kept all the same)",
            window.layers.len(),
            window.tokens
        ));
    }
    lines
}
