//! `autoreg convert`: a model's files written as others, and what that costs in quality.

use crate::cmd::json;
use crate::cmd::model::{Opened, located};
use crate::cmd::quality::{self, Ask, Quality, Windows};
use crate::error::CliError;
use crate::stop::on_signals;
use crate::term::{self, duration, mib, thousands};
use clap::{Args, ValueEnum};
use families::{Checkpoint, ConvertError, Converted, Mix, Progress, Target, convert};
use formats::TensorKind;
use serde_json::{Value, json};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Arguments of `convert`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  autoreg convert HF_FOLDER model.gguf --to q8_0
  autoreg convert model-f16.gguf small.gguf --to q4_k_m --quality notes.txt
  autoreg convert model.gguf folder --to safetensors --dtype bf16

What to choose: bf16 or f16 keep (nearly) every bit at half the size of f32; q8_0 halves that again
and is hard to tell from it; q4_k_m is the usual small one; q4_0 is smaller and coarser. From a file
that is quantised already nothing is won back: convert from the original weights where you can.
--quality FILE says what it cost: the mean Kullback-Leibler divergence of the predictions (0 = the
same) and the change of the perplexity on your own text.

The tokenizer, the chat template and the end tokens go with the weights. Weights pass through a few
MiB at a time; OUT appears whole or not at all.")]
pub struct ConvertArgs {
    /// A Hugging Face folder, a GGUF file, or a run folder that holds a Hugging Face folder
    pub model: PathBuf,
    /// The file (GGUF) or folder (safetensors) to write
    pub out: PathBuf,
    /// What to write: a Hugging Face folder, or a GGUF file whose matrices are stored so
    #[arg(long, value_enum, value_name = "TYPE")]
    pub to: To,
    /// With --to safetensors: how values are stored (default: as they are; f32 for quantised ones)
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// Replace OUT
    #[arg(long)]
    pub force: bool,
    /// A UTF-8 text on which both models are run afterwards and compared
    #[arg(long, value_name = "FILE")]
    pub quality: Option<PathBuf>,
    /// With --quality: tokens a window, the beginning token counted
    #[arg(long, value_name = "N", default_value_t = 512, requires = "quality")]
    pub window: usize,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// A Hugging Face folder
    Safetensors,
    /// GGUF, 32-bit floats
    #[value(name = "f32")]
    F32,
    /// GGUF, 16-bit floats
    #[value(name = "f16")]
    F16,
    /// GGUF, 16-bit floats with the range of 32-bit ones
    #[value(name = "bf16")]
    Bf16,
    /// GGUF, 8.5 bits a value
    #[value(name = "q8_0")]
    Q8_0,
    /// GGUF, 4.5 bits a value, one scale for 32
    #[value(name = "q4_0")]
    Q4_0,
    /// GGUF, about 4.8 bits a value, what matters most in 6
    #[value(name = "q4_k_m")]
    Q4KM,
}

impl To {
    fn mix(self) -> Option<Mix> {
        Some(match self {
            To::Safetensors => return None,
            To::F32 => Mix::F32,
            To::F16 => Mix::F16,
            To::Bf16 => Mix::Bf16,
            To::Q8_0 => Mix::Q8_0,
            To::Q4_0 => Mix::Q4_0,
            To::Q4KM => Mix::Q4KM,
        })
    }
}

/// How values of a folder are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 16-bit floats with the range of 32-bit ones
    Bf16,
}

impl Dtype {
    fn kind(self) -> TensorKind {
        match self {
            Dtype::F32 => TensorKind::F32,
            Dtype::F16 => TensorKind::F16,
            Dtype::Bf16 => TensorKind::Bf16,
        }
    }
}

/// Converts as told.
pub fn run(args: &ConvertArgs) -> Result<(), CliError> {
    let target = target(args)?;
    let source = source_of(&located(&args.model)?)?;
    check_place(args, &source)?;
    let checkpoint = Checkpoint::open(&source).map_err(CliError::input)?;
    if let Some(text) = &args.quality {
        // What is wrong with the text is told before anything is written.
        let limit = checkpoint.model_config().context_limit();
        Windows::of(&checkpoint.tokenizer, limit, &ask(args, text))?;
    }
    let threads = crate::cmd::threads(args.threads)?;
    let started = Instant::now();
    let done = write(args, &checkpoint, target, threads)?;
    let seconds = started.elapsed().as_secs_f64();
    drop(checkpoint);
    for note in &done.notes {
        term::note(&format!("note: {note}"));
    }
    let quality = match &args.quality {
        None => None,
        Some(text) => Some(compare(args, &source, text)?),
    };
    let told = Told { args, done: &done, seconds, quality: quality.as_ref() };
    term::print(&if args.json { json(&told.as_json())? } else { told.as_text() });
    Ok(())
}

/// Both models on a text.
fn compare(args: &ConvertArgs, source: &Path, text: &Path) -> Result<Quality, CliError> {
    quality::measure(&Opened::open(source)?, &Opened::open(&args.out)?, &ask(args, text))
}

fn ask<'a>(args: &ConvertArgs, text: &'a Path) -> Ask<'a> {
    let (window, threads) = (args.window, args.threads);
    Ask { text, window, most: usize::MAX, threads, quiet: args.json }
}

fn target(args: &ConvertArgs) -> Result<Target, CliError> {
    match (args.to.mix(), args.dtype) {
        (None, dtype) => Ok(Target::Folder(dtype.map(Dtype::kind))),
        (Some(mix), None) => Ok(Target::Gguf(mix)),
        (Some(mix), Some(_)) => Err(CliError::input(format!(
            "--dtype is for --to safetensors; --to {} says already how values are stored",
            mix.name()
        ))),
    }
}

/// The published files of a MODEL argument.
fn source_of(model: &Path) -> Result<PathBuf, CliError> {
    if families::is_published(model) || !model.exists() {
        return Ok(model.to_owned());
    }
    let inside = model.join(crate::cmd::init::EXPORTED);
    if families::is_published(&inside) {
        return Ok(inside);
    }
    Err(CliError::input(format!(
        "{}: a run folder without {}/ in it: only models of the known families are written as \
         other files; give a Hugging Face folder or a GGUF file",
        model.display(),
        crate::cmd::init::EXPORTED
    )))
}

/// Whether OUT can be written, before an hour of work is spent on it.
fn check_place(args: &ConvertArgs, source: &Path) -> Result<(), CliError> {
    let out = &args.out;
    let wrong = |what: &str| Err(CliError::input(format!("{}: {what}", out.display())));
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return wrong("its folder does not exist; create it first");
    }
    if out.file_name().is_none() {
        return wrong("no name to write to; give a file or folder name");
    }
    if !out.exists() {
        return Ok(());
    }
    let place = |path: &Path| path.canonicalize().ok();
    let same = |path: &Path| place(path).is_some() && place(path) == place(out);
    if same(source) || same(&args.model) {
        return wrong("the model itself; give another place to write to");
    }
    if !args.force {
        return wrong("exists already; give another name, or --force to replace it");
    }
    let (folder, wanted) = (out.is_dir(), args.to == To::Safetensors);
    let ours = || out.join("config.json").exists() || is_empty(out);
    match (folder, wanted) {
        (true, false) => wrong("a folder; --to a GGUF type writes a file"),
        (false, true) => wrong("a file; --to safetensors writes a folder"),
        (true, true) if !ours() => {
            wrong("a folder that holds no model; it is not replaced, choose another name")
        }
        _ => Ok(()),
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn write(
    args: &ConvertArgs,
    checkpoint: &Checkpoint,
    target: Target,
    threads: usize,
) -> Result<Converted, CliError> {
    let stop = on_signals()?;
    // In thousandths: the bar shows whole steps.
    let mut bar = term::Progress::new(1000, args.json);
    let mut watch = |at: Progress<'_>| {
        let steps = (at.done as u128 * 1000 / at.total.max(1) as u128) as u64;
        bar.at(steps, 1000, || at.tensor.to_owned());
        if stop.load(Ordering::Relaxed) == 0 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let done = convert(checkpoint, &args.out, target, threads, &mut watch);
    bar.finish();
    done.map_err(|error| match error {
        ConvertError::Stopped => CliError::stopped(
            stop.load(Ordering::Relaxed),
            format!("stopped; {} was not written", args.out.display()),
        ),
        error if error.is_failure() => CliError::failed(error),
        error => CliError::input(error),
    })
}

/// What there is to tell.
struct Told<'a> {
    args: &'a ConvertArgs,
    done: &'a Converted,
    seconds: f64,
    quality: Option<&'a Quality>,
}

impl Told<'_> {
    fn totals(&self) -> (usize, usize) {
        let sum = |(values, bytes), row: &(TensorKind, usize, usize, usize)| {
            (values + row.2, bytes + row.3)
        };
        self.done.types.iter().fold((0, 0), sum)
    }

    fn as_json(&self) -> Value {
        let types = self.done.types.iter().map(|(kind, tensors, values, bytes)| {
            json!({"type": kind.name(), "tensors": tensors, "values": values, "bytes": bytes})
        });
        let (values, bytes) = self.totals();
        json!({
            "model": self.args.model,
            "out": self.args.out,
            "to": self.args.to.to_possible_value().map(|v| v.get_name().to_owned()),
            "tensor_types": types.collect::<Vec<_>>(),
            "values": values,
            "tensor_bytes": bytes,
            "bits_per_value": 8.0 * bytes as f64 / values.max(1) as f64,
            "seconds": self.seconds,
            "peak_process_bytes": ledger::peak_bytes(),
            "notes": self.done.notes,
            "quality": self.quality.map(Quality::as_json),
        })
    }

    fn as_text(&self) -> String {
        let mut out = String::new();
        let (values, bytes) = self.totals();
        let _ = writeln!(
            out,
            "{}: {}, {:.2} bits a value, in {}",
            self.args.out.display(),
            mib(bytes as u64),
            8.0 * bytes as f64 / values.max(1) as f64,
            duration(self.seconds)
        );
        for (kind, tensors, values, bytes) in &self.done.types {
            let (values, bytes) = (thousands(*values as u64), mib(*bytes as u64));
            let _ = writeln!(
                out,
                "{:<12}{tensors:>5} tensors{values:>16} values{bytes:>14}",
                kind.name()
            );
        }
        if let Some(quality) = self.quality {
            out += &quality.as_text();
        }
        out
    }
}
