//! The plot of `bench serve --plot`: latency against throughput over several loads, as one SVG that
//! needs nothing else. Colours follow the reader's scheme; every point has its figures as a title.

use load::{Percentiles, Report};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 46.0;

/// A panel: what is drawn against tokens a second.
struct Panel {
    title: &'static str,
    get: fn(&Report) -> Percentiles,
}

const PANELS: [Panel; 3] = [
    Panel { title: "first token, ms", get: |report| report.time_to_first_token },
    Panel { title: "a token after the first, ms", get: |report| report.time_per_output_token },
    Panel { title: "whole answer, ms", get: |report| report.end_to_end },
];

/// A percentile: its name, its value, its dashes.
const LINES: [Line; 3] =
    [("p50", |p| p.p50_ms, "none"), ("p90", |p| p.p90_ms, "7 4"), ("p99", |p| p.p99_ms, "2 4")];

type Line = (&'static str, fn(&Percentiles) -> f64, &'static str);

/// An SVG of loads, each with its name, in the order of their throughput.
pub fn svg(title: &str, rows: &[(String, &Report)]) -> String {
    let mut rows: Vec<&(String, &Report)> = rows.iter().collect();
    rows.sort_by(|a, b| a.1.tokens_per_second.total_cmp(&b.1.tokens_per_second));
    let height = TOP + PANELS.len() as f64 * (PANEL + BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<title>{}</title>\n<style>\n\
         svg {{ background: #fff; color: #1a1a1a; --line: #1f5fa8; --grid: #d8d8d8; }}\n\
         @media (prefers-color-scheme: dark) {{ svg {{ background: #16181c; color: #e8e8e8; \
         --line: #7fb2f0; --grid: #3a3d43; }} }}\n\
         text {{ fill: currentColor; }} .grid {{ stroke: var(--grid); }}\n\
         polyline {{ fill: none; stroke: var(--line); stroke-width: 2; }} circle {{ fill: var(--line); }}\n\
         </style>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"17\">{}</text>\n",
        escaped(title),
        escaped(title)
    );
    for (i, panel) in PANELS.iter().enumerate() {
        draw(&mut out, panel, TOP + i as f64 * (PANEL + BOTTOM), &rows);
    }
    out + "</svg>\n"
}

fn draw(out: &mut String, panel: &Panel, top: f64, rows: &[&(String, &Report)]) {
    let most = |values: &mut dyn Iterator<Item = f64>| round_up(values.fold(0.0, f64::max));
    let right = most(&mut rows.iter().map(|row| row.1.tokens_per_second));
    let highest = most(&mut rows.iter().map(|row| (panel.get)(row.1).p99_ms));
    let (inner_top, bottom) = (top + 24.0, top + PANEL);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / right;
    let y = |value: f64| bottom - (bottom - inner_top) * value / highest;
    // A text takes all that is written to it.
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", top + 12.0, panel.title);
    for i in 0..=4 {
        let (share, end) = (f64::from(i) / 4.0, WIDTH - RIGHT);
        let (across, down) = (y(share * highest), x(share * right));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{across:.1}\" y2=\"{across:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{down:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            LEFT - 8.0,
            across + 4.0,
            short(share * highest),
            bottom + 18.0,
            short(share * right),
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">tokens a second, all together</text>",
        WIDTH - RIGHT,
        bottom + 36.0
    );
    for (name, value, dashes) in LINES {
        let at =
            |row: &&(String, &Report)| (x(row.1.tokens_per_second), y(value(&(panel.get)(row.1))));
        let places: Vec<(f64, f64)> = rows.iter().map(at).collect();
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline stroke-dasharray=\"{dashes}\" points=\"{}\"/>",
            points.join(" ")
        );
        for (row, (x, y)) in rows.iter().zip(&places) {
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}: {:.1} tokens/s, {name} {:.1} ms\
                 </title></circle>",
                escaped(&row.0),
                row.1.tokens_per_second,
                value(&(panel.get)(row.1)),
            );
        }
        if let Some((x, y)) = places.last() {
            let (x, y) = (x - 8.0, y - 7.0);
            let _ =
                writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>");
        }
    }
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|&end| end >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    if value == 0.0 || value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (21.0, 25.0), (260.0, 500.0)] {
            assert!((round_up(value) - end).abs() < 1e-9, "{value}");
        }
    }
}
