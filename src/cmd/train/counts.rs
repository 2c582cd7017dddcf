//! `autoreg train` of a count model: every run counted, smoothing chosen on the validation side.

use super::{Summary, TrainArgs, make_room, plan_mapped, planned, verify};
use crate::cmd::recording;
use crate::error::CliError;
use crate::term::thousands;
use corpus::{Dataset, Side};
use ledger::{Plan, Recorder, Report};
use models::ngram::{Counter, Ngram, Trial};
use models::{ModelConfig, NgramConfig};
use serde_json::json;
use std::time::Instant;
use train::{Sequences, TrainConfig};

/// Counts, chooses and writes.
pub fn run(
    args: &TrainArgs,
    config: &TrainConfig,
    ngram: &NgramConfig,
    data: &Dataset,
) -> Result<Summary, CliError> {
    let started = Instant::now();
    let runtime = ledger::resident_bytes();
    let recorder = args.ledger.then(Recorder::start);
    let (train, valid) = (data.side(Side::Train), data.side(Side::Valid));
    verify(data)?;
    let mut counter = Counter::new(ngram).map_err(CliError::input)?;
    let hold = make_room(args)?;
    let mut plan = Plan::default();
    let _files = plan_mapped(&mut plan, data);
    recorder.iter().for_each(|r| r.begin_step("counting"));
    let mut ids = Vec::new();
    for i in 0..Sequences::len(train) {
        train.copy(i, &mut ids);
        counter.add(&ids);
    }
    let mut model = counter.finish();
    recorder.iter().for_each(|r| r.end_step());
    let held: Vec<Vec<u32>> = (0..Sequences::len(valid))
        .map(|i| {
            let mut ids = Vec::new();
            valid.copy(i, &mut ids);
            ids
        })
        .collect();
    let _held = planned(&mut plan, "validation side", bytes(&held));
    recorder.iter().for_each(|r| r.mark("smoothing chosen on the validation side"));
    let trials = model.choose(held.iter().map(Vec::as_slice));
    let seconds = started.elapsed().as_secs_f64();
    train::write_count_model(&args.out, &model, &data.tokenizer().to_bytes())
        .map_err(CliError::input)?;
    // How many runs there are is known when they are counted.
    plan.extend(Counter::plan(&model.runs()));
    let report = Report::new(&plan, &ledger::snapshot(), runtime, ledger::peak_bytes());
    let report = match recorder {
        Some(recorder) => report.recorded(recorder.finish()),
        None => report,
    };
    let known =
        recording::Known { parameters: Some(model.dense_parameters()), ..Default::default() };
    let (json, text) = told(args, config, data, &model, &trials, seconds);
    Ok(Summary { json, text, ledger: (report, known), hold })
}

/// Bytes of sequences.
fn bytes(sequences: &[Vec<u32>]) -> u64 {
    let each = |ids: &Vec<u32>| size_of::<Vec<u32>>() + size_of::<u32>() * ids.capacity();
    sequences.iter().map(each).sum::<usize>() as u64
}

/// The result as JSON and as a line.
fn told(
    args: &TrainArgs,
    config: &TrainConfig,
    data: &Dataset,
    model: &Ngram,
    trials: &[Trial],
    seconds: f64,
) -> (serde_json::Value, String) {
    let kind = ModelConfig::Ngram(model.config().clone()).kind();
    let tokens = Sequences::targets(data.side(Side::Train));
    let best = trials.iter().map(|t| t.loss).fold(f64::INFINITY, f64::min);
    let finite = |loss: f64| loss.is_finite().then_some(loss);
    let tried = |t: &Trial| json!({"smoothing": t.smoothing, "valid_loss_nats": finite(t.loss)});
    let json = json!({
        "model": kind,
        "parameters": model.dense_parameters(),
        "nonzero_parameters": model.nonzero_parameters(),
        "parameter_bytes": model.bytes(),
        "valid_loss_nats": finite(best),
        "smoothing": model.smoothing(),
        "trials": trials.iter().map(tried).collect::<Vec<_>>(),
        "train_tokens": tokens,
        "train_seconds": seconds,
        "tokens_per_second": tokens as f64 / seconds.max(1e-9),
        "peak_process_bytes": ledger::peak_bytes(),
        "synthetic": data.manifest().synthetic,
        "seed": config.train.seed,
    });
    let text = format!(
        "{kind} with {} counts ({} possible), smoothing {:?}: validation loss {best:.4} nats/token\n\
         run folder: {}\n",
        thousands(model.nonzero_parameters()),
        thousands(model.dense_parameters()),
        model.smoothing(),
        args.out.display(),
    );
    (json, text)
}
