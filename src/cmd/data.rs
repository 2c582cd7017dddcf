//! `autoreg data`: prepare a data set, inspect one. Words and pictures only; the work is in `corpus`.

use crate::cmd::init::Init;
use crate::cmd::json;
use crate::error::CliError;
use crate::term;
use clap::{Args, Subcommand, ValueEnum};
use corpus::{
    Dataset, Manifest, Options, Progress, Side, Stage,
    mail::Quotes,
    prepare::{Existing, GroupBy, NearDuplicates, Source, VocabularyKind},
    source::Format,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tokenizer::Error::VocabularyTooLarge as TooLarge;

/// Arguments of `autoreg data`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg data prepare mail.mbox.gz --out DATA
  autoreg data inspect DATA")]
pub struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    /// Turn mail or text into a data set: grouped, split, tokenised, ready to map into memory.
    Prepare(PrepareArgs),
    /// Show what is in a data set.
    Inspect(InspectArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg data prepare MAIL --out DATA                       one mailbox a file or folder
  autoreg data prepare emails.csv --out DATA                 columns file and message
  autoreg data prepare notes.jsonl --column text --group-by field:author --out DATA
  autoreg data prepare MAIL --group-by thread --vocab bpe --vocab-size 8000 --out DATA
  autoreg data prepare MAIL --tokenizer model.gguf --max-len 512 --out DATA
  autoreg data prepare --messages 5000 --out DATA            synthetic business mail")]
struct PrepareArgs {
    /// Files and folders to read; without any, synthetic business mail is generated.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The folder to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Replace the output folder if it is a data set.
    #[arg(long)]
    force: bool,
    /// The format of all files; without it, each file's own is found. Every format may also be
    /// compressed with gzip or zstd.
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// The column (CSV) or key (JSON Lines) with the message or text. Found by itself when it is
    /// called message, text, body, content, email or raw.
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// What a group is; no group is on two sides. mailbox (the file, the folder, or the first part
    /// of a table's `file` column), sender, thread (References, In-Reply-To, subject), or field:NAME
    /// (a header, column or key).
    #[arg(long, value_name = "WHAT", default_value = "mailbox")]
    group_by: GroupBy,
    /// Shares of the tokens for train, valid and test, in percent.
    #[arg(long, value_name = "A/B/C", default_value = "80/10/10", value_parser = parse_split)]
    split: [u32; 3],
    /// Decides the split (and the synthetic mail).
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The kind of vocabulary.
    #[arg(long, value_enum, default_value_t = VocabArg::Words)]
    vocab: VocabArg,
    /// Take the tokenizer of this model (a GGUF file, a Hugging Face folder or a run folder) instead of
    /// learning a vocabulary, so that `train --init MODEL --data DATA` goes on from it; --max-len counts
    /// what the model puts before and behind a text.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["vocab", "vocab_size"])]
    tokenizer: Option<PathBuf>,
    /// Entries of the vocabulary, `<pad> <unk> <bos> <eos>` counted [default: 4000; for synthetic mail
    /// whose text gives fewer words, nine tenths of them].
    #[arg(long, value_name = "N")]
    vocab_size: Option<usize>,
    /// The cap in tokens, `<bos>` and `<eos>` counted; a message cut at it has no `<eos>`.
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_len: usize,
    /// Keep quoted replies, forwarded blocks and signatures.
    #[arg(long)]
    keep_quotes: bool,
    /// What to do with messages of valid and test that are near-duplicates of one on an earlier side.
    #[arg(long, value_enum, default_value_t = NearArg::Drop)]
    near_duplicates: NearArg,
    /// Synthetic messages to generate when no path is given.
    #[arg(long, value_name = "N", default_value_t = corpus::synthetic::DEFAULT_MESSAGES)]
    messages: usize,
    /// Print the manifest as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg data inspect DATA
  autoreg data inspect DATA --side test --samples 20 --top 100
  autoreg data inspect DATA --verify --json")]
struct InspectArgs {
    /// The data set.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Sample rows to show.
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// Most frequent tokens to show.
    #[arg(long, value_name = "N", default_value_t = 30)]
    top: usize,
    /// The side that samples and frequent tokens come from.
    #[arg(long, value_enum, default_value_t = SideArg::Train)]
    side: SideArg,
    /// Also check every hash (reads all files whole).
    #[arg(long)]
    verify: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    /// mbox: messages after lines `From ADDRESS DATE`; `>From` is read back as `From` (mboxrd).
    Mbox,
    /// mbox in which only `>From` was escaped, so `>>From` stays.
    Mboxo,
    /// mbox with Content-Length and nothing escaped.
    Mboxcl2,
    /// Folders with cur and new, one message a file.
    Maildir,
    /// One message a file.
    Eml,
    /// A table with a header line: raw messages (as `file,message`) or text.
    Csv,
    /// One JSON object a line, with raw messages or text.
    Jsonl,
    /// Plain text; a paragraph is a message.
    Text,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VocabArg {
    /// Lower-cased words and punctuation marks.
    Words,
    /// Byte-level BPE; any text encodes and decodes to itself.
    Bpe,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NearArg {
    /// Report them and leave them out of valid and test.
    Drop,
    /// Report them.
    Keep,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SideArg {
    Train,
    Valid,
    Test,
}

fn parse_split(text: &str) -> Result<[u32; 3], String> {
    let parts: Result<Vec<u32>, _> =
        text.split(['/', ',']).map(|part| part.trim().parse()).collect();
    let three = parts.ok().and_then(|parts| parts.try_into().ok());
    three.ok_or_else(|| format!("expected three shares as 80/10/10, found `{text}`"))
}

/// Runs `autoreg data`.
///
/// # Errors
/// What is wrong with the input, or what failed.
pub fn run(args: DataArgs) -> Result<(), CliError> {
    match args.command {
        DataCommand::Prepare(args) => prepare(&args),
        DataCommand::Inspect(args) => inspect(&args),
    }
}

fn prepare(args: &PrepareArgs) -> Result<(), CliError> {
    let mut options = args.options();
    if let Some(model) = &args.tokenizer {
        let init = Init::open(model)?;
        let mut specials = init.tokenizer.specials();
        specials.eos = init.ends.first().copied().or(specials.eos);
        options.vocabulary = VocabularyKind::Given;
        options.tokenizer = Some(init.tokenizer.with_specials(specials));
    }
    let stop = crate::stop::on_signals()?;
    let mut progress = Terminal::new(Arc::clone(&stop));
    let mut report = corpus::prepare(&options, &mut progress);
    if let Err(corpus::Error::Tokenizer(TooLarge { possible, .. })) = &report
        && args.takes_what_the_text_gives()
    {
        options.vocab_size = fitting(options.vocabulary, *possible);
        report = corpus::prepare(&options, &mut progress);
    }
    progress.clear();
    let report = report.map_err(|error| prepare_error(&error, &stop))?;
    let text = if args.json {
        json(&report.manifest)?
    } else {
        let mut text = summary(&report.manifest);
        let _ = writeln!(text, "\nwritten to {}", report.dir.display());
        text
    };
    term::print(&text);
    Ok(())
}

/// A vocabulary for a text that gives so many entries. Of words it takes nine tenths, so that the
/// rarest are `<unk>` in training and a model learns what that is like.
fn fitting(kind: VocabularyKind, possible: usize) -> usize {
    match kind {
        VocabularyKind::Words => possible - possible / 10,
        VocabularyKind::Bpe | VocabularyKind::Given => possible,
    }
}

/// A signal's stop has its own exit code; all else is the input's fault.
pub(crate) fn prepare_error(error: &corpus::Error, stop: &AtomicUsize) -> CliError {
    match error {
        corpus::Error::Cancelled => CliError::stopped(stop.load(Ordering::Relaxed), error),
        _ => CliError::input(error),
    }
}

impl PrepareArgs {
    /// Whether a smaller vocabulary than the usual one is as good: nobody asked for that one, and
    /// the text is the program's own.
    fn takes_what_the_text_gives(&self) -> bool {
        self.vocab_size.is_none() && self.paths.is_empty()
    }

    fn options(&self) -> Options {
        let source = match self.paths.is_empty() {
            true => Source::Synthetic(self.messages),
            false => Source::Files(self.paths.clone()),
        };
        let mut options = Options::new(source, self.out.clone());
        options.existing = if self.force { Existing::Replace } else { Existing::Refuse };
        options.format = self.format.map(|format| match format {
            FormatArg::Mbox => Format::Mbox,
            FormatArg::Mboxo => Format::Mboxo,
            FormatArg::Mboxcl2 => Format::Mboxcl2,
            FormatArg::Maildir => Format::Maildir,
            FormatArg::Eml => Format::Eml,
            FormatArg::Csv => Format::Csv,
            FormatArg::Jsonl => Format::Jsonl,
            FormatArg::Text => Format::Text,
        });
        options.column.clone_from(&self.column);
        options.group_by = self.group_by.clone();
        options.split = self.split;
        options.seed = self.seed;
        options.vocabulary = match self.vocab {
            VocabArg::Words => VocabularyKind::Words,
            VocabArg::Bpe => VocabularyKind::Bpe,
        };
        options.vocab_size = self.vocab_size.unwrap_or(options.vocab_size);
        options.max_len = self.max_len;
        options.quotes = if self.keep_quotes { Quotes::Keep } else { Quotes::Strip };
        options.near_duplicates = match self.near_duplicates {
            NearArg::Drop => NearDuplicates::Drop,
            NearArg::Keep => NearDuplicates::Keep,
        };
        options
    }
}

/// Progress on standard error: a bar on a terminal, else a plain line now and then.
struct Terminal {
    bar: Option<ProgressBar>,
    stage: Option<Stage>,
    total: u64,
    last_line: Instant,
    stop: Arc<AtomicUsize>,
}

impl Terminal {
    fn new(stop: Arc<AtomicUsize>) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{msg:16} {wide_bar} {percent:>3}% {eta:>4}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, stage: None, total: 0, last_line: Instant::now(), stop }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Terminal {
    fn begin(&mut self, stage: Stage, total: u64) {
        self.stage = Some(stage);
        self.total = total;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_message(stage.name());
            bar.reset();
        }
    }

    fn cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    fn done(&mut self, done: u64) {
        const EVERY: Duration = Duration::from_secs(5);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if done.is_multiple_of(256) && self.last_line.elapsed() >= EVERY {
            self.last_line = Instant::now();
            let name = self.stage.map_or("", Stage::name);
            let percent = 100 * done / self.total.max(1);
            let _ = writeln!(io::stderr(), "{name}: {percent} %");
        }
    }
}

/// Counts of a data set, for people.
fn summary(manifest: &Manifest) -> String {
    let mut out = String::new();
    let m = &manifest.messages;
    if manifest.synthetic {
        out.push_str("SYNTHETIC mail made by the generator, not real messages\n");
    }
    let _ = writeln!(
        out,
        "{} messages read from {} source(s): {} kept, {} exact duplicates, {} near-duplicates dropped, \
         {} without text of their own; {} unreadable",
        m.read,
        manifest.sources.len(),
        m.kept,
        m.duplicates,
        m.near_duplicates_dropped,
        m.empty,
        m.unreadable
    );
    let v = &manifest.vocabulary;
    let kind = match v.kind {
        VocabularyKind::Words => "words",
        VocabularyKind::Bpe => "byte-level BPE",
        VocabularyKind::Given => "a model's own",
    };
    let distinct = match v.kind {
        VocabularyKind::Given => String::new(),
        _ => format!(", {} distinct in train", v.distinct_in_train),
    };
    let _ = writeln!(
        out,
        "vocabulary: {} entries ({kind}{distinct}); cap {} tokens; seed {}; {} groups by {}",
        v.size, manifest.max_len, manifest.seed, manifest.groups, manifest.group_by
    );
    let _ = writeln!(
        out,
        "\n{:<6} {:>9} {:>7} {:>10} {:>10} {:>7} {:>7} {:>10} {:>9}",
        "side",
        "messages",
        "groups",
        "tokens",
        "targets",
        "share",
        "<unk>",
        "truncated",
        "seen run"
    );
    for side in Side::ALL {
        let s = manifest.side(side);
        let _ = writeln!(
            out,
            "{:<6} {:>9} {:>7} {:>10} {:>10} {:>6.1}% {:>6.2}% {:>10} {:>9}",
            side.name(),
            s.messages,
            s.groups,
            s.tokens,
            s.target_tokens,
            100.0 * s.token_share,
            100.0 * s.unk_rate,
            s.truncated,
            s.seen_run
        );
    }
    let n = &manifest.near_duplicates;
    let policy = match n.policy {
        NearDuplicates::Drop => "dropped",
        NearDuplicates::Keep => "kept",
    };
    let _ = writeln!(
        out,
        "\nnear-duplicates of an earlier side: {} in valid, {} in test ({policy})",
        n.in_valid, n.in_test
    );
    let s = &manifest.stripped;
    let _ = writeln!(
        out,
        "stripped from messages: {} forwarded blocks, {} quoted originals, {} with `>` lines, {} signatures, {} notices",
        s.forwarded, s.original, s.quoted_lines, s.signature, s.notice
    );
    warnings(manifest, &mut out);
    out
}

fn warnings(manifest: &Manifest, out: &mut String) {
    let (m, messages) = (&manifest.mended, &manifest.messages);
    let counts = [
        (
            m.missing_charset,
            "without a charset for bytes beyond ASCII (read as UTF-8 or Windows-1252)",
        ),
        (m.unknown_charset, "with an unknown or wrong charset (read as UTF-8 or Windows-1252)"),
        (m.loose_base64, "with loose base64 (decoded)"),
        (m.mislabelled_encoding, "with a wrong transfer encoding (kept as text)"),
        (messages.doubtful_from_lines, "doubtful `From ` lines in mbox files"),
        (manifest.skipped_files.len() as u64, "files skipped, in no known format"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(out, "warning: {count} {what}");
    }
    for message in manifest.unreadable.iter().take(5) {
        let _ = writeln!(
            out,
            "unreadable: {} message {}: {}",
            message.path, message.number, message.why
        );
    }
    if manifest.messages.unreadable > 5 {
        let _ = writeln!(
            out,
            "unreadable: {} more, listed in manifest.json",
            manifest.messages.unreadable - 5
        );
    }
}

/// What `inspect` shows besides the manifest.
#[derive(serde::Serialize)]
struct Inspection<'m> {
    manifest: &'m Manifest,
    side: &'static str,
    frequent: Vec<Frequent>,
    samples: Vec<Sample>,
    verified: bool,
}

#[derive(serde::Serialize)]
struct Frequent {
    token: String,
    count: u64,
    share: f64,
}

#[derive(serde::Serialize)]
struct Sample {
    index: usize,
    group: String,
    tokens: usize,
    truncated: bool,
    seen_run: bool,
    text: String,
}

fn inspect(args: &InspectArgs) -> Result<(), CliError> {
    let data = Dataset::open(Path::new(&args.dir)).map_err(CliError::input)?;
    if args.verify {
        data.verify().map_err(CliError::input)?;
    }
    let side = match args.side {
        SideArg::Train => Side::Train,
        SideArg::Valid => Side::Valid,
        SideArg::Test => Side::Test,
    };
    let inspection = Inspection {
        manifest: data.manifest(),
        side: side.name(),
        frequent: frequent(&data, side, args.top),
        samples: samples(&data, side, args.samples),
        verified: args.verify,
    };
    term::print(&if args.json { json(&inspection)? } else { render(&inspection) });
    Ok(())
}

fn frequent(data: &Dataset, side: Side, top: usize) -> Vec<Frequent> {
    let file = data.side(side);
    let mut counts = vec![0u64; data.tokenizer().vocab_size()];
    let mut ids = Vec::new();
    for i in 0..file.len() {
        file.sequence(i, &mut ids);
        for &id in ids.iter().skip(1) {
            if let Some(count) = counts.get_mut(id as usize) {
                *count += 1;
            }
        }
    }
    let mut order: Vec<usize> = (0..counts.len()).filter(|&id| counts[id] > 0).collect();
    order.sort_unstable_by_key(|&id| (std::cmp::Reverse(counts[id]), id));
    let total = file.num_targets().max(1) as f64;
    let row = |id: usize| Frequent {
        token: data.tokenizer().token(id as u32).unwrap_or_default(),
        count: counts[id],
        share: counts[id] as f64 / total,
    };
    order.into_iter().take(top).map(row).collect()
}

/// Rows spread evenly over the side.
fn samples(data: &Dataset, side: Side, count: usize) -> Vec<Sample> {
    let file = data.side(side);
    let count = count.min(file.len());
    let mut ids = Vec::new();
    (0..count)
        .map(|n| {
            let index = n * file.len() / count;
            file.sequence(index, &mut ids);
            let flags = file.flags(index);
            let group = data.group_names().get(file.group(index) as usize).cloned();
            Sample {
                index,
                group: group.unwrap_or_default(),
                tokens: ids.len(),
                truncated: flags.truncated,
                seen_run: flags.seen_run,
                text: data.tokenizer().decode(&ids),
            }
        })
        .collect()
}

fn render(inspection: &Inspection<'_>) -> String {
    let mut out = summary(inspection.manifest);
    let _ = writeln!(out, "\nlength in tokens, all sides");
    histogram(inspection.manifest, &mut out);
    let _ = writeln!(out, "\nmost frequent tokens of {} (targets)", inspection.side);
    for row in inspection.frequent.chunks(5) {
        for f in row {
            let _ = write!(out, "  {:<10} {:>5.2}%", f.token, 100.0 * f.share);
        }
        out.push('\n');
    }
    let _ = writeln!(out, "\nsample rows of {}", inspection.side);
    for s in &inspection.samples {
        let cut = if s.truncated { ", truncated" } else { "" };
        let seen = if s.seen_run { ", has a run seen in train" } else { "" };
        let _ = writeln!(
            out,
            "  #{} [{}, {} tokens{cut}{seen}]\n    {}",
            s.index, s.group, s.tokens, s.text
        );
    }
    if inspection.verified {
        out.push_str("\nall hashes are right\n");
    }
    out
}

fn histogram(manifest: &Manifest, out: &mut String) {
    const WIDTH: u64 = 50;
    let bins = &manifest.sides.train.lengths;
    let count = |bin: usize| {
        Side::ALL
            .iter()
            .filter_map(|&s| manifest.side(s).lengths.get(bin))
            .map(|l| l.1)
            .sum::<u64>()
    };
    let most = (0..bins.len()).map(count).max().unwrap_or(0).max(1);
    let mut from = 1;
    for (bin, (to, _)) in bins.iter().enumerate() {
        let n = count(bin);
        let bar = "#".repeat((n * WIDTH).div_ceil(most) as usize);
        let _ = writeln!(out, "  {from:>4}-{to:<4} {n:>8} {bar}");
        from = to + 1;
    }
}
