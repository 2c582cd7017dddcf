//! Errors of the command line and their exit codes.

/// An error with its exit code: one line that says what, where and what to try.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// One line for people.
    pub message: String,
    /// What the process exits with.
    pub code: u8,
}

impl CliError {
    /// The user's input is wrong: exit code 2.
    pub fn input(message: impl ToString) -> Self {
        Self { message: message.to_string(), code: 2 }
    }

    /// The work failed: exit code 1.
    pub fn failed(message: impl ToString) -> Self {
        Self { message: message.to_string(), code: 1 }
    }

    /// Something else has said what went wrong; only the exit code is left to give.
    pub fn told(code: u8) -> Self {
        Self { message: String::new(), code }
    }

    /// A signal stopped the work: exit code 128 and the signal's number.
    pub fn stopped(signal: usize, message: impl ToString) -> Self {
        Self { message: message.to_string(), code: 128u8.saturating_add(signal as u8) }
    }
}
