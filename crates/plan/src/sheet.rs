//! A plan as one self-contained page: stacked bars by term, and sliders that work the formulas out
//! again in the page. No network.

use crate::fleet::FleetGrid;
use crate::serve::ServeAsk;
use crate::term::{Balance, Lever, Prediction};
use crate::train::TrainAsk;
use crate::{
    Activations, Architecture, Error, Logits, NumberKind, Precision, StateBytes, running, text,
};
use ::page::{Data, Frame, separated};
use maud::{Markup, html};
use models::Recompute;
use running::TrainLists;
use serde_json::{Map, Value, json};

pub(crate) const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What the page's sliders start from, and the numbers that its formulas need.
pub struct Sheet(Value);

impl Sheet {
    /// Of a server; by the engine's lists where `engine` says so.
    ///
    /// # Errors
    /// Numbers that make no server.
    pub fn serve(
        architecture: &Architecture,
        ask: &ServeAsk,
        plan: &Prediction,
        engine: bool,
    ) -> Result<Sheet, Error> {
        let config = architecture.transformer()?;
        let kinds = if engine { &running::KV_KINDS[..] } else { &NumberKind::ALL };
        let mut workspace = serde_json::Map::new();
        let mut rows = serde_json::Map::new();
        let steps = powers(1, 256, ask.requests);
        for &kv in kinds {
            let mut of_kind = Vec::new();
            for &requests in &steps {
                let other = ServeAsk { requests, kv, ..*ask };
                let bytes = match engine {
                    true => {
                        let list =
                            running::serve_plan(architecture, &ServeAsk { context: 1, ..other })?;
                        list.of(ledger::Account::Workspace)
                    }
                    false => running::step_workspace(architecture, &other)?,
                };
                of_kind.push(json!([requests, bytes]));
            }
            workspace.insert(kv.name().to_owned(), of_kind.into());
            if engine {
                let row = running::kv_row_bytes(architecture, kv)?;
                rows.insert(kv.name().to_owned(), row.into());
            }
        }
        let near = config.sliding_window.as_ref();
        let page_tokens = if engine { ask.page_tokens } else { 1 };
        // Pages that a sequence may hold of layers with a window, one for what it shares.
        let reach =
            |w: &models::SlidingWindow| models::near_reach(w.tokens, 0, page_tokens as usize) + 1;
        let near_layers = near.map_or(0, |w| w.layers.len());
        Ok(Sheet(json!({
            "kind": "serve", "engine": engine, "model": plan.model,
            "parameters": plan.balance.parameters,
            "weight_bytes": plan.balance.terms.of("weights"),
            "runtime": plan.balance.terms.of("runtime"),
            "far_layers": config.num_hidden_layers - near_layers, "near_layers": near_layers,
            "window": near.map_or(0, |w| w.tokens),
            "row": 2 * config.kv_heads() * config.head_size(),
            "near_pages": near.filter(|_| engine).map(reach), "step_tokens": ask.step_tokens,
            "page_tokens": page_tokens, "kv_rows": rows,
            "kv_kinds": kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            "workspace": workspace,
            "requests": ask.requests, "context": ask.context,
            "longest": ask.context.max(config.max_position_embeddings as u64),
            "weights": ask.weights.name(), "kv": ask.kv.name(),
            "kinds": NumberKind::ALL.map(|kind| json!([kind.name(), blocks(kind)])),
            "budget": plan.balance.budget_bytes, "terms": plan.balance.terms, "total_bytes": plan.balance.total_bytes,
        })))
    }

    /// Of a training: by the trainer's lists where `engine` says so and this program runs it, else by
    /// formula.
    ///
    /// # Errors
    /// Numbers that make no training.
    pub fn train(
        architecture: &Architecture,
        ask: &TrainAsk,
        plan: &Prediction,
        engine: bool,
    ) -> Result<Sheet, Error> {
        let longest = architecture.config.context_limit().unwrap_or(1024) as u64;
        let batches = powers(1, 256, ask.batch);
        let lengths = powers(64, longest.max(ask.length), ask.length);
        let ranks = powers(1, 1024, ask.layout.ranks);
        let lists = match engine {
            true => TrainLists::new(architecture, ask, [&batches, &lengths, &ranks]),
            false => TrainLists { steps: Map::new(), shares: Map::new() },
        };
        let balance = &plan.balance;
        let mut sheet = json!({
            "kind": "train", "model": plan.model, "parameters": balance.parameters,
            "lists": lists.steps, "shares": lists.shares,
            "accounts": ledger::Account::ALL.map(ledger::Account::name),
            "runtime": balance.terms.of("runtime"), "all_ranks": ranks,
            "batches": batches, "lengths": lengths, "batch": ask.batch, "length": ask.length,
            "recompute": ask.recompute.name(), "precision": ask.precision.name(),
            "zero": ask.layout.stage, "ranks": ask.layout.ranks,
            "budget": balance.budget_bytes, "terms": balance.terms,
            "total_bytes": balance.total_bytes,
        });
        if let (Ok(_), Some(all)) = (architecture.transformer(), sheet.as_object_mut()) {
            all.append(&mut formulas(architecture, ask)?);
        }
        Ok(Sheet(sheet))
    }

    /// The same with what a fleet of such servers does under several loads.
    #[must_use]
    pub fn with_fleet(mut self, grid: &FleetGrid) -> Sheet {
        self.0["fleet"] = json!(grid);
        self
    }

    /// Of bytes that were measured: terms that grow in proportion to what is asked, states that ranks would
    /// share out, and recomputation where its saving is known; the rest stays.
    pub(crate) fn measured(balance: &Balance) -> Sheet {
        let saved = |lever: &&Lever| lever.change.starts_with("--recompute");
        let levers = balance.levers.iter().filter(saved);
        let again: Vec<Value> =
            levers.map(|lever| json!([lever.change, lever.saves_bytes])).collect();
        Sheet(json!({
            "kind": "measured", "terms": balance.terms, "total_bytes": balance.total_bytes,
            "budget": balance.budget_bytes, "again": again,
            "has_kv": balance.terms.of("K/V cache") > 0,
            "has_activations": balance.terms.of("activations") > 0,
            "alone": balance.ranks.len() < 2 && balance.terms.of("gradients") > 0,
        }))
    }

    /// The same of a training that holds so many bytes of data beside.
    pub(crate) fn with_data(mut self, bytes: u64) -> Sheet {
        self.0["data"] = bytes.into();
        self
    }

    /// What a ledger carries.
    pub(crate) fn into_value(self) -> Value {
        self.0
    }

    /// What a ledger carried, held against a budget.
    pub(crate) fn carried(value: &Value, budget: Option<u64>) -> Sheet {
        let mut value = value.clone();
        value["budget"] = budget.into();
        Sheet(value)
    }

    /// The part of a page that its script fills.
    pub(crate) fn live(&self) -> Markup {
        html! {
            section.live hidden {
                div.split {
                    div { div #bars {} p #verdict aria-live="polite" {} table #terms {} }
                    div.controls #controls {}
                }
            }
        }
    }

    /// A page with its script and what that works with.
    pub(crate) fn framed(&self, title: &str, body: &Markup) -> String {
        let json = serde_json::to_string(&self.0).unwrap_or_default();
        let data = Some(Data { id: "sheet", json: &json });
        Frame { title, styles: &[STYLE], data, script: Some(SCRIPT) }.page(body)
    }

    /// Of anything else: bars, and nothing to slide.
    pub fn still(plan: &Prediction) -> Sheet {
        Sheet(json!({"kind": "still", "model": plan.model, "terms": plan.balance.terms,
            "total_bytes": plan.balance.total_bytes, "budget": plan.balance.budget_bytes}))
    }
}

/// Powers of two between two numbers, with one of one's own.
fn powers(from: u64, to: u64, own: u64) -> Vec<u64> {
    let doubled = std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|&n| n <= to);
    let mut all: Vec<u64> = doubled.chain([own]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The numbers that the formulas of training need.
fn formulas(
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<serde_json::Map<String, Value>, Error> {
    let config = architecture.transformer()?;
    let units = architecture.units()?;
    // A row's bytes and a pair of rows', from which any batch and length follow.
    let one = |recompute, length| {
        let ask = Activations {
            sequences: 1,
            length,
            attention: ask.attention,
            recompute,
            dropout: ask.dropout,
        };
        ask.bytes(config)
    };
    let mut activations = Vec::new();
    for recompute in Recompute::ALL {
        let (one, two) = (one(recompute, 1)?, one(recompute, 2)?);
        // a·T + b·T² at T = 1 and T = 2.
        let square = |one: u64, two: u64| (two - 2 * one) / 2;
        let (kept, live) = (square(one.0, two.0), square(one.1, two.1));
        activations.push(json!({
            "name": recompute.name(),
            "kept": [one.0 - kept, kept], "live": [one.1 - live, live],
        }));
    }
    let adapters = match ask.lora {
        Some(rank) => Some(crate::lora_parameters(config, rank)?),
        None => None,
    };
    let precision = |p: Precision| json!(StateBytes::new(p, ask.optimizer));
    let values = json!({
        "adapters": adapters,
        "single": crate::train::single_moments(architecture, ask)?,
        "units": {"largest": units.embedding.max(units.projection).max(units.layer), "layer": units.layer},
        "precisions": {"bf16": precision(Precision::Bf16), "f32": precision(Precision::F32)},
        "activations": activations,
        "vocabulary": config.vocab_size, "chunk": crate::train::CHUNK_ROWS,
        "whole": ask.logits == Logits::Whole, "bucket": crate::train::BUCKET_BYTES,
    });
    match values {
        Value::Object(values) => Ok(values),
        _ => Ok(serde_json::Map::new()),
    }
}

fn blocks(kind: NumberKind) -> Value {
    let (values, bytes) = kind.block();
    json!([values, bytes])
}

/// The page; `more` is text that follows the figures.
pub fn page(plan: &Prediction, sheet: &Sheet, more: &str) -> String {
    let body = html! {
        header {
            h1 { "Memory by term: " (plan.model) }
            p.facts {
                (separated(plan.balance.parameters.unwrap_or(0))) " parameters, counted by " (plan.counted_by)
            }
        }
        main {
            (sheet.live())
            @if sheet.0["fleet"].is_object() { (times()) }
            (as_text(plan, more))
        }
        footer { p { "Made by autoreg. GB is 10^9 bytes, GiB 2^30. Everything on this page is in this file." } }
    };
    let title = format!("Memory by term: {}", plan.model);
    sheet.framed(&title, &body)
}

/// Where the script draws what requests of a fleet take.
fn times() -> Markup {
    html! {
        section.live hidden {
            h2 { "Time of a request, simulated" }
            div.split {
                div {
                    div #times {}
                    div.scroll { table #spread {} }
                    p.facts #seen aria-live="polite" {}
                }
                div.controls #fleet-controls {}
            }
        }
    }
}

fn as_text(plan: &Prediction, more: &str) -> Markup {
    html! {
        section {
            h2 { "As planned" }
            pre { (text(plan)) (more) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Terms;

    #[test]
    fn nothing_from_a_name_reaches_the_page_as_markup() {
        let mut terms = Terms::default();
        terms.add("</script><script>alert(1)</script>", 7);
        let plan = Prediction::new(("a <b> & c", 7), "lists", terms, None).unwrap();
        let page = page(&plan, &Sheet::still(&plan), "<i>");
        assert!(page.contains("a &lt;b&gt; &amp; c") && !page.contains("<script>alert"));
        assert_eq!(page.matches("</script>").count(), 2);
        for word in ["http://", "https://", "src=", "@import", "url(", "fetch("] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(word), "{word}");
        }
    }
}
