//! From what was measured to what limits it, what would change that, and whether a change worked.
//!
//! [`Evidence`] is read from a server's figures, a run folder, a ledger or a log; [`diagnose`] names
//! the limiting resource with its evidence, the levers in order of predicted gain, and refuses those
//! that cannot help; [`compare`] sets two against each other so that the parts add up. Nothing here
//! asks a server: the text of its figures is given.

mod compare;
mod evidence;
mod memory;
mod page;
mod prometheus;
mod time;

pub use compare::{Change, Comparison, compare, compare_knowing};
pub use evidence::{Evidence, Serving, Training};
pub use page::{comparison_page, diagnosis_page};

use crate::{Balance, Lever};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;

/// Something that would not help.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// What.
    pub change: String,
    /// Why not.
    pub why: String,
}

/// What limits, why, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Where the evidence came from.
    pub source: String,
    /// Bytes by term where they are known, the resource that limits, what to change.
    #[serde(flatten)]
    pub balance: Balance,
    /// In a sentence.
    pub verdict: String,
    /// The figures that say so.
    pub evidence: Vec<String>,
    /// What not to change.
    pub refused: Vec<Refusal>,
}

/// The limiting resource of what was measured: by time where times are known, else by memory.
///
/// # Errors
/// Evidence in which nothing was done yet.
pub fn diagnose(evidence: &Evidence) -> Result<Diagnosis, crate::Error> {
    diagnose_knowing(evidence, None)
}

/// The same with what fewer bits were measured to cost: they may then be advised.
///
/// # Errors
/// As [`diagnose`].
pub fn diagnose_knowing(
    evidence: &Evidence,
    quality: Option<&Quality>,
) -> Result<Diagnosis, crate::Error> {
    let mut found = match (&evidence.serving, &evidence.training) {
        (Some(serving), _) => time::serving(evidence, serving)?,
        (None, Some(training)) => match time::training(training) {
            Some(found) => found,
            None => memory::training(evidence)?,
        },
        (None, None) => memory::ledger(evidence)?,
    };
    if let Some(quality) = quality {
        fewer_bits(&mut found, evidence, quality);
    }
    let mut balance = evidence.balance()?;
    balance.limiting_term = found.limiting.to_owned();
    balance.set_levers(found.levers);
    let (verdict, figures) = (found.verdict, found.evidence);
    let (source, refused) = (evidence.source.clone(), found.refused);
    Ok(Diagnosis { source, balance, verdict, evidence: figures, refused })
}

/// Completes what a process tells of its bytes: every key of [`Balance`] that is not there yet, levers by
/// the same rules as a diagnosis of it.
///
/// # Errors
/// A ledger that is none.
pub fn complete(ledger: &mut Value, parameters: Option<u64>) -> Result<(), crate::Error> {
    let evidence = Evidence::of_ledger("the ledger", ledger)?;
    let mut balance = evidence.balance()?;
    balance.parameters = balance.parameters.or(parameters);
    balance.levers = match memory::ledger(&evidence) {
        Ok(found) => {
            balance.set_levers(found.levers);
            balance.levers
        }
        Err(_) => Vec::new(),
    };
    let Ok(Value::Object(keys)) = serde_json::to_value(&balance) else { return Ok(()) };
    if let Some(ledger) = ledger.as_object_mut() {
        for (key, value) in keys {
            ledger.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// What is kept in fewer bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bits {
    /// Weights.
    Weights,
    /// Keys and values.
    Kv,
}

/// What fewer bits cost on a text: measured, the one against the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Bits of what.
    pub bits: Bits,
    /// The model that is compared with.
    pub original: String,
    /// The model that would take its place.
    pub instead: String,
    /// The text.
    pub text: String,
    /// Tokens of it that were predicted.
    pub tokens: u64,
    /// Perplexity of the original.
    pub perplexity: f64,
    /// Perplexity of the other.
    pub perplexity_instead: f64,
    /// Mean divergence of the other's distribution from the original's, nats a token.
    pub divergence_nats: f64,
    /// Share of tokens at which both hold the same token most probable.
    pub same_best_share: f64,
    /// Bytes of the original's weights, or of its keys and values a token.
    pub bytes: u64,
    /// The same of the other.
    pub bytes_instead: u64,
}

impl Quality {
    /// The cost in a sentence.
    pub fn cost(&self) -> String {
        format!(
            "on {} tokens of {}: perplexity {:.3} instead of {:.3}, divergence {:.4} nats a token, \
             the same best token at {:.1} %",
            self.tokens,
            self.text,
            self.perplexity_instead,
            self.perplexity,
            self.divergence_nats,
            100.0 * self.same_best_share
        )
    }
}

/// Turns the refusal of fewer bits, where only their cost was not known, into advice.
fn fewer_bits(found: &mut Found, evidence: &Evidence, quality: &Quality) {
    let (bits, why) = match quality.bits {
        Bits::Weights => (FEWER_BITS, QUALITY),
        Bits::Kv => (FEWER_KV_BITS, KV_QUALITY),
    };
    let is = |refusal: &Refusal| refusal.change == bits && refusal.why == why;
    if !found.refused.iter().any(is) {
        return;
    }
    found.refused.retain(|refusal| !is(refusal));
    let change = format!("{} instead of {}", quality.instead, quality.original);
    let saved = quality.bytes.saturating_sub(quality.bytes_instead);
    let share = saved as f64 / quality.bytes.max(1) as f64;
    let (costs, recheck) = (quality.cost(), "the answers, and the perplexity of more of your text");
    match (&evidence.serving, quality.bits) {
        _ if saved == 0 => found.refuse(&change, "it takes no fewer bytes".to_owned()),
        (Some(serving), Bits::Weights) => {
            found.quicker(&change, serving.decode_s * share, &costs, recheck);
        }
        // In the same bytes the pool holds so many times more, up to all that is waited for.
        (Some(serving), Bits::Kv) => {
            let more = (quality.bytes as f64 / quality.bytes_instead.max(1) as f64 - 1.0).min(1.0);
            let waits = serving.queue_s + serving.prefill_s;
            found.quicker(&change, waits * more, &costs, recheck);
        }
        (None, Bits::Weights) => found.smaller(&change, saved, &costs, recheck),
        (None, Bits::Kv) => {
            let pool = evidence.terms.of("K/V cache") as f64;
            found.smaller(&change, (pool * share) as u64, &costs, recheck);
        }
    }
}

/// The changes that cost quality.
const FEWER_BITS: &str = "weights in fewer bits";
const FEWER_KV_BITS: &str = "K/V in fewer bits";

/// What a set of rules found.
#[derive(Default)]
struct Found {
    limiting: &'static str,
    verdict: String,
    evidence: Vec<String>,
    levers: Vec<Lever>,
    refused: Vec<Refusal>,
}

impl Found {
    fn say(&mut self, text: String) {
        self.evidence.push(text);
    }

    fn refuse(&mut self, change: &str, why: String) {
        self.refused.push(Refusal { change: change.to_owned(), why });
    }

    /// A lever on time.
    fn quicker(&mut self, change: &str, seconds: f64, costs: &str, recheck: &str) {
        self.lever(change, (Some(seconds), None), costs, recheck);
    }

    /// A lever on memory; not kept where nothing would be saved.
    fn smaller(&mut self, change: &str, bytes: u64, costs: &str, recheck: &str) {
        self.lever(change, (None, Some(bytes)), costs, recheck);
    }

    fn lever(
        &mut self,
        change: &str,
        (saves_seconds, saves_bytes): (Option<f64>, Option<u64>),
        costs: &str,
        recheck: &str,
    ) {
        self.levers.push(Lever {
            change: change.to_owned(),
            term: self.limiting.to_owned(),
            saves_bytes,
            total_bytes: None,
            saves_seconds,
            costs: costs.to_owned(),
            recheck: recheck.to_owned(),
        });
    }
}

/// What quantising takes before it is advised.
const QUALITY: &str = "not without its measured cost on your own text: give --original MODEL \
    --instead MODEL --text FILE";

/// The same for keys and values.
const KV_QUALITY: &str = "not without its measured cost on your own text: give --original MODEL \
    --kv f16 or q8 --text FILE";

/// A share in percent.
fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Seconds as milliseconds.
fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

impl Diagnosis {
    /// The diagnosis for a terminal.
    pub fn text(&self) -> String {
        let balance = &self.balance;
        let mut out = format!("limiting: {}\n", balance.limiting_term);
        out += &crate::wrapped("", &self.verdict);
        out.push('\n');
        self.evidence.iter().for_each(|line| out += &crate::wrapped("  ", line));
        if balance.total_bytes > 0 {
            out.push('\n');
            out += &crate::bars(&balance.terms, balance.total_bytes);
        }
        if !balance.levers.is_empty() {
            out += "\nwhat to change, the largest predicted gain first:\n";
        }
        for lever in &balance.levers {
            let gain = format!("gain: {} less; costs: {}", lever.gain(), lever.costs);
            out += &crate::wrapped("  ", &lever.change);
            out += &crate::wrapped("      ", &gain);
            out += &crate::wrapped("      ", &format!("recheck: {}", lever.recheck));
        }
        if !self.refused.is_empty() {
            out += "\nwhat would not help:\n";
        }
        for refusal in &self.refused {
            let _ = writeln!(out, "  {}", refusal.change);
            out += &crate::wrapped("      ", &refusal.why);
        }
        out
    }
}
