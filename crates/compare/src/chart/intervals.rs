//! Rows of points with intervals over one axis: losses by model, or differences by pair.

use maud::{Markup, html};

use super::axis::{Axis, Label};
use super::{WIDTH, hint, marker, number, rule, series_class, svg, text};

const SIDE: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
const ROW: f64 = 46.0;

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct IntervalRow {
    /// What it is, above the interval.
    pub label: String,
    /// The number in words, at the right end.
    pub note: String,
    /// Series of the point; `None` draws it in the colour of text.
    pub series: Option<usize>,
    /// The point.
    pub mean: f64,
    /// Its interval.
    pub interval: (f64, f64),
    /// Single seeds, as small dots.
    pub dots: Vec<f64>,
}

/// A chart of intervals.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    /// For those who do not see it.
    pub name: String,
    /// Label of the axis.
    pub x: String,
    /// A shaded range, as the declared margin around zero.
    pub band: Option<(f64, f64)>,
    /// The rows.
    pub rows: Vec<IntervalRow>,
}

impl Intervals {
    /// The picture; `None` without rows.
    pub(crate) fn draw(&self) -> Option<Markup> {
        let values = self.rows.iter().flat_map(|row| {
            row.dots.iter().copied().chain([row.mean, row.interval.0, row.interval.1])
        });
        let band = self.band.iter().flat_map(|&(low, high)| [low, high, 0.0]);
        let values: Vec<f64> = values.chain(band).filter(|value| value.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let air = 0.04 * (high - low);
        let x = Axis::new((low - air, high + air), (SIDE, WIDTH - SIDE), 5);
        let bottom = TOP + ROW * self.rows.len() as f64;
        let inside = html! {
            @if let Some((low, high)) = self.band {
                rect class="margin" x=(number(x.place(low))) y=(number(TOP))
                    width=(number(x.place(high) - x.place(low))) height=(number(bottom - TOP)) {}
            }
            @for (value, label) in x.ticks(Label::Plain) {
                (rule((x.place(value), TOP), (x.place(value), bottom), "grid"))
                (text(x.place(value), bottom + 16.0, "tick middle", &label))
            }
            @if self.band.is_some() {
                (rule((x.place(0.0), TOP), (x.place(0.0), bottom), "axis"))
            }
            (rule((SIDE, bottom), (WIDTH - SIDE, bottom), "axis"))
            (text(WIDTH - SIDE, bottom + 36.0, "label end", &self.x))
            @for (at, row) in self.rows.iter().enumerate() {
                (draw_row(row, TOP + ROW * at as f64, &x))
            }
        };
        Some(svg(bottom + BOTTOM, &self.name, inside))
    }
}

fn draw_row(row: &IntervalRow, top: f64, x: &Axis) -> Markup {
    let y = top + 31.0;
    let (low, high) = (x.place(row.interval.0), x.place(row.interval.1));
    let class = row.series.map_or("ink".to_owned(), series_class);
    html! {
        (text(SIDE, top + 15.0, "name", &row.label))
        (text(WIDTH - SIDE, top + 15.0, "value end", &row.note))
        g class=(class) {
            (hint(&format!("{}: {}", row.label, row.note)))
            (rule((low, y), (high, y), "whisker"))
            (rule((low, y - 4.0), (low, y + 4.0), "whisker"))
            (rule((high, y - 4.0), (high, y + 4.0), "whisker"))
            g class="dots" {
                @for dot in &row.dots {
                    circle cx=(number(x.place(*dot))) cy=(number(y + 9.0)) r="2.2" {}
                }
            }
            g class="mark" { (marker(row.series.unwrap_or(0), x.place(row.mean), y, 4.4)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_the_margin_are_always_in_view() {
        let row = IntervalRow {
            label: "a − b".to_owned(),
            note: "0.4".to_owned(),
            series: None,
            mean: 0.4,
            interval: (0.3, 0.5),
            dots: vec![0.2],
        };
        let mut chart = Intervals {
            name: "test".to_owned(),
            x: "nats".to_owned(),
            band: Some((-0.02, 0.02)),
            rows: vec![row],
        };
        let drawn = chart.draw().unwrap().into_string();
        assert!(drawn.contains("class=\"margin\"") && drawn.contains(">0<"), "{drawn}");
        chart.rows.clear();
        chart.band = None;
        assert!(chart.draw().is_none());
    }
}
