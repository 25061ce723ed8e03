//! The binary `ratekeeper`: rate limits served to any stack.

mod admin;
mod admin_cli;
mod app;
mod buckets;
mod cannot_start;
mod certificates;
mod cli;
mod client;
mod configuration;
mod connections;
mod doctor;
mod envoy;
mod explain;
mod http;
mod ids;
mod listen;
mod load;
mod log;
mod metrics;
mod notify;
mod patient;
mod proxy;
mod reload;
mod resp;
mod serve;
mod signals;
mod store;
mod stream;
mod terminal;
mod tls;
mod token;
mod top;
mod traces;
mod user_header;
mod welcome;
mod worker;
mod worker_health;
mod workers;

use cannot_start::CannotStart;
use cli::Command;
use serve::Start;
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
        Command::Proxy(args) => match proxy::start(args) {
            Ok(start) => ended(serve::run(&start)),
            Err(problem) => {
                eprintln!("ratekeeper: {problem}");
                ExitCode::from(CANNOT)
            }
        },
        Command::Config(command) => configuration::run(&command),
        Command::Explain(args) => explain::run(&args),
        Command::Admin(args) => admin_cli::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Version => {
            print(format_args!("ratekeeper {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
    }
}

/// How a server ended.
fn ended(served: Result<(), CannotStart>) -> ExitCode {
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
