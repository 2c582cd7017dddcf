//! What people see of a run while it goes: lines or a dashboard, event files, samples.

use super::board::Board;
use super::sample::Sampler;
use super::tensorboard::EventFile;
use crate::error::CliError;
use crate::term::{self, Progress, thousands};
use std::path::PathBuf;
use train::{Event, State};

/// Where it is shown.
pub enum Screen {
    /// A line that moves, or one now and then.
    Lines(Progress),
    /// The whole terminal.
    Board(Box<Board>),
}

/// Listens to a run.
pub struct Watch<'a> {
    screen: Screen,
    sampler: Option<Sampler<'a>>,
    tensorboard: Option<PathBuf>,
    events: Option<EventFile>,
    /// The first sample that could not be written.
    failed: Option<CliError>,
}

impl<'a> Watch<'a> {
    /// Shows a run on a screen, with samples and event files where asked for.
    pub fn new(
        screen: Screen,
        sampler: Option<Sampler<'a>>,
        tensorboard: Option<PathBuf>,
    ) -> Watch<'a> {
        Watch { screen, sampler, tensorboard, events: None, failed: None }
    }

    /// Hears an event.
    pub fn tell(&mut self, event: &Event) {
        let first = match event {
            Event::Step { state, .. } => state.step,
            Event::Resumed(state) => state.step + 1,
            _ => 0,
        };
        self.open(first);
        self.record(event);
        let sample = match (event, &self.sampler) {
            (Event::Sample { model, .. }, Some(sampler)) => Some(sampler.write(model)),
            _ => None,
        };
        match (sample, event) {
            (Some(Ok(text)), Event::Sample { step, .. }) => self.sampled(*step, &text),
            (Some(Err(error)), _) => {
                self.failed.get_or_insert(error);
            }
            _ => match &mut self.screen {
                Screen::Lines(progress) => line(progress, event),
                Screen::Board(board) => board.tell(event),
            },
        }
    }

    /// Ends the display; a dashboard leaves its lines behind.
    pub fn finish(self) {
        match self.screen {
            Screen::Lines(progress) => progress.finish(),
            Screen::Board(board) => board.finish().iter().for_each(|line| term::note(line)),
        }
        if let Some(error) = self.failed {
            term::note(&format!("note: no sample: {}", error.message));
        }
    }

    fn sampled(&mut self, step: u64, text: &str) {
        self.write(|events| events.text(step, "sample", text));
        match &mut self.screen {
            Screen::Lines(progress) => progress.say(&format!("step {step:>6}  sample: {text}")),
            Screen::Board(board) => board.sampled(step, text),
        }
    }

    fn open(&mut self, first: u64) {
        if first == 0 || self.events.is_some() {
            return;
        }
        let Some(dir) = &self.tensorboard else { return };
        match EventFile::create(dir, first) {
            Ok(events) => self.events = Some(events),
            Err(error) => self.stop_writing(&error),
        }
    }

    /// Event files are told of as they cannot be written, and training goes on without them.
    fn stop_writing(&mut self, error: &std::io::Error) {
        let path = self.events.take().map(|events| events.path().to_owned());
        let path = path.or(self.tensorboard.take()).unwrap_or_default();
        let text = format!("note: {}: {error}; no more event files", path.display());
        match &self.screen {
            Screen::Lines(progress) => progress.warn(&text),
            Screen::Board(_) => {}
        }
        self.tensorboard = None;
    }

    fn write(&mut self, write: impl FnOnce(&mut EventFile) -> std::io::Result<()>) {
        let done = self.events.as_mut().map_or(Ok(()), write);
        if let Err(error) = done {
            self.stop_writing(&error);
        }
    }

    fn record(&mut self, event: &Event) {
        match event {
            Event::Step { state, report, rate, .. } => {
                let loss = report.loss_sum / report.targets.max(1) as f64;
                self.write(|events| {
                    let values = [
                        ("train/loss", loss),
                        ("train/learning_rate", *rate),
                        ("train/gradient_norm", report.gradient_norm),
                        ("train/tokens_per_second", speed(state)),
                    ];
                    events.scalars(state.step, &values)
                });
            }
            Event::Evaluated { point, .. } => {
                self.write(|events| {
                    events.scalars(point.step, &[("valid/loss", point.valid_loss)])
                });
            }
            _ => {}
        }
    }
}

/// Tokens a second so far.
pub fn speed(state: &State) -> f64 {
    state.tokens as f64 / state.seconds.max(1e-9)
}

/// Seconds to the end, as the steps so far went.
pub fn left(state: &State, total: u64) -> f64 {
    state.seconds / state.step.max(1) as f64 * total.saturating_sub(state.step) as f64
}

fn line(progress: &mut Progress, event: &Event) {
    match event {
        Event::Step { state, total, report, rate } => progress.at(state.step, *total, || {
            let loss = report.loss_sum / report.targets.max(1) as f64;
            now(state, *total, loss, *rate)
        }),
        Event::Sample { .. } => {}
        Event::PassedOver(_) => told(event).iter().for_each(|text| progress.warn(text)),
        other => told(other).iter().for_each(|text| progress.say(text)),
    }
}

/// How a run goes.
fn now(state: &State, total: u64, loss: f64, rate: f64) -> String {
    let overflowed = match state.overflowed {
        0 => String::new(),
        steps => format!(", {} steps skipped by overflow", thousands(steps)),
    };
    format!(
        "loss {loss:.3} rate {rate:.1e} {} tokens/s, {} left{overflowed}",
        thousands(speed(state) as u64),
        term::duration(left(state, total))
    )
}

/// The line that an event leaves, where it leaves one.
pub fn told(event: &Event) -> Option<String> {
    match event {
        Event::Evaluated { point, best } => Some(format!(
            "step {:>6}  train {:.4}  valid {:.4} nats/token{}",
            point.step,
            point.train_loss,
            point.valid_loss,
            if *best { "  best" } else { "" }
        )),
        Event::PassedOver(error) => Some(format!("checkpoint passed over: {error}")),
        Event::Resumed(state) => Some(format!("resumed at step {}", state.step)),
        Event::Step { .. } | Event::Sample { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_were_skipped_are_told() {
        let mut state = State { step: 10, tokens: 2000, seconds: 5.0, ..State::default() };
        let calm = now(&state, 20, 3.0, 1e-3);
        assert_eq!(calm, "loss 3.000 rate 1.0e-3 400 tokens/s, 5 s left");
        state.overflowed = 3;
        assert_eq!(now(&state, 20, 3.0, 1e-3), calm + ", 3 steps skipped by overflow");
    }
}
