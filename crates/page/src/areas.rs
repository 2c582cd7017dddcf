//! Quantities over time, one on top of the other, as an SVG.

use maud::{Markup, html};
use std::fmt::Write;

/// Colours of layers, in their order.
pub const COLOURS: [&str; 11] = [
    "#1f6fc0", "#c9793a", "#3a8f5c", "#8a5bb0", "#b3261e", "#7a8290", "#c2a11d", "#2a9aa8",
    "#d46a9b", "#556b2f", "#9aa4b2",
];

/// One quantity.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Its values, one a time.
    pub values: Vec<f64>,
}

/// Quantities over time.
#[derive(Clone, Debug)]
pub struct Areas<'a> {
    /// Seconds, rising; as many as each layer has values.
    pub times: Vec<f64>,
    /// From the bottom up; layers that are always 0 are left out.
    pub layers: Vec<Layer>,
    /// A line over them: the whole as it was measured.
    pub whole: Option<Layer>,
    /// (seconds, what happened).
    pub marks: Vec<(f64, String)>,
    /// What is drawn, for those who do not see it.
    pub title: &'a str,
    /// The word for a value.
    pub unit: fn(f64) -> String,
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 92.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 306.0;

impl Areas<'_> {
    /// The picture with its legend; nothing where there are fewer than two times.
    #[must_use]
    pub fn draw(&self) -> Markup {
        let (Some(&begin), Some(&end)) = (self.times.first(), self.times.last()) else {
            return html! {};
        };
        if self.times.len() < 2 || end <= begin {
            return html! {};
        }
        let shown: Vec<(usize, &Layer)> = self
            .layers
            .iter()
            .enumerate()
            .filter(|(_, layer)| layer.values.iter().any(|&value| value > 0.0))
            .collect();
        let sums = (0..self.times.len())
            .map(|i| shown.iter().map(|(_, layer)| layer.values[i]).sum::<f64>());
        let whole = self.whole.iter().flat_map(|layer| layer.values.iter().copied());
        let highest = round_up(sums.chain(whole).fold(0.0, f64::max));
        let x = |t: f64| LEFT + (WIDTH - LEFT - 8.0) * (t - begin) / (end - begin);
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / highest;
        let mut under = vec![0.0; self.times.len()];
        let mut paths = Vec::new();
        for &(i, layer) in &shown {
            let over: Vec<f64> = under.iter().zip(&layer.values).map(|(a, b)| a + b).collect();
            paths.push((COLOURS[i % COLOURS.len()], layer, self.band(&under, &over, (&x, &y))));
            under = over;
        }
        html! {
            div class="scroll" { svg class="areas" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(self.title) {
                @for i in 0..=4 {
                    @let value = highest * f64::from(i) / 4.0;
                    line class="grid" x1=(LEFT) x2=(WIDTH - 8.0) y1=(fixed(y(value))) y2=(fixed(y(value))) {}
                    text x=(LEFT - 6.0) y=(fixed(y(value) + 4.0)) text-anchor="end" { ((self.unit)(value)) }
                    @let at = begin + (end - begin) * f64::from(i) / 4.0;
                    text x=(fixed(x(at))) y=(HEIGHT - 14.0) text-anchor=(anchor(i)) { (seconds(at - begin)) }
                }
                @for (colour, layer, path) in &paths {
                    path d=(path) fill=(colour) { title { (layer.name) } }
                }
                @if let Some(whole) = &self.whole {
                    polyline class="whole" points=(self.points(&whole.values, (&x, &y))) { title { (whole.name) } }
                }
                @for (at, what) in self.marks.iter().filter(|(at, _)| (begin..=end).contains(at)) {
                    line class="mark" x1=(fixed(x(*at))) x2=(fixed(x(*at))) y1=(TOP - 8.0) y2=(BOTTOM) {
                        title { (what) }
                    }
                }
            } }
            p class="legend" {
                @for (colour, layer, _) in &paths {
                    span { span class="key" style=(format!("background:{colour}")) {} (layer.name) } " "
                }
                @if let Some(whole) = &self.whole { span { span class="key line" {} (whole.name) } }
            }
            @if !self.marks.is_empty() {
                p class="facts" {
                    "Marks, from left to right: "
                    @for (i, (at, what)) in self.marks.iter().enumerate() {
                        @if i > 0 { ", " }
                        (what) " at " (seconds(at - begin))
                    }
                    "."
                }
            }
        }
    }

    fn band(&self, under: &[f64], over: &[f64], (x, y): Scales<'_>) -> String {
        let mut path = String::new();
        let back = self.times.iter().zip(under).rev();
        for (i, (&t, &value)) in self.times.iter().zip(over).chain(back).enumerate() {
            let sign = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{sign}{:.1} {:.1}", x(t), y(value));
        }
        path + "Z"
    }

    fn points(&self, values: &[f64], (x, y): Scales<'_>) -> String {
        let each = self.times.iter().zip(values);
        each.map(|(&t, &value)| format!("{:.1},{:.1}", x(t), y(value)))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

type Scales<'a> = (&'a dyn Fn(f64) -> f64, &'a dyn Fn(f64) -> f64);

fn anchor(i: i32) -> &'static str {
    ["start", "middle", "middle", "middle", "end"][i as usize]
}

fn fixed(value: f64) -> String {
    format!("{value:.1}")
}

fn seconds(s: f64) -> String {
    if s < 1.0 { format!("{:.0} ms", s * 1e3) } else { format!("{s:.1} s") }
}

/// The next of 1, 2, 2.5, 4, 5, 8 times a power of two times 2^10: round in binary units.
fn round_up(value: f64) -> f64 {
    let mut power = 1.0;
    while power * 1024.0 <= value.max(1.0) {
        power *= 1024.0;
    }
    let steps =
        [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0, 96.0, 128.0];
    let more = [160.0, 192.0, 256.0, 320.0, 384.0, 512.0, 640.0, 768.0, 1024.0];
    let found = steps.into_iter().chain(more).map(|step| step * power).find(|&end| end >= value);
    found.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_stand_on_each_other() {
        let layer =
            |name: &str, values: [f64; 3]| Layer { name: name.into(), values: values.to_vec() };
        let areas = Areas {
            times: vec![0.0, 1.0, 2.0],
            layers: vec![
                layer("a <b>", [4.0, 4.0, 4.0]),
                layer("none", [0.0; 3]),
                layer("c", [0.0, 2.0, 4.0]),
            ],
            whole: Some(layer("whole", [4.0, 6.0, 8.0])),
            marks: vec![(1.0, "half".into()), (7.0, "outside".into())],
            title: "t",
            unit: |v| format!("{v:.0}"),
        };
        let page = areas.draw().into_string();
        assert_eq!(page.matches("<path").count(), 2);
        assert!(page.contains("a &lt;b&gt;") && !page.contains("none"));
        // The top of all lies at the height of the whole: 8 of 8.
        assert!(page.contains(&format!("L{:.1} {TOP:.1}", WIDTH - 8.0)), "{page}");
        assert_eq!(page.matches("class=\"mark\"").count(), 1);
        assert_eq!(Areas { times: vec![1.0], ..areas }.draw().into_string(), "");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in
            [(0.0, 1.0), (5.0, 8.0), (1000.0, 1024.0), (1500.0, 2048.0), (2.2e6, 4.0 * 1048576.0)]
        {
            assert_eq!(round_up(value), end, "{value}");
        }
    }
}
