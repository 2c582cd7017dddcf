//! Training by formula: states, activations, logits, workspace, communication, a rank.

use crate::state::{Layout, Optimizer, Precision, StateBytes};
use crate::term::{product, sum};
use crate::{Activations, Architecture, Attention, Error, Lever, Prediction, Rank, Terms};
use models::{
    HiddenMatrix, MlpConfig, Model, ModelConfig, Recompute, TransformerConfig, hidden_matrices,
};
use serde::Serialize;

/// How the output projection's logits are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Logits {
    /// 64 rows at a time, fused with the loss, as in this program.
    #[default]
    Chunked,
    /// All rows, FP32, the gradient in the same place.
    Whole,
}

/// Rows whose logits exist at a time when they are chunked.
pub(crate) const CHUNK_ROWS: u64 = 64;
/// Bytes of a bucket of gradients, where whole gradients are kept.
pub(crate) const BUCKET_BYTES: u64 = 128 << 20;

/// What is asked of a training.
#[derive(Clone, Copy, Debug)]
pub struct TrainAsk {
    /// Which optimizer.
    pub optimizer: Optimizer,
    /// In which numbers.
    pub precision: Precision,
    /// Sequences that a rank computes at once.
    pub batch: u64,
    /// Tokens of each.
    pub length: u64,
    /// Batches that a step adds up.
    pub accumulate: u64,
    /// Whether each of them is a piece: gradients are added up one batch after another, whatever rank
    /// has computed it.
    pub pieces: bool,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Whether scores are stored.
    pub attention: Attention,
    /// How logits are made.
    pub logits: Logits,
    /// Whether dropout keeps masks.
    pub dropout: bool,
    /// Ranks and what they share out.
    pub layout: Layout,
    /// The rank of adapters on all matrices of the layers; none trains all weights.
    pub lora: Option<u64>,
    /// Workers of a rank.
    pub threads: u64,
    /// Bytes that a rank may take.
    pub budget: Option<u64>,
}

impl Default for TrainAsk {
    fn default() -> TrainAsk {
        TrainAsk {
            optimizer: Optimizer::Adamw,
            precision: Precision::Bf16,
            batch: 1,
            length: 2048,
            accumulate: 1,
            pieces: false,
            recompute: Recompute::None,
            attention: Attention::Tiled,
            logits: Logits::Chunked,
            dropout: false,
            layout: Layout { stage: 0, ranks: 1 },
            lora: None,
            threads: 1,
            budget: None,
        }
    }
}

impl TrainAsk {
    /// Whether its numbers make a training.
    ///
    /// # Errors
    /// [`Error::Number`].
    pub fn check(&self, architecture: &Architecture) -> Result<(), Error> {
        let at_least_one = "it must be at least 1";
        for (what, n) in [
            ("--batch", self.batch),
            ("--length", self.length),
            ("--accumulate", self.accumulate),
            ("--threads", self.threads),
        ] {
            if n == 0 {
                return Err(Error::number(what, n, at_least_one));
            }
        }
        if self.threads > 1024 {
            return Err(Error::number("--threads", self.threads, "it must be 1 to 1024"));
        }
        self.layout.check()?;
        if self.optimizer == Optimizer::Muon {
            architecture.without_experts("--optimizer muon")?;
        }
        if let Some(rank) = self.lora {
            architecture.without_experts("--lora")?;
            let most = architecture.transformer()?.hidden_size as u64;
            if rank == 0 || rank > most {
                let expected = format!("it must be 1 to the model's width, {most}");
                return Err(Error::number("--lora", rank, expected));
            }
        }
        Ok(())
    }

    /// Tokens of an optimizer step, all ranks together.
    ///
    /// # Errors
    /// When they do not fit into 64 bits.
    pub fn tokens_per_step(&self) -> Result<u64, Error> {
        let factors = [self.batch, self.length, self.accumulate, self.layout.ranks];
        product("the tokens of a step", &factors)
    }
}

/// Parameters of adapters of a rank on the seven matrices of each layer (six without a gate).
///
/// # Errors
/// When they do not fit into 64 bits.
pub fn lora_parameters(config: &TransformerConfig, rank: u64) -> Result<u64, Error> {
    let (c, f) = (config.hidden_size as u64, config.intermediate_size as u64);
    let d = config.head_size() as u64;
    let (q, kv) = (config.num_attention_heads as u64 * d, config.kv_heads() as u64 * d);
    let gates = match config.mlp {
        MlpConfig::Swiglu | MlpConfig::GegluTanh => 2,
        MlpConfig::Gelu | MlpConfig::GeluTanh | MlpConfig::Relu2 => 1,
    };
    let sides = 2 * (c + q) + 2 * (c + kv) + (gates + 1) * (c + f);
    product("adapters", &[rank, sides, config.num_hidden_layers as u64])
}

/// Parameters that learn.
///
/// # Errors
/// When they do not fit into 64 bits.
pub(crate) fn trained_parameters(
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<u64, Error> {
    match ask.lora {
        Some(rank) => lora_parameters(architecture.transformer()?, rank),
        None => architecture.parameters(),
    }
}

/// Bytes that a rank sends an optimizer step over `trained` parameters of `all`, before the share
/// (N-1)/N is taken: gradients are reduced in FP32, weights gathered as they are stored.
///
/// # Errors
/// When they do not fit into 64 bits.
pub fn communication_bytes(
    (all, trained): (u64, u64),
    bytes: StateBytes,
    layout: Layout,
    accumulate: u64,
) -> Result<u64, Error> {
    communication(&Sent { all, trained, bytes, accumulate, reduces: 1 }, layout)
}

/// The same of a training.
pub(crate) fn communication_of((all, trained): (u64, u64), ask: &TrainAsk) -> Result<u64, Error> {
    let (bytes, accumulate) = (StateBytes::new(ask.precision, ask.optimizer), ask.accumulate);
    let reduces = if ask.pieces { accumulate } else { 1 };
    communication(&Sent { all, trained, bytes, accumulate, reduces }, ask.layout)
}

/// What is sent of what.
struct Sent {
    /// Parameters.
    all: u64,
    /// Those that learn.
    trained: u64,
    bytes: StateBytes,
    accumulate: u64,
    /// How often gradients are reduced in a step of the stages 0 and 1.
    reduces: u64,
}

fn communication(sent: &Sent, layout: Layout) -> Result<u64, Error> {
    let Sent { all, trained, bytes, accumulate, reduces } = *sent;
    let what = "communication";
    let n = layout.ranks;
    if n <= 1 {
        return Ok(0);
    }
    let (g, w) = (bytes.gradients, bytes.weights);
    let whole = match layout.stage {
        0 => sum(what, &[product(what, &[reduces, g, trained])?, product(what, &[g, trained])?])?,
        1 => sum(what, &[product(what, &[reduces, g, trained])?, product(what, &[w, trained])?])?,
        2 => {
            sum(what, &[product(what, &[accumulate, g, trained])?, product(what, &[w, trained])?])?
        }
        _ => sum(
            what,
            &[product(what, &[2, accumulate, w, all])?, product(what, &[accumulate, g, trained])?],
        )?,
    };
    Ok((u128::from(whole) * u128::from(n - 1) / u128::from(n)) as u64)
}

/// Trained parameters with one buffer of moments: the layers' matrices under Muon.
pub(crate) fn single_moments(architecture: &Architecture, ask: &TrainAsk) -> Result<u64, Error> {
    let config = architecture.transformer()?;
    match (ask.optimizer, ask.lora) {
        (Optimizer::Muon, Some(rank)) => lora_parameters(config, rank),
        (Optimizer::Muon, None) => {
            let layout = Model::layout_of(&architecture.config);
            let layout = layout.map_err(|e| architecture.error(e))?;
            let matrices = hidden_matrices(&architecture.config, &layout);
            let cols = |m: &HiddenMatrix| layout.specs()[m.parameter].shape[1];
            Ok(matrices.iter().map(|m| (m.rows.len() * cols(m)) as u64).sum())
        }
        _ => Ok(0),
    }
}

/// The terms of a rank.
fn terms(architecture: &Architecture, ask: &TrainAsk) -> Result<Terms, Error> {
    let config = architecture.transformer()?;
    let (all, units) = (architecture.parameters()?, architecture.units()?);
    let bytes = StateBytes::new(ask.precision, ask.optimizer);
    let mut terms = Terms::default();
    let trained = trained_parameters(architecture, ask)?;
    if ask.lora.is_some() {
        ask.layout.frozen(all, ask.precision.weights(), &mut terms)?;
    }
    let single = single_moments(architecture, ask)?;
    ask.layout.states(trained, single, bytes, &mut terms)?;
    let activations = Activations {
        sequences: ask.batch,
        length: ask.length,
        attention: ask.attention,
        recompute: ask.recompute,
        dropout: ask.dropout,
    };
    let wide = if ask.precision == Precision::F32 { 2 } else { 1 };
    let (kept, live) = activations.bytes(config)?;
    terms.add("activations", product("activations", &[kept, wide])?);
    terms.add("recomputed layer", product("activations", &[live, wide])?);
    let rows = product("logits", &[ask.batch, ask.length])?;
    let rows = match ask.logits {
        Logits::Chunked => rows.min(CHUNK_ROWS),
        Logits::Whole => rows,
    };
    terms.add("logits", product("logits", &[4, rows, config.vocab_size as u64])?);
    terms.add("communication", buffers(ask, bytes, &units, trained)?);
    Ok(terms)
}

/// Buffers for other ranks: a bucket of gradients where all are kept; the largest unit's gradient
/// where they are shared out; its gathered weights, and those of the layer after it, where weights
/// are shared out too.
fn buffers(
    ask: &TrainAsk,
    bytes: StateBytes,
    units: &crate::Units,
    trained: u64,
) -> Result<u64, Error> {
    let what = "communication";
    if ask.layout.ranks == 1 {
        return Ok(0);
    }
    let largest = units.embedding.max(units.projection).max(units.layer);
    let gradient = product(what, &[bytes.gradients, largest.min(trained)])?;
    let gathered = product(what, &[bytes.weights, largest + units.layer])?;
    match ask.layout.stage {
        0 | 1 => Ok(BUCKET_BYTES.min(product(what, &[bytes.gradients, trained])?)),
        2 => Ok(gradient),
        _ => sum(what, &[gradient, gathered]),
    }
}

/// Training a model by formula.
///
/// # Errors
/// Numbers that make no training or do not fit into 64 bits.
pub fn train(architecture: &Architecture, ask: &TrainAsk) -> Result<Prediction, Error> {
    ask.check(architecture)?;
    without_pieces(ask)?;
    let own = terms(architecture, ask)?;
    let all = architecture.parameters()?;
    let model = (&architecture.name[..], all);
    let mut plan = Prediction::new(model, "formulas", own, ask.budget)?;
    let sent = communication_of((all, trained_parameters(architecture, ask)?), ask)?;
    plan.balance.communication_bytes_per_step = Some(sent);
    plan.balance.ranks = (0..ask.layout.ranks.min(MOST_RANKS))
        .map(|rank| Rank {
            rank,
            terms: plan.balance.terms.clone(),
            total_bytes: plan.balance.total_bytes,
        })
        .collect();
    plan.notes.extend(architecture.notes.iter().cloned());
    notes(architecture, ask, &mut plan)?;
    let levers = levers(architecture, ask, plan.balance.total_bytes)?;
    plan.balance.set_levers(levers);
    Ok(plan)
}

/// Pieces are this program's own.
fn without_pieces(ask: &TrainAsk) -> Result<(), Error> {
    match ask.pieces {
        true => {
            let why = "--pieces is known of models alone that this program trains; leave it away";
            Err(Error::Unanswerable(why.to_owned()))
        }
        false => Ok(()),
    }
}

/// What a number of parameters says of a training: a rank's states and what it sends, no activations.
///
/// # Errors
/// Numbers that make no training or do not fit into 64 bits.
pub fn states_alone(name: &str, parameters: f64, ask: &TrainAsk) -> Result<Prediction, Error> {
    ask.layout.check()?;
    let (count, mut terms) = (parameters as u64, Terms::default());
    let bytes = StateBytes::new(ask.precision, ask.optimizer);
    ask.layout.states(count, 0, bytes, &mut terms)?;
    let mut plan = Prediction::new((name, count), "formulas", terms, ask.budget)?;
    let sent = communication_of((count, count), ask)?;
    plan.balance.communication_bytes_per_step = Some(sent);
    let (terms, total_bytes) = (plan.balance.terms.clone(), plan.balance.total_bytes);
    let rank = |rank| Rank { rank, terms: terms.clone(), total_bytes };
    plan.balance.ranks = (0..ask.layout.ranks.min(MOST_RANKS)).map(rank).collect();
    let stages = (ask.layout.stage + 1..=3).filter(|_| ask.layout.ranks > 1);
    let levers = stages.map(|stage| {
        let mut then = Terms::default();
        Layout { stage, ..ask.layout }.states(count, 0, bytes, &mut then)?;
        let costs = "communication: recheck the time of a step";
        let told = (format!("--zero {stage}"), "optimizer", costs);
        Ok(Lever::between(total_bytes, then.total()?, told))
    });
    let levers = levers.collect::<Result<_, Error>>()?;
    plan.balance.set_levers(levers);
    plan.notes.push(
        "a number alone says nothing of activations, logits and buffers; a name or a config.json does"
            .to_owned(),
    );
    Ok(plan)
}

/// Ranks that are listed one by one; all are alike.
const MOST_RANKS: u64 = 1024;

fn notes(architecture: &Architecture, ask: &TrainAsk, plan: &mut Prediction) -> Result<(), Error> {
    let config = architecture.transformer()?;
    plan.notes.extend(stage_2_note(architecture, ask)?);
    let mut note = |text: String| plan.notes.push(text);
    if ask.recompute == Recompute::Attention && ask.attention == Attention::Tiled {
        note(
            "attention is tiled and stores no scores: computing it again saves its inputs only"
                .to_owned(),
        );
    }
    if ask.attention == Attention::Tiled {
        let rows = product("scores", &[ask.batch, ask.length])?;
        let each = product("scores", &[4, config.num_attention_heads as u64, ask.length, rows]);
        let all = each.and_then(|b| product("scores", &[b, config.num_hidden_layers as u64]));
        if let Ok(bytes) = all {
            note(format!("stored scores would take {} more", crate::both(bytes)));
        }
    }
    if ask.layout.ranks > 1 && ask.layout.stage < 2 {
        note(format!("a bucket of gradients is at most {}", crate::both(BUCKET_BYTES)));
    }
    if let ModelConfig::Transformer(c) = &architecture.config
        && ask.length > c.max_position_embeddings as u64
    {
        let limit = c.max_position_embeddings;
        note(format!("the model was made for {limit} tokens of context"));
    }
    Ok(())
}

/// What stage 2 costs where micro-batches are accumulated; that it saves nothing where layers have the
/// same weights.
pub(crate) fn stage_2_note(
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<Option<String>, Error> {
    if ask.layout.stage != 2 || ask.layout.ranks == 1 || ask.pieces {
        return Ok(None);
    }
    if architecture.config.shares_layers() {
        let why =
            "layers with the same weights have whole gradients: stage 2 holds what stage 1 does";
        return Ok(Some(why.to_owned()));
    }
    if ask.accumulate == 1 {
        return Ok(None);
    }
    let stage_1 = Layout { stage: 1, ..ask.layout };
    let bytes = StateBytes::new(ask.precision, ask.optimizer);
    let trained = trained_parameters(architecture, ask)?;
    let less = communication_bytes((trained, trained), bytes, stage_1, ask.accumulate)?;
    Ok(Some(format!(
        "stage 2 reduces gradients once a micro-batch: {} accumulated ones send more than stage 1's {}",
        ask.accumulate,
        crate::both(less)
    )))
}

fn levers(architecture: &Architecture, ask: &TrainAsk, total: u64) -> Result<Vec<Lever>, Error> {
    let mut levers = Vec::new();
    let mut lever = |change: String, term: &str, costs: &str, other: TrainAsk| {
        let then = terms(architecture, &other)?.total()?;
        levers.push(Lever::between(total, then, (change, term, costs)));
        Ok::<(), Error>(())
    };
    for stage in ask.layout.stage + 1..=3 {
        if ask.layout.ranks > 1 {
            let layout = Layout { stage, ..ask.layout };
            let costs = "communication: recheck the time of a step";
            let other = TrainAsk { layout, ..*ask };
            lever(format!("--zero {stage}"), "optimizer", costs, other)?;
        }
    }
    for (recompute, costs) in [
        (Recompute::Attention, "attention's forward pass once more"),
        (Recompute::Layer, "a forward pass once more: about a third more arithmetic"),
    ] {
        let change = format!("--recompute {}", recompute.name());
        lever(change, "activations", costs, TrainAsk { recompute, ..*ask })?;
    }
    if ask.batch > 1 {
        let batch = ask.batch.div_ceil(2);
        let accumulate = ask.accumulate.saturating_mul(2);
        let change = format!("--batch {batch} --accumulate {accumulate}");
        let costs = "smaller products; the same step otherwise";
        lever(change, "activations", costs, TrainAsk { batch, accumulate, ..*ask })?;
    }
    if ask.logits == Logits::Whole {
        let other = TrainAsk { logits: Logits::Chunked, ..*ask };
        lever("--logits chunked".into(), "logits", "nothing: the same numbers", other)?;
    }
    if ask.lora.is_none() && architecture.experts.is_none() {
        let costs = "quality: adapters learn less; recheck the validation loss";
        lever("--lora 16".into(), "optimizer", costs, TrainAsk { lora: Some(16), ..*ask })?;
    }
    Ok(levers)
}
