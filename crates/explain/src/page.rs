//! The same as one self-contained page: prefix row, bars, unit interval, sliders that work the
//! rules out again in the browser from the recorded logits, settings side by side. No network.

use ::page::{Data, Frame};
use maud::{Markup, html};

use crate::record::{Record, StepRecord};
use crate::teacher;
use crate::terminal::{Picture, terminal};
use crate::token::visible;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page as HTML text.
#[must_use]
pub fn page(record: &Record) -> String {
    let rules: Vec<_> = record.rules.iter().map(ToString::to_string).collect();
    let body = html! {
        header {
            h1 { "How the next token was chosen" }
            p.facts { (record.title) " · " (record.steps.len()) " steps" }
            p.facts {
                "Rules, in order: "
                @if rules.is_empty() { code { "none" } }
                @for (place, rule) in rules.iter().enumerate() {
                    @if place > 0 { " → " }
                    code { (rule) }
                }
            }
        }
        main { (prefix_row(record)) (teacher::section(record)) (live()) (side_by_side(record)) (without_script(record)) }
        footer {
            p #check {}
            p { "Made by autoreg. Everything on this page is in this file." }
        }
    };
    let title = format!("How the next token was chosen: {}", record.title);
    // Plain data with text keys always serialises.
    let json = serde_json::to_string(record).unwrap_or_default();
    let data = Some(Data { id: "record", json: &json });
    Frame { title: &title, styles: &[STYLE], data, script: Some(SCRIPT) }.page(&body)
}

fn prefix_row(record: &Record) -> Markup {
    html! {
        section aria-label="Prefix and choices" {
            p.tokens {
                @for text in &record.prompt { span.token { (visible(text)) } " " }
                @for (place, step) in record.steps.iter().enumerate() {
                    button.token.chosen type="button" data-step=(place) {
                        (visible(&step.text))
                    }
                    " "
                }
            }
            p.hint { "Grey is the given prefix; choose a coloured token to see its step." }
        }
    }
}

/// Containers that the script fills.
fn live() -> Markup {
    html! {
        section.live hidden {
            h2 #heading {}
            div.split {
                div {
                    p.legend {
                        span.key.model { "model" } span.key.tempered { "after temperature" }
                        span.key.drawn { "drawn from" } span.key.dropped { "dropped" }
                    }
                    div #bars {}
                }
                div.controls {
                    (slider("temperature", "Temperature", "0", "3", "0.05"))
                    (slider("top_k", "Top-k (0 keeps all)", "0", "100", "1"))
                    (slider("top_p", "Top-p", "0.01", "1", "0.01"))
                    (slider("min_p", "Min-p", "0", "1", "0.01"))
                    button #reset type="button" { "Back to the recorded settings" }
                    p #verdict aria-live="polite" {}
                }
            }
            h3 { "The unit interval among the kept tokens, and where u fell" }
            div #interval {}
            details {
                summary { "All figures of this step" }
                div.scroll { table #figures {} }
            }
        }
    }
}

fn slider(id: &str, label: &str, min: &str, max: &str, step: &str) -> Markup {
    html! {
        label for=(id) { (label) output #{ (id) "_value" } {} }
        input type="range" id=(id) min=(min) max=(max) step=(step);
    }
}

fn side_by_side(record: &Record) -> Markup {
    html! {
        section.live hidden {
            h2 { "Side by side at this step" }
            p.hint { "The rules above with another temperature, and greedy against sampling; same u." }
            div.panels #temperatures {}
            div.panels #methods {}
        }
        @if !record.continuations.is_empty() {
            section {
                h2 { "The same prefix, continued" }
                div.panels {
                    @for other in &record.continuations {
                        div.panel {
                            h3 { (other.label) }
                            p.text { (other.tokens.concat()) }
                            p.hint { (other.tokens.len()) " tokens, log-probability "
                                (format!("{:.3}", other.logprob)) " nats" }
                        }
                    }
                }
            }
        }
    }
}

/// The steps as text, for readers without scripts.
fn without_script(record: &Record) -> Markup {
    let text = |step: &StepRecord| terminal(step, Picture::default());
    html! {
        noscript {
            @for step in &record.steps { pre { (text(step)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decoding::{Draw, History, Row, Rules, Settings, explain};

    fn record(texts: [&str; 3]) -> Record {
        let settings = Settings { top_p: Some(0.75), ..Settings::default() };
        let rules = Rules::from_settings(&settings).unwrap();
        let row = Row::Probabilities(&[0.5, 0.3, 0.2]);
        let told = explain(&rules, row, &History::default(), Draw::Fixed(0.64), 0).unwrap();
        let step = StepRecord::new(0, &told, 10, |id| texts[id as usize].to_owned());
        Record {
            title: "a <b> & c".to_owned(),
            prompt: vec!["please".to_owned(), " send".to_owned()],
            rules: rules.chain().to_vec(),
            steps: vec![step],
            texts: Vec::new(),
            continuations: Vec::new(),
            teacher: None,
        }
    }

    #[test]
    fn nothing_from_a_token_reaches_the_page_as_markup() {
        let text = page(&record(["</script><script>alert(1)</script>", "<!--", "\u{2028}"]));
        assert!(text.contains("a &lt;b&gt; &amp; c"));
        assert!(!text.contains("<script>alert"));
        assert_eq!(text.matches("</script>").count(), 2);
        assert_eq!(text.matches("<!--").count(), 0);
    }

    #[test]
    fn the_page_asks_nothing_of_the_network() {
        let text = page(&record(["a", "b", "c"]));
        for word in ["http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttp"] {
            let allowed = "http://www.w3.org/2000/svg";
            assert!(!text.replace(allowed, "").contains(word), "{word}");
        }
    }

    #[test]
    fn the_record_in_the_page_is_the_record() {
        let record = record(["a<", "b", "c"]);
        let text = page(&record);
        let start = text.find("type=\"application/json\">").unwrap() + 24;
        let end = start + text[start..].find("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text[start..end]).unwrap(), record);
    }
}
