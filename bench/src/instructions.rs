//! Instructions per call, counted by valgrind: the same number on every run, independent of other
//! load.
//!
//! The binary runs itself twice under callgrind, the second time with twice the calls. The
//! difference is the calls alone. The clock is frozen and free, so only the limiter is counted.

use crate::peers::clocks::{ClockAdapter, FrozenClock};
use crate::peers::{governor, ours};
use crate::policies;
use crate::report::table;
use ratekeeper::{Algorithm, Ask, Clock, Keyed, Limit, MemoryStore};
use ratekeeper_policy::Completion;
use std::hint::black_box;
use std::process::{Command, ExitCode};

/// The argument for the binary to run the counted calls.
pub(crate) const CHILD: &str = "--count-instructions-of";

const CALLS: u64 = 100_000;

const WHO: [&str; 2] = ["ratekeeper", "governor"];
const ROWS: [&str; 2] = ["allowed", "denied"];

/// Cases that only ratekeeper has. All calls are allowed, unless the name has another outcome.
const OWN_CASES: [&str; 7] = [
    "limiter reserve",
    "keyed check, 1,000 strings",
    "keyed check, denied",
    "keyed check, sliding window",
    "store, 1 ask",
    "store, 3 asks",
    "engine, 3 of 1,000 policies",
];
const KEYS: usize = 1_000;

pub(crate) fn report() -> ExitCode {
    if !can_be_counted() {
        println!("instructions: skipped, valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    let mut lines = Vec::new();
    for competitor in WHO {
        let mut line = vec![competitor.to_owned()];
        for row in ROWS {
            let case = format!("{competitor}/{row}");
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
    let mut lines = Vec::new();
    for case in OWN_CASES {
        match of_a_call(&[CHILD, case], CALLS) {
            Ok(counted) => lines.push(vec![case.to_owned(), format!("{counted:.1}")]),
            Err(error) => {
                eprintln!("instructions: {case}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{}",
        table(&["ratekeeper", "instructions"], lines.into_iter())
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

/// Returns the instructions of one call of a function alone. It must not be inlined; `*` matches
/// anything.
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
        "limiter reserve" => repeat(calls, ours::reserve(FrozenClock)),
        "keyed check, 1,000 strings" => keyed_checks(calls, policies::wide(), true),
        "keyed check, denied" => keyed_checks(calls, Limit::deny_all(), false),
        "keyed check, sliding window" => keyed_checks(
            calls,
            Limit::per_second(1_000_000_000).algorithm(Algorithm::SlidingWindow),
            true,
        ),
        "store, 1 ask" => store_decisions(calls, 1),
        "store, 3 asks" => store_decisions(calls, 3),
        "engine, 3 of 1,000 policies" => engine_decisions(calls),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Checks keys that are known before anything is counted.
fn keyed_checks(calls: u64, limit: Limit, allowed: bool) {
    let keyed = Keyed::<str, _>::with_clock(limit, FrozenClock);
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user:{key}")).collect();
    for key in &keys {
        let _ = keyed.check(key);
    }
    let mut turn = keys.iter().cycle();
    (0..calls).for_each(|_| {
        let key = turn.next().expect("an endless iterator");
        assert_eq!(black_box(&keyed).check(key).is_allowed(), allowed);
    });
}

fn store_decisions(calls: u64, asks: usize) {
    let store = MemoryStore::builder().clock(FrozenClock).build();
    let limits: Vec<_> = (0..asks)
        .map(|limit| {
            store
                .limit(&limit.to_string(), policies::wide())
                .expect("few limits")
        })
        .collect();
    let asks: Vec<_> = limits
        .iter()
        .map(|limit| Ask::new(limit, "user-42"))
        .collect();
    let now = store.clock().now();
    (0..calls).for_each(|_| {
        assert!(black_box(&store).decide_now(&asks, now).is_allowed());
    });
}

fn engine_decisions(calls: u64) {
    let engine = policies::engine_with_clock(KEYS, FrozenClock);
    let path = policies::path(KEYS);
    let subject = policies::subject(&path);
    (0..calls).for_each(|_| {
        let verdict = black_box(&engine).decide_now(&subject);
        assert!(verdict.is_allowed());
        engine.settle_now(verdict, Completion::status(200));
    });
}

fn repeat(calls: u64, call: impl Fn() -> bool) {
    (0..calls).for_each(|_| assert!(call(), "a call took another path than its row's"));
}
