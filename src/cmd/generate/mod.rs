//! `autoreg generate`: continues a prompt, shows how each token was chosen, and writes a record
//! that `autoreg replay` repeats to the bit; or searches for the likeliest text, or sets a true text
//! against the model's own. With `--from-logits` no model is opened.

mod pictures;
mod record;
mod replay;
pub mod search;
mod teach;

pub use pictures::texts;
pub use replay::{ReplayArgs, run as replay};
pub use search::Search;

use crate::cmd::from_logits::{self, DecodingArgs, FromLogitsArgs, FromLogitsError, Given};
use crate::cmd::model::{Opened, engine_error, text_of};
use crate::cmd::recording::{LedgerArgs, Recording, Watched};
use crate::cmd::{AdapterArgs, KvArgs, draft, json};
use crate::error::CliError;
use crate::term;
use clap::{Args, ValueEnum};
use decoding::Rules;
use engine::{
    Event, Generator, GuessedSource, Guesses, Prompt, Request, Room, Sequence, Source, Truncate,
};
use record::Record;
use search::SearchArgs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Arguments of `generate`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg generate runs/t1 please --top-p 0.9 --seed 3
  autoreg generate runs/t1 please --n 8 --temperature 0.8 --json
  autoreg generate runs/t1 please --explain
  autoreg generate runs/t1 please --beam 4 --length-penalty 0.6
  autoreg generate runs/t1 please --teacher thanks
  autoreg generate --from-logits row.json --top-k 40 --compare-presets
  autoreg generate --from-logits row.json --top-p 0.9 --explain why.html

Which rule when:
  one right answer (extraction, a label)      --greedy, or --beam 4
  the likeliest text as a whole               --beam N; short texts win unless --length-penalty > 0
  a good text, drawn and then chosen          --best-of N with --temperature 0.7
  open text, close to the model               --top-p 0.9 or --min-p 0.05
  open text, tamer or wilder                  --temperature below or above 1
  the model as it is (measuring, teaching)    no rule at all: temperature 1")]
pub struct GenerateArgs {
    /// A run folder of `autoreg train`, a GGUF file or a Hugging Face folder
    #[arg(required_unless_present = "from_logits", conflicts_with = "from_logits")]
    pub model: Option<PathBuf>,
    /// The text to continue; `-` reads standard input; none begins from `<bos>`
    pub prompt: Option<String>,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_tokens: usize,
    /// Continuations, in one batch that shares the prompt
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub n: u16,
    /// Seed of the draws: the same seed, the same text
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Index of the first continuation; number I of `--n` is what `--first-sequence I` gives alone
    #[arg(long, value_name = "I", default_value_t = 0)]
    pub first_sequence: u64,
    /// End before this text comes; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// More tokens that end it, beside the tokenizer's `<eos>`
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub eos: Vec<u32>,
    /// Go on after `<eos>`
    #[arg(long, conflicts_with = "eos")]
    pub ignore_eos: bool,
    /// Never choose `<unk>` (allowed by default: it is part of what the model learnt)
    #[arg(long)]
    pub ban_unk: bool,
    /// Cut a prompt that leaves no room in the context for --max-tokens (or for half of it, if they
    /// are more than the context), instead of refusing one that is longer than the context
    #[arg(long, value_enum, value_name = "SIDE")]
    pub truncate_prompt: Option<Side>,
    /// Let names of control tokens in the prompt stand for them, as chat templates write them;
    /// otherwise they are plain text
    #[arg(long)]
    pub control_tokens: bool,
    /// Print the record as JSON: what `autoreg replay` repeats
    #[arg(long)]
    pub json: bool,
    /// Draw how each token was chosen; with a file, as a page with sliders
    #[arg(long, value_name = "REPORT.html", num_args = 0..=1)]
    pub explain: Option<Option<PathBuf>>,
    /// The true continuation: shows, step by step, what the model predicts on it and on its own
    /// prefix, and where they part
    #[arg(long, value_name = "TEXT", conflicts_with_all = [
        "search", "n", "stream", "max_tokens", "stop", "from_logits", "compare_presets",
    ])]
    pub teacher: Option<String>,
    /// Search instead of drawing
    #[command(flatten)]
    pub search: SearchArgs,
    /// Write text as it comes, even where standard output is no terminal
    #[arg(long, conflicts_with_all = ["json", "explain", "n"])]
    pub stream: bool,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// A smaller model with the same vocabulary that guesses ahead; it changes no token, and saves
    /// passes of the model where the two agree
    #[arg(long, value_name = "MODEL", conflicts_with_all = [
        "search", "n", "teacher", "compare_presets", "from_logits",
    ])]
    pub draft: Option<PathBuf>,
    /// Bytes by term
    #[command(flatten)]
    pub ledger: LedgerArgs,
    /// Tokens guessed at a time, at most [default: 5]
    #[arg(long, value_name = "N", requires = "draft",
          value_parser = clap::value_parser!(u8).range(1..=32))]
    pub draft_tokens: Option<u8>,
    /// What is merged into the weights
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Instead of a model: logits or probabilities in a JSON array, or an object with `logits` or
    /// `probs` and, if wanted, `tokens` (their texts)
    #[arg(long, value_name = "FILE.json", conflicts_with_all = [
        "search", "n", "stream", "max_tokens", "first_sequence", "stop", "eos", "ignore_eos",
        "ban_unk", "truncate_prompt", "control_tokens", "threads",
    ])]
    pub from_logits: Option<PathBuf>,
    /// With --from-logits: the uniform number in [0, 1) instead of one from the seed
    #[arg(
        long,
        value_name = "U",
        conflicts_with_all = ["seed", "model"],
        requires = "from_logits"
    )]
    pub draw: Option<f64>,
    /// With --from-logits: step of the sequence, from 0; the uniform number depends on it
    #[arg(long, default_value_t = 0, requires = "from_logits", conflicts_with = "model")]
    pub step: u64,
    /// With --from-logits: tokens generated so far, for the penalties (all of them count as
    /// generated, none as prompt)
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        requires = "from_logits",
        conflicts_with = "model"
    )]
    pub history: Vec<u32>,
    /// Show what the same settings keep of the next token under every preset
    #[arg(long, conflicts_with_all = [
        "rules", "preset", "explain", "search", "n", "stream", "max_tokens", "first_sequence", "stop",
        "eos", "ignore_eos",
    ])]
    pub compare_presets: bool,
    /// The settings
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

/// A side of the prompt.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Side {
    /// Drop the beginning
    Left,
    /// Drop the end
    Right,
}

/// Runs as told.
pub fn run(args: GenerateArgs) -> Result<(), CliError> {
    match (&args.from_logits, &args.model) {
        (Some(file), _) => given_logits(&args, file),
        (None, Some(dir)) => {
            let adapter = args.adapter.adapter.as_deref();
            let mut recording = args.ledger.start()?;
            let opened = Opened::open_adapted(dir, args.kv.kind(), adapter)?;
            recording.iter_mut().for_each(|r| r.opened());
            with_model(&args, &opened, recording)
        }
        (None, None) => Err(CliError::input("no MODEL given; give the folder of a trained model")),
    }
}

fn given_logits(args: &GenerateArgs, file: &Path) -> Result<(), CliError> {
    if args.ledger.ledger.is_some() {
        return Err(CliError::input(
            "--ledger: with --from-logits no model is held; leave it away",
        ));
    }
    let given = Given::open(file).map_err(from_logits_error)?;
    args.decoding.check(given.len()).map_err(from_logits_error)?;
    from_logits::known("--history", &args.history, given.len()).map_err(from_logits_error)?;
    let title = file.display().to_string();
    show_given(args, &given, title, Vec::new()).map_err(from_logits_error)?;
    given.note.iter().for_each(|note| term::note(note));
    Ok(())
}

/// The rules on one row of logits, given or a model's.
fn show_given(
    args: &GenerateArgs,
    given: &Given,
    title: String,
    prompt: Vec<u32>,
) -> Result<(), FromLogitsError> {
    let args = FromLogitsArgs {
        title,
        draw: args.draw,
        seed: args.seed,
        step: args.step,
        prompt,
        history: args.history.clone(),
        compare_presets: args.compare_presets,
        json: args.json,
        report: args.explain.clone().flatten(),
        decoding: args.decoding.clone(),
    };
    from_logits::run(&args, given, &mut std::io::stdout().lock())
}

fn from_logits_error(error: FromLogitsError) -> CliError {
    CliError { message: error.to_string(), code: error.exit_code() }
}

fn with_model(
    args: &GenerateArgs,
    opened: &Opened,
    recording: Option<Recording>,
) -> Result<(), CliError> {
    let source = Watched::new(opened.source(args.threads)?, recording.as_ref());
    let truncate = match args.truncate_prompt {
        None => Truncate::Never,
        Some(Side::Left) => Truncate::Left,
        Some(Side::Right) => Truncate::Right,
    };
    let vocabulary = source.vocab_size();
    args.decoding.check(vocabulary).map_err(from_logits_error)?;
    from_logits::known("--eos", &args.eos, vocabulary).map_err(from_logits_error)?;
    let text = text_of(args.prompt.as_deref().unwrap_or_default())?;
    let ids = opened.encode(&text, args.control_tokens);
    let bos = if ids.is_empty() { opened.begin } else { opened.tokenizer.specials().bos };
    let limit = source.context_limit().map(|limit| match truncate {
        Truncate::Never => limit,
        Truncate::Left | Truncate::Right => room_for_prompt(limit, new_tokens(args, opened)),
    });
    let prompt = Prompt::from_ids(bos, ids, limit, truncate).map_err(engine_error)?;
    if prompt.dropped > 0 {
        term::note(&format!("note: {} tokens of the prompt were dropped", prompt.dropped));
    }
    if args.compare_presets {
        return presets_on_a_model(args, opened, (source, recording), prompt.ids);
    }
    let request = Request {
        prompt: prompt.ids,
        rules: decoding_rules(args, opened)?,
        seed: args.seed,
        first_sequence: args.first_sequence,
        sequences: usize::from(args.n),
        max_tokens: args.max_tokens,
        end: end_tokens(args, opened),
        stops: args.stop.clone(),
    };
    if let Some(path) = &args.draft {
        return with_draft(args, opened, source, &request, (path, &text), recording);
    }
    let mut generator = Generator::new(source, &opened.tokenizer);
    show(args, &mut generator, &request, opened, &text)?;
    tell(args, &generator, &request, (opened, None), recording)
}

/// Ends a recording with what was predicted of the same.
fn tell<S: Source>(
    args: &GenerateArgs,
    generator: &Generator<'_, S>,
    request: &Request,
    (opened, draft): (&Opened, Option<&Opened>),
    recording: Option<Recording>,
) -> Result<(), CliError> {
    let Some(recording) = recording else { return Ok(()) };
    let breadth =
        args.search.search(args.first_sequence).map_or(request.sequences, |s| s.breadth());
    let wide = Request { sequences: breadth, ..request.clone() };
    let mut plan = opened.weights_plan()?;
    draft.map(Opened::weights_plan).transpose()?.into_iter().for_each(|own| plan.extend(own));
    plan.extend(generator.plan(&wide).map_err(engine_error)?);
    let title = format!("generate {}", opened.dir.display());
    recording.finish(&title, &plan, opened.parameters()).map(drop)
}

/// The same with a second model that guesses.
fn with_draft(
    args: &GenerateArgs,
    opened: &Opened,
    source: Watched<'_>,
    request: &Request,
    (path, text): (&Path, &str),
    recording: Option<Recording>,
) -> Result<(), CliError> {
    let draft = draft::open(path, args.kv.kind(), opened)?;
    let most = args.draft_tokens.unwrap_or(draft::USUAL_DRAFTS);
    let guesses = draft.source(args.threads)?;
    let source = GuessedSource::new(source, guesses, request, usize::from(most));
    let mut generator = Generator::new(source, &opened.tokenizer);
    show(args, &mut generator, request, opened, text)?;
    let Guesses { drafted, accepted, passes } = generator.source().guesses();
    let share = 100.0 * accepted as f64 / drafted.max(1) as f64;
    term::note(&format!(
        "[draft: {accepted} of {drafted} guesses held ({share:.0} %); {passes} passes of the model]"
    ));
    tell(args, &generator, request, (opened, Some(&draft)), recording)
}

/// New tokens that a cut prompt is to leave room for.
fn new_tokens(args: &GenerateArgs, opened: &Opened) -> usize {
    match &args.teacher {
        None if args.compare_presets => 1,
        None => args.max_tokens,
        Some(truth) => opened.tokenizer.encode(truth).len(),
    }
}

/// Tokens of a prompt that leave room for so many new ones, of which the last is not read; for half
/// of the context if they are more than it.
fn room_for_prompt(limit: usize, new_tokens: usize) -> usize {
    let room = (limit + 1).saturating_sub(new_tokens).min(limit);
    if room > 1 { room } else { limit.div_ceil(2) }
}

/// Generates and shows, in the way that was asked for.
fn show<S: Source>(
    args: &GenerateArgs,
    generator: &mut Generator<'_, S>,
    request: &Request,
    opened: &Opened,
    text: &str,
) -> Result<(), CliError> {
    let page = args.explain.as_ref().and_then(Option::as_deref);
    pictures::check_page(page)?;
    let search = args.search.search(args.first_sequence);
    search::fit(generator, request, search.as_ref())?;
    if let Some(truth) = &args.teacher {
        let asked = teach::Asked { prompt: text, truth, json: args.json, page };
        return teach::teach(generator, request, opened, &asked);
    }
    if args.explain.is_some() {
        if args.json || args.n > 1 {
            return Err(CliError::input(
                "--explain draws one continuation: leave out --n and --json, and choose the \
                 continuation with --first-sequence",
            ));
        }
        return pictures::explain(generator, request, opened, page);
    }
    if args.json {
        let record = Record::new(opened, request, search, text)?;
        let done =
            search::run(generator, request, search.as_ref(), &mut |_| {}).map_err(engine_error)?;
        term::print(&json(&record.with(done, request))?);
        return Ok(());
    }
    as_text(args, generator, request, search.as_ref())
}

/// What each preset keeps of the token that follows the prompt.
fn presets_on_a_model(
    args: &GenerateArgs,
    opened: &Opened,
    (mut source, recording): (Watched<'_>, Option<Recording>),
    prompt: Vec<u32>,
) -> Result<(), CliError> {
    let mut row = vec![0.0; source.vocab_size()];
    let room = Room { sequences: 1, tokens: prompt.len() };
    source.begin(&prompt, room, &mut row).map_err(engine_error)?;
    if let Some(recording) = recording {
        let mut plan = opened.weights_plan()?;
        plan.extend(source.plan(prompt.len(), room).map_err(engine_error)?);
        let title = format!("generate {}", opened.dir.display());
        recording.finish(&title, &plan, opened.parameters())?;
    }
    let tokens = (0..).take(row.len()).map(|id| opened.label(id)).collect();
    let mut args = args.clone();
    args.decoding.ban.extend(opened.never(args.ban_unk));
    let title = opened.dir.display().to_string();
    // Here a row that is no row is the model's fault, not the user's.
    show_given(&args, &Given::of_model(row, tokens), title, prompt).map_err(|error| match error {
        FromLogitsError::Decode(source) => {
            engine_error(engine::Error::Decode { sequence: 0, source })
        }
        other => from_logits_error(other),
    })
}

/// The chain asked for, behind a ban of what never comes: padding and the beginning.
fn decoding_rules(args: &GenerateArgs, opened: &Opened) -> Result<Rules, CliError> {
    let asked = args.decoding.rules().map_err(from_logits_error)?;
    for note in asked.notes() {
        term::note(&format!("note: {note}"));
    }
    opened.rules(&asked, args.ban_unk)
}

fn end_tokens(args: &GenerateArgs, opened: &Opened) -> Vec<u32> {
    let own = opened.ends.iter().filter(|_| !args.ignore_eos);
    let mut end: Vec<u32> = own.chain(&args.eos).copied().collect();
    end.sort_unstable();
    end.dedup();
    end
}

/// The text alone on standard output; why it ended on standard error.
fn as_text<S: Source>(
    args: &GenerateArgs,
    generator: &mut Generator<'_, S>,
    request: &Request,
    search: Option<&Search>,
) -> Result<(), CliError> {
    let live = args.n == 1 && search.is_none() && (args.stream || std::io::stdout().is_terminal());
    let mut show = |event: &Event<'_>| {
        if live {
            term::print(event.text);
            // A reader that went away is found by the next write.
            drop(std::io::stdout().flush());
        }
    };
    let done = search::run(generator, request, search, &mut show).map_err(engine_error)?;
    for sequence in &done {
        if done.len() > 1 {
            term::print(&format!("--- {}\n", sequence.index));
        }
        if !live {
            term::print(&sequence.text);
        }
        term::print("\n");
        term::note(&summary(sequence));
    }
    Ok(())
}

fn summary(sequence: &Sequence) -> String {
    format!(
        "[{}: {} after {} tokens, {:.3} nats]",
        sequence.index,
        sequence.finish.name(),
        sequence.tokens.len(),
        sequence.logprob()
    )
}
