//! Two measurements beside each other: which term changed, by how much, and whether it helped.

use super::{Evidence, Quality, diagnose, ms, percent};
use crate::{Balance, Error, both};
use serde::Serialize;
use std::fmt::Write;

/// A part before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The part.
    pub name: String,
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
    /// After less before.
    pub difference: f64,
}

impl Change {
    fn new(name: &str, before: f64, after: f64) -> Change {
        Change { name: name.to_owned(), before, after, difference: after - before }
    }
}

/// Two measurements beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where the first came from.
    pub before: String,
    /// Where the second came from.
    pub after: String,
    /// How things stand after the change: bytes by term, what limits now, what to change next.
    #[serde(flatten)]
    pub balance: Balance,
    /// Bytes by term before and after; the differences add up to that of the total.
    pub bytes: Vec<Change>,
    /// All bytes.
    pub all_bytes: Change,
    /// Milliseconds of a request or a step by part; they add up too.
    pub milliseconds: Vec<Change>,
    /// All of them.
    pub total_ms: Option<Change>,
    /// Tokens/s.
    pub tokens_per_second: Option<Change>,
    /// Validation loss, nats a token.
    pub valid_loss: Option<Change>,
    /// Perplexity of a text by the model before and the one after, where it was measured.
    pub perplexity: Option<Change>,
    /// All that was measured of that.
    pub quality: Option<Quality>,
    /// The term or part that changed most.
    pub changed_term: String,
    /// What limited before.
    pub limited_before: String,
    /// Whether what limited before has become less; none where it is not known.
    pub worked: Option<bool>,
    /// In sentences.
    pub verdict: String,
}

/// From this share on, less is less.
const LESS: f64 = 0.95;

/// Sets two measurements against each other.
///
/// # Errors
/// Evidence in which nothing was done yet; two of different kinds.
pub fn compare(before: &Evidence, after: &Evidence) -> Result<Comparison, Error> {
    compare_knowing(before, after, None)
}

/// The same with what the change was measured to cost in quality.
///
/// # Errors
/// As [`compare`].
pub fn compare_knowing(
    before: &Evidence,
    after: &Evidence,
    quality: Option<Quality>,
) -> Result<Comparison, Error> {
    let kind = |trains: bool| if trains { "a training" } else { "a server or a generation" };
    if before.trains() != after.trains() {
        return Err(Error::Unanswerable(format!(
            "{} is {}, {} is {}; give two of a kind",
            before.source,
            kind(before.trains()),
            after.source,
            kind(after.trains())
        )));
    }
    let (bytes, all_bytes) = bytes_of_both(before, after)?;
    let milliseconds = times(before, after);
    let sum = |of: fn(&Change) -> f64| milliseconds.iter().map(of).sum::<f64>();
    let total_ms = (!milliseconds.is_empty())
        .then(|| Change::new("total", sum(|c| c.before), sum(|c| c.after)));
    if bytes.is_empty() && total_ms.is_none() {
        return Err(Error::Unanswerable(format!(
            "{} and {}: nothing is known of both; give two of a kind",
            before.source, after.source
        )));
    }
    let speed = |e: &Evidence| match (&e.serving, &e.training) {
        (Some(s), _) => {
            let total = s.queue_s + s.prefill_s + s.decode_s;
            (total > 0.0).then(|| s.generated_tokens / total)
        }
        (None, Some(t)) => t.tokens_per_second,
        (None, None) => None,
    };
    let loss = |e: &Evidence| e.training.as_ref().and_then(|t| t.valid_loss);
    let pair = |name, of: &dyn Fn(&Evidence) -> Option<f64>| {
        of(before).zip(of(after)).map(|(b, a)| Change::new(name, b, a))
    };
    let limiting = diagnose(before)?.balance.limiting_term;
    // Where nothing limits yet, there are bytes all the same.
    let balance = diagnose(after).map(|found| found.balance).or_else(|_| after.balance())?;
    let parts = if milliseconds.is_empty() { &bytes } else { &milliseconds };
    let largest = |a: &&Change, b: &&Change| a.difference.abs().total_cmp(&b.difference.abs());
    let changed = parts.iter().max_by(largest).filter(|c| c.difference != 0.0);
    let changed_term = changed.map_or("nothing".to_owned(), |c| c.name.clone());
    let was = part_of(&limiting, &bytes, &milliseconds);
    let worked = was.map(|c| c.after < LESS * c.before);
    let mut verdict = verdict(&limiting, was, &bytes, &milliseconds);
    quality.iter().for_each(|q| verdict += &format!(". Quality: {}", q.cost()));
    let perplexity =
        quality.as_ref().map(|q| Change::new("perplexity", q.perplexity, q.perplexity_instead));
    Ok(Comparison {
        perplexity,
        quality,
        before: before.source.clone(),
        after: after.source.clone(),
        tokens_per_second: pair("tokens/s", &speed),
        valid_loss: pair("validation loss", &loss),
        changed_term,
        limited_before: limiting,
        worked,
        verdict,
        balance,
        bytes,
        all_bytes,
        milliseconds,
        total_ms,
    })
}

/// Bytes by term, what no term explains among them.
fn bytes_of_both(before: &Evidence, after: &Evidence) -> Result<(Vec<Change>, Change), Error> {
    let mut names: Vec<&str> = Vec::new();
    for term in before.terms.0.iter().chain(&after.terms.0) {
        if !names.contains(&term.name.as_str()) {
            names.push(&term.name);
        }
    }
    let of = |e: &Evidence, name: &str| e.terms.of(name) as f64;
    let mut all: Vec<Change> =
        names.iter().map(|name| Change::new(name, of(before, name), of(after, name))).collect();
    let (was, is) = (before.terms.total()? as f64, after.terms.total()? as f64);
    let peaks = before.peak_bytes.zip(after.peak_bytes);
    let (was, is) = match peaks.filter(|_| !all.is_empty()) {
        Some((was_peak, is_peak)) => {
            let (was_peak, is_peak) = (was_peak as f64, is_peak as f64);
            all.push(Change::new("unexplained", was_peak - was, is_peak - is));
            (was_peak, is_peak)
        }
        None => (was, is),
    };
    Ok((all, Change::new("total", was, is)))
}

fn times(before: &Evidence, after: &Evidence) -> Vec<Change> {
    let change = |name, b: f64, a: f64| Change::new(name, 1e3 * b, 1e3 * a);
    if let (Some(b), Some(a)) = (&before.serving, &after.serving) {
        return vec![
            change("queue", b.queue_s, a.queue_s),
            change("prefill", b.prefill_s, a.prefill_s),
            change("decode", b.decode_s, a.decode_s),
        ];
    }
    let (Some(b), Some(a)) = (&before.training, &after.training) else { return Vec::new() };
    let (Some(was), Some(is)) = (b.step_s, a.step_s) else { return Vec::new() };
    let other = |t: &super::Training| (t.communication_s.unwrap_or(0.0), t.data_s.unwrap_or(0.0));
    let ((was_sent, was_data), (is_sent, is_data)) = (other(b), other(a));
    let mut all = vec![change("arithmetic", was - was_sent - was_data, is - is_sent - is_data)];
    if was_sent + is_sent > 0.0 {
        all.push(change("communication", was_sent, is_sent));
    }
    if was_data + is_data > 0.0 {
        all.push(change("data", was_data, is_data));
    }
    all
}

/// The part that a limiting resource stands for.
fn part_of<'a>(limiting: &str, terms: &'a [Change], times: &'a [Change]) -> Option<&'a Change> {
    let time = |name: &str| times.iter().find(|c| c.name == name);
    let term = |name: &str| terms.iter().find(|c| c.name == name);
    match limiting {
        "queue" => time("queue"),
        "prefill compute" => time("prefill"),
        "decode bandwidth" => time("decode"),
        "communication" => time("communication").or_else(|| term("communication")),
        "data loading" => time("data").or_else(|| term("data")),
        // Waiting for pages is time where there are times.
        "K/V pool" => time("queue").or_else(|| term("K/V cache")),
        "optimizer state" => term("optimizer"),
        other => term(other),
    }
}

fn verdict(limiting: &str, was: Option<&Change>, terms: &[Change], times: &[Change]) -> String {
    let mut out = match was {
        None => format!("{limiting} limited; it is not known after"),
        Some(c) if c.after < LESS * c.before => format!(
            "the change worked: {limiting} limited, and its part fell by {:.0} %",
            percent(-c.difference, c.before)
        ),
        Some(c) if c.after > c.before / LESS => format!(
            "the change did not help: {limiting} limited, and its part grew by {:.0} %",
            percent(c.difference, c.before)
        ),
        Some(_) => format!("the change did nothing to {limiting}, which limits"),
    };
    let grown: f64 = terms.iter().map(|c| c.difference).sum();
    if times.is_empty() && grown.abs() > 0.0 {
        let part = |name: &str| terms.iter().find(|c| c.name == name).map_or(0.0, |c| c.difference);
        let share = |name: &str| percent(part(name), grown);
        let (kv, work) = (part("K/V cache"), part("workspace") + part("activations"));
        if kv.abs() + work.abs() > 0.9 * grown.abs() && part("weights") == 0.0 {
            let _ = write!(
                out,
                ". Memory changed by K/V ({:.0} %) and temporary activations ({:.0} %); weights are \
                 the same, and there are no gradients",
                share("K/V cache"),
                share("workspace") + share("activations")
            );
        }
    }
    out
}

impl Comparison {
    /// The comparison for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("before: {}\nafter:  {}\n\n", self.before, self.after);
        let signed = |c: &Change| {
            let sign = if c.difference < 0.0 { "-" } else { "+" };
            format!("{sign}{}", both(c.difference.abs() as u64))
        };
        if !self.bytes.is_empty() {
            for c in self.bytes.iter().chain([&self.all_bytes]) {
                let (before, after) = (bytes_of(c.before), bytes_of(c.after));
                let _ = writeln!(out, "{:<17}{before:>13}{after:>13}{:>35}", c.name, signed(c));
            }
        }
        for c in self.milliseconds.iter().chain(&self.total_ms) {
            let (before, after) = (ms(c.before / 1e3), ms(c.after / 1e3));
            let _ =
                writeln!(out, "{:<17}{before:>13}{after:>13}{:>+14.1} ms", c.name, c.difference);
        }
        for c in self.tokens_per_second.iter().chain(&self.valid_loss).chain(&self.perplexity) {
            let _ = writeln!(
                out,
                "{:<17}{:>13.3}{:>13.3}{:>+14.3}",
                c.name, c.before, c.after, c.difference
            );
        }
        let _ = writeln!(out, "\nchanged most: {}", self.changed_term);
        out + &crate::wrapped("", &self.verdict)
    }
}

/// Bytes of either sign in few columns.
fn bytes_of(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "" };
    format!("{sign}{}", crate::binary(bytes.abs() as u64))
}
