//! Teacher forcing beside free running, step by step: a table for the terminal and one for the
//! page, with the first divergence marked.

use std::fmt::Write;

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::terminal::{CYAN, Picture, paint};
use crate::token::{column, visible};

/// A true text beside what a model predicts on it and what it writes by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherRecord {
    /// The first step at which the free text is not the true one; none if it never leaves it.
    pub first_divergence: Option<usize>,
    /// Log-probability of the true text, nats; −inf ("-inf" in JSON) if a token is impossible.
    #[serde(with = "logprob")]
    pub truth_logprob: f64,
    /// A step a true token.
    pub steps: Vec<TeacherStep>,
}

/// One step of both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherStep {
    /// The true token and its log-probability after the true prefix.
    pub truth: Predicted,
    /// Its place in the model's order there, from 1.
    pub truth_rank: u32,
    /// What the rules choose after the true prefix.
    pub forced: Predicted,
    /// What they choose after the model's own prefix; none where its text has ended.
    pub free: Option<Predicted>,
}

/// A token and what the model thinks of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The token.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Its log-probability under the model, nats; −inf ("-inf" in JSON) if it is impossible.
    #[serde(with = "logprob")]
    pub logprob: f64,
}

/// A log-probability in JSON, which has no infinity: the text "-inf" stands for an impossible token.
mod logprob {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { to.serialize_f64(*value) } else { to.serialize_str("-inf") }
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Told {
        Number(f64),
        Text(String),
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        match Told::deserialize(from)? {
            Told::Number(value) => Ok(value),
            Told::Text(text) if text == "-inf" => Ok(f64::NEG_INFINITY),
            Told::Text(text) => Err(D::Error::custom(format!("found {text:?}, expected \"-inf\""))),
        }
    }
}

impl TeacherRecord {
    fn num_right(&self, side: impl Fn(&TeacherStep) -> Option<&Predicted>) -> usize {
        let right = |step: &&TeacherStep| side(step).is_some_and(|one| one.id == step.truth.id);
        self.steps.iter().filter(right).count()
    }

    /// The sentences under the table.
    fn summary(&self) -> [String; 2] {
        let (count, sum) = (self.steps.len(), self.truth_logprob);
        let mean = -sum / count.max(1) as f64;
        let forced = self.num_right(|step| Some(&step.forced));
        let free = self.num_right(|step| step.free.as_ref());
        [
            format!(
                "true text: {count} tokens, {sum:.4} nats, {mean:.4} nats/token, perplexity {:.2}",
                mean.exp()
            ),
            format!(
                "the true token is chosen {forced} times on the true prefix, {free} on its own"
            ),
        ]
    }

    fn divergence(&self, step: usize) -> Option<String> {
        let one = self.steps.get(step).filter(|_| self.first_divergence == Some(step))?;
        let own = one.free.as_ref().map_or("ends".to_owned(), |free| {
            format!("writes {}", column(&free.text, 14).trim_end())
        });
        let truth = column(&one.truth.text, 14);
        Some(format!("first divergence: the model {own}, not {}", truth.trim_end()))
    }
}

/// Widths of a true token and of a prediction.
const WIDTHS: [usize; 2] = [17, 14];

/// The table for a terminal of 80 columns. Ends with a line end.
#[must_use]
pub fn teacher_terminal(record: &TeacherRecord, picture: Picture) -> String {
    let [wide, narrow] = WIDTHS;
    let mut out = format!(
        " step {:<wide$} {:>6}  {:<narrow$} {:>6}   {:<narrow$} {:>6}\n",
        "true token", "p", "on true prefix", "p", "on its own", "p"
    );
    for (place, step) in record.steps.iter().enumerate() {
        let divergence = record.divergence(place);
        let mark = if divergence.is_some() { '►' } else { ' ' };
        let truth = cell(&step.truth, WIDTHS[0]);
        let side = |one: &Predicted| {
            let sign = if one.id == step.truth.id { '✓' } else { ' ' };
            format!("{}{sign}", cell(one, WIDTHS[1]))
        };
        let free = step.free.as_ref().map_or("–".to_owned(), side);
        let line = format!("{mark}{place:>4} {truth}  {} {free}", side(&step.forced));
        let line = line.trim_end();
        let _ = match divergence {
            Some(words) => {
                writeln!(out, "{}", paint(picture, CYAN, &format!("{line}\n      └ {words}")))
            }
            None => writeln!(out, "{line}"),
        };
    }
    if record.first_divergence.is_none() {
        out += "no divergence: running free, the model writes the true text\n";
    }
    out + &record.summary().join("\n") + "\n"
}

fn cell(one: &Predicted, width: usize) -> String {
    format!("{} {:.4}", column(&one.text, width), one.logprob.exp())
}

/// The table on the page.
pub(crate) fn section(record: &Record) -> Markup {
    let Some(teacher) = &record.teacher else { return html! {} };
    html! {
        section aria-label="Teacher forcing against free running" {
            h2 { "Teacher forcing against free running" }
            p.hint {
                "Left the true text; then what is chosen when every step is given the true prefix, and \
                 when it is given the model's own. Same rules and same u; until the first divergence \
                 both are the same."
            }
            div.scroll { table.teacher {
                tr {
                    th { "step" } th.text { "true token" } th { "p" } th { "rank" }
                    th.text { "on the true prefix" } th { "p" }
                    th.text { "on its own prefix" } th { "p" }
                }
                @for (place, step) in teacher.steps.iter().enumerate() {
                    @let divergence = teacher.divergence(place);
                    tr.diverges[divergence.is_some()] {
                        td { (place) }
                        (predicted(&step.truth, None)) td { (step.truth_rank) }
                        (predicted(&step.forced, Some(step.truth.id)))
                        @if let Some(free) = &step.free { (predicted(free, Some(step.truth.id))) }
                        @else { td.text { "–" } td {} }
                    }
                    @if let Some(words) = divergence {
                        tr.diverges { td.note colspan="8" { "↑ " (words) } }
                    }
                }
            } }
            @for words in teacher.summary() { p.facts { (words) } }
        }
    }
}

/// Text and probability; marked where it is the true token.
fn predicted(one: &Predicted, truth: Option<u32>) -> Markup {
    html! {
        td.text { (visible(&one.text)) @if truth == Some(one.id) { " ✓" } }
        td { (format!("{:.4}", one.logprob.exp())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    fn token(id: u32, logprob: f64) -> Predicted {
        Predicted { id, text: format!(" a rather long word {id}"), logprob }
    }

    fn step(truth: u32, forced: u32, free: Option<u32>) -> TeacherStep {
        TeacherStep {
            truth: token(truth, -0.5),
            truth_rank: 2,
            forced: token(forced, -0.25),
            free: free.map(|id| token(id, -3.0)),
        }
    }

    fn record() -> TeacherRecord {
        let steps = vec![step(1, 1, Some(1)), step(2, 3, Some(3)), step(4, 4, None)];
        TeacherRecord { first_divergence: Some(1), truth_logprob: -1.5, steps }
    }

    #[test]
    fn the_first_divergence_is_marked_once_and_all_fits() {
        let text = teacher_terminal(&record(), Picture::default());
        assert_eq!((text.matches('►').count(), text.matches("first divergence").count()), (1, 1));
        assert!(text.lines().all(|line| line.width() <= 80), "{text}");
        let marked = text.lines().find(|line| line.starts_with('►'));
        assert!(marked.is_some_and(|line| line.starts_with("►   1")), "{text}");
        assert_eq!(text.matches('✓').count(), 3, "{text}");
        assert!(text.contains("chosen 2 times on the true prefix, 1 on its own"), "{text}");
        assert!(text.contains("-1.5000 nats, 0.5000 nats/token, perplexity 1.65"), "{text}");
        let same = TeacherRecord { first_divergence: None, ..record() };
        let text = teacher_terminal(&same, Picture::default());
        assert!(text.contains("no divergence") && !text.contains('►'), "{text}");
    }

    #[test]
    fn an_impossible_token_survives_json() {
        let mut record = record();
        record.steps[0].truth.logprob = f64::NEG_INFINITY;
        record.truth_logprob = f64::NEG_INFINITY;
        let text = serde_json::to_string(&record).unwrap_or_default();
        assert_eq!(text.matches("\"-inf\"").count(), 2, "{text}");
        assert_eq!(serde_json::from_str::<TeacherRecord>(&text).ok(), Some(record));
    }
}
