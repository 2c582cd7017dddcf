//! What an answer carries beside its text: warnings, and on request a receipt: all that is needed to
//! repeat it, and where its time went.

use crate::app::App;
use crate::call::Call;
use crate::sampling::Sampling;
use engine::serving::Asked;
use serde_json::{Value, json};

/// What repeats a call: model, effective rules in their order, seed, prompts.
#[must_use]
pub fn request(app: &App, sampling: &Sampling, all: &[Asked]) -> Value {
    let prompts: Vec<&Vec<u32>> = all.iter().map(|asked| &asked.request.prompt).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "isa": kernels::Isa::current().name(),
        "model": { "name": app.model.name, "kind": app.model.kind, "digest": app.model.digest,
                   "tokenizer": app.model.tokenizer.sha256(), "kv": app.model.kv },
        // It changed no token.
        "draft": app.model.draft.as_ref().map(crate::app::Guesser::told),
        "rules": sampling.rules.chain(),
        "seed": sampling.seed,
        "grammar": sampling.grammar,
        "stop": sampling.stops,
        "end_token_ids": sampling.end,
        "sequences": all.first().map_or(0, |asked| asked.request.sequences),
        "max_tokens": all.first().map_or(0, |asked| asked.request.max_tokens),
        "prompt_token_ids": prompts,
        "logprob_kind": "log-softmax of the model's logits, before any rule",
    })
}

/// Completes a whole answer.
pub fn finish(body: &mut Value, receipt: Option<Value>, warnings: &[String], call: &Call) {
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    if let Some(mut receipt) = receipt {
        receipt["timings"] = call.timings();
        receipt["answer_token_ids"] = json!(call.ids());
        body["receipt"] = receipt;
    }
}

/// The last pieces of a stream. Clients look at the first choice of every piece unless they asked
/// for counts, so nothing without a choice is sent to those who asked for nothing.
#[must_use]
pub fn pieces(
    frame: Value,
    include_usage: bool,
    receipt: Option<Value>,
    call: &Call,
) -> Vec<Value> {
    if !include_usage && receipt.is_none() {
        return Vec::new();
    }
    let mut piece = frame;
    if include_usage {
        piece["usage"] = call.usage();
    }
    finish(&mut piece, receipt, &[], call);
    vec![piece]
}
