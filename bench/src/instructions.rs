//! Instructions per call, counted by valgrind: the same number on every run, whatever else the
//! machine does.
//!
//! The binary runs itself twice under callgrind, the second time with twice the calls. The
//! difference is the calls alone. The clock is frozen and costs nothing, so what is counted is the
//! limiter.

use crate::peers::clocks::{ClockAdapter, FrozenClock};
use crate::peers::{governor, mutex_bucket, ours, ratelimit};
use crate::report::table;
use std::process::{Command, ExitCode};

/// The argument that makes the binary run what is counted.
pub(crate) const CHILD: &str = "--count-instructions-of";

const CALLS: u64 = 100_000;

const WHO: [&str; 4] = ["ratekeeper", "governor", "ratelimit", "Mutex bucket"];
const ROWS: [&str; 2] = ["allowed", "denied"];

pub(crate) fn report() -> ExitCode {
    if !can_be_counted() {
        println!("instructions: skipped, valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    let mut lines = Vec::new();
    for who in WHO {
        let mut line = vec![who.to_owned()];
        for row in ROWS {
            let case = format!("{who}/{row}");
            match of_a_call(&[CHILD, &case], CALLS) {
                Ok(counted) => line.push(format!("{counted:.1}")),
                Err(error) => {
                    eprintln!("instructions: {case}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        lines.push(line);
    }
    println!("## instructions per call, on a frozen clock\n");
    println!(
        "{}",
        table(&["", "check allowed", "check denied"], lines.into_iter())
    );
    ExitCode::SUCCESS
}

/// Whether valgrind is installed.
pub(crate) fn can_be_counted() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}

/// Returns the instructions of one call. The binary makes the calls with these arguments and, after
/// them, how many to make.
fn of_a_call(args: &[&str], calls: u64) -> Result<f64, String> {
    let (once, twice) = (
        collected(&[], args, calls)?,
        collected(&[], args, 2 * calls)?,
    );
    Ok((twice - once) as f64 / calls as f64)
}

/// Returns the instructions of one call of a function, and nothing else. It must not be inlined;
/// `*` matches anything.
pub(crate) fn of_a_function(function: &str, args: &[&str], calls: u64) -> Result<f64, String> {
    let only = format!("--toggle-collect={function}");
    Ok(collected(&[&only], args, calls)? as f64 / calls as f64)
}

/// Returns all instructions of a run of `calls` calls.
fn collected(options: &[&str], args: &[&str], calls: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(options)
        .arg(own)
        .args(args)
        .arg(calls.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&run.stderr);
    let count = text
        .lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count
        .filter(|_| run.status.success())
        .ok_or_else(|| format!("unexpected output of valgrind: {text}"))
}

/// What runs under valgrind.
pub(crate) fn run(case: &str, calls: &str) -> ExitCode {
    let Ok(calls) = calls.parse() else {
        return ExitCode::from(2);
    };
    let still = ClockAdapter::new(FrozenClock);
    match case {
        "ratekeeper/allowed" => repeat(calls, ours::allowed(FrozenClock)),
        "ratekeeper/denied" => repeat(calls, ours::denied(FrozenClock)),
        "governor/allowed" => repeat(calls, governor::allowed(still)),
        "governor/denied" => repeat(calls, governor::denied(still)),
        "ratelimit/allowed" => repeat(calls, ratelimit::allowed(still)),
        "ratelimit/denied" => repeat(calls, ratelimit::denied(still)),
        "Mutex bucket/allowed" => repeat(calls, mutex_bucket::allowed(FrozenClock)),
        "Mutex bucket/denied" => repeat(calls, mutex_bucket::denied(FrozenClock)),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn repeat(calls: u64, call: impl Fn() -> bool) {
    (0..calls).for_each(|_| assert!(call(), "a call took another path than its row's"));
}
