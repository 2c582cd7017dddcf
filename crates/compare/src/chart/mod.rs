//! Small charts as SVG inside a page: lines with bands, intervals, bars. No scripts and no colours
//! of their own: series `n` has the class `s{n}`, which the page's style sheet gives a colour that
//! holds in light, in dark and on paper, and a marker shape that tells it apart without colour.

mod axis;
mod bars;
mod intervals;
mod lines;
mod points;

pub(crate) use axis::Label;
pub(crate) use bars::{Bar, Bars};
pub(crate) use intervals::{IntervalRow, Intervals};
pub(crate) use lines::{Line, Lines, Stroke};
pub(crate) use points::{Point, Points};

use maud::{Markup, PreEscaped, html};

/// Width of every chart in its own units; the page scales it to the column.
const WIDTH: f64 = 440.0;

/// Number of series that the style sheet tells apart; a later one starts again.
pub(crate) const SERIES: usize = 8;

/// The class of a series.
pub(crate) fn series_class(series: usize) -> String {
    format!("s{}", series % SERIES)
}

/// A picture with a name for those who do not see it.
fn svg(height: f64, name: &str, inside: Markup) -> Markup {
    html! {
        svg class="chart" viewBox={ "0 0 " (number(WIDTH)) " " (number(height)) } role="img"
            aria-label=(name) { (inside) }
    }
}

/// The marker of a series around a point: eight shapes.
pub(crate) fn marker(series: usize, x: f64, y: f64, size: f64) -> Markup {
    let s = size;
    let corners: &[(f64, f64)] = match series % SERIES {
        0 => return html! { circle cx=(number(x)) cy=(number(y)) r=(number(s)) {} },
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        4 => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        5 => &[(-1.2, -0.5), (1.2, -0.5), (1.2, 0.5), (-1.2, 0.5)],
        6 => &[(-0.5, -1.2), (0.5, -1.2), (0.5, 1.2), (-0.5, 1.2)],
        _ => &[(0.0, -1.2), (1.15, -0.35), (0.7, 1.0), (-0.7, 1.0), (-1.15, -0.35)],
    };
    let points: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx * s, y + dy * s)).collect();
    html! { path d={ (path(&points)) "Z" } {} }
}

/// A small picture of a series' marker, for legends and tables.
pub(crate) fn swatch(series: usize) -> Markup {
    html! {
        svg class={ "swatch " (series_class(series)) } viewBox="0 0 12 12" aria-hidden="true" {
            (marker(series, 6.0, 6.0, 4.2))
        }
    }
}

/// `M x y L x y …`
fn path(points: &[(f64, f64)]) -> String {
    let mut out = String::new();
    for (at, (x, y)) in points.iter().enumerate() {
        out.push(if at == 0 { 'M' } else { 'L' });
        out.push_str(&format!("{} {}", number(*x), number(*y)));
    }
    out
}

/// A coordinate with one decimal at most.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Text at a point; `class` says how it is aligned.
fn text(x: f64, y: f64, class: &str, words: &str) -> Markup {
    html! { text x=(number(x)) y=(number(y)) class=(class) { (words) } }
}

/// A straight line.
fn rule(from: (f64, f64), to: (f64, f64), class: &str) -> Markup {
    html! {
        line x1=(number(from.0)) y1=(number(from.1)) x2=(number(to.0)) y2=(number(to.1))
            class=(class) {}
    }
}

/// What a browser shows on hovering: nothing a reader needs, all a curious one wants.
fn hint(words: &str) -> Markup {
    PreEscaped(html! { title { (words) } }.into_string())
}
