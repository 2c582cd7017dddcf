//! `--tui`: a run on the whole terminal. The terminal stays in its usual mode, so that signals from
//! the keyboard stop the run as they always do.

use super::watch::{left, speed, told};
use crate::term::{self, thousands};
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Wrap};
use ratatui::{Frame, Terminal, prelude::CrosstermBackend};
use std::io::{self, Stderr};
use std::time::{Duration, Instant};
use train::Event;

/// How often it is drawn, at most.
const INTERVAL: Duration = Duration::from_millis(150);
/// Points of a curve that are kept; every second one goes when there are more.
const MOST_POINTS: usize = 2048;

/// What is drawn.
#[derive(Default)]
struct View {
    title: String,
    step: u64,
    total: u64,
    facts: Vec<(&'static str, String)>,
    /// (step, nats a token)
    train: Vec<(f64, f64)>,
    valid: Vec<(f64, f64)>,
    sample: Option<(u64, String)>,
    lines: Vec<String>,
}

/// The terminal while it shows a run.
pub struct Board {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    view: View,
    drawn: Option<Instant>,
}

impl Board {
    /// Takes the terminal.
    pub fn new(title: String, total: u64) -> io::Result<Board> {
        execute!(io::stderr(), EnterAlternateScreen, Hide)?;
        let made = Terminal::new(CrosstermBackend::new(io::stderr()));
        let terminal = made.inspect_err(|_| give_back())?;
        Ok(Board { terminal, view: View { title, total, ..View::default() }, drawn: None })
    }

    /// Hears an event.
    pub fn tell(&mut self, event: &Event) {
        self.view.tell(event);
        self.draw(!matches!(event, Event::Step { .. }));
    }

    /// Shows a text that the model wrote.
    pub fn sampled(&mut self, step: u64, text: &str) {
        self.view.sample = Some((step, text.to_owned()));
        self.draw(true);
    }

    /// Gives the terminal back; the lines that a run without a dashboard would have left.
    pub fn finish(mut self: Box<Self>) -> Vec<String> {
        std::mem::take(&mut self.view.lines)
    }

    /// A terminal that went away is no error of the run.
    fn draw(&mut self, now: bool) {
        if now || self.drawn.is_none_or(|drawn| drawn.elapsed() >= INTERVAL) {
            drop(self.terminal.draw(|frame| self.view.draw(frame)));
            self.drawn = Some(Instant::now());
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    drop(execute!(io::stderr(), LeaveAlternateScreen, Show));
}

impl View {
    fn tell(&mut self, event: &Event) {
        self.lines.extend(told(event));
        match event {
            Event::Step { state, total, report, rate } => {
                (self.step, self.total) = (state.step, *total);
                let loss = report.loss_sum / report.targets.max(1) as f64;
                push(&mut self.train, (state.step as f64, loss));
                let share = |part: f64| format!("{:.1} %", 100.0 * part / state.seconds.max(1e-9));
                self.facts = vec![
                    ("loss", format!("{loss:.4} nats/token")),
                    ("learning rate", format!("{rate:.2e}")),
                    ("gradient norm", format!("{:.3}", report.gradient_norm)),
                    ("clipped", format!("{} steps", thousands(state.clipped))),
                    ("overflowed", format!("{} steps", thousands(state.overflowed))),
                    ("tokens", thousands(state.tokens)),
                    ("speed", format!("{} tokens/s", thousands(speed(state) as u64))),
                    ("reading data", share(state.data_seconds)),
                    ("left", term::duration(left(state, *total))),
                    ("memory", term::mib(ledger::peak_bytes())),
                    ("best", best(state.best_loss, state.best_step)),
                ];
            }
            Event::Evaluated { point, .. } => {
                push(&mut self.valid, (point.step as f64, point.valid_loss));
            }
            Event::Resumed(state) => {
                let curve = state.curve.iter().map(|p| (p.step as f64, p.valid_loss));
                self.valid = curve.collect();
                self.step = state.step;
            }
            Event::Sample { .. } | Event::PassedOver(_) => {}
        }
    }

    fn draw(&self, frame: &mut Frame) {
        let wide = |height| Constraint::Length(height);
        let rows = [wide(3), Constraint::Min(8), wide(6)];
        let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
        let columns = [Constraint::Length(38), Constraint::Min(20)];
        let [left, right] = Layout::horizontal(columns).areas(middle);
        self.draw_progress(frame, top);
        self.draw_facts(frame, left);
        self.draw_curves(frame, right);
        let (title, text) = match &self.sample {
            Some((step, text)) => (format!(" sample at step {step} "), Text::from(&text[..])),
            None => {
                let last = self.lines.iter().rev().take(4).rev();
                (" events ".to_owned(), last.map(|line| Line::from(&line[..])).collect())
            }
        };
        let text = Paragraph::new(text).wrap(Wrap { trim: true });
        frame.render_widget(text.block(Block::bordered().title(title)), bottom);
    }

    fn draw_progress(&self, frame: &mut Frame, area: Rect) {
        let ratio = (self.step as f64 / self.total.max(1) as f64).clamp(0.0, 1.0);
        let label = format!("step {} of {}", thousands(self.step), thousands(self.total));
        let block = Block::bordered().title(format!(" {} ", self.title));
        frame.render_widget(Gauge::default().ratio(ratio).label(label).block(block), area);
    }

    fn draw_facts(&self, frame: &mut Frame, area: Rect) {
        let line = |(name, value): &(&str, String)| Line::from(format!("{name:>14}  {value}"));
        let lines: Vec<Line> = self.facts.iter().map(line).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" now ")), area);
    }

    fn draw_curves(&self, frame: &mut Frame, area: Rect) {
        let both = || self.train.iter().chain(&self.valid).map(|p| p.1).filter(|y| y.is_finite());
        let (low, high) = (both().fold(f64::INFINITY, f64::min), both().fold(0.0, f64::max));
        let (low, high) = if low < high { (low, high) } else { (high - 1.0, high + 1.0) };
        let curve = |name, points, color| {
            let data = Dataset::default().name(name).data(points).marker(Marker::Braille);
            data.graph_type(GraphType::Line).style(Style::default().fg(color))
        };
        let sets = vec![
            curve("train", &self.train[..], Color::Blue),
            curve("validation", &self.valid[..], Color::Yellow),
        ];
        let steps = self.train.last().map_or(1.0, |last| last.0.max(1.0));
        let labels = |low: f64, high: f64| [format!("{low:.2}"), format!("{high:.2}")];
        let x = Axis::default().bounds([0.0, steps]).labels(["0".to_owned(), format!("{steps}")]);
        let y = Axis::default().bounds([low, high]).labels(labels(low, high));
        let block = Block::bordered().title(" nats/token ");
        frame.render_widget(Chart::new(sets).x_axis(x).y_axis(y).block(block), area);
    }
}

fn best(loss: Option<f64>, step: u64) -> String {
    loss.map_or("none yet".to_owned(), |loss| format!("{loss:.4} at step {step}"))
}

fn push(points: &mut Vec<(f64, f64)>, point: (f64, f64)) {
    if points.len() >= MOST_POINTS {
        let mut keep = false;
        points.retain(|_| {
            keep = !keep;
            keep
        });
    }
    points.push(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;
    use train::{CurvePoint, State, StepReport};

    fn shown(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_run_is_shown_and_leaves_its_lines() {
        let mut view = View { title: "transformer".to_owned(), total: 40, ..View::default() };
        for step in 1..=20 {
            let state = State {
                step,
                tokens: 100 * step,
                seconds: 0.5 * step as f64,
                data_seconds: 0.05 * step as f64,
                ..State::default()
            };
            let loss = 8.0 - 0.1 * step as f64;
            let report = StepReport { loss_sum: 100.0 * loss, targets: 100, ..Default::default() };
            view.tell(&Event::Step { state: &state, total: 40, report, rate: 1e-3 });
        }
        let point = CurvePoint { step: 20, tokens: 2000, train_loss: 6.5, valid_loss: 6.25 };
        view.tell(&Event::Evaluated { point, best: true });
        let text = shown(&view, 100, 30);
        for fact in [
            "transformer",
            "step 20 of 40",
            "6.0000 nats/token",
            "1.00e-3",
            "2,000",
            "200 tokens/s",
            "10.0 %",
            "10 s",
            "7.90",
            "valid 6.2500 nats/token  best",
        ] {
            assert!(text.contains(fact), "{fact} is not in\n{text}");
        }
        view.sample = Some((20, "please send the figures".to_owned()));
        let text = shown(&view, 100, 30);
        assert!(text.contains("sample at step 20") && text.contains("please send the figures"));
        assert_eq!(view.lines.len(), 1);
        // Any size is drawn without a panic.
        for (width, height) in [(1, 1), (10, 3), (40, 12)] {
            shown(&view, width, height);
        }
    }

    #[test]
    fn long_curves_are_thinned() {
        let mut points = Vec::new();
        (0..10_000).for_each(|i| push(&mut points, (f64::from(i), 1.0)));
        assert!(points.len() <= MOST_POINTS && points.last() == Some(&(9999.0, 1.0)));
        assert_eq!(points[0].0, 0.0);
    }
}
