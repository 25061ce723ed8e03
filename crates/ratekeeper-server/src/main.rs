//! The binary `ratekeeper`: rate limits served to any stack.

mod admin;
mod api;
mod app;
mod cli;
mod commands;
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

/// A gateway takes a buffer for each request and gives it back, over which the allocators of most
/// systems take their time. Tests have one that counts.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `check` or `doctor` found something wrong; `explain` says that the request is turned away; a
/// service refused what `admin` asked.
const NO: u8 = 1;

/// It could not start, or not be read. Usage errors end with the same code, by clap.
const CANNOT: u8 = 2;

fn main() -> ExitCode {
    match cli::command() {
        Command::Serve(args) => ended(serve::run(&Start::serve(args))),
        Command::Proxy(args) => match gateway::start(args) {
            Ok(start) => ended(serve::run(&start)),
            Err(problem) => {
                eprintln!("ratekeeper: {problem}");
                ExitCode::from(CANNOT)
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

/// How a server ended.
fn ended(served: Result<(), StartError>) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(CANNOT)
        }
    }
}

/// To standard output. Whoever closed the pipe did not want to read it.
fn print(text: impl fmt::Display) {
    let _ = write!(std::io::stdout(), "{text}");
}
