//! Where the bytes are: a training's, a server's, anybody's ledger.

use super::evidence::{Evidence, STATES};
use super::{FEWER_BITS, FEWER_KV_BITS, Found, KV_QUALITY, QUALITY, percent};
use crate::{Error, both};
use ledger::Account;
use models::{ModelConfig, Recompute, Runner, Workload};

/// The groups that terms fall into, by what relieves them.
fn groups(evidence: &Evidence) -> Vec<(&'static str, u64)> {
    let of = |name| evidence.terms.of(name);
    vec![
        ("activations", of("activations") + of("recomputed layer")),
        ("optimizer state", evidence.states()),
        ("logits", of("logits")),
        ("K/V pool", of("K/V cache")),
        ("workspace", of("workspace")),
        ("communication", of("communication")),
        ("data loading", of("data")),
        (RUNTIME, of(RUNTIME)),
    ]
}

/// What the program takes beside any model.
const RUNTIME: &str = "runtime";
/// Why nothing of a model changes that.
const PROGRAM: &str = "the program itself takes most of the memory: its code, stacks and heap, before any \
                       model; the model is too small to matter";

/// A ledger without times.
pub(super) fn ledger(evidence: &Evidence) -> Result<Found, Error> {
    if evidence.trains() { training(evidence) } else { serving(evidence) }
}

/// What takes most of a training's memory.
pub(super) fn training(evidence: &Evidence) -> Result<Found, Error> {
    let total = evidence.terms.total()?;
    if total == 0 {
        return Err(Error::Unanswerable(format!(
            "{}: neither bytes nor shares of a step are known; give the run folder or its ledger.json",
            evidence.source
        )));
    }
    let groups = groups(evidence);
    let (limiting, bytes) =
        groups.iter().max_by_key(|(_, bytes)| *bytes).copied().unwrap_or_default();
    let mut found = Found { limiting, ..Found::default() };
    let share = percent(bytes as f64, total as f64);
    found.say(format!("{limiting}: {} of {} ({share:.0} %)", both(bytes), both(total)));
    let states = evidence.states();
    let states_share = percent(states as f64, total as f64);
    match limiting {
        "activations" => {
            found.verdict = "what the forward pass keeps takes most of the memory: it grows with \
                             sequences at once and their tokens, not with ranks"
                .to_owned();
            activations(&mut found, evidence, bytes);
            found.refuse(
                "more ZeRO",
                format!(
                    "it shares out weights, gradients and moments, {states_share:.0} % of the total; \
                     activations stay whole on each rank"
                ),
            );
            found.refuse("another optimizer", format!("all states are {states_share:.0} %"));
        }
        "optimizer state" => {
            found.verdict =
                "weights, gradients and moments take most of the memory: they grow with \
                             parameters, not with the batch"
                    .to_owned();
            let (w, g, m) =
                (states_of(evidence, 0), states_of(evidence, 2), states_of(evidence, 3));
            found.say(format!("weights {}, gradients {}, moments {}", both(w), both(g), both(m)));
            let recheck = "communication, the time of a step";
            let half = (states_of(evidence, 1) + m) / 2;
            found.smaller(
                "--zero 1 on two ranks",
                half,
                "a second process; communication",
                recheck,
            );
            let costs = "a second process; more communication";
            found.smaller("--zero 3 on two ranks", states / 2, costs, recheck);
            let costs = "quality: adapters learn less";
            found.smaller("adapters instead of all weights", g + m, costs, "the validation loss");
            let kept = evidence.terms.of("activations");
            let share = percent(kept as f64, total as f64);
            found.refuse("--recompute", format!("activations are {share:.0} % of the total"));
            found.refuse(
                "a smaller micro-batch",
                format!("activations are {share:.0} % of the total"),
            );
        }
        "logits" => {
            found.verdict = "the output projection's logits take most of the memory: rows times \
                             vocabulary, in FP32"
                .to_owned();
            let why = format!("it shares out states, {states_share:.0} %; logits stay whole");
            found.refuse("more ZeRO", why);
            let why = "layers are computed again, logits are not".to_owned();
            found.refuse("--recompute", why);
        }
        RUNTIME => {
            found.verdict = PROGRAM.to_owned();
            let why = format!("all states are {states_share:.0} %");
            found.refuse("more ZeRO, --recompute, a smaller micro-batch", why);
        }
        _ => {
            found.verdict = format!("{limiting} takes most of the memory");
        }
    }
    planned(&mut found, evidence);
    Ok(found)
}

/// A term of the states.
fn states_of(evidence: &Evidence, i: usize) -> u64 {
    evidence.terms.of(STATES[i])
}

/// What a plan has worked out for the limiting resource.
fn planned(found: &mut Found, evidence: &Evidence) {
    let helps = |change: &str| match found.limiting {
        "logits" => change.contains("--logits") || change.contains("--batch"),
        "activations" => change.contains("--recompute") || change.contains("--batch"),
        "optimizer state" => change.contains("--zero") || change.contains("--lora"),
        _ => true,
    };
    // Those of a plan: what a diagnosis has written itself is found again by its rules.
    let own = evidence.planned.iter().filter(|l| l.total_bytes.is_some() && helps(&l.change));
    let own: Vec<_> = own.collect();
    for lever in own {
        found.smaller(&lever.change, lever.saves_bytes.unwrap_or(0), &lever.costs, &lever.recheck);
    }
}

/// Levers on activations: half the rows is half of them; recomputation by the list that allocates,
/// where the network is known.
fn activations(found: &mut Found, evidence: &Evidence, bytes: u64) {
    let recheck = "tokens/s; the loss stays the same bits";
    let costs = "smaller products";
    found.smaller("half --micro-batch", bytes / 2, costs, recheck);
    let Some(config) = &evidence.config else { return };
    let Some(now) = recompute_of(evidence) else { return };
    for (way, costs) in [
        (Recompute::Attention, "attention's forward pass once more"),
        (Recompute::Layer, "a forward pass once more"),
    ] {
        if let Some(then) = recomputed(config, bytes, now, way) {
            let change = format!("--recompute {}", way.name());
            found.smaller(&change, bytes.saturating_sub(then), costs, recheck);
        }
    }
}

fn recompute_of(evidence: &Evidence) -> Option<Recompute> {
    let word = evidence.training.as_ref()?.recompute.as_deref()?;
    Recompute::ALL.into_iter().find(|way| way.name() == word)
}

/// Activations of the same rows computed again another way: they are linear in the rows.
fn recomputed(config: &ModelConfig, bytes: u64, now: Recompute, then: Recompute) -> Option<u64> {
    const ROWS: usize = 1024;
    let of = |way| {
        let longest = config.context_limit().unwrap_or(ROWS).min(ROWS);
        let workload = Workload { rows: ROWS, sequences: 1, longest, threads: 1, training: true };
        let plan = Runner::plan_recomputing(config, &workload, way).ok()?;
        Some(plan.of(Account::Activations))
    };
    let (now, then) = (of(now)?, of(then)?);
    Some((u128::from(bytes) * u128::from(then) / u128::from(now.max(1))) as u64)
}

/// What takes most of a server's memory.
fn serving(evidence: &Evidence) -> Result<Found, Error> {
    let total = evidence.terms.total()?;
    let of = |name: &str| evidence.terms.of(name);
    let (weights, kv, work) = (of("weights"), of("K/V cache"), of("workspace"));
    let share = |bytes: u64| percent(bytes as f64, total as f64);
    let limiting = match () {
        () if of(RUNTIME) > weights.max(kv).max(work) => RUNTIME,
        () if kv >= weights && kv >= work => "K/V pool",
        () if weights >= work => "weights",
        () => "workspace",
    };
    let mut found = Found { limiting, ..Found::default() };
    found.say(format!(
        "weights {} ({:.0} %), K/V {} ({:.0} %), workspace {} ({:.0} %)",
        both(weights),
        share(weights),
        both(kv),
        share(kv),
        both(work),
        share(work)
    ));
    if let Some((held, pages)) = evidence.pages {
        found.say(format!("{held} of {pages} pages of K/V are held now"));
    }
    match found.limiting {
        "K/V pool" => {
            found.verdict = "keys and values take most of the memory: they grow with context and \
                             requests, weights do not"
                .to_owned();
            let recheck = "preemptions, and the queue";
            found.smaller(
                "half --kv-tokens",
                kv / 2,
                "fewer or shorter requests at a time",
                recheck,
            );
            found.refuse(FEWER_BITS, format!("weights are {:.0} %", share(weights)));
            found.refuse(FEWER_KV_BITS, KV_QUALITY.to_owned());
        }
        RUNTIME => {
            found.verdict = PROGRAM.to_owned();
            found.refuse("half --kv-tokens", format!("K/V is {:.0} %", share(kv)));
            found.refuse(FEWER_BITS, format!("weights are {:.0} %", share(weights)));
        }
        "weights" => {
            found.verdict =
                "weights take most of the memory: they are there before any request".to_owned();
            found.smaller("a smaller model", weights / 2, "quality", "your own text's perplexity");
            found.refuse(FEWER_BITS, QUALITY.to_owned());
            found.refuse("half --kv-tokens", format!("K/V is {:.0} %", share(kv)));
        }
        _ => {
            found.verdict = "buffers of a step take most of the memory".to_owned();
            found.smaller("half --step-tokens", work / 2, "prompts in more steps", "first token");
            found.refuse("half --kv-tokens", format!("K/V is {:.0} %", share(kv)));
        }
    }
    let why = "a server has neither gradients nor an optimizer";
    found.refuse("--zero, --recompute, another optimizer", why.to_owned());
    Ok(found)
}
