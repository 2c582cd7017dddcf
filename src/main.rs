//! The `autoreg` binary: words typed at the terminal, turned into calls of the rooms below.
mod cmd;
mod error;

use clap::Parser;

#[derive(Parser)]
#[command(name = "autoreg", version)]
enum Cli {
    /// Turn mail or text into a data set, and look into one.
    Data(cmd::data::DataArgs),
}

fn main() -> std::process::ExitCode {
    let Cli::Data(args) = Cli::parse();
    match cmd::data::run(args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::from(error.code)
        }
    }
}
