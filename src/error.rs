//! Errors of the command line and their exit codes.

/// An error with its exit code.
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
}
