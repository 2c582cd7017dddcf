//! A ledger as one self-contained page: a table of the terms, and how they went over the run and over its
//! first step. No script, nothing fetched.

use crate::both;
use crate::sheet::STYLE;
use ledger::{Record, Report, Sample, sample_terms};
use maud::{Markup, html};
use page::{Areas, Frame, Layer};

/// The page of what was measured; `title` says of what.
pub fn ledger_page(title: &str, report: &Report) -> String {
    let body = html! {
        header {
            h1 { "Bytes by term: " (title) }
            p.facts {
                "process at its peak " (both(report.peak_process_bytes)) ", predicted "
                (both(report.predicted_process_bytes)) "; unexplained "
                (format!("{:.1} %", 100.0 * report.unexplained_share))
            }
        }
        main {
            (table(report))
            @if let Some(record) = &report.timeline { (timeline(record)) }
        }
        footer { p { "Made by autoreg. GB is 10^9 bytes, GiB 2^30. Everything on this page is in this file." } }
    };
    let title = format!("Bytes by term: {title}");
    Frame { title: &title, styles: &[STYLE], ..Frame::default() }.page(&body)
}

fn table(report: &Report) -> Markup {
    let reclaimed = |name: &str| if name == "mapped files" { " (can be reclaimed)" } else { "" };
    html! {
        section {
            h2 { "Terms" }
            div.scroll {
                table {
                    thead { tr { th { "term" } th { "predicted" } th { "reserved" } th { "in use" } th { "now" } th { "at the peak" } } }
                    tbody {
                        @for row in &report.rows {
                            tr {
                                td { (row.term) (reclaimed(row.term)) }
                                @for bytes in [row.predicted_bytes, row.peak_bytes, row.in_use_bytes,
                                    row.current_bytes, row.resident_bytes] { td { (crate::binary(bytes)) } }
                            }
                        }
                    }
                }
            }
            p.facts {
                "Reserved is what a term asked for at most, in use the most of it that was ever touched, each at \
                 a moment of its own. The last column is what was in memory when the process was largest: it \
                 adds up."
            }
        }
    }
}

fn timeline(record: &Record) -> Markup {
    let marks: Vec<(f64, String)> =
        record.marks.iter().map(|mark| (mark.seconds, mark.what.clone())).collect();
    html! {
        section {
            h2 { "Over the run" }
            (areas(&record.samples, marks, "Bytes in memory by term over the run"))
        }
        @if let Some(step) = &record.step {
            section {
                h2 { "Over one step: " (step.what) }
                (areas(&step.samples, Vec::new(), "Bytes in memory by term over one step"))
                p.facts {
                    "Memory is taken when it is first touched. Buffers stay between steps, so later steps move \
                     nothing."
                }
            }
        }
    }
}

fn areas(samples: &[Sample], marks: Vec<(f64, String)>, title: &str) -> Markup {
    let names = samples.first().map(sample_terms).unwrap_or_default();
    let layers = names.iter().enumerate().map(|(i, (name, _))| Layer {
        name: (*name).to_owned(),
        values: samples.iter().map(|s| sample_terms(s)[i].1 as f64).collect(),
    });
    let process = samples.iter().map(|s| s.process as f64).collect();
    Areas {
        times: samples.iter().map(|s| s.seconds).collect(),
        layers: layers.collect(),
        whole: Some(Layer { name: "whole process".to_owned(), values: process }),
        marks,
        title,
        unit: round_binary,
    }
    .draw()
}

/// A round number of bytes in a binary unit, without digits that say nothing.
fn round_binary(bytes: f64) -> String {
    let text = crate::binary(bytes as u64);
    text.replacen(".0 ", " ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::{Account, Plan, Snapshot, Spec};

    #[test]
    fn the_page_shows_terms_and_both_timelines() {
        let mut plan = Plan::default();
        plan.add(&Spec::new("w", Account::Weights, 1 << 20));
        let mut books = Snapshot::default();
        books.at_peak[Account::Weights as usize] = 4 << 20;
        books.most = books.at_peak;
        let sample = |seconds: f64, weights: u64| {
            let mut resident = ledger::ByAccount::default();
            resident[Account::Weights as usize] = weights;
            let runtime = 1 << 20;
            Sample { seconds, resident, runtime, mapped: 7, process: weights + runtime + 7 }
        };
        let samples = vec![sample(0.0, 0), sample(1.0, 4 << 20)];
        let step = ledger::StepSamples { what: "<1>".to_owned(), samples: samples.clone() };
        let record = Record { samples, step: Some(step), ..Record::default() };
        let report = Report::new(&plan, &books, 1 << 20, 6 << 20).recorded(record);
        let page = ledger_page("a <b>", &report);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("&lt;1&gt;") && page.contains("a &lt;b&gt;"));
        assert!(page.contains("mapped files (can be reclaimed)") && page.contains("4.0 MiB"));
        assert!(!page.contains("<script") && !page.contains("http"));
        assert_eq!(report.unexplained_bytes, 0);
    }

    #[test]
    fn axes_are_in_binary_units() {
        assert_eq!([0.0, 4096.0, 1572864.0].map(round_binary), ["0 B", "4 KiB", "1.5 MiB"]);
    }
}
