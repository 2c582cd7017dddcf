//! Where the time went: a request's, or a step's.

use super::evidence::{Evidence, Serving, Training};
use super::{FEWER_BITS, FEWER_KV_BITS, Found, KV_QUALITY, QUALITY, ms, percent};
use crate::{Error, both};

/// From this share of answered requests on, those sent back to wait are the reason.
const PREEMPTED: f64 = 0.1;
/// From this share of the pool on it is full.
const FULL: f64 = 0.9;
/// From this share of a step on, what is not arithmetic limits it.
const NOT_ARITHMETIC: f64 = 0.33;

/// What limits a server.
pub(super) fn serving(evidence: &Evidence, s: &Serving) -> Result<Found, Error> {
    let total = s.queue_s + s.prefill_s + s.decode_s;
    if s.requests == 0.0 || total <= 0.0 {
        return Err(Error::Unanswerable(format!(
            "{}: no request was answered yet; send some, or look again later",
            evidence.source
        )));
    }
    let pool =
        s.preemptions >= (PREEMPTED * s.requests).max(1.0) || s.kv_use >= FULL && s.waiting > 0.0;
    let limiting = match () {
        () if pool => "K/V pool",
        () if s.queue_s >= s.prefill_s.max(s.decode_s) => "queue",
        // A server that counts no waiting time: more wait than run.
        () if s.queue_s == 0.0 && s.waiting > s.running.max(1.0) => "queue",
        () if s.prefill_s >= s.decode_s => "prefill compute",
        () => "decode bandwidth",
    };
    let mut found = Found { limiting, ..Found::default() };
    figures(&mut found, s, total);
    match found.limiting {
        "K/V pool" => pool_full(&mut found, evidence, s),
        "queue" => queue(&mut found, s, total),
        "prefill compute" => prefill(&mut found, s, total),
        _ => decode(&mut found, s, total),
    }
    let why = "a server has none: it computes forward only";
    found.refuse("--zero, --recompute, another optimizer", why.to_owned());
    Ok(found)
}

fn figures(found: &mut Found, s: &Serving, total: f64) {
    found.say(format!(
        "a request takes {}: queue {} ({:.0} %), prefill {} ({:.0} %), decode {} ({:.0} %)",
        ms(total),
        ms(s.queue_s),
        percent(s.queue_s, total),
        ms(s.prefill_s),
        percent(s.prefill_s, total),
        ms(s.decode_s),
        percent(s.decode_s, total)
    ));
    found.say(format!(
        "{:.0} requests of {:.0} tokens in and {:.0} out on average; {:.0} preempted; {:.0} run and \
         {:.0} wait now; {:.0} % of the K/V pool is held now",
        s.requests,
        s.prompt_tokens,
        s.generated_tokens,
        s.preemptions,
        s.running,
        s.waiting,
        100.0 * s.kv_use
    ));
    if let Some(n) = s.sequences_per_step {
        let step = s.decode_step_s.map_or(String::new(), |t| format!(", {} a decode step", ms(t)));
        found.say(format!("{n:.1} sequences a step{step}"));
    }
}

fn pool_full(found: &mut Found, evidence: &Evidence, s: &Serving) {
    found.verdict = format!(
        "sequences find no pages: {:.0} were sent back to wait and read their tokens again",
        s.preemptions
    );
    let pool = evidence.terms.of("K/V cache");
    let bytes = if pool > 0 { format!(", {}", both(pool)) } else { String::new() };
    let waits = s.queue_s + s.prefill_s;
    let costs = format!("memory: as much again as the pool{bytes}");
    found.quicker("twice --kv-tokens", waits, &costs, "preemptions must stop rising; the queue");
    let costs = "others wait in the queue instead";
    found.quicker("half --max-sequences", s.prefill_s, costs, "preemptions, and the queue's share");
    let costs = "longer texts are refused";
    found.quicker("shorter contexts", waits / 2.0, costs, "preemptions");
    found.refuse(FEWER_KV_BITS, KV_QUALITY.to_owned());
    let why = "weights keep no page from a sequence, unless their bytes are given to the pool";
    found.refuse(FEWER_BITS, why.to_owned());
    let why = "more sequences at a time want more pages: they are what lacks";
    found.refuse("more --max-sequences", why.to_owned());
}

fn queue(found: &mut Found, s: &Serving, total: f64) {
    found.verdict = "requests wait for a place: more arrive than run side by side".to_owned();
    let costs = "K/V and a little of everybody's time a token";
    let recheck = "time a token; preemptions, which say that the pool is too small";
    found.quicker("twice --max-sequences", s.queue_s / 2.0, costs, recheck);
    let costs = "another copy of weights and pool, and cores of its own";
    found.quicker("a second replica", s.queue_s / 2.0, costs, "the queue on both");
    let half = (s.queue_s + s.decode_s) / 2.0;
    found.quicker("answers half as long", half, "shorter texts", "the queue");
    let prefill = percent(s.prefill_s, total);
    found.refuse("larger --step-tokens", format!("reading prompts is {prefill:.0} % of the time"));
    let why = format!("no sequence lacks pages: {:.0} were preempted", s.preemptions);
    found.refuse("more --kv-tokens", why);
}

fn prefill(found: &mut Found, s: &Serving, total: f64) {
    found.verdict =
        "reading prompts takes most of the time: products over all their tokens".to_owned();
    let hits = percent(s.prefix_hits, s.prefix_queries);
    let left = s.prefill_s * (1.0 - hits / 100.0);
    found.say(format!("{hits:.0} % of prompt tokens were found in the prefix cache"));
    let change = "what prompts share, put first in them";
    found.quicker(change, left, "nothing, where they share a beginning", "prefix cache hits");
    found.quicker("prompts half as long", s.prefill_s / 2.0, "what is left out", "answers");
    let costs = "cores; the products are shared out among workers";
    found.quicker("twice the cores", s.prefill_s / 2.0, costs, "time to first token");
    let decode = percent(s.decode_s, total);
    found.refuse(
        "--draft-tokens",
        format!("it shortens decode, which is {decode:.0} % of the time"),
    );
    let why = format!("keys and values are read in decode, which is {decode:.0} % of the time");
    found.refuse(FEWER_KV_BITS, why);
    let queue = percent(s.queue_s, total);
    found.refuse("more --max-sequences", format!("requests wait {queue:.0} % of the time only"));
}

fn decode(found: &mut Found, s: &Serving, total: f64) {
    let sequences = s.sequences_per_step.unwrap_or(s.running.max(1.0));
    found.verdict = format!(
        "writing answers takes most of the time: each step reads all weights for {sequences:.1} \
         sequences"
    );
    let costs = "latency of each stays; the machine's time is shared by more";
    let change = "more requests at a time";
    found.quicker(change, s.decode_s / 2.0, costs, "tokens/s of all together; the knee of a plan");
    let costs = "nothing in the answers; arithmetic where guesses fail";
    let guesses = s.decode_s * 4.0 / 5.0;
    found.quicker(
        "--draft-tokens 4",
        guesses,
        costs,
        "accepted guesses: texts that repeat themselves",
    );
    found.quicker("answers half as long", s.decode_s / 2.0, "shorter texts", "answers");
    found.refuse(FEWER_BITS, QUALITY.to_owned());
    let prefill = percent(s.prefill_s, total);
    found.refuse(
        "shared beginnings of prompts",
        format!("reading them is {prefill:.0} % of the time"),
    );
    let why = format!("no sequence lacks pages: {:.0} were preempted", s.preemptions);
    found.refuse("more --kv-tokens", why);
}

/// What limits a step where it is not arithmetic; none where that is not known.
pub(super) fn training(t: &Training) -> Option<Found> {
    let step = t.step_s?;
    let (sent, data) = (t.communication_s.unwrap_or(0.0), t.data_s.unwrap_or(0.0));
    if sent.max(data) < NOT_ARITHMETIC * step {
        return None;
    }
    let mut found = Found::default();
    let rest = step - sent - data;
    found.say(format!(
        "a step takes {}: communication {} ({:.0} %), data {} ({:.0} %), the rest {}",
        ms(step),
        ms(sent),
        percent(sent, step),
        ms(data),
        percent(data, step),
        ms(rest)
    ));
    if sent >= data {
        found.limiting = "communication";
        found.verdict =
            format!("{} ranks send more than they compute: the network limits the step", t.ranks);
        let costs = "larger steps: recheck the learning rate; no memory";
        let change = "twice --accumulate, at stages 0 and 1";
        found.quicker(change, sent / 2.0, costs, "communication a token");
        let costs = "memory: weights, or gradients too, whole on each rank";
        let change = "stage 1 instead of 3, where it fits";
        found.quicker(change, sent / 4.0, costs, "`autoreg plan train --zero 1`: whether it fits");
        let costs = "activations";
        found.quicker("twice --batch", sent / 2.0, costs, "memory; communication a token");
        let why = "each rank sends (N-1)/N of the same bytes, however many there are";
        found.refuse("more ranks", why.to_owned());
        let why = "it saves memory for arithmetic; the network waits for neither";
        found.refuse("--recompute", why.to_owned());
    } else {
        found.limiting = "data loading";
        found.verdict = "the step waits for its data".to_owned();
        found.quicker("data prepared beforehand, mapped", data, "disk", "the wait for data");
        let why = "the step is not bound by arithmetic".to_owned();
        found.refuse("lower precision", why);
    }
    Some(found)
}
