//! The page: one file with its style and its figures inside, no script, nothing fetched. It reads
//! on a phone and on paper, in light and in dark.

use maud::{Markup, html};
use page::Frame;

use super::numbers::{counted, percent, whole};
use super::{STYLE, figures, tables};
use crate::chart::{series_class, swatch};
use crate::statistics::Outcome;
use crate::{Analysis, Pair};

/// The report as one self-contained page.
pub fn html(analysis: &Analysis) -> String {
    let title = format!("{}: comparison", analysis.experiment.name);
    let body = html! {
        (header(analysis))
        main {
            (results(analysis))
            (differences(analysis))
            (behaviour(analysis))
            (next_tokens(analysis))
            (costs(analysis))
            (audit(analysis))
            (method(analysis))
        }
        footer { p {
            "Made by autoreg " (analysis.audit.program.version)
            @if analysis.audit.data.synthetic { " from " strong { "synthetic data" } }
            ". Every number in it was measured in the runs recorded beside it."
        } }
    };
    Frame { title: &title, styles: &[STYLE], ..Frame::default() }.page(&body)
}

fn synthetic(analysis: &Analysis) -> Markup {
    html! {
        @if analysis.audit.data.synthetic { " " span class="badge" { "synthetic data" } }
    }
}

fn header(analysis: &Analysis) -> Markup {
    let experiment = analysis.experiment;
    html! {
        header {
            p class="over" { "Model comparison" (synthetic(analysis)) }
            h1 { (experiment.name) }
            p class="lead" {
                (analysis.audit.data.description) ": "
                (counted(analysis.rows.len(), "row")) ", "
                (counted(experiment.seeds.len(), "seed")) ", "
                (counted(experiment.epochs as usize, "epoch"))
                @if !analysis.audit.program.finished.is_empty() {
                    ", finished " (analysis.audit.program.finished)
                }
            }
            section class="verdict" aria-label="Verdict" {
                p { (analysis.headline()) }
                ul { @for pair in &analysis.pairs { (pair_line(analysis, pair)) } }
            }
            @if !analysis.warnings.is_empty() {
                section class="warnings" aria-label="Warnings" {
                    h2 { "Before you believe it" }
                    ul { @for warning in &analysis.warnings { li { (warning) } } }
                }
            }
        }
    }
}

fn pair_line(analysis: &Analysis, pair: &Pair) -> Markup {
    let mark = match pair.verdict.outcome {
        Outcome::FirstBetter | Outcome::SecondBetter => "✓",
        Outcome::Alike => "≈",
        Outcome::Undecided => "?",
    };
    let decisive = pair.verdict.outcome.is_decisive();
    html! {
        li class=[(!decisive).then_some("open")] {
            span class="sign" aria-hidden="true" { (mark) }
            span {
                @if !decisive {
                    (analysis.rows[pair.a].arm.name) " and " (analysis.rows[pair.b].arm.name) ": "
                }
                (pair.verdict.text)
            }
        }
    }
}

fn legend(analysis: &Analysis, anchors: bool) -> Markup {
    html! {
        ul class="legend" aria-label="Legend" {
            @for (series, row) in analysis.rows.iter().enumerate() {
                @if anchors || !row.arm.kind.is_anchor() { li { (swatch(series)) (row.arm.name) } }
            }
        }
    }
}

fn figure(analysis: &Analysis, title: &str, chart: Option<Markup>, caption: Markup) -> Markup {
    html! {
        @if let Some(chart) = chart {
            figure {
                h3 { (title) (synthetic(analysis)) }
                (chart)
                figcaption { (caption) }
            }
        }
    }
}

fn results(analysis: &Analysis) -> Markup {
    let level = percent(analysis.experiment.confidence).replace(".0", "");
    html! {
        section id="results" {
            h2 { "Results" (synthetic(analysis)) }
            div class="scroll" { (tables::results(analysis)) }
            p class="note" {
                "Loss is in nats a token over real targets of the test side, padding excluded; under it its "
                (level) " interval. Time, speed and memory: mean, and least to most over seeds; peak memory is the most. "
                "Each model was trained in a process of its own; \"without harness\" leaves out what the same process takes with nothing to do. "
                "Uniform and unigram are anchors that any model must beat."
            }
            (notes(analysis))
        }
    }
}

fn notes(analysis: &Analysis) -> Markup {
    let rows = analysis.rows.iter().filter_map(|row| {
        let notes = &row.runs.first()?.notes;
        (!notes.is_empty()).then_some((&row.arm.name, notes))
    });
    html! {
        @for (name, notes) in rows { p class="note" { strong { (name) } ": " (notes.join("; ")) "." } }
    }
}

fn differences(analysis: &Analysis) -> Markup {
    let margin = analysis.experiment.margin_nats;
    html! {
        section id="differences" {
            h2 { "Differences" (synthetic(analysis)) }
            div class="figures" {
                (figure(analysis, "Which differences are real", figures::differences(analysis), html! {
                    "Each pair's difference of test loss, first minus second: left of zero, the first is better. "
                    "The intervals are widened so that all hold together. Shaded: the margin of "
                    (margin) " nats declared before the first run."
                }))
                (figure(analysis, "Test loss of each model", figures::losses(analysis), html! {
                    "Mean over seeds with its interval; small dots are single seeds. "
                    "Two intervals may overlap and the difference still be real, for the models are scored on the same messages: judge by the differences."
                }))
            }
            div class="scroll" { (tables::pairs(analysis)) }
        }
    }
}

fn behaviour(analysis: &Analysis) -> Markup {
    html! {
        section id="behaviour" {
            h2 { "How they learn and where they err" (synthetic(analysis)) }
            (legend(analysis, false))
            div class="figures" {
                (figure(analysis, "Learning curves", figures::learning(analysis), html! {
                    "Loss over tokens seen: validation as a line with a band from the best to the worst seed, training dashed. "
                    "The steep start is cut off. Models of counts learn in one pass and have no curve."
                }))
                (figure(analysis, "Loss by position", figures::loss_by_position(analysis), html! {
                    "Test loss by the number of tokens before the target, band over seeds: what a model makes of context. "
                    "Positions that few messages reach are left out."
                }))
                (figure(analysis, "Accuracy by position", figures::accuracy_by_position(analysis), html! {
                    "Share of exact next tokens by the number of tokens before the target, band over seeds."
                }))
                (figure(analysis, "Calibration", figures::calibration(analysis), html! {
                    "How often the first choice is right against how sure the model is; on the dashed line the two agree, below it the model is too sure. "
                    "Bins with fewer than twenty targets are left out."
                }))
            }
            h3 { "The same predictions scored in other ways" }
            div class="scroll" { (tables::scores(analysis)) }
            p class="note" {
                "Seen messages share a run of " (analysis.audit.data.seen_run_tokens)
                " tokens or more with the training side; a much lower loss on them would be memory, not skill. "
                "\"By message\" gives each message the same weight, whatever its length. "
                "Calibration error: mean distance of confidence from accuracy."
            }
        }
    }
}

fn next_tokens(analysis: &Analysis) -> Markup {
    html! {
        section id="next" {
            h2 { "Top next tokens" (synthetic(analysis)) }
            @for prompt in &analysis.experiment.prompts {
                h3 { "After “" (prompt) "”" }
                @let lists = lists(analysis, prompt);
                @let most = lists.iter().flat_map(|list| list.2).map(|(_, chance)| *chance);
                @let most = most.fold(f64::MIN_POSITIVE, f64::max);
                div class="lists" {
                    @for list in &lists { (tokens(*list, most)) }
                }
            }
            p class="note" {
                "The most probable next tokens with their probabilities, of the first seed; the bars under one prompt have one scale."
            }
        }
    }
}

/// A series, its name, and its next tokens with their probabilities.
type List<'a> = (usize, &'a str, &'a [(String, f64)]);

/// The arms that have a list for the prompt.
fn lists<'a>(analysis: &'a Analysis, prompt: &str) -> Vec<List<'a>> {
    let rows = analysis.rows.iter().enumerate();
    rows.filter_map(|(series, row)| {
        let list = row.runs.first()?.top_next.get(prompt)?;
        Some((series, row.arm.name.as_str(), list.as_slice()))
    })
    .collect()
}

fn tokens((series, name, list): List, most: f64) -> Markup {
    html! {
        div class={ "list " (series_class(series)) } {
            h4 { (swatch(series)) (name) }
            ol {
                @for (token, chance) in list {
                    li {
                        span class="token" { (token.escape_debug().to_string()) }
                        span class="chance" { (percent(*chance)) }
                        span class="bar" style={ "width:" (format!("{:.1}", 100.0 * chance / most)) "%" } {}
                    }
                }
            }
        }
    }
}

fn costs(analysis: &Analysis) -> Markup {
    html! {
        section id="cost" {
            h2 { "What they cost" (synthetic(analysis)) }
            div class="figures" {
                (figure(analysis, "Peak memory of training", figures::memory(analysis), html! {
                    "The whole process at its peak, minus the empty harness (grey), is the model's own. "
                    "The upright mark is what was predicted before the run."
                }))
                (figure(analysis, "Loss over training time", figures::learning_by_time(analysis), html! {
                    "Validation loss over seconds of training, at each run's own mean speed: what a loss costs on this machine. "
                    "A model of counts is a single mark where its counting ended."
                }))
                (figure(analysis, "Loss over training compute", figures::learning_by_flops(analysis), html! {
                    "Validation loss over operations, 6 for each parameter outside the embeddings and token: the view at matched compute. "
                    "A loss before a run's end was met at a learning rate still high, so the one that spends more is a little better than it looks."
                }))
            }
            div class="scroll" { (tables::costs(analysis)) }
            @let matched = figures::matched(analysis);
            @if !matched.is_empty() {
                h3 { "At matched compute" }
                div class="scroll" { (tables::matched(&matched)) }
            }
            @if let Some(ledger) = tables::ledger(analysis) {
                details {
                    summary { "The ledger, account by account" }
                    div class="scroll" { (ledger) }
                }
            }
        }
    }
}

fn audit(analysis: &Analysis) -> Markup {
    let (data, machine) = (&analysis.audit.data, &analysis.audit.machine);
    let program = &analysis.audit.program;
    let seeds: Vec<_> = analysis.experiment.seeds.iter().map(u64::to_string).collect();
    let facts = [
        ("Data", data.description.clone() + if data.synthetic { " (synthetic)" } else { "" }),
        (
            "Grouped by",
            format!("{}; no group is on two sides; split seed {}", data.group_by, data.split_seed),
        ),
        (
            "Exact duplicates",
            format!("{} collapsed before the split", whole(data.exact_duplicates)),
        ),
        (
            "Near-duplicates",
            format!(
                "{} across sides, {} of them kept out of test; {}",
                whole(data.near_duplicates.across_sides),
                whole(data.near_duplicates.kept_out_of_test),
                data.near_duplicates.method
            ),
        ),
        ("Unreadable messages", whole(data.unreadable)),
        ("Vocabulary", format!("{} entries, learned on the training side", whole(data.vocabulary))),
        ("Length", format!("at most {} tokens a message", whole(data.max_len))),
        ("Tokenizer", format!("SHA-256 {}", data.tokenizer_sha256)),
        ("Test side", format!("SHA-256 {}, read once a run, after training", data.test_sha256)),
        ("Seeds", seeds.join(", ")),
        ("Groupings checked", analysis.groupings.join(", ")),
        ("Processor", format!("{} ({})", machine.processor, machine.instruction_set)),
        ("Threads", machine.threads.to_string()),
        ("Memory", format!("{:.1} GiB", machine.memory_bytes as f64 / f64::from(1 << 30))),
        ("System", machine.system.clone()),
        (
            "Program",
            format!(
                "version {}, commit {}",
                program.version,
                program.commit.as_deref().unwrap_or("unknown")
            ),
        ),
        ("Experiment", format!("digest {}", analysis.experiment.digest())),
    ];
    html! {
        section id="audit" {
            h2 { "Audit" (synthetic(analysis)) }
            div class="scroll" { (tables::sides(&data.sides)) }
            dl { @for (name, fact) in &facts { dt { (name) } dd { (or_dash(fact)) } } }
            @if !analysis.failures.is_empty() {
                h3 { "Failed runs" }
                ul { @for f in &analysis.failures { li { (f.arm) ", seed " (f.seed) ": " (f.why) } } }
            }
        }
    }
}

/// Facts are shown as they are; an empty one as a dash.
fn or_dash(fact: &str) -> &str {
    if fact.trim().is_empty() { "–" } else { fact }
}

fn method(analysis: &Analysis) -> Markup {
    let experiment = analysis.experiment;
    html! {
        section id="method" {
            h2 { "How it was judged, and how to do it again" }
            ul class="method" {
                li { "All models saw the same split, vocabulary, cap and number of passes (models of counts need one); every model was scored on the same target positions, the first predicted from the start of the message." }
                li { "Intervals come from a two-level bootstrap, " (whole(analysis.draws as u64)) " draws: seeds are drawn with replacement, then groups, the same draw for every model. The part that seeds add is widened for their small number (Student's t)." }
                li { (counted(analysis.pairs.len(), "pair")) " at once: intervals are Bonferroni's, p-values Holm's." }
                li { "A winner needs an interval that excludes zero, a difference of at least " (experiment.margin_nats) " nats, no contradiction by accuracy, the same sign under every grouping checked ("
                    (analysis.groupings.join(", ")) "), and no failed run of its own." }
                li { "\"Detectable\" is the smallest difference that this run would have found with probability 0.8." }
            }
            h3 { "Reproduce" }
            pre { code { (analysis.audit.program.command) } }
            details {
                summary { "The experiment file" }
                pre { code { (experiment.to_toml()) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;

    fn page() -> String {
        let (experiment, audit, records) = invented::comparison();
        html(&Analysis::new(&experiment, &audit, &records, None).unwrap())
    }

    #[test]
    fn the_page_needs_nothing_but_itself() {
        let page = page();
        for reference in
            ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "<iframe"]
        {
            assert!(!page.contains(reference), "{reference}");
        }
        // Someone who wants to look at it names a place.
        if let Ok(path) = std::env::var("AUTOREG_REPORT_OUT") {
            std::fs::write(path, page).unwrap();
        }
    }

    #[test]
    fn every_section_and_figure_is_there() {
        let page = page();
        for id in ["results", "differences", "behaviour", "next", "cost", "audit", "method"] {
            assert!(page.contains(&format!("<section id=\"{id}\"")), "{id}");
        }
        for figure in [
            "Which differences are real",
            "Test loss of each model",
            "Learning curves",
            "Loss by position",
            "Accuracy by position",
            "Calibration",
            "Peak memory of training",
            "Loss over training time",
        ] {
            assert!(page.contains(&format!("<h3>{figure}")), "{figure}");
        }
        assert!(page.contains("No decisive winner between"));
        assert!(page.contains("autoreg compare --seeds 6"));
        assert_eq!(page.matches("<svg class=\"chart\"").count(), 9);
    }

    #[test]
    fn synthetic_data_is_said_wherever_a_result_is_shown() {
        let badge = "<span class=\"badge\">synthetic data</span>";
        assert!(page().matches(badge).count() >= 12);
        let (experiment, mut audit, records) = invented::comparison();
        audit.data.synthetic = false;
        let page = html(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        assert!(!page.contains("synthetic"));
    }

    #[test]
    fn foreign_text_is_escaped() {
        let (mut experiment, audit, mut records) = invented::comparison();
        experiment.prompts = vec!["<script>x</script>".to_owned()];
        experiment.name = "a < b & \"c\"".to_owned();
        let token = vec![("</span><img>".to_owned(), 0.5)];
        records[3].top_next.insert(experiment.prompts[0].clone(), token);
        let page = html(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        assert!(!page.contains("<script>") && !page.contains("<img>"));
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn a_comparison_of_failures_still_has_a_page() {
        let (experiment, audit, mut records) = invented::comparison();
        for record in &mut records {
            record.failed = Some("killed".to_owned());
            *record = record.clone().sealed();
        }
        let page = html(&Analysis::new(&experiment, &audit, &records, None).unwrap());
        assert!(page.contains("no run gave a score") && page.contains("killed"));
    }
}
