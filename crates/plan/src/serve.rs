//! Serving by formula: weights, K/V, workspace.
//!
//! K/V: 2·G·D numbers a layer and a position; a layer with a window keeps its last positions only.
//! Workspace: the buffers that this program's steps take, which are in f32 whatever the weights are.

use crate::term::{product, sum};
use crate::{Architecture, Error, Lever, NumberKind, Prediction, Terms, both, running};
use models::TransformerConfig;

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServeAsk {
    /// Tokens of each sequence.
    pub context: u64,
    /// Sequences side by side.
    pub requests: u64,
    /// How weights are stored.
    pub weights: NumberKind,
    /// How keys and values are stored.
    pub kv: NumberKind,
    /// Tokens of a step, at most.
    pub step_tokens: u64,
    /// Workers.
    pub threads: u64,
    /// Tokens of a page of K/V, where this program runs it.
    pub page_tokens: u64,
    /// Tokens guessed ahead of each sequence, where this program runs it.
    pub drafts: u64,
    /// Bytes that may be taken.
    pub budget: Option<u64>,
}

impl Default for ServeAsk {
    /// One request of 4,096 tokens, 16-bit weights, keys and values, as `autoreg serve` steps.
    fn default() -> ServeAsk {
        ServeAsk {
            context: 4096,
            requests: 1,
            weights: NumberKind::Bf16,
            kv: NumberKind::Bf16,
            step_tokens: 128,
            threads: 1,
            page_tokens: 16,
            drafts: 0,
            budget: None,
        }
    }
}

impl ServeAsk {
    /// Whether its numbers make a server.
    ///
    /// # Errors
    /// [`Error::Number`].
    pub fn check(&self) -> Result<(), Error> {
        let within = |what, n: u64, most: u64| match n {
            1.. if n <= most => Ok(()),
            _ => Err(Error::number(what, n, format!("it must be 1 to {most}"))),
        };
        within("--context", self.context, u64::MAX)?;
        within("--requests", self.requests, 1 << 20)?;
        within("--step-tokens", self.step_tokens, 1 << 20)?;
        within("--page-tokens", self.page_tokens, 1024)?;
        within("--draft-tokens", self.drafts + 1, 33)?;
        within("--threads", self.threads, 1024)
    }
}

/// Bytes of K/V of `requests` sequences of `context` tokens; windows are not kept longer than they
/// are seen.
///
/// # Errors
/// When they do not fit into 64 bits.
pub fn kv_bytes(
    config: &TransformerConfig,
    context: u64,
    requests: u64,
    kind: NumberKind,
) -> Result<u64, Error> {
    let what = "the K/V cache";
    let near = config.sliding_window.as_ref();
    let near_layers = near.map_or(0, |w| w.layers.len() as u64);
    let far_layers = config.num_hidden_layers as u64 - near_layers;
    let seen = near.map_or(context, |w| context.min(w.tokens as u64));
    let row = 2 * config.kv_heads() as u64 * config.head_size() as u64;
    let positions =
        sum(what, &[product(what, &[far_layers, context])?, product(what, &[near_layers, seen])?])?;
    kind.bytes(product(what, &[positions, row, requests])?)
}

/// The terms of serving a model.
fn terms(architecture: &Architecture, ask: &ServeAsk) -> Result<Terms, Error> {
    let config = architecture.transformer()?;
    let mut terms = Terms::default();
    terms.add("weights", ask.weights.bytes(architecture.parameters()?)?);
    terms.add("K/V cache", kv_bytes(config, ask.context, ask.requests, ask.kv)?);
    terms.add("workspace", running::step_workspace(architecture, ask)?);
    Ok(terms)
}

/// Serving a model by formula.
///
/// # Errors
/// Numbers that make no server or do not fit into 64 bits.
pub fn serve(architecture: &Architecture, ask: &ServeAsk) -> Result<Prediction, Error> {
    ask.check()?;
    let model = (&architecture.name[..], architecture.parameters()?);
    let mut plan = Prediction::new(model, "formulas", terms(architecture, ask)?, ask.budget)?;
    let config = architecture.transformer()?;
    plan.kv_bytes_per_token = Some(per_token(config, ask.kv)?);
    plan.notes.extend(architecture.notes.iter().cloned());
    if let Some(window) = &config.sliding_window {
        plan.notes.push(format!(
            "{} of {} layers see and keep their last {} positions only; this program keeps them in whole \
             pages: --by engine counts so",
            window.layers.len(),
            config.num_hidden_layers,
            window.tokens
        ));
    }
    let limit = config.max_position_embeddings as u64;
    if ask.context > limit {
        plan.notes.push(format!("the model was made for {limit} tokens of context"));
    }
    let total = plan.balance.total_bytes;
    let mut levers = Vec::new();
    let mut lever = |change: String, term: &str, costs: &str, other: ServeAsk| {
        let then = terms(architecture, &other)?.total()?;
        levers.push(Lever::between(total, then, (change, term, costs)));
        Ok::<(), Error>(())
    };
    const QUALITY: &str = "quality: measure it on your own text with `autoreg eval --text`";
    for kind in [NumberKind::Q8, NumberKind::Q4K] {
        let name = kind.name();
        lever(format!("--weights {name}"), "weights", QUALITY, ServeAsk { weights: kind, ..*ask })?;
    }
    lever("--kv q8_0".into(), "K/V cache", QUALITY, ServeAsk { kv: NumberKind::Q8, ..*ask })?;
    if ask.requests > 1 {
        let requests = ask.requests / 2;
        let costs = "throughput: the rest waits in the queue";
        lever(format!("--requests {requests}"), "K/V cache", costs, ServeAsk { requests, ..*ask })?;
    }
    if ask.context > 1 {
        let context = ask.context / 2;
        let costs = "longer prompts are refused";
        lever(format!("--context {context}"), "K/V cache", costs, ServeAsk { context, ..*ask })?;
    }
    plan.balance.set_levers(levers);
    Ok(plan)
}

/// Bytes that a token more takes where no window is full.
fn per_token(config: &TransformerConfig, kind: NumberKind) -> Result<u64, Error> {
    let row = 2 * config.kv_heads() as u64 * config.head_size() as u64;
    kind.bytes(product("the K/V cache", &[config.num_hidden_layers as u64, row])?)
}

/// The line that says where a budget ends.
pub(crate) fn over(total: u64, budget: u64) -> String {
    match total.checked_sub(budget) {
        Some(0) | None => format!("{} are left", both(budget - total)),
        Some(over) => format!("{} too many", both(over)),
    }
}
