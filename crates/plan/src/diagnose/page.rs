//! A diagnosis, or two measurements beside each other, as one self-contained page; a
//! diagnosis has sliders where bytes are known.

use super::{Change, Comparison, Diagnosis, Evidence, ms};
use crate::Sheet;
use crate::both;
use crate::sheet::STYLE;
use crate::term::Terms;
use maud::{Markup, html};
use page::{Frame, Stack, stacks};

/// The page of a diagnosis and of what it was made from.
pub fn diagnosis_page(evidence: &Evidence, found: &Diagnosis) -> String {
    let known = evidence.what_if.as_ref().map(|v| Sheet::carried(v, found.balance.budget_bytes));
    let proportional = known.is_none();
    let sheet = known.unwrap_or_else(|| Sheet::measured(&found.balance));
    let times = parts_of_time(evidence);
    let body = html! {
        header {
            h1 { "Limiting: " (found.balance.limiting_term) }
            p.facts { (found.source) }
        }
        main {
            section { p { (capital(&found.verdict)) "." } ul { @for line in &found.evidence { li { (line) } } } }
            @if !times.is_empty() {
                section {
                    h2 { "Where the time goes" }
                    (stacks(&[stack("", &times, ms)]))
                    (shares(&times, ms))
                }
            }
            @if found.balance.total_bytes > 0 {
                section {
                    h2 { "Where the bytes are" }
                    @if proportional {
                        noscript { (bytes(&found.balance.terms)) }
                        p.facts #unknown-model { (PROPORTIONAL) }
                        (sheet.live())
                    } @else {
                        (bytes(&found.balance.terms))
                    }
                }
                @if !proportional {
                    section {
                        h2 { "At other settings" }
                        p.facts { (LISTED) }
                        (sheet.live())
                    }
                }
            }
            (levers(found))
            (refused(found))
        }
        (footer())
    };
    let title = format!("Limiting: {}", found.balance.limiting_term);
    match found.balance.total_bytes {
        0 => Frame { title: &title, styles: &[STYLE], ..Frame::default() }.page(&body),
        _ => sheet.framed(&title, &body),
    }
}

/// What is said where the model is not known.
const PROPORTIONAL: &str = "This source does not tell the numbers of its model (ledgers of this program's \
    serve and train do): the sliders move each term in proportion, and what does not grow stays.";
/// What is said where it is.
const LISTED: &str = "Predicted for the model that ran, by the lists and formulas of a plan; the sliders \
    begin at the settings that ran, with whole batches and full contexts.";

fn bytes(terms: &Terms) -> Markup {
    html! {
        (stacks(&[stack("", &of_terms(terms), |b| both(b as u64))]))
        (shares(&of_terms(terms), |b| both(b as u64)))
    }
}

/// The page of two measurements.
pub fn comparison_page(found: &Comparison) -> String {
    let pair = |of: fn(&Change) -> f64, changes: &[Change]| -> Vec<(String, f64)> {
        changes.iter().map(|change| (change.name.clone(), of(change))).collect()
    };
    let bars = |changes: &[Change], words: fn(f64) -> String| {
        let (before, after) = (pair(|c| c.before, changes), pair(|c| c.after, changes));
        stacks(&[stack("before", &before, words), stack("after", &after, words)])
    };
    let body = html! {
        header {
            h1 { (if found.worked == Some(true) { "The change worked" } else { "What changed" }) }
            p.facts { "before: " (found.before) }
            p.facts { "after: " (found.after) }
        }
        main {
            section { p { (capital(&found.verdict)) "." } p { "Changed most: " (found.changed_term) "." } }
            @if let Some(total) = &found.total_ms {
                section {
                    h2 { "Time" }
                    (bars(&found.milliseconds, |t| ms(t / 1e3)))
                    (changes(found.milliseconds.iter().chain([total]), |t| ms(t / 1e3 + 0.0)))
                }
            }
            @if !found.bytes.is_empty() {
                section {
                    h2 { "Bytes" }
                    (bars(&found.bytes, |b| both(b.max(0.0) as u64)))
                    (changes(found.bytes.iter().chain([&found.all_bytes]), signed))
                }
            }
            @let quality: Vec<&Change> = found.valid_loss.iter().chain(&found.perplexity).collect();
            @if let Some(speed) = &found.tokens_per_second {
                section { h2 { "Throughput" } (changes([speed].into_iter(), |x| format!("{x:.1}"))) }
            }
            @if !quality.is_empty() {
                section { h2 { "Quality" } (changes(quality.into_iter(), |x| format!("{x:.4}"))) }
            }
        }
        (footer())
    };
    Frame { title: "What changed", styles: &[STYLE], ..Frame::default() }.page(&body)
}

fn footer() -> Markup {
    html! { footer { p { "Made by autoreg. GB is 10^9 bytes, GiB 2^30. Everything on this page is in this file." } } }
}

fn capital(text: &str) -> String {
    let mut signs = text.chars();
    signs.next().map_or(String::new(), |c| c.to_uppercase().collect::<String>() + signs.as_str())
}

fn signed(bytes: f64) -> String {
    format!("{}{}", if bytes < 0.0 { "-" } else { "" }, both(bytes.abs() as u64))
}

/// (part, seconds) of a request, or of a step.
fn parts_of_time(evidence: &Evidence) -> Vec<(String, f64)> {
    let named = |parts: &[(&str, f64)]| {
        let some = parts.iter().filter(|(_, seconds)| *seconds > 0.0);
        some.map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect()
    };
    match (&evidence.serving, &evidence.training) {
        (Some(s), _) => {
            named(&[("queue", s.queue_s), ("prefill", s.prefill_s), ("decode", s.decode_s)])
        }
        (None, Some(t)) => t.step_s.map_or_else(Vec::new, |step| {
            let (sent, data) = (t.communication_s.unwrap_or(0.0), t.data_s.unwrap_or(0.0));
            named(&[("arithmetic", step - sent - data), ("communication", sent), ("data", data)])
        }),
        (None, None) => Vec::new(),
    }
}

fn of_terms(terms: &Terms) -> Vec<(String, f64)> {
    terms.0.iter().map(|term| (term.name.clone(), term.bytes as f64)).collect()
}

fn stack(name: &str, parts: &[(String, f64)], words: impl Fn(f64) -> String) -> Stack {
    let part = |(name, value): &(String, f64)| (name.clone(), *value, words(*value));
    Stack { name: name.to_owned(), parts: parts.iter().map(part).collect() }
}

/// Parts in words, and as shares of their sum.
fn shares(parts: &[(String, f64)], words: impl Fn(f64) -> String) -> Markup {
    let total: f64 = parts.iter().map(|(_, value)| value).sum();
    html! {
        div.scroll { table { tbody { @for (name, value) in parts {
            tr {
                td { (name) }
                td { (words(*value)) }
                td { (format!("{:.1} %", 100.0 * value / total.max(f64::MIN_POSITIVE))) }
            }
        } } } }
    }
}

fn levers(found: &Diagnosis) -> Markup {
    html! {
        @if !found.balance.levers.is_empty() {
            section {
                h2 { "What to change, the largest predicted gain first" }
                @for lever in &found.balance.levers {
                    h3 { (lever.change) }
                    p {
                        "Gain: " (lever.gain()) " less"
                        ". Costs: " (lever.costs) ". Recheck: " (lever.recheck) "."
                    }
                }
            }
        }
    }
}

fn refused(found: &Diagnosis) -> Markup {
    html! {
        @if !found.refused.is_empty() {
            section {
                h2 { "What would not help" }
                ul { @for refusal in &found.refused { li { strong { (refusal.change) } ": " (refusal.why) } } }
            }
        }
    }
}

fn changes<'a>(rows: impl Iterator<Item = &'a Change>, words: impl Fn(f64) -> String) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "part" } th { "before" } th { "after" } th { "difference" } } }
            tbody { @for row in rows {
                tr { td { (row.name) } td { (words(row.before)) } td { (words(row.after)) } td { (words(row.difference)) } }
            } }
        } }
    }
}
