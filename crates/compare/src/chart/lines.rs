//! Lines over a common axis, each with a band of its own.

use maud::{Markup, html};

use super::axis::{Axis, Label};
use super::{WIDTH, hint, marker, number, path, rule, series_class, svg, text};

const HEIGHT: f64 = 280.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 42.0;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// Plain.
    Solid,
    /// Dashed: a second quantity, or a constant.
    Dashed,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Which series, for colour and marker.
    pub series: usize,
    /// Its name, shown on hovering.
    pub name: String,
    /// (x, y) in ascending order of x.
    pub points: Vec<(f64, f64)>,
    /// (x, low, high) around the line; may be empty.
    pub band: Vec<(f64, f64, f64)>,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// For those who do not see it.
    pub name: String,
    /// Label of the horizontal axis.
    pub x: (String, Label),
    /// Label of the vertical axis.
    pub y: (String, Label),
    /// Range of x; that of the points where not given.
    pub x_range: Option<(f64, f64)>,
    /// Range of y; that of the points where not given. What lies outside is cut off.
    pub y_range: Option<(f64, f64)>,
    /// Draws the line y = x.
    pub diagonal: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Lines {
    /// The picture; `None` where no line has a point.
    pub(crate) fn draw(&self) -> Option<Markup> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let xs = self.x_range.or_else(|| range(points().map(|point| point.0)))?;
        let bands = self.lines.iter().flat_map(|line| &line.band);
        let ys = points().map(|point| point.1).chain(bands.flat_map(|b| [b.1, b.2]));
        let ys = self.y_range.or_else(|| range(ys))?;
        let x = Axis::new(xs, (LEFT, WIDTH - RIGHT), 6);
        let y = Axis::new(ys, (HEIGHT - BOTTOM, TOP), 5);
        let y = if self.y_range.is_none() { y.rounded() } else { y };
        let inside = html! {
            (self.frame(&x, &y))
            @for line in &self.lines { (band(line, &x, &y)) }
            @if self.diagonal {
                (rule((x.place(0.0), y.place(0.0)), (x.place(1.0), y.place(1.0)), "reference"))
            }
            @for line in &self.lines { (stroke(line, &x, &y)) }
        };
        Some(svg(HEIGHT, &self.name, inside))
    }

    fn frame(&self, x: &Axis, y: &Axis) -> Markup {
        let (bottom, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        html! {
            @for (value, label) in y.ticks(self.y.1) {
                (rule((LEFT, y.place(value)), (end, y.place(value)), "grid"))
                (text(LEFT - 6.0, y.place(value) + 4.0, "tick end", &label))
            }
            @for (value, label) in x.ticks(self.x.1) {
                (rule((x.place(value), bottom), (x.place(value), bottom + 4.0), "axis"))
                (text(x.place(value), bottom + 17.0, "tick middle", &label))
            }
            (rule((LEFT, bottom), (end, bottom), "axis"))
            (text(LEFT - 6.0, 13.0, "label", &self.y.0))
            (text(end, HEIGHT - 6.0, "label end", &self.x.0))
        }
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

fn band(line: &Line, x: &Axis, y: &Axis) -> Markup {
    let place = |at: f64, value: f64| (x.place(at), y.place(value));
    let upper = line.band.iter().map(|&(at, _, high)| place(at, high));
    let lower = line.band.iter().rev().map(|&(at, low, _)| place(at, low));
    let outline: Vec<_> = upper.chain(lower).collect();
    html! {
        @if !outline.is_empty() {
            path class={ "band " (series_class(line.series)) } d={ (path(&outline)) "Z" } {}
        }
    }
}

fn stroke(line: &Line, x: &Axis, y: &Axis) -> Markup {
    let inside = line.points.iter().filter(|(at, value)| x.contains(*at) && y.contains(*value));
    let places: Vec<_> = inside.map(|&(at, value)| (x.place(at), y.place(value))).collect();
    let dashed = if line.stroke == Stroke::Dashed { " dashed" } else { "" };
    // A marker now and then tells lines apart without colour; each series starts elsewhere.
    let every = places.len().div_ceil(7).max(1);
    let marked = places.iter().enumerate().filter(|(at, _)| at % every == line.series % every);
    html! {
        g class=(series_class(line.series)) {
            (hint(&line.name))
            path class={ "line" (dashed) } d=(path(&places)) {}
            @if line.stroke == Stroke::Solid {
                g class="mark" {
                    @for (_, (at, value)) in marked { (marker(line.series, *at, *value, 3.2)) }
                }
            }
            @if let (true, [(at, value)]) = (line.stroke == Stroke::Dashed, places.as_slice()) {
                circle cx=(number(*at)) cy=(number(*value)) r="3" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Lines {
        let line = Line {
            series: 1,
            name: "a <b>".to_owned(),
            band: points.iter().map(|&(x, y)| (x, y - 0.1, y + 0.1)).collect(),
            points,
            stroke: Stroke::Solid,
        };
        Lines {
            name: "test".to_owned(),
            x: ("x".to_owned(), Label::Plain),
            y: ("y".to_owned(), Label::Plain),
            x_range: None,
            y_range: None,
            diagonal: false,
            lines: vec![line],
        }
    }

    #[test]
    fn points_land_inside_and_names_are_escaped() {
        let drawn = chart(vec![(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)]).draw().unwrap().into_string();
        assert!(drawn.contains("a &lt;b&gt;") && !drawn.contains("NaN"), "{drawn}");
        let line = drawn.split("class=\"line\" d=\"").nth(1).unwrap().split('"').next().unwrap();
        let places: Vec<f64> =
            line.split(['M', 'L', ' ']).filter_map(|word| word.parse().ok()).collect();
        assert_eq!(places.len(), 6);
        assert!(places.chunks(2).all(|p| (LEFT..=WIDTH).contains(&p[0])), "{places:?}");
        assert!(places.chunks(2).all(|p| (TOP..=HEIGHT).contains(&p[1])), "{places:?}");
        assert!(places[3] < places[5] && places[5] < places[1], "higher is further up: {places:?}");
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        assert!(chart(Vec::new()).draw().is_none());
        assert!(chart(vec![(1.0, 1.0)]).draw().is_some());
    }
}
