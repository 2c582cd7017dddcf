//! The figures of the page: which numbers go into which chart. An arm keeps its series, and so its
//! colour and marker, in every figure.

use std::collections::BTreeMap;

use maud::Markup;

use super::numbers::{MIB, bracket, fixed, mebibytes, minus, signed, signed_bracket};
use crate::chart::{Bar, Bars, IntervalRow, Intervals, Label, Line, Lines, Stroke};
use crate::{Analysis, CalibrationBin, CurvePoint, Record, Row, Score};

/// A position with less than this part of the targets of the fullest one is not drawn.
const RARE: u64 = 20;

/// Test loss by model with its interval and single seeds; anchors are left to the table, since
/// they would push the models together.
pub(super) fn losses(analysis: &Analysis) -> Option<Markup> {
    let rows = analysis.rows.iter().enumerate().filter(|(_, row)| !row.arm.kind.is_anchor());
    let rows = rows.filter_map(|(series, row)| {
        let loss = row.loss?;
        let seeds = row.runs.iter().filter_map(|run| run.test.as_ref()?.total().loss());
        Some(IntervalRow {
            label: row.arm.name.clone(),
            note: format!("{} {}", fixed(loss.mean, 3), bracket(loss.interval, 3)),
            series: Some(series),
            mean: loss.mean,
            interval: (loss.interval.low, loss.interval.high),
            dots: if row.runs.len() > 1 { seeds.collect() } else { Vec::new() },
        })
    });
    let rows = rows.collect();
    let name = "Test loss of each model with its interval".to_owned();
    Intervals { name, x: "test loss, nats a token".to_owned(), band: None, rows }.draw()
}

/// Pairwise differences with corrected intervals and the margin.
pub(super) fn differences(analysis: &Analysis) -> Option<Markup> {
    let rows = analysis.pairs.iter().map(|pair| {
        let (a, b) = (&analysis.rows[pair.a].arm.name, &analysis.rows[pair.b].arm.name);
        let note =
            format!("{} {}", signed(pair.loss.mean, 3), signed_bracket(pair.loss.interval, 3));
        IntervalRow {
            label: format!("{a} − {b}"),
            note: minus(&note),
            series: None,
            mean: pair.loss.mean,
            interval: (pair.loss.interval.low, pair.loss.interval.high),
            dots: Vec::new(),
        }
    });
    let rows: Vec<_> = rows.collect();
    let margin = analysis.experiment.margin_nats;
    let band = (!rows.is_empty()).then_some((-margin, margin));
    let name = "Differences of test loss between models with corrected intervals".to_owned();
    Intervals { name, x: "difference of loss, nats a token".to_owned(), band, rows }.draw()
}

/// Validation loss over tokens seen with a band over seeds, training loss dashed.
pub(super) fn learning(analysis: &Analysis) -> Option<Markup> {
    let tokens = |_: &Record, point: &CurvePoint| point.tokens as f64;
    let mut lines = Vec::new();
    for (series, row) in analysis.rows.iter().enumerate() {
        let valid = over_seeds(&row.runs, tokens, |point| point.validation_loss);
        let train = over_seeds(&row.runs, tokens, |point| point.train_loss);
        let name = &row.arm.name;
        lines.push(line(series, format!("{name}, validation"), &valid, Stroke::Solid));
        let train = line(series, format!("{name}, training"), &train, Stroke::Dashed);
        lines.push(Line { band: Vec::new(), ..train });
    }
    curves("Learning curves: loss over tokens seen", ("tokens seen", Label::Short), lines)
}

/// Validation loss over seconds of training; a model without a curve is one mark at its end.
pub(super) fn learning_by_time(analysis: &Analysis) -> Option<Markup> {
    let axis = ("seconds of training", Label::Plain);
    let seconds = |run: &Record| run.training.seconds;
    learning_by(analysis, "Validation loss over training time", axis, &seconds)
}

/// Validation loss over floating-point operations: the view at matched compute.
pub(super) fn learning_by_flops(analysis: &Analysis) -> Option<Markup> {
    let axis = ("TFLOP of training", Label::Plain);
    let tera_flops = |run: &Record| run.training.flops / 1e12;
    learning_by(analysis, "Validation loss over training compute", axis, &tera_flops)
}

/// Validation loss over what a run spends, in proportion to the tokens seen.
fn learning_by(
    analysis: &Analysis,
    name: &str,
    axis: (&str, Label),
    spent: &dyn Fn(&Record) -> f64,
) -> Option<Markup> {
    let at = |run: &Record, point: &CurvePoint| {
        spent(run) * point.tokens as f64 / (run.training.tokens as f64).max(1.0)
    };
    let rows = analysis.rows.iter().enumerate().filter(|(_, row)| !row.arm.kind.is_anchor());
    let lines = rows.map(|(series, row)| {
        let mut points = over_seeds(&row.runs, at, |point| point.validation_loss);
        if points.is_empty() {
            let ends = row.runs.iter().filter_map(|run| run.training.best_validation_loss);
            points.extend(row.runs.first().and_then(|run| summary(spent(run), ends)));
        }
        line(series, row.arm.name.clone(), &points, Stroke::Solid)
    });
    curves(name, axis, lines.collect())
}

/// Two networks where both have spent the same: what each had reached on the validation side.
pub(super) struct Matched {
    /// Names of the two.
    pub names: [String; 2],
    /// Parameters of the first to those of the second.
    pub parameters: f64,
    /// Operations a token of the first to those of the second.
    pub flops_per_token: f64,
    /// The smaller of the two budgets, FLOP.
    pub flops: f64,
    /// Validation losses there, nats/token, mean over seeds.
    pub losses: [f64; 2],
}

/// All pairs of models that have a learning curve.
pub(super) fn matched(analysis: &Analysis) -> Vec<Matched> {
    let curves: Vec<_> = analysis
        .rows
        .iter()
        .filter_map(|row| {
            let run = row.runs.first()?;
            let tokens = |_: &Record, point: &CurvePoint| point.tokens as f64;
            let points = over_seeds(&row.runs, tokens, |point| point.validation_loss);
            let per_token = run.training.flops / run.training.tokens as f64;
            (points.len() > 1 && per_token > 0.0).then_some((row, per_token, points))
        })
        .collect();
    let mut all = Vec::new();
    for (i, (a, a_flops, a_points)) in curves.iter().enumerate() {
        for (b, b_flops, b_points) in &curves[i + 1..] {
            let end =
                |flops: f64, points: &[Summary]| points.last().map_or(0.0, |point| flops * point.0);
            let flops = end(*a_flops, a_points).min(end(*b_flops, b_points));
            let (Some(at_a), Some(at_b)) =
                (between(a_points, flops / a_flops), between(b_points, flops / b_flops))
            else {
                continue;
            };
            all.push(Matched {
                names: [a.arm.name.clone(), b.arm.name.clone()],
                parameters: a.parameters.dense as f64 / b.parameters.dense as f64,
                flops_per_token: a_flops / b_flops,
                flops,
                losses: [at_a, at_b],
            });
        }
    }
    all
}

/// The mean at x on the straight line between its neighbours; `None` outside the curve.
fn between(points: &[Summary], x: f64) -> Option<f64> {
    let last = points.last()?;
    if (x - last.0).abs() <= 1e-9 * last.0 {
        return Some(last.1);
    }
    points.windows(2).find(|two| two[0].0 <= x && x < two[1].0).map(|two| {
        let share = (x - two[0].0) / (two[1].0 - two[0].0);
        two[0].1 + share * (two[1].1 - two[0].1)
    })
}

/// Curves that start steep: the range of losses begins where the slowest has done a tenth.
fn curves(name: &str, (x, label): (&str, Label), lines: Vec<Line>) -> Option<Markup> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|point| point.0).reduce(f64::max)?;
    let settled = lines.iter().flat_map(|line| {
        let end = line.points.last().map_or(0.0, |point| point.0);
        line.points.iter().filter(move |point| point.0 >= 0.1 * end)
    });
    let high = settled.map(|point| point.1).reduce(f64::max)?;
    let low = points().map(|point| point.1).fold(high, f64::min);
    let air = 0.04 * (high - low);
    Lines {
        name: name.to_owned(),
        x: (x.to_owned(), label),
        y: ("loss, nats a token".to_owned(), Label::Plain),
        x_range: Some((0.0, last)),
        y_range: Some((low - air, high + air)),
        diagonal: false,
        lines,
    }
    .draw()
}

/// Test loss by position in the message.
pub(super) fn loss_by_position(analysis: &Analysis) -> Option<Markup> {
    let name = "Test loss by position in the message";
    by_position(analysis, name, ("test loss, nats a token", Label::Plain), Score::loss)
}

/// Test accuracy by position in the message.
pub(super) fn accuracy_by_position(analysis: &Analysis) -> Option<Markup> {
    let name = "Test accuracy by position in the message";
    by_position(analysis, name, ("test accuracy", Label::Percent), Score::accuracy)
}

fn by_position(
    analysis: &Analysis,
    name: &str,
    (y, label): (&str, Label),
    value: fn(&Score) -> Option<f64>,
) -> Option<Markup> {
    let rows = analysis.rows.iter().enumerate().filter(|(_, row)| !row.arm.kind.is_anchor());
    let lines = rows.map(|(series, row)| {
        let mut by_position: BTreeMap<u32, Vec<Score>> = BTreeMap::new();
        for test in row.runs.iter().filter_map(|run| run.test.as_ref()) {
            for position in &test.positions {
                by_position.entry(position.position).or_default().push(position.score);
            }
        }
        let targets = |scores: &[Score]| scores.iter().map(|score| score.tokens).sum::<u64>();
        let most = by_position.values().map(|scores| targets(scores)).max().unwrap_or(0);
        by_position.retain(|_, scores| RARE * targets(scores) >= most);
        let points = by_position.into_iter().filter_map(|(position, scores)| {
            summary(f64::from(position), scores.iter().filter_map(value))
        });
        line(series, row.arm.name.clone(), &points.collect::<Vec<_>>(), Stroke::Solid)
    });
    Lines {
        name: name.to_owned(),
        x: ("tokens before the target".to_owned(), Label::Plain),
        y: (y.to_owned(), label),
        x_range: None,
        y_range: None,
        diagonal: false,
        lines: lines.collect(),
    }
    .draw()
}

/// Accuracy against confidence, all seeds together.
pub(super) fn calibration(analysis: &Analysis) -> Option<Markup> {
    let rows = analysis.rows.iter().enumerate().filter(|(_, row)| !row.arm.kind.is_anchor());
    let lines: Vec<_> = rows
        .map(|(series, row)| {
            let bins = bins(row).into_iter().filter(|bin| bin.count >= 20);
            let points = bins.map(|bin| {
                let count = bin.count as f64;
                (bin.confidence / count, bin.correct as f64 / count)
            });
            let (name, points) = (row.arm.name.clone(), points.collect());
            Line { series, name, points, band: Vec::new(), stroke: Stroke::Solid }
        })
        .collect();
    lines.iter().any(|line| !line.points.is_empty()).then_some(())?;
    Lines {
        name: "Calibration: accuracy against confidence".to_owned(),
        x: ("confidence in the first choice".to_owned(), Label::Percent),
        y: ("how often it was right".to_owned(), Label::Percent),
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: true,
        lines,
    }
    .draw()
}

/// Peak memory of each process: the empty harness, the model on top, and what was predicted.
pub(super) fn memory(analysis: &Analysis) -> Option<Markup> {
    let rows = analysis.rows.iter().enumerate().filter(|(_, row)| !row.arm.kind.is_anchor());
    let bars = rows.filter_map(|(series, row)| {
        let most = |value: fn(&Record) -> u64| row.runs.iter().map(|run| value(run)).max();
        let peak = most(|run| run.memory.peak_process_bytes)? as f64;
        let base = (most(|run| run.memory.baseline_process_bytes)? as f64).min(peak);
        let predicted = row.runs.first().and_then(|run| run.memory.predicted_process_bytes);
        Some(Bar {
            label: row.arm.name.clone(),
            note: format!(
                "{} − {} = {} MiB",
                mebibytes(peak),
                mebibytes(base),
                mebibytes(peak - base)
            ),
            series,
            base: base / MIB,
            own: (peak - base) / MIB,
            predicted: predicted.map(|bytes| bytes as f64 / MIB),
        })
    });
    let name = "Peak memory of the training process by model".to_owned();
    Bars { name, x: "peak process memory, MiB".to_owned(), bars: bars.collect() }.draw()
}

/// Mean distance of confidence from accuracy, weighted by targets; `None` without bins.
pub(super) fn calibration_error(row: &Row) -> Option<f64> {
    let bins = bins(row);
    let count: u64 = bins.iter().map(|bin| bin.count).sum();
    let apart = bins.iter().map(|bin| (bin.confidence - bin.correct as f64).abs());
    (count > 0).then(|| apart.sum::<f64>() / count as f64)
}

fn bins(row: &Row) -> Vec<CalibrationBin> {
    let mut sums: Vec<CalibrationBin> = Vec::new();
    for test in row.runs.iter().filter_map(|run| run.test.as_ref()) {
        let longest = sums.len().max(test.calibration.len());
        sums.resize(longest, CalibrationBin::default());
        for (sum, bin) in sums.iter_mut().zip(&test.calibration) {
            sum.count += bin.count;
            sum.confidence += bin.confidence;
            sum.correct += bin.correct;
        }
    }
    sums
}

/// x, mean, least and most over seeds.
type Summary = (f64, f64, f64, f64);

fn summary(x: f64, values: impl Iterator<Item = f64>) -> Option<Summary> {
    let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some((x, values.iter().sum::<f64>() / values.len() as f64, least, most))
}

/// The k-th point of every seed's curve together; where seeds stopped early, those that went on.
fn over_seeds(
    runs: &[&Record],
    x: impl Fn(&Record, &CurvePoint) -> f64,
    y: impl Fn(&CurvePoint) -> Option<f64>,
) -> Vec<Summary> {
    let curve = |run: &&Record| -> Vec<(f64, f64)> {
        run.curve.iter().filter_map(|point| Some((x(run, point), y(point)?))).collect()
    };
    let curves: Vec<_> = runs.iter().map(curve).collect();
    let longest = curves.iter().map(Vec::len).max().unwrap_or(0);
    let point = |k: usize| {
        let points: Vec<_> = curves.iter().filter_map(|curve| curve.get(k)).collect();
        let x = points.iter().map(|point| point.0).sum::<f64>() / points.len() as f64;
        summary(x, points.iter().map(|point| point.1))
    };
    (0..longest).filter_map(point).collect()
}

fn line(series: usize, name: String, points: &[Summary], stroke: Stroke) -> Line {
    Line {
        series,
        name,
        points: points.iter().map(|&(x, mean, _, _)| (x, mean)).collect(),
        band: points.iter().map(|&(x, _, least, most)| (x, least, most)).collect(),
        stroke,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;

    #[test]
    fn losses_between_points_lie_on_the_line() {
        let points = [(1.0, 6.0, 6.0, 6.0), (3.0, 4.0, 4.0, 4.0), (4.0, 3.5, 3.5, 3.5)];
        assert_eq!(between(&points, 2.0), Some(5.0));
        assert_eq!(between(&points, 4.0), Some(3.5));
        assert_eq!(between(&points, 0.5), None);
        assert_eq!(between(&points, 4.1), None);
    }

    #[test]
    fn networks_are_matched_where_the_cheaper_one_ends() {
        let (experiment, audit, mut records) = invented::comparison();
        for record in &mut records {
            // The RNN spends twice as much on a token: it is matched at half of its curve.
            let per_token = if record.arm == "rnn" { 2e6 } else { 1e6 };
            record.training.flops = per_token * record.training.tokens as f64;
        }
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        let found = matched(&analysis);
        let [pair] = &found[..] else { panic!("{} pairs", found.len()) };
        let tokens = analysis.rows.iter().find(|row| row.arm.name == "rnn").unwrap().runs[0];
        assert_eq!(pair.flops_per_token, 2.0);
        assert!((pair.flops / (1e6 * tokens.training.tokens as f64) - 1.0).abs() < 1e-9);
        let ends = analysis.rows.iter().find(|row| row.arm.name == "transformer").unwrap();
        let last = over_seeds(&ends.runs, |_, p| p.tokens as f64, |p| p.validation_loss);
        assert_eq!(pair.losses[1], last.last().unwrap().1);
    }

    #[test]
    fn every_figure_of_a_whole_comparison_is_drawn() {
        let (experiment, audit, records) = invented::comparison();
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        let figures = [
            losses,
            differences,
            learning,
            learning_by_time,
            learning_by_flops,
            loss_by_position,
            accuracy_by_position,
            calibration,
            memory,
        ];
        for figure in figures {
            let drawn = figure(&analysis).unwrap().into_string();
            assert!(drawn.contains("<svg") && !drawn.contains("NaN") && !drawn.contains("inf"));
        }
    }

    #[test]
    fn curves_of_seeds_that_stopped_early_are_kept() {
        let mut a = invented::record("rnn", 1);
        let b = invented::record("rnn", 2);
        a.curve.truncate(10);
        let mean =
            over_seeds(&[&a, &b], |_, point| point.tokens as f64, |point| point.validation_loss);
        assert_eq!(mean.len(), b.curve.len());
        let (_, value, least, most) = mean[9];
        assert!(least < value && value < most);
        let (x, value, least, most) = mean[20];
        let expected = b.curve[20].validation_loss.unwrap();
        assert_eq!(
            (x, value, least, most),
            (b.curve[20].tokens as f64, expected, expected, expected)
        );
    }

    #[test]
    fn calibration_error_by_hand() {
        let (experiment, audit, mut records) = invented::comparison();
        for record in records.iter_mut().filter(|record| record.arm == "rnn") {
            record.test.as_mut().unwrap().calibration = vec![
                CalibrationBin { count: 10, confidence: 2.0, correct: 3 },
                CalibrationBin { count: 30, confidence: 24.0, correct: 20 },
            ];
        }
        let analysis = Analysis::new(&experiment, &audit, &records, None).unwrap();
        // (|2 − 3| + |24 − 20|) / 40
        assert!((calibration_error(&analysis.rows[3]).unwrap() - 0.125).abs() < 1e-12);
    }
}
