//! Bytes: what is there by term (`GET /ledger`), and the numbers behind a refusal.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use ledger::Account;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::block_in_place;

/// `GET /ledger`: bytes by term: predicted, charged in the books now (`bytes`) and at most
/// (`peak_bytes`), and in memory now (`resident_bytes`): a page of a buffer takes room when it is first
/// written to. Mapped files stand apart: the system can take them back.
pub async fn ledger(State(app): State<Arc<App>>) -> Json<Value> {
    Json(block_in_place(|| books(&app)))
}

fn books(app: &App) -> Value {
    let (plan, books) = (&app.model.plan, ledger::snapshot());
    let resident = ledger::resident_by_account();
    let row = |account: Account| {
        let (predicted, measured) = (plan.of(account), books.current[account as usize]);
        let most = books.most[account as usize];
        let there = resident.map_or(measured, |resident| resident[account as usize]);
        (predicted + measured > 0).then(|| {
            json!({
                "name": account.name(), "bytes": measured, "predicted_bytes": predicted,
                "peak_bytes": most, "resident_bytes": there,
            })
        })
    };
    let mut rows: Vec<Value> = Account::ALL.into_iter().filter_map(row).collect();
    // Not of the lists: the program's own pages, stacks, and what small things take.
    let rest = ledger::rest().unwrap_or_default();
    let (runtime, beside) = (app.model.runtime_bytes, rest.runtime());
    rows.push(json!({
        "name": "runtime", "bytes": beside, "predicted_bytes": runtime,
        "resident_bytes": beside, "program_bytes": rest.program, "stacks_bytes": rest.stacks,
        "heap_bytes": rest.heap,
    }));
    if rest.mapped > 0 {
        rows.push(json!({
            "name": "mapped files", "bytes": rest.mapped, "predicted_bytes": 0,
            "resident_bytes": rest.mapped,
        }));
    }
    let sum = |name: &str| rows.iter().filter_map(|row| row[name].as_u64()).sum::<u64>();
    let explained = sum("resident_bytes");
    let process = ledger::resident_bytes();
    let unexplained = process.cast_signed() - explained.cast_signed();
    let share = unexplained as f64 / process.max(1) as f64;
    let limits = app.engine.limits();
    let (held, kept) = app.metrics.pages();
    let largest = rows.iter().max_by_key(|row| row["bytes"].as_u64());
    let reserved = plan.of(Account::KvCache);
    let budget = ledger::budget_bytes();
    json!({
        "parameters": app.model.parameters,
        "budget_bytes": budget,
        "fits": budget.map(|budget| plan.total() + runtime <= budget),
        "levers": app.model.levers,
        "what_if": app.model.what_if,
        "limiting_term": largest.map(|row| row["name"].clone()),
        "total_bytes": sum("bytes"),
        "reclaimable_bytes": rest.mapped,
        "terms": rows,
        "predicted_process_bytes": plan.total() + runtime,
        "process_bytes": process,
        "process_peak_bytes": ledger::peak_bytes(),
        "unexplained_bytes": unexplained,
        "unexplained_share": share,
        "tolerance_share": ledger::TOLERANCE,
        "within_tolerance": share.abs() <= ledger::TOLERANCE,
        "kv": {
            "pages": limits.pages, "page_tokens": limits.page_tokens,
            "tokens": limits.capacity(), "bytes": reserved, "reserved_bytes": reserved,
            "in_use_bytes": reserved / limits.pages.max(1) as u64 * u64::try_from(held).unwrap_or(0),
            "kind": app.model.kv, "pages_held": held, "pages_kept": kept,
        },
        "draft": app.model.draft.as_ref().map(|draft| json!({
            "name": draft.name, "weights_bytes": draft.plan.of(Account::Weights),
            "kv_bytes": draft.plan.of(Account::KvCache), "bytes": draft.plan.total(),
        })),
        "queue": {
            "waiting": app.engine.queue().waiting(),
            "predicted_wait_s": app.engine.queue().predicted_wait(),
            "largest_prompt_tokens": app.engine.limit(),
        },
    })
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Answers.
    pub sequences: usize,
    /// New tokens an answer, at most.
    pub new: usize,
}

/// Adds to a refusal what it would take and what there is.
pub fn with_numbers(app: &App, size: Size, error: ApiError) -> ApiError {
    let told =
        matches!(error.code, Some("context_length_exceeded" | "cache_too_small" | "queue_full"));
    if !told {
        return error;
    }
    let (limits, limit) = (app.engine.limits(), app.engine.limit());
    let page_bytes = app.model.plan.of(Account::KvCache) / limits.pages.max(1) as u64;
    // The prompt's full pages are shared by its answers.
    let a_sequence = size.prompt.saturating_add(size.new.min(limit.saturating_sub(size.prompt)));
    let shared = size.prompt / limits.page_tokens;
    let own = a_sequence.div_ceil(limits.page_tokens).saturating_sub(shared);
    let pages = shared.saturating_add(own.saturating_mul(size.sequences));
    let (held, _) = app.metrics.pages();
    let free = limits.pages.saturating_sub(usize::try_from(held).unwrap_or(0));
    let queue = app.engine.queue();
    let numbers = json!({
        "prompt_tokens": size.prompt, "limit_tokens": limit,
        "predicted_kv_pages": pages, "predicted_kv_bytes": (pages as u64).saturating_mul(page_bytes),
        "free_kv_pages": free, "free_kv_bytes": free as u64 * page_bytes,
        "kv_pages": limits.pages, "page_tokens": limits.page_tokens,
        // Prompt and answer together.
        "largest_request_now_tokens": limit.min(free * limits.page_tokens),
        "waiting": queue.waiting(),
        "predicted_wait_s": queue.predicted_wait().unwrap_or(0.0),
    });
    let mut details = error.details.as_deref().cloned().unwrap_or_else(|| json!({}));
    if let (Some(details), Value::Object(numbers)) = (details.as_object_mut(), numbers) {
        for (key, value) in numbers {
            details.entry(key).or_insert(value);
        }
    }
    ApiError { details: Some(Box::new(details)), ..error }
}
