//! What people see: text on standard output, progress on standard error.
//!
//! A closed pipe ends the program quietly. Colours and moving bars only on a terminal; elsewhere
//! one plain line an interval.

use indicatif::{ProgressBar, ProgressStyle};
pub use page::separated as thousands;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Writes to standard output. A reader that went away ends the program with exit code 0; what
/// cannot be written otherwise is said, and ends it with 1.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(gone) if gone.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(failure) => {
            error(&format!("standard output: {failure}; what was asked for is done, not shown"));
            std::process::exit(1)
        }
    }
}

/// Writes a line to standard error; nobody listening is no error.
pub fn note(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// The one line that says what went wrong.
pub fn error(message: &str) {
    let mark = if io::stderr().is_terminal() && wants_colours(|name| std::env::var_os(name)) {
        "\x1b[1;31merror:\x1b[0m"
    } else {
        "error:"
    };
    note(&format!("{mark} {message}"));
}

/// Whether standard output takes colours: a terminal that is not dumb, and nobody against it.
pub fn colours() -> bool {
    io::stdout().is_terminal() && wants_colours(|name| std::env::var_os(name))
}

fn wants_colours(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable("NO_COLOR").is_none() && variable("TERM").is_none_or(|kind| kind != "dumb")
}

/// Progress over known steps.
pub struct Progress {
    bar: Option<ProgressBar>,
    last: Instant,
    quiet: bool,
}

/// How often a plain line comes where no bar can move.
const INTERVAL: Duration = Duration::from_secs(10);

impl Progress {
    /// Over `total` steps; `quiet` shows nothing.
    pub fn new(total: u64, quiet: bool) -> Progress {
        let bar = (!quiet && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, last: Instant::now(), quiet }
    }

    /// At `done` steps; `message` is asked for only when it is shown.
    pub fn at(&mut self, done: u64, total: u64, message: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => {
                if self.last.elapsed() > Duration::from_millis(100) {
                    bar.set_message(message());
                    self.last = Instant::now();
                }
                bar.set_position(done);
            }
            None if !self.quiet && self.last.elapsed() >= INTERVAL => {
                note(&format!("step {done}/{total} {}", message()));
                self.last = Instant::now();
            }
            None => {}
        }
    }

    /// A line that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if !self.quiet => note(text),
            None => {}
        }
    }

    /// A line that stays and is more than progress: it comes where progress is quiet, too.
    pub fn warn(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => note(text),
        }
    }

    /// Ends the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Seconds as people read them.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s / 60 % 60),
    }
}

/// Bytes as MiB with one place.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let wants = |set: &[(&str, &str)]| {
            wants_colours(|name| set.iter().find(|one| one.0 == name).map(|one| one.1.into()))
        };
        assert!(wants(&[]) && wants(&[("TERM", "xterm-256color")]));
        assert!(!wants(&[("TERM", "dumb")]) && !wants(&[("NO_COLOR", "1")]));
    }
}
