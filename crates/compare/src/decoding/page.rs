//! The findings as one page that needs nothing but itself: no script, nothing fetched.

use maud::{Markup, html};
use page::Frame;

use super::{CONFIDENCE, Findings, Measure, Row, TITLE};
use crate::chart::{IntervalRow, Intervals, Point, Points, swatch};
use crate::report::STYLE;
use crate::report::numbers::{bracket, fixed, minus};

/// What this page has beyond the style of reports.
const MORE: &str = ".examples td{text-align:left;vertical-align:top;overflow-wrap:anywhere}\
.examples th{white-space:nowrap;vertical-align:top}";

/// The findings as a page.
pub fn html(found: &Findings) -> String {
    let title = capital(TITLE);
    let body = html! {
        header {
            p class="over" { "Decoding comparison" (synthetic(found)) }
            h1 { (title) }
            p class="lead" { (found.lead()) "." }
        }
        main { (table(found)) (figures(found)) (examples(found)) (method(found)) }
        footer { p {
            "Made by autoreg " (found.study.facts.version)
            @if found.study.facts.synthetic { " from " strong { "synthetic data" } }
            ". Every number in it was measured."
        } }
    };
    Frame { title: &title, styles: &[STYLE, MORE], ..Frame::default() }.page(&body)
}

fn capital(text: &str) -> String {
    let mut signs = text.chars();
    signs
        .next()
        .map_or(String::new(), |first| first.to_uppercase().collect::<String>() + signs.as_str())
}

fn synthetic(found: &Findings) -> Markup {
    html! { @if found.study.facts.synthetic { " " span class="badge" { "synthetic data" } } }
}

fn mark(row: &Row) -> Markup {
    html! { @if let Some(series) = row.series { (swatch(series)) } (row.name) }
}

fn table(found: &Findings) -> Markup {
    html! {
        section id="results" {
            h2 { "What each rule writes" (synthetic(found)) }
            div class="scroll" {
                table {
                    thead { tr {
                        th { "Rule" }
                        @for measure in Measure::ALL { th { (measure.heading()) } }
                    } }
                    tbody {
                        @for row in &found.rows {
                            tr class=[row.series.is_none().then_some("anchor")] {
                                th scope="row" { (mark(row)) }
                                @for measure in Measure::ALL { (cell(row, measure)) }
                            }
                        }
                    }
                }
            }
            @if let Some(note) = found.note() { p class="note" { strong { "Note: " } (note) "." } }
            p class="note" {
                "Under each mean its " (format!("{:.0} %", 100.0 * CONFIDENCE))
                " interval. The reference is what the messages truly go on with, scored by the same model."
            }
        }
    }
}

fn cell(row: &Row, measure: Measure) -> Markup {
    let decimals = measure.decimals();
    html! {
        td data-label=(measure.heading()) {
            @if let Some(value) = row.value(measure) {
                span { (minus(&fixed(value.mean, decimals))) }
                small {
                    @if let Some(interval) = value.interval { (minus(&bracket(interval, decimals))) }
                    @else { "–" }
                }
            } @else { span { "–" } }
        }
    }
}

fn figures(found: &Findings) -> Markup {
    let captions = [
        (
            Measure::LogProbability,
            "What the model itself thinks of the text, before any rule. A search and a low temperature write what it finds likelier than the messages themselves.",
        ),
        (
            Measure::Repetition,
            "Share of runs of four tokens that the same text had before. Texts of fewer than four tokens are left out.",
        ),
        (
            Measure::DistinctPooled,
            "Distinct pairs over all texts together: how far the texts differ from each other. Longer texts have fewer.",
        ),
        (Measure::Overlap, "F1 of the tokens of text and true continuation, whatever their order."),
        (Measure::Length, "Tokens, the end not counted."),
        (
            Measure::Milliseconds,
            "Wall time of each text, prompt included, above its tokens; the rules took turns on every prompt.",
        ),
    ];
    html! {
        section id="figures" {
            h2 { "Same weights, different outputs" (synthetic(found)) }
            ul class="legend" aria-label="Legend" {
                @for row in &found.rows { li { (mark(row)) } }
            }
            div class="figures" {
                (figure("Likely or diverse", scatter(found), "Each rule's place between likelihood under the model (right is likelier) and diversity within its texts (up is more diverse). The reference is the dot in the colour of the text: rules near it write as the messages are written."))
                @for (measure, caption) in captions {
                    (figure(measure.heading(), intervals(found, measure), caption))
                }
            }
        }
    }
}

fn figure(title: &str, chart: Option<Markup>, caption: &str) -> Markup {
    html! {
        @if let Some(chart) = chart {
            figure { h3 { (title) } (chart) figcaption { (caption) } }
        }
    }
}

fn scatter(found: &Findings) -> Option<Markup> {
    let point = |row: &Row| {
        let x = row.value(Measure::LogProbability)?;
        let y = row.value(Measure::Distinct2)?;
        Some(Point {
            series: row.series,
            name: row.name.to_owned(),
            x: (x.mean, x.ends()),
            y: (y.mean, y.ends()),
        })
    };
    Points {
        name: "Distinct-2 over log-probability".to_owned(),
        x: "log-probability a token, nats".to_owned(),
        y: "distinct-2".to_owned(),
        points: found.rows.iter().filter_map(point).collect(),
    }
    .draw()
}

fn intervals(found: &Findings, measure: Measure) -> Option<Markup> {
    let row = |row: &Row| {
        let value = row.value(measure)?;
        Some(IntervalRow {
            label: row.name.to_owned(),
            note: minus(&fixed(value.mean, measure.decimals())),
            series: row.series,
            mean: value.mean,
            interval: value.ends(),
            dots: Vec::new(),
        })
    };
    Intervals {
        name: measure.heading().to_owned(),
        x: measure.heading().to_lowercase(),
        band: None,
        rows: found.rows.iter().filter_map(row).collect(),
    }
    .draw()
}

fn examples(found: &Findings) -> Markup {
    let study = found.study;
    html! {
        @if !study.examples.is_empty() {
            section id="examples" {
                h2 { "Read for yourself" (synthetic(found)) }
                @for example in &study.examples {
                    h3 { "After “" (example.prompt) "”" }
                    div class="scroll" { table class="examples" { tbody {
                        tr class="anchor" { th { "reference" } td { (example.reference) } }
                        @for (row, text) in found.rows.iter().skip(1).zip(&example.texts) {
                            tr { th { (mark(row)) } td { (text) } }
                        }
                    } } }
                }
            }
        }
    }
}

fn method(found: &Findings) -> Markup {
    let facts = &found.study.facts;
    html! {
        section id="method" {
            h2 { "How it was measured" }
            dl {
                @for row in found.rows.iter().skip(1) { dt { (mark(row)) } dd { (row.rule) } }
                dt { "Weights" } dd { "SHA-256 " (facts.digest) }
                dt { "Machine" } dd {
                    (facts.machine.processor) " (" (facts.machine.instruction_set) "), "
                    (facts.machine.threads) " threads"
                }
            }
            ul class="method" {
                li { "Every rule continues the same prompts, the first " (facts.prompt_tokens) " tokens of messages that the model was not trained on, with the same uniform numbers. Prompts are drawn evenly over groups: no group gives a second before each has given one." }
                li { "Intervals resample groups of prompts with replacement; the one of distinct-2 over all texts leaves out one group at a time, because a resample would count copies." }
                li { "Distinct-n: distinct runs of n tokens of a text above all its runs, mean over texts." }
                li { "Log-probability: the model's own, before any rule, over all tokens and the end." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_escaped_and_asks_nothing_of_the_network() {
        let study = super::super::tests::study();
        let page = html(&Findings::new(&study));
        assert!(page.contains("Inference choices: same weights, different outputs"));
        assert!(page.contains("invented &lt;mail&gt;") && page.contains("please &lt;send&gt;"));
        assert_eq!(page.matches("<figure>").count(), 7);
        assert!(page.matches("synthetic data").count() > 3 && !page.contains("NaN"));
        for word in ["<script", "http://", "https://", "src=", "url("] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
