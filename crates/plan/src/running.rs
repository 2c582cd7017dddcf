//! Predictions by the lists that allocate: what `autoreg serve` and `autoreg train` will take.

use crate::term::product;
use crate::{
    Architecture, Attention, Error, Layout, Lever, Logits, Prediction, Rank, ServeAsk, Terms,
    TrainAsk,
};
use engine::serving::{Draft, Engine, Limits, NetworkExecutor};
use kernels::KvKind;
use ledger::{Account, Plan};
use models::{KvPages, LoraConfig, LoraTarget, Model, ModelConfig, Recompute, Runner, Workload};
use serde_json::{Map, Value};
use train::{BatchShape, OptimizerKind, Place, Recipe, SentBytes, Stage, TrainConfig, Trainer};

/// What a process of this program takes beside its lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runtime {
    /// Program, libraries, stacks, tokenizer.
    pub bytes: u64,
}

fn size(what: &'static str, n: u64) -> Result<usize, Error> {
    usize::try_from(n).map_err(|_| Error::Overflow { what })
}

/// Sizes of pool and steps for so many sequences of so many tokens.
///
/// # Errors
/// Sizes that do not fit into 64 bits.
pub fn limits(architecture: &Architecture, ask: &ServeAsk) -> Result<Limits, Error> {
    let what = "the K/V cache";
    let pages = ask.context.div_ceil(ask.page_tokens);
    let pages = pages.checked_mul(ask.requests).ok_or(Error::Overflow { what })?;
    let (sequences, step) = (size(what, ask.requests)?, size(what, ask.step_tokens)?);
    Ok(Limits {
        pages: size(what, pages)?,
        page_tokens: size(what, ask.page_tokens)?,
        step_tokens: step.max(sequences),
        sequences,
        shares: NetworkExecutor::shares(&architecture.config),
        drafts: size(what, ask.drafts)?,
        window: architecture.config.window(),
    })
}

/// Workspace of a step, logits included, of the engine's lists; matrices that are packed for f32
/// products count only where weights are f32.
pub(crate) fn step_workspace(architecture: &Architecture, ask: &ServeAsk) -> Result<u64, Error> {
    let rows = size("the workspace", ask.step_tokens.max(ask.requests))?;
    let workload = Workload {
        rows,
        sequences: size("the workspace", ask.requests)?,
        longest: size("the workspace", ask.context.min(1 << 30))?,
        threads: size("the workspace", ask.threads)?,
        training: false,
    };
    let config = &architecture.config;
    let mut plan = Runner::plan(config, &workload).map_err(|e| architecture.error(e))?;
    if ask.weights != crate::NumberKind::F32 {
        plan.lines.retain(|line| line.name != "packed matrices");
    }
    let limits = Limits {
        pages: 1,
        page_tokens: 1,
        step_tokens: rows,
        sequences: workload.sequences,
        shares: true,
        drafts: 0,
        window: None,
    };
    plan.extend(Engine::plan(config.vocab_size(), &limits));
    Ok(plan.total())
}

/// The lists of `autoreg serve`.
///
/// # Errors
/// Numbers that make no network or do not fit into 64 bits.
pub fn serve_plan(architecture: &Architecture, ask: &ServeAsk) -> Result<Plan, Error> {
    let config = &keeping(architecture, ask.kv)?;
    if let ModelConfig::Transformer(c) = config {
        // The engine's lists multiply without a check.
        let (requests, kind) = (ask.requests, crate::NumberKind::F32);
        let context = ask.context.checked_next_multiple_of(ask.page_tokens);
        let context = context.ok_or(Error::Overflow { what: "the K/V cache" })?;
        let all = models::TransformerConfig { sliding_window: None, ..c.clone() };
        crate::kv_bytes(&all, context, requests, kind)?;
    }
    let limits = limits(architecture, ask)?;
    serving_lists(config, &limits, size("--threads", ask.threads)?)
}

/// What `autoreg serve` allocates for a network: weights, buffers of a step, pages, logits.
///
/// # Errors
/// Numbers that make no network.
pub fn serving_lists(config: &ModelConfig, limits: &Limits, threads: usize) -> Result<Plan, Error> {
    let mut plan = network_lists(config, limits, threads)?;
    plan.extend(Engine::plan(config.vocab_size(), limits));
    Ok(plan)
}

/// The same of a network that guesses ahead for another: it has no pages of windows apart.
///
/// # Errors
/// Numbers that make no network.
pub fn draft_lists(config: &ModelConfig, limits: &Limits, threads: usize) -> Result<Plan, Error> {
    let limits = Limits { window: None, ..*limits };
    let mut plan = network_lists(config, &limits, threads)?;
    plan.extend(Draft::plan(config.vocab_size(), &limits));
    Ok(plan)
}

fn network_lists(config: &ModelConfig, limits: &Limits, threads: usize) -> Result<Plan, Error> {
    let model = |source| Error::Model { name: config.kind().to_owned(), source };
    let mut plan = Plan::default();
    if !matches!(config, ModelConfig::Ngram(_)) {
        plan.extend(Model::plan(config).map_err(model)?);
        plan.extend(NetworkExecutor::plan(config, limits, threads)?);
    }
    Ok(plan)
}

/// How this program keeps keys and values that are stored so; none where it has no such kind.
pub fn kv_kind(kind: crate::NumberKind) -> Option<KvKind> {
    match kind {
        crate::NumberKind::F32 => Some(KvKind::F32),
        crate::NumberKind::F16 => Some(KvKind::F16),
        crate::NumberKind::Q8 => Some(KvKind::Q8),
        _ => None,
    }
}

/// The kinds that this program keeps keys and values in.
pub(crate) const KV_KINDS: [crate::NumberKind; 3] =
    [crate::NumberKind::F32, crate::NumberKind::F16, crate::NumberKind::Q8];

/// The configuration with keys and values kept as asked.
fn keeping(architecture: &Architecture, kind: crate::NumberKind) -> Result<ModelConfig, Error> {
    let mut config = architecture.config.clone();
    let own = kv_kind(kind).ok_or_else(|| {
        Error::number("--kv", kind.name(), "this program keeps keys and values in f32, f16 or q8_0")
    })?;
    if let ModelConfig::Transformer(c) = &mut config {
        c.kv = own;
    }
    Ok(config)
}

/// Bytes of K/V of a position of one layer, as the pool allocates them.
pub(crate) fn kv_row_bytes(
    architecture: &Architecture,
    kind: crate::NumberKind,
) -> Result<u64, Error> {
    let config = keeping(architecture, kind)?;
    let layers = architecture.transformer()?.num_hidden_layers.max(1) as u64;
    // A page that holds whole tiles of keys: its bytes a position are those of every page.
    const TOKENS: usize = 1024;
    let pages = KvPages { pages: 1, near: 1, page_tokens: TOKENS };
    let ModelConfig::Transformer(c) = &config else { return Ok(0) };
    Ok(models::KvPool::plan(c, pages).total() / layers / TOKENS as u64)
}

/// The lists of a model and of one that guesses for it.
fn with_draft(
    architecture: &Architecture,
    ask: &ServeAsk,
    draft: Option<&Architecture>,
) -> Result<Plan, Error> {
    let mut plan = serve_plan(architecture, ask)?;
    if let Some(draft) = draft {
        let limits = limits(architecture, ask)?;
        let threads = size("--threads", ask.threads)?;
        plan.extend(draft_lists(&keeping(draft, ask.kv)?, &limits, threads)?);
    }
    Ok(plan)
}

/// Serving a model with this program, once all pages are in use.
///
/// # Errors
/// As [`serve_plan`].
pub fn serve(
    architecture: &Architecture,
    ask: &ServeAsk,
    runtime: Runtime,
    draft: Option<&Architecture>,
) -> Result<Prediction, Error> {
    ask.check()?;
    let plan = with_draft(architecture, ask, draft)?;
    let mut terms = Terms::of_plan(&plan);
    terms.add("runtime", runtime.bytes);
    let model = (&architecture.name[..], architecture.parameters()?);
    let mut prediction = Prediction::new(model, "the engine's lists", terms, ask.budget)?;
    // A file is given back as it is read: nothing is ever larger than what stands at the end.
    prediction.peak_bytes = Some(prediction.balance.total_bytes);
    if let ModelConfig::Transformer(c) = &architecture.config {
        prediction.kv_bytes_per_token =
            Some(NetworkExecutor::bytes_per_token(&keeping(architecture, ask.kv)?));
        if let Some(window) = &c.sliding_window {
            prediction.notes.push(format!(
                "{} layers see only the last {} tokens and keep no more of them",
                window.layers.len(),
                window.tokens
            ));
        }
    }
    prediction.notes.extend(architecture.notes.iter().cloned());
    let then = |other: ServeAsk| {
        let plan = with_draft(architecture, &other, draft)?;
        Ok(plan.total() + runtime.bytes)
    };
    let others = [
        (ask.requests, "requests", "K/V cache", "throughput: the rest waits in the queue"),
        (ask.context, "context", "K/V cache", "longer prompts are refused"),
        (ask.step_tokens, "step-tokens", "workspace", "prompts in more steps"),
    ];
    const QUALITY: &str = "quality: measure it on your own text with `autoreg diagnose --kv`";
    let kinds = [(crate::NumberKind::F16, "--kv f16"), (crate::NumberKind::Q8, "--kv q8")];
    let kinds = kinds.into_iter().filter(|_| prediction.kv_bytes_per_token.is_some());
    let kinds =
        kinds.map(|(kv, flag)| (flag.to_owned(), "K/V cache", QUALITY, ServeAsk { kv, ..*ask }));
    let others = others.into_iter().filter(|(now, ..)| *now > 1).map(|(now, flag, term, costs)| {
        let half = now / 2;
        let other = match flag {
            "requests" => ServeAsk { requests: half, ..*ask },
            "context" => ServeAsk { context: half, ..*ask },
            _ => ServeAsk { step_tokens: half, ..*ask },
        };
        (format!("--{flag} {half}"), term, costs, other)
    });
    let levers = levers(prediction.balance.total_bytes, others.chain(kinds), then)?;
    prediction.balance.set_levers(levers);
    Ok(prediction)
}

/// What each of other settings would save.
fn levers<A>(
    total: u64,
    others: impl Iterator<Item = (String, &'static str, &'static str, A)>,
    then: impl Fn(A) -> Result<u64, Error>,
) -> Result<Vec<Lever>, Error> {
    let lever = |(change, term, costs, other): (String, &str, &str, A)| {
        Ok(Lever::between(total, then(other)?, (change, term, costs)))
    };
    others.map(lever).collect()
}

/// Whether a training is one that this program runs, by the trainer's own checks.
///
/// # Errors
/// Why it is not.
pub fn trains(architecture: &Architecture, ask: &TrainAsk) -> Result<(), Error> {
    let refuse = |why: String| Err(Error::Unanswerable(format!("{}: {why}", architecture.name)));
    let other = |what: &str| refuse(format!("this program does not train with {what}"));
    if own_optimizer(ask.optimizer).is_none() {
        return other("--optimizer momentum or sgd; it has adamw and muon");
    }
    if ask.attention != Attention::Tiled || ask.logits != Logits::Chunked || ask.dropout {
        return other("--attention stored, --logits whole or --dropout");
    }
    if architecture.experts.is_some() {
        return refuse("this program runs no mixture of experts".to_owned());
    }
    ask.check(architecture)?;
    let Job { config, place, .. } = job(architecture, ask)?;
    config.model.check_trainable().or_else(|e| refuse(e.to_string()))?;
    config.check_recipe().or_else(|e| refuse(e.to_string()))?;
    place.check(&config).or_else(|e| refuse(e.to_string()))
}

/// The trainer's name for an optimizer that it has.
fn own_optimizer(optimizer: crate::Optimizer) -> Option<OptimizerKind> {
    match optimizer {
        crate::Optimizer::Adamw => Some(OptimizerKind::Adamw),
        crate::Optimizer::Muon => Some(OptimizerKind::Muon),
        crate::Optimizer::Momentum | crate::Optimizer::Sgd => None,
    }
}

/// Training a model with this program, seen from the rank that holds most.
///
/// # Errors
/// Those of [`trains`], and numbers that do not fit into 64 bits.
pub fn train(
    architecture: &Architecture,
    ask: &TrainAsk,
    runtime: Runtime,
) -> Result<Prediction, Error> {
    trains(architecture, ask)?;
    let first = rank(architecture, ask, runtime, holder(architecture, ask)?)?;
    let all = architecture.parameters()?;
    let model = (&architecture.name[..], all);
    let mut prediction =
        Prediction::new(model, "the trainer's lists", first.terms.clone(), ask.budget)?;
    prediction.notes.extend(architecture.notes.iter().cloned());
    prediction.notes.extend(crate::train::stage_2_note(architecture, ask)?);
    let Job { config, place, .. } = job(architecture, ask)?;
    let sent = SentBytes::of(&config, place).map_err(|e| architecture.error(e))?;
    prediction.balance.communication_bytes_per_step = Some(sent.per_step);
    let total_bytes = first.total_bytes;
    prediction.balance.ranks = vec![first];
    let again = |recompute: Recompute, costs| {
        let change = format!("--recompute {}", recompute.name());
        (change, "activations", costs, TrainAsk { recompute, ..*ask })
    };
    let mut others = vec![
        again(Recompute::Attention, "attention's forward pass once more"),
        again(Recompute::Layer, "a forward pass once more: about a third more arithmetic"),
    ];
    if ask.batch > 1 {
        let batch = ask.batch.div_ceil(2);
        let change = format!("--batch {batch}");
        let costs = "smaller products; twice as many a step";
        others.push((change, "activations", costs, TrainAsk { batch, ..*ask }));
    }
    for stage in ask.layout.stage + 1..=3 {
        if ask.layout.ranks > 1 {
            let other = TrainAsk { layout: Layout { stage, ..ask.layout }, ..*ask };
            others.push((format!("--zero {stage}"), "optimizer", "communication", other));
        }
    }
    let can = others.into_iter().filter(|(.., other)| trains(architecture, other).is_ok());
    let then = |other| {
        let number = holder(architecture, &other)?;
        Ok(rank(architecture, &other, runtime, number)?.total_bytes)
    };
    let levers = levers(total_bytes, can, then)?;
    prediction.balance.set_levers(levers);
    Ok(prediction)
}

/// The rank that holds most: the first, but where Muon's matrices are shared out whole.
fn holder(architecture: &Architecture, ask: &TrainAsk) -> Result<u64, Error> {
    if ask.optimizer != crate::Optimizer::Muon || ask.layout.stage == 0 {
        return Ok(0);
    }
    let (mut holder, mut most) = (0, 0);
    for number in 0..ask.layout.ranks.min(MOST_LISTED) {
        let total = train_plan(architecture, ask, number)?.total();
        (holder, most) = if total > most { (number, total) } else { (holder, most) };
    }
    Ok(holder)
}

/// Ranks whose lists are made one by one; with AdamW no later one holds more than the first.
const MOST_LISTED: u64 = 64;

/// What each rank will take, up to the 64th.
///
/// # Errors
/// As [`train()`].
pub fn ranks(
    architecture: &Architecture,
    ask: &TrainAsk,
    runtime: Runtime,
) -> Result<Vec<Rank>, Error> {
    let all = 0..ask.layout.ranks.min(MOST_LISTED);
    all.map(|number| rank(architecture, ask, runtime, number)).collect()
}

/// One rank's list.
fn rank(
    architecture: &Architecture,
    ask: &TrainAsk,
    runtime: Runtime,
    number: u64,
) -> Result<Rank, Error> {
    let mut terms = Terms::of_plan(&train_plan(architecture, ask, number)?);
    terms.add("runtime", runtime.bytes);
    let total_bytes = terms.total()?;
    Ok(Rank { rank: number, terms, total_bytes })
}

/// Bytes by account of every training that a page's sliders reach and this program runs. What a step
/// takes depends on precision, recomputation, sequences at once and their length, and on whether weights
/// come unit by unit; what ranks share out is the same for all of these, and is added.
pub(crate) struct TrainLists {
    /// By `precision recompute batch length`, with ` 3` where weights come by unit.
    pub(crate) steps: Map<String, Value>,
    /// By `precision stage ranks`: what is more, or less.
    pub(crate) shares: Map<String, Value>,
}

/// Ranks of the lists with weights unit by unit, which others are held against.
const FEW: u64 = 2;

impl TrainLists {
    /// The lists of some numbers of sequences, of lengths and of ranks.
    pub(crate) fn new(
        architecture: &Architecture,
        ask: &TrainAsk,
        [batches, lengths, ranks]: [&[u64]; 3],
    ) -> TrainLists {
        let (mut steps, mut shares) = (Map::new(), Map::new());
        let list = |ask: &TrainAsk| -> Option<Vec<i64>> {
            trains(architecture, ask).ok()?;
            let plan = train_plan(architecture, ask, holder(architecture, ask).ok()?).ok()?;
            Some(Account::ALL.map(|account| plan.of(account).cast_signed()).to_vec())
        };
        let alone = Layout { stage: 0, ranks: 1 };
        let by_unit = Layout { stage: 3, ranks: FEW };
        for precision in [crate::Precision::Bf16, crate::Precision::F32] {
            let word = precision.name();
            for (layout, mark) in [(alone, ""), (by_unit, " 3")] {
                for recompute in Recompute::ALL {
                    for (&batch, &length) in
                        batches.iter().flat_map(|b| lengths.iter().map(move |l| (b, l)))
                    {
                        let other =
                            TrainAsk { precision, recompute, batch, length, layout, ..*ask };
                        let key = format!("{word} {} {batch} {length}{mark}", recompute.name());
                        list(&other).map(|bytes| steps.insert(key, bytes.into()));
                    }
                }
            }
            let of = |layout| list(&TrainAsk { precision, layout, ..*ask });
            for stage in 0..=3 {
                let Some(base) = of(if stage == 3 { by_unit } else { alone }) else { continue };
                for &ranks in ranks.iter().filter(|&&ranks| ranks > 1) {
                    let Some(bytes) = of(Layout { stage, ranks }) else { continue };
                    let more: Vec<i64> = bytes.iter().zip(&base).map(|(a, b)| a - b).collect();
                    shares.insert(format!("{word} {stage} {ranks}"), more.into());
                }
            }
        }
        TrainLists { steps, shares }
    }
}

/// A training as the trainer is told of it.
struct Job {
    config: TrainConfig,
    shape: BatchShape,
    place: Place,
    threads: usize,
}

fn job(architecture: &Architecture, ask: &TrainAsk) -> Result<Job, Error> {
    let what = "activations";
    let sequences = size(what, ask.batch)?;
    let rows = ask.batch.checked_mul(ask.length).filter(|&rows| rows <= 1 << 30);
    let Some(rows) = rows else {
        return Err(Error::number("--batch × --length", "too many", "at most 2^30 tokens at once"));
    };
    let longest = size(what, ask.length)? + 1;
    let (rows, recompute) = (size(what, rows)?, ask.recompute);
    let shape = BatchShape { rows, longest, sequences, recompute };
    let precision = match ask.precision {
        crate::Precision::F32 => train::Precision::F32,
        crate::Precision::Bf16 => train::Precision::Bf16,
    };
    let ranks = size("--ranks", ask.layout.ranks)?;
    let step = [ask.batch, ask.accumulate, ask.layout.ranks];
    let batch = size("the sequences of a step", product("the sequences of a step", &step)?)?;
    let optimizer = own_optimizer(ask.optimizer).unwrap_or_default();
    let (micro_batch, pieces) = (sequences, if ask.pieces { batch / sequences.max(1) } else { 0 });
    let recipe = Recipe { batch, micro_batch, pieces, optimizer, precision, ..Recipe::default() };
    let model = match ask.lora {
        Some(rank) => with_adapters(&architecture.config, size("--lora", rank)?),
        None => without_blocks(&architecture.config),
    };
    // One process has nobody to share with.
    let stage = Stage::ALL.into_iter().find(|stage| stage.number() == ask.layout.stage);
    let stage = stage.filter(|_| ranks > 1).unwrap_or(Stage::Zero);
    let place = Place { rank: 0, size: ranks, stage };
    let config = TrainConfig { model, train: recipe };
    Ok(Job { config, shape, place, threads: size("--threads", ask.threads)? })
}

/// The lists of `autoreg train`, of one rank.
fn train_plan(architecture: &Architecture, ask: &TrainAsk, rank: u64) -> Result<Plan, Error> {
    let Job { config, shape, place, threads } = job(architecture, ask)?;
    let plan = match place.size {
        1 => Trainer::plan(&config, shape, threads),
        _ => {
            let place = Place { rank: size("--ranks", rank)?, ..place };
            Trainer::plan_ranks(&config, shape, threads, place)
        }
    };
    plan.map_err(|e| architecture.error(e))
}

/// Adapters on all matrices of the layers, beside weights as they are stored.
fn with_adapters(config: &ModelConfig, rank: usize) -> ModelConfig {
    let mut config = config.clone();
    if let ModelConfig::Transformer(c) = &mut config {
        let targets = LoraTarget::ALL.into_iter().filter(|target| target.is_in(c)).collect();
        c.lora = Some(LoraConfig { rank, alpha: 2.0 * rank as f32, targets });
    }
    config
}

/// Training loads weights as floats.
fn without_blocks(config: &ModelConfig) -> ModelConfig {
    let mut config = config.clone();
    if let ModelConfig::Transformer(c) = &mut config {
        c.storage.clear();
    }
    config
}
