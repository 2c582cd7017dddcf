//! The tables of the page. On a narrow screen each row becomes a card, so every cell carries its
//! heading.

use maud::{Markup, html};

use super::figures::{Matched, calibration_error};
use super::numbers::{
    bracket, fixed, mebibytes, minus, percent, percent_bracket, seconds, signed, signed_bracket,
    whole,
};
use crate::analysis::Measured;
use crate::chart::swatch;
use crate::{Analysis, Row, SideAudit};

/// A cell: the number, and what stands under it in small.
struct Cell(String, String);

impl Cell {
    fn new(number: impl Into<String>) -> Cell {
        Cell(number.into(), String::new())
    }

    fn missing() -> Cell {
        Cell::new("–")
    }

    fn under(self, small: impl Into<String>) -> Cell {
        Cell(self.0, small.into())
    }
}

/// A heading and the way from an arm to its cell.
type Column<'c> = (&'c str, &'c dyn Fn(&Row) -> Option<Cell>);

/// A table of arms: one column a heading with its way to a cell.
fn by_arm(analysis: &Analysis, columns: &[Column]) -> Markup {
    html! {
        table {
            thead { tr { th { "Model" } @for (heading, _) in columns { th { (heading) } } } }
            tbody {
                @for (series, row) in analysis.rows.iter().enumerate() {
                    tr class=[row.arm.kind.is_anchor().then_some("anchor")] {
                        th scope="row" { (swatch(series)) (row.arm.name) }
                        @for (heading, cell) in columns {
                            (draw(heading, &cell(row).unwrap_or_else(Cell::missing)))
                        }
                    }
                }
            }
        }
    }
}

fn draw(heading: &str, Cell(number, small): &Cell) -> Markup {
    html! {
        td data-label=(heading) {
            span { (minus(number)) }
            @if !small.is_empty() { small { (minus(small)) } }
        }
    }
}

fn range(measured: Measured, show: impl Fn(f64) -> String) -> String {
    if measured.least == measured.most {
        return String::new();
    }
    format!("{} to {}", show(measured.least), show(measured.most))
}

/// The table at the top: what most readers want.
pub(super) fn results(analysis: &Analysis) -> Markup {
    by_arm(
        analysis,
        &[
            ("Parameters", &|row| {
                let (dense, nonzero) = (row.parameters.dense, row.parameters.nonzero);
                let small = if dense == nonzero {
                    String::new()
                } else {
                    format!("{} not zero", whole(nonzero))
                };
                Some(Cell::new(whole(dense)).under(small))
            }),
            ("Size, MiB", &|row| Some(Cell::new(mebibytes(row.parameters.bytes as f64)))),
            ("Test loss, nats", &|row| {
                let loss = row.loss?;
                Some(Cell::new(fixed(loss.mean, 3)).under(bracket(loss.interval, 3)))
            }),
            ("Accuracy", &|row| {
                let accuracy = row.accuracy?;
                Some(Cell::new(percent(accuracy.mean)).under(percent_bracket(accuracy.interval)))
            }),
            ("Perplexity", &|row| Some(Cell::new(fixed(row.loss?.mean.exp(), 1)))),
            ("Training", &|row| {
                let time = row.seconds?;
                Some(Cell::new(seconds(time.mean)).under(range(time, seconds)))
            }),
            ("Tokens/s", &|row| {
                let speed = row.tokens_per_second.filter(|speed| speed.mean > 0.0)?;
                let show = |value: f64| whole(value as u64);
                Some(Cell::new(show(speed.mean)).under(range(speed, show)))
            }),
            ("Peak memory, MiB", &|row| {
                let (peak, own) = (row.peak_bytes?, row.model_bytes?);
                let small = format!("{} without harness", mebibytes(own.most));
                Some(Cell::new(mebibytes(peak.most)).under(small))
            }),
        ],
    )
}

/// Other ways to score the same predictions.
pub(super) fn scores(analysis: &Analysis) -> Markup {
    by_arm(
        analysis,
        &[
            ("Seeds", &|row| {
                let small =
                    if row.failed > 0 { format!("{} failed", row.failed) } else { String::new() };
                Some(Cell::new(row.runs.len().to_string()).under(small))
            }),
            ("Sd of loss over seeds", &|row| Some(Cell::new(fixed(row.loss?.spread?, 4)))),
            ("Loss without <unk>", &|row| {
                let small = format!("accuracy {}", percent(row.accuracy_known?));
                Some(Cell::new(fixed(row.loss_known?, 3)).under(small))
            }),
            ("Loss by message", &|row| Some(Cell::new(fixed(row.loss_by_message?, 3)))),
            ("Seen messages", &|row| {
                let gap = row.seen?;
                Some(Cell::new(fixed(gap.seen.loss()?, 3)))
            }),
            ("Unseen messages", &|row| Some(Cell::new(fixed(row.seen?.unseen.loss()?, 3)))),
            ("Calibration error", &|row| Some(Cell::new(percent(calibration_error(row)?)))),
        ],
    )
}

/// What each model cost.
pub(super) fn costs(analysis: &Analysis) -> Markup {
    by_arm(
        analysis,
        &[
            ("Outside embeddings", &|row| Some(Cell::new(whole(row.parameters.non_embedding)))),
            ("Optimizer, MiB", &|row| {
                Some(Cell::new(mebibytes(row.parameters.optimizer_bytes as f64)))
            }),
            ("Tokens seen", &|row| Some(Cell::new(whole(row.runs.first()?.training.tokens)))),
            ("Steps", &|row| Some(Cell::new(whole(row.runs.first()?.training.steps)))),
            ("TFLOP", &|row| Some(Cell::new(fixed(row.runs.first()?.training.flops / 1e12, 2)))),
            ("Settings tried", &|row| {
                Some(Cell::new(row.runs.first()?.training.tuning_trials.to_string()))
            }),
            ("Best validation loss", &|row| {
                let training = row.runs.first()?.training;
                let small = training.best_step.map(|step| format!("at step {}", whole(step)));
                Some(
                    Cell::new(fixed(training.best_validation_loss?, 3))
                        .under(small.unwrap_or_default()),
                )
            }),
            ("Predicted memory, MiB", &|row| {
                let memory = &row.runs.first()?.memory;
                let predicted = memory.predicted_process_bytes? as f64;
                let off = predicted / memory.peak_process_bytes as f64 - 1.0;
                let small = format!("{} % against measured", signed(100.0 * off, 1));
                Some(Cell::new(mebibytes(predicted)).under(small))
            }),
        ],
    )
}

/// Two networks where both have spent what the cheaper one spends in all.
pub(super) fn matched(pairs: &[Matched]) -> Markup {
    html! {
        table {
            thead { tr {
                th { "Pair" } th { "Parameters, ratio" } th { "FLOP a token, ratio" }
                th { "TFLOP spent by each" } th { "Validation losses there" }
            } }
            tbody {
                @for pair in pairs {
                    tr {
                        th scope="row" { (pair.names[0]) " : " (pair.names[1]) }
                        (draw("Parameters, ratio", &Cell::new(fixed(pair.parameters, 2))))
                        (draw("FLOP a token, ratio", &Cell::new(fixed(pair.flops_per_token, 2))))
                        (draw("TFLOP spent by each", &Cell::new(fixed(pair.flops / 1e12, 2))))
                        (draw("Validation losses there", &Cell::new(
                            format!("{} : {}", fixed(pair.losses[0], 3), fixed(pair.losses[1], 3)))))
                    }
                }
            }
        }
    }
}

/// Pairs with their verdicts.
pub(super) fn pairs(analysis: &Analysis) -> Markup {
    html! {
        table {
            thead { tr {
                th { "Pair" } th { "Loss difference" } th { "Accuracy difference" }
                th { "p, corrected" } th { "Detectable" } th class="words" { "Verdict" }
            } }
            tbody {
                @for pair in &analysis.pairs {
                    tr {
                        th scope="row" {
                            (analysis.rows[pair.a].arm.name) " − " (analysis.rows[pair.b].arm.name)
                        }
                        (draw("Loss difference", &Cell::new(signed(pair.loss.mean, 3))
                            .under(signed_bracket(pair.loss.interval, 3))))
                        (draw("Accuracy difference", &Cell::new(points(pair.accuracy.mean))
                            .under(format!("[{}, {}]", points(pair.accuracy.interval.low),
                                points(pair.accuracy.interval.high)))))
                        (draw("p, corrected", &Cell::new(fixed(pair.p_value, 4))))
                        (draw("Detectable", &pair.detectable
                            .map_or_else(Cell::missing, |nats| Cell::new(fixed(nats, 3)))))
                        td class="words" data-label="Verdict" { (pair.verdict.text) }
                    }
                }
            }
        }
    }
}

/// A difference of shares in percentage points.
fn points(share: f64) -> String {
    signed(100.0 * share, 1) + " pp"
}

/// The ledger's terms, predicted and measured, of each trained model's first run.
pub(super) fn ledger(analysis: &Analysis) -> Option<Markup> {
    let rows = analysis.rows.iter().enumerate().filter_map(|(series, row)| {
        let terms = &row.runs.first()?.memory.terms;
        (!terms.is_empty() && !row.arm.kind.is_anchor()).then_some((series, row, terms))
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then(|| {
        html! {
            table class="facts" {
                thead { tr { th { "Model" } th { "Account" } th { "Predicted, MiB" } th { "Measured, MiB" } } }
                tbody {
                    @for (series, row, terms) in rows {
                        @for term in terms {
                            tr {
                                th scope="row" { (swatch(series)) (row.arm.name) }
                                td data-label="Account" { (term.name) }
                                td data-label="Predicted, MiB" { (mebibytes(term.predicted_bytes as f64)) }
                                td data-label="Measured, MiB" { (mebibytes(term.measured_bytes as f64)) }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// Groups, messages and tokens a side.
pub(super) fn sides(sides: &[SideAudit]) -> Markup {
    html! {
        table {
            thead { tr {
                th { "Side" } th { "Groups" } th { "Messages" } th { "Target tokens" } th { "<unk>" }
            } }
            tbody {
                @for side in sides {
                    @let share = side.unknown_tokens as f64 / side.tokens.max(1) as f64;
                    tr {
                        th scope="row" { (side.name) }
                        (draw("Groups", &Cell::new(whole(side.groups))))
                        (draw("Messages", &Cell::new(whole(side.messages))))
                        (draw("Target tokens", &Cell::new(whole(side.tokens))))
                        (draw("<unk>", &Cell::new(percent(share))
                            .under(whole(side.unknown_tokens))))
                    }
                }
            }
        }
    }
}
