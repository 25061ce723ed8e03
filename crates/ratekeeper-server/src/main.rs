//! The binary `ratekeeper`: rate limiting as a gateway and as a service.

mod admin;
mod api;
mod app;
mod cli;
mod commands;
mod config;
mod envoy;
mod gateway;
mod net;
mod observe;
mod resp;
mod run;
mod store;

use cli::Command;
use run::StartError;
use run::serve::{self, Start};
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// The allocator. The gateway allocates for each request, which takes longer with that of the
/// system. Tests use one that counts.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code: `check` or `doctor` found a problem, `explain` shows that the request is denied, or a
/// server rejected the admin command.
const EXIT_FAILURE: u8 = 1;

/// Exit code: the command could not start, or its input could not be read. clap ends usage errors
/// with the same code.
const EXIT_CANNOT_RUN: u8 = 2;

fn main() -> ExitCode {
    match cli::command() {
        Command::Serve(args) => exit_code(serve::run(&Start::serve(args))),
        Command::Proxy(args) => match gateway::start(args) {
            Ok(start) => exit_code(serve::run(&start)),
            Err(error) => {
                eprintln!("ratekeeper: {error}");
                ExitCode::from(EXIT_CANNOT_RUN)
            }
        },
        Command::Config(command) => commands::config::run(&command),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Admin(args) => commands::admin::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Version => {
            print(format_args!("ratekeeper {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
    }
}

/// The exit code of a server; prints its error.
fn exit_code(result: Result<(), StartError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

/// Prints to standard output. A closed pipe is not an error.
fn print(text: impl fmt::Display) {
    let _ = write!(std::io::stdout(), "{text}");
}
