//! One step as a table with bars, the unit interval and the place where the draw fell.
//! Fits 80 columns; says everything without colour.

use std::fmt::Write;

use crate::record::{StepRecord, Token};
use crate::token::{column, visible};

/// Whether escape codes for colours are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Colour {
    /// For a terminal.
    On,
    /// For files, pipes, and where NO_COLOR is set.
    #[default]
    Off,
}

/// How a step is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// Columns, at least 60.
    pub width: usize,
    /// Rows of the table, at least 1.
    pub rows: usize,
    /// Colours or none.
    pub colour: Colour,
}

impl Default for Picture {
    fn default() -> Self {
        Self { width: 80, rows: 12, colour: Colour::Off }
    }
}

const TEXT_WIDTH: usize = 14;
/// Key, text, three probabilities and the blanks between.
const FIGURES_WIDTH: usize = 2 + TEXT_WIDTH + 3 * 8 + 2;
const GREEN: &str = "32;1";
const GREY: &str = "2";
pub(crate) const CYAN: &str = "36";

/// Draws a step. Ends with a line end.
#[must_use]
pub fn terminal(step: &StepRecord, picture: Picture) -> String {
    let picture = Picture { width: picture.width.max(60), rows: picture.rows.max(1), ..picture };
    let mut out = String::new();
    head(&mut out, step, picture);
    table(&mut out, step, picture);
    interval(&mut out, step, picture);
    verdict(&mut out, step, picture);
    out
}

/// Writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($format:tt)*) => { let _ = writeln!($out, $($format)*); };
}

pub(crate) fn paint(picture: Picture, code: &str, text: &str) -> String {
    match picture.colour {
        Colour::On => format!("\x1b[{code}m{text}\x1b[0m"),
        Colour::Off => text.to_owned(),
    }
}

fn head(out: &mut String, step: &StepRecord, picture: Picture) {
    line!(out, "step {}: {} tokens", step.step, step.vocabulary);
    for effect in &step.effects {
        let mut text = format!("  {:<34}", effect.rule);
        if effect.changed > 0 {
            let _ = write!(text, " changes {}", effect.changed);
        }
        if effect.dropped > 0 {
            let _ = write!(text, " drops {}", effect.dropped);
        }
        line!(out, "{}", paint(picture, GREY, format!("{text} keeps {}", effect.kept).trim_end()));
    }
}

fn table(out: &mut String, step: &StepRecord, picture: Picture) {
    let title = format!(
        "  {}   model  after T    drawn  bar: drawn, or dropped by",
        column("token", TEXT_WIDTH)
    );
    line!(out, "{}", paint(picture, GREY, &title));
    let shown = shown(step, picture.rows);
    let largest = shown.iter().map(|(_, token)| height(token)).fold(0.0, f64::max);
    for (place, token) in &shown {
        let is_chosen = token.figures.id == step.choice.id;
        let text = row(step, *place, token, largest, picture);
        let code = match token.figures.dropped_by {
            _ if is_chosen => GREEN,
            Some(_) => GREY,
            None => "0",
        };
        line!(out, "{}", if code == "0" { text } else { paint(picture, code, &text) });
    }
    let rest =
        step.tokens.len() - shown.len() + step.rest.iter().map(|bin| bin.count).sum::<usize>();
    if rest > 0 {
        line!(out, "{}", paint(picture, GREY, &format!("  … and {rest} more")));
    }
}

/// The first rows, and the chosen one if it stands further down.
fn shown(step: &StepRecord, rows: usize) -> Vec<(usize, &Token)> {
    let chosen = step.tokens.iter().position(|token| token.figures.id == step.choice.id);
    let first = match chosen {
        Some(place) if place >= rows => rows - 1,
        _ => rows,
    };
    let is_shown = |place: usize| place < first || (Some(place) == chosen);
    step.tokens.iter().enumerate().filter(|(place, _)| is_shown(*place)).collect()
}

fn height(token: &Token) -> f64 {
    match token.figures.dropped_by {
        Some(_) => token.figures.tempered_probability,
        None => token.figures.probability,
    }
}

fn row(step: &StepRecord, place: usize, token: &Token, largest: f64, picture: Picture) -> String {
    let figures = &token.figures;
    let drawn = match figures.dropped_by {
        Some(_) => format!("{:>8}", "-"),
        None => format!(" {:.5}", figures.probability),
    };
    let name = figures.dropped_by.and_then(|index| step.effects.get(index)).map(|e| &e.name);
    let bar_width = picture.width - FIGURES_WIDTH - 12;
    let bar = match name {
        Some(name) => format!("{} {name}", bar(height(token), largest, bar_width, Fill::Shade)),
        None => bar(height(token), largest, bar_width, Fill::Solid),
    };
    let mark = if figures.id == step.choice.id { " ◄" } else { "" };
    let text = column(&token.text, TEXT_WIDTH);
    let (model, after) = (figures.model_probability, figures.tempered_probability);
    let (key, bar) = (key(place), bar.trim_end());
    format!("{key} {text} {model:.5} {after:.5}{drawn}  {bar}{mark}")
}

/// The letter that names a row in the interval.
fn key(place: usize) -> char {
    u8::try_from(place).ok().filter(|&p| p < 26).map_or('·', |p| char::from(b'a' + p))
}

#[derive(Clone, Copy, PartialEq)]
enum Fill {
    Solid,
    Shade,
}

/// A bar in eighths of a column; something above nothing shows at least one.
fn bar(value: f64, largest: f64, width: usize, fill: Fill) -> String {
    const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    if value <= 0.0 || largest <= 0.0 {
        return String::new();
    }
    // Between 0 and 8 · width by construction.
    let eighths = ((value / largest * 8.0 * width as f64).round() as usize).clamp(1, 8 * width);
    if fill == Fill::Shade {
        return "░".repeat(eighths.div_ceil(8));
    }
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = (eighths % 8).checked_sub(1) {
        bar.push(EIGHTHS[part]);
    }
    bar
}

fn interval(out: &mut String, step: &StepRecord, picture: Picture) {
    let width = picture.width - 8;
    let Some(u) = step.choice.draw else {
        line!(out, "  temperature 0: the best token, no draw");
        return;
    };
    let mut cells = vec!['·'; width];
    for (place, token) in step.tokens.iter().enumerate() {
        let Some([start, end]) = token.figures.interval else { continue };
        // A cell belongs to the interval that holds its middle.
        let first = (start * width as f64 - 0.5).ceil().max(0.0) as usize;
        let behind = ((end * width as f64 - 0.5).ceil().max(0.0) as usize).min(width);
        cells[first.min(behind)..behind].fill(key(place));
    }
    let cells: String = cells.into_iter().collect();
    line!(out, "  0 {} 1", paint(picture, CYAN, &cells));
    let place = ((u * width as f64) as usize).min(width - 1);
    let label = format!("u = {u:.6}");
    let text = match place + 2 + label.len() < width {
        true => format!("{}▲ {label}", " ".repeat(place)),
        false => format!("{:>place$} ▲", label, place = place - 1),
    };
    line!(out, "    {}", paint(picture, GREEN, &text));
}

fn verdict(out: &mut String, step: &StepRecord, picture: Picture) {
    let choice = &step.choice;
    let name = format!("{} (id {})", visible(&step.text), choice.id);
    line!(out, "  choice {}, rank {} of the model", paint(picture, GREEN, &name), choice.rank);
    let (model, drawn) = (choice.logprob, choice.sample_logprob);
    line!(out, "  log-probability {model:.6} by the model, {drawn:.6} as drawn");
    let (entropy, kept) = (choice.entropy, choice.kept);
    line!(out, "  entropy {entropy:.4} nats; kept {kept} of {}", step.vocabulary);
}

#[cfg(test)]
mod tests {
    use super::*;
    use decoding::{Draw, History, Row, Rule, Rules, Settings, explain};
    use unicode_width::UnicodeWidthStr;

    fn step(rules: &Rules, probabilities: &[f64], u: f64) -> StepRecord {
        let row = Row::Probabilities(probabilities);
        let told = explain(rules, row, &History::default(), Draw::Fixed(u), 0).unwrap();
        StepRecord::new(0, &told, 256, |id| format!(" token{id}"))
    }

    fn top_p(p: f64) -> Rules {
        Rules::from_settings(&Settings { top_p: Some(p), ..Settings::default() }).unwrap()
    }

    #[test]
    fn the_table_tells_who_dropped_whom_and_where_u_fell() {
        let text = terminal(&step(&top_p(0.75), &[0.5, 0.3, 0.2], 0.64), Picture::default());
        let expected = "\
step 0: 3 tokens
  top_p 0.75                         drops 1 keeps 2
  token            model  after T    drawn  bar: drawn, or dropped by
a ␣token0        0.50000 0.50000 0.62500  ██████████████████████████
b ␣token1        0.30000 0.30000 0.37500  ███████████████▋ ◄
c ␣token2        0.20000 0.20000       -  ░░░░░░░░░ top_p
  0 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbb 1
                                                  ▲ u = 0.640000
  choice ␣token1 (id 1), rank 2 of the model
  log-probability -1.203973 by the model, -0.980829 as drawn
  entropy 1.0297 nats; kept 2 of 3
";
        assert_eq!(text, expected);
    }

    #[test]
    fn it_fits_the_width_and_has_no_escapes_without_colour() {
        let row: Vec<f64> = (1..400).map(|i| 1.0 / f64::from(i)).collect();
        for u in [0.0, 0.5, 0.97, 0.999_999] {
            for rules in [top_p(0.9), Rules::default(), Rules::preset(decoding::Preset::Llamacpp)] {
                let text = terminal(&step(&rules, &row, u), Picture::default());
                for line in text.lines() {
                    assert!(line.width() <= 80, "{} columns: {line}", line.width());
                }
                assert!(!text.contains('\x1b'));
                assert_eq!(text.matches('◄').count(), 1);
            }
        }
        let colour = Picture { colour: Colour::On, ..Picture::default() };
        assert!(terminal(&step(&top_p(0.9), &row, 0.5), colour).contains("\x1b["));
    }

    #[test]
    fn greedy_says_that_nothing_was_drawn() {
        let rules = Rules::new(vec![Rule::Temperature { t: 0.0 }]).unwrap();
        let text = terminal(&step(&rules, &[0.2, 0.8], 0.0), Picture::default());
        assert!(text.contains("no draw") && text.contains("choice ␣token1"));
    }
}
