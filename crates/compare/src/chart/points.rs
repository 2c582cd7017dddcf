//! Points with intervals in both directions: one quantity over another.

use maud::{Markup, html};

use super::axis::{Axis, Label};
use super::{WIDTH, hint, marker, rule, series_class, svg, text};

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 42.0;

/// A value and its interval.
pub(crate) type Ranged = (f64, (f64, f64));

/// One point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Which series, for colour and marker; `None` draws it in the colour of text.
    pub series: Option<usize>,
    /// Its name, shown on hovering.
    pub name: String,
    /// Along.
    pub x: Ranged,
    /// Up.
    pub y: Ranged,
}

/// A chart of points.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    /// For those who do not see it.
    pub name: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// The points.
    pub points: Vec<Point>,
}

impl Points {
    /// The picture; `None` without points.
    pub(crate) fn draw(&self) -> Option<Markup> {
        let x = axis(self.points.iter().map(|point| point.x), (LEFT, WIDTH - RIGHT))?;
        let y = axis(self.points.iter().map(|point| point.y), (HEIGHT - BOTTOM, TOP))?;
        let (bottom, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let inside = html! {
            @for (value, label) in y.ticks(Label::Plain) {
                (rule((LEFT, y.place(value)), (end, y.place(value)), "grid"))
                (text(LEFT - 6.0, y.place(value) + 4.0, "tick end", &label))
            }
            @for (value, label) in x.ticks(Label::Plain) {
                (rule((x.place(value), TOP), (x.place(value), bottom), "grid"))
                (text(x.place(value), bottom + 17.0, "tick middle", &label))
            }
            (rule((LEFT, bottom), (end, bottom), "axis"))
            (text(LEFT - 44.0, 13.0, "label", &self.y))
            (text(end, HEIGHT - 6.0, "label end", &self.x))
            @for point in &self.points { (draw_point(point, &x, &y)) }
        };
        Some(svg(HEIGHT, &self.name, inside))
    }
}

fn axis(values: impl Iterator<Item = Ranged>, places: (f64, f64)) -> Option<Axis> {
    let all: Vec<f64> = values.flat_map(|(value, (low, high))| [value, low, high]).collect();
    let low = all.iter().copied().reduce(f64::min)?;
    let high = all.iter().copied().reduce(f64::max)?;
    let air = 0.05 * (high - low);
    Some(Axis::new((low - air, high + air), places, 5))
}

fn draw_point(point: &Point, x: &Axis, y: &Axis) -> Markup {
    let class = point.series.map_or("ink".to_owned(), series_class);
    let (at_x, at_y) = (x.place(point.x.0), y.place(point.y.0));
    html! {
        g class=(class) {
            (hint(&point.name))
            (rule((x.place(point.x.1.0), at_y), (x.place(point.x.1.1), at_y), "whisker"))
            (rule((at_x, y.place(point.y.1.0)), (at_x, y.place(point.y.1.1)), "whisker"))
            g class="mark" { (marker(point.series.unwrap_or(0), at_x, at_y, 4.8)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_two_whiskers_inside_the_frame() {
        let point = |x: f64, y: f64| Point {
            series: Some(1),
            name: "a <b>".to_owned(),
            x: (x, (x - 0.1, x + 0.1)),
            y: (y, (y - 0.2, y + 0.2)),
        };
        let mut chart = Points {
            name: "test".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            points: vec![point(0.2, -3.0), point(0.9, -1.0)],
        };
        let drawn = chart.draw().unwrap().into_string();
        assert_eq!(drawn.matches("class=\"whisker\"").count(), 4);
        assert!(drawn.contains("a &lt;b&gt;") && !drawn.contains("NaN"), "{drawn}");
        chart.points.clear();
        assert!(chart.draw().is_none());
    }
}
