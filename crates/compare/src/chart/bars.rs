//! Horizontal bars of two parts with a mark for what was predicted.

use maud::{Markup, html};

use super::axis::{Axis, Label};
use super::{WIDTH, hint, number, rule, series_class, svg, text};

const SIDE: f64 = 14.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 42.0;
const ROW: f64 = 42.0;

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// What it is, above the bar.
    pub label: String,
    /// The number in words, at the right end.
    pub note: String,
    /// Series of the second part.
    pub series: usize,
    /// The first part, common to all bars.
    pub base: f64,
    /// The second part.
    pub own: f64,
    /// Where the bar was predicted to end.
    pub predicted: Option<f64>,
}

/// A chart of bars.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    /// For those who do not see it.
    pub name: String,
    /// Label of the axis.
    pub x: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// The picture; `None` where there is nothing to show.
    pub(crate) fn draw(&self) -> Option<Markup> {
        let ends = self
            .bars
            .iter()
            .flat_map(|bar| [Some(bar.base + bar.own), bar.predicted].into_iter().flatten());
        let most = ends.reduce(f64::max).filter(|most| *most > 0.0)?;
        let x = Axis::new((0.0, most), (SIDE, WIDTH - SIDE), 5).rounded();
        let bottom = TOP + ROW * self.bars.len() as f64;
        let inside = html! {
            @for (value, label) in x.ticks(Label::Plain) {
                (rule((x.place(value), TOP), (x.place(value), bottom), "grid"))
                (text(x.place(value), bottom + 16.0, "tick middle", &label))
            }
            @for (at, bar) in self.bars.iter().enumerate() {
                (draw_bar(bar, TOP + ROW * at as f64, &x))
            }
            (rule((SIDE, bottom), (WIDTH - SIDE, bottom), "axis"))
            (text(WIDTH - SIDE, bottom + 36.0, "label end", &self.x))
        };
        Some(svg(bottom + BOTTOM, &self.name, inside))
    }
}

fn draw_bar(bar: &Bar, top: f64, x: &Axis) -> Markup {
    let y = top + 20.0;
    let rect = |from: f64, to: f64, class: &str| {
        let (from, to) = (x.place(from), x.place(to));
        html! {
            rect class=(class) x=(number(from)) y=(number(y)) width=(number(to - from)) height="14" {}
        }
    };
    html! {
        (text(SIDE, top + 15.0, "name", &bar.label))
        (text(WIDTH - SIDE, top + 15.0, "value end", &bar.note))
        g class=(series_class(bar.series)) {
            (hint(&format!("{}: {}", bar.label, bar.note)))
            (rect(0.0, bar.base, "base"))
            (rect(bar.base, bar.base + bar.own, "bar"))
            @if let Some(predicted) = bar.predicted {
                (rule((x.place(predicted), y - 3.0), (x.place(predicted), y + 17.0), "predicted"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_two_parts_and_a_prediction() {
        let bar = Bar {
            label: "rnn".to_owned(),
            note: "30 MiB".to_owned(),
            series: 2,
            base: 10.0,
            own: 20.0,
            predicted: Some(31.0),
        };
        let chart = |bars| Bars { name: "memory".to_owned(), x: "MiB".to_owned(), bars };
        let drawn = chart(vec![bar]).draw().unwrap().into_string();
        for class in ["class=\"base\"", "class=\"bar\"", "class=\"predicted\""] {
            assert!(drawn.contains(class), "{drawn}");
        }
        assert!(chart(Vec::new()).draw().is_none());
    }
}
