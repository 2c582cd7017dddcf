//! The `autoreg` binary: words typed at the terminal, turned into calls of the rooms below.
mod cmd;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "autoreg", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Choose tokens
    Generate(cmd::from_logits::FromLogitsArgs),
}

fn main() -> ExitCode {
    let Command::Generate(args) = Cli::parse().command;
    match cmd::from_logits::run(&args, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("autoreg: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
