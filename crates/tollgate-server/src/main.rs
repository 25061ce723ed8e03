//! The binary `tollgate`: rate limits served to any stack.

mod buckets;
mod cli;
mod config;
mod http;
mod listen;
mod serve;
mod welcome;
mod worker;

use cli::Command;
use std::io::Write;
use std::process::ExitCode;

/// `serve` could not start. Usage errors end with the same code, by clap.
const CANNOT_START: u8 = 2;

fn main() -> ExitCode {
    match cli::command() {
        Command::Serve(args) => match serve::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tollgate: {error}");
                ExitCode::from(CANNOT_START)
            }
        },
        Command::Version => {
            // Whoever closed the pipe did not want to read it.
            let _ = writeln!(std::io::stdout(), "tollgate {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}
