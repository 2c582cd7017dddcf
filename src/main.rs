//! The `autoreg` binary: words typed at the terminal, turned into calls of the rooms below.
//!
//! Flags, files and messages are known here and nowhere below.

mod cmd;
mod error;
mod stop;
mod term;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Heeds what work of foreign origin may take.
#[global_allocator]
static ALLOCATOR: ledger::Allocator = ledger::Allocator;

/// Trains, compares, generates from and serves autoregressive language models, and accounts for
/// every byte and millisecond of it.
#[derive(Debug, Parser)]
#[command(name = "autoreg", version, arg_required_else_help = true, after_help = AFTER)]
struct Cli {
    /// The highest instruction set to use: plain, avx2, avx512, amx or neon (default: what the processor has)
    #[arg(long, global = true, env = "AUTOREG_ISA", value_name = "LEVEL")]
    isa: Option<String>,
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
Examples:
  autoreg compare                          the whole experiment on synthetic mail, no data needed
  autoreg data prepare MAIL --out DATA     your own mail (mbox, Maildir, .eml, CSV, JSON Lines, text)
  autoreg compare --data DATA              the experiment on it

Exit codes: 0 done, 1 failed, 2 the input is wrong, 130 or 143 stopped by a signal (resumable with
--resume), 75 stopped otherwise and resumable.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Turn mail or text into a data set, and look into one
    Data(cmd::data::DataArgs),
    /// Train one model on a data set
    Train(Box<cmd::train::TrainArgs>),
    /// Score a model on one side of a data set: nats/token, perplexity, exact accuracy
    Eval(cmd::eval::EvalArgs),
    /// Train and score several models on the same data and report what can be concluded
    Compare(cmd::compare::CompareArgs),
    /// Set the decoding rules against each other on real prompts: same weights, different outputs
    CompareDecoding(cmd::compare_decoding::CompareDecodingArgs),
    /// One run of a comparison, in a process of its own
    #[command(hide = true)]
    CompareRun(cmd::compare::WorkerArgs),
    /// Continue a prompt, or choose a token from given logits; every rule, explained
    Generate(Box<cmd::generate::GenerateArgs>),
    /// Talk to a model in the terminal
    Chat(Box<cmd::chat::ChatArgs>),
    /// Repeat what `generate --json` recorded, to the bit
    Replay(cmd::generate::ReplayArgs),
    /// Score a text token by token: log-probability, rank, perplexity
    Score(cmd::score::ScoreArgs),
    /// Serve a model over HTTP to many clients at a time: the OpenAI interface
    Serve(Box<cmd::serve::ServeArgs>),
    /// Show that an answer is the same bits alone and in any company, on this machine
    Verify(cmd::verify::VerifyArgs),
    /// Show what a model's files hold and what running it takes: shape, types, tokenizer, memory
    Inspect(cmd::inspect::InspectArgs),
    /// Fetch a model from a hub into the usual cache and print its path
    #[cfg(feature = "hub")]
    Pull(cmd::pull::PullArgs),
    /// Write a model as other files: GGUF of several types, or a Hugging Face folder
    Convert(cmd::convert::ConvertArgs),
    /// Predict the memory and the time of serving or training a model, before anything runs
    Plan(Box<cmd::plan::PlanArgs>),
    /// Name what limits a server, a run or a ledger, and what would change it; judge a change
    Diagnose(cmd::diagnose::DiagnoseArgs),
    /// Measure what this machine can do: bandwidth, arithmetic, memory
    Doctor(cmd::doctor::DoctorArgs),
    /// Measure speed and memory on random tokens
    Bench(cmd::bench::BenchArgs),
}

fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = cmd::choose_isa(cli.isa.as_deref()).and_then(|()| match cli.command {
        Command::Data(args) => cmd::data::run(args),
        Command::Train(args) => cmd::train::run(*args),
        Command::Eval(args) => cmd::eval::run(args),
        Command::Compare(args) => cmd::compare::run(&args),
        Command::CompareDecoding(args) => cmd::compare_decoding::run(&args),
        Command::CompareRun(args) => cmd::compare::run_one(&args),
        Command::Generate(args) => cmd::generate::run(*args),
        Command::Chat(args) => cmd::chat::run(&args),
        Command::Replay(args) => cmd::generate::replay(&args),
        Command::Score(args) => cmd::score::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Verify(args) => cmd::verify::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        #[cfg(feature = "hub")]
        Command::Pull(args) => cmd::pull::run(&args),
        Command::Convert(args) => cmd::convert::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Diagnose(args) => cmd::diagnose::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Bench(args) => cmd::bench::run(args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.message.is_empty() {
                term::error(&error.message);
            }
            ExitCode::from(error.code)
        }
    }
}

/// Reads the words of a command line.
fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut command = taking_numbers_below_zero(Cli::command());
    let mut matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// A number below 0 is the value of the option before it, whose own check says what it may be; options
/// that take texts and paths are left as they are.
fn taking_numbers_below_zero(command: clap::Command) -> clap::Command {
    let words = [TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()];
    let of_arg = |arg: clap::Arg| {
        let kind = arg.get_value_parser().type_id();
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        let takes = takes && !words.iter().any(|word| kind == *word);
        if takes { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(of_arg).mut_subcommands(taking_numbers_below_zero)
}

/// Help and version as they are; a mistake in one line, with the command whose help would tell.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.render().to_string();
    term::error(&one_line(text.trim_start_matches("error:")));
    ExitCode::from(2)
}

/// The lines of a usage error as one; the usage itself shrinks to the command's name.
fn one_line(text: &str) -> String {
    let mut command = "autoreg".to_owned();
    let mut parts: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(usage) = line.strip_prefix("Usage:") {
            let words = usage.split_whitespace();
            let name: Vec<&str> = words.take_while(|w| !w.starts_with(['[', '<', '-'])).collect();
            command = name.join(" ");
        } else if line.starts_with("tip: to pass '-") {
            parts.push("there is no such flag");
        } else if !line.starts_with("For more information") {
            parts.push(line);
        }
    }
    let mut told = String::new();
    for part in &parts {
        // As the library's parsers say it.
        let part = match part.split_once(": ") {
            Some((front, "invalid digit found in string")) => {
                &format!("{front}: expected a whole number, not below 0")
            }
            Some((front, "number would be zero for non-zero type")) => {
                &format!("{front}: expected a whole number above 0")
            }
            Some((front, "invalid float literal")) => &format!("{front}: expected a number"),
            _ => *part,
        };
        let gap = match told.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if part.starts_with('-') || part.starts_with('<') => ", ",
            Some(_) => "; ",
        };
        told = told + gap + part;
    }
    format!("{told}; see `{command} --help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option of every command that takes a number is asked with one below 0.
    #[test]
    fn a_number_below_0_is_the_value_of_its_option() {
        fn each(command: &clap::Command, words: &[String], seen: &mut usize) {
            for sub in command.get_subcommands() {
                each(sub, &[words, &[sub.get_name().to_owned()]].concat(), seen);
            }
            for arg in command.get_arguments().filter(|arg| arg.is_allow_negative_numbers_set()) {
                // What may lack its value wants a sign of equality.
                let name = arg.get_long().filter(|_| !arg.is_require_equals_set());
                let Some(name) = name else { continue };
                let words = [words, &[format!("--{name}"), "-1".to_owned()]].concat();
                let Err(error) = parse(&words) else { continue };
                let told = error.render().to_string();
                assert!(!told.contains("unexpected argument '-1'"), "{words:?}: {told}");
                *seen += 1;
            }
        }
        let mut seen = 0;
        let command = taking_numbers_below_zero(Cli::command());
        each(&command, &["autoreg".to_owned()], &mut seen);
        assert!(seen > 100, "{seen}");
        let parsed = parse(["autoreg", "train", "--data", "d", "--out", "o", "--clip", "-1"]);
        let Ok(Cli { command: Command::Train(args), .. }) = parsed else { panic!("it is read") };
        assert_eq!(args.recipe.clip, Some(-1.0));
    }

    #[test]
    fn a_usage_error_is_one_line() {
        let error = |words: &[&str]| {
            let error = parse(words).expect_err("a mistake");
            one_line(error.render().to_string().trim_start_matches("error:"))
        };
        let missing = error(&["autoreg", "train"]);
        assert!(missing.contains("--data <DIR>") && missing.contains("--out <DIR>"), "{missing}");
        assert!(missing.ends_with("see `autoreg train --help`"), "{missing}");
        let near = error(&["autoreg", "eval", "m", "--dta", "d"]);
        assert!(near.contains("'--dta'") && near.contains("'--data'"), "{near}");
        let below = error(&["autoreg", "generate", "m", "x", "--penalty-window", "-1"]);
        let told =
            "invalid value '-1' for '--penalty-window <N>': expected a whole number, not below 0";
        assert!(below.contains(told), "{below}");
        let zero = error(&["autoreg", "train", "--data", "d", "--out", "o", "--keep", "0"]);
        assert!(zero.contains("'--keep <N>': expected a whole number above 0"), "{zero}");
        let word = error(&["autoreg", "train", "--data", "d", "--out", "o", "--clip", "one"]);
        assert!(word.contains("'--clip <X>': expected a number"), "{word}");
        let flag = error(&["autoreg", "eval", "m", "-7"]);
        assert!(flag.contains("'-7'") && !flag.contains("-- -7"), "{flag}");
        assert!(![missing, near].iter().any(|line| line.contains('\n')));
    }
}
