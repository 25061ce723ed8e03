//! Flood simulation: 50 M distinct random keys against a table of 100,000, while two abusers keep
//! calling.
//!
//! Memory must stay within its bound and no abuser may be allowed more than its bound in any
//! interval; otherwise the program prints BROKEN and exits with 1. It also prints how often a new
//! key is denied: that is the price.

#[path = "../../crates/ratekeeper/tests/common/flood.rs"]
mod flood;

use flood::{Flood, slots};
use ratekeeper::Limit;
use std::process::ExitCode;

const MIB: u64 = 1 << 20;
/// What a process may grow by beside the table: the record of the abusers' allowed calls, and the
/// heap's own overhead.
const SLACK: u64 = 2 * MIB;

/// The memory of a table in which nothing is settled: 40 bytes per key, and 512 for states that do
/// not fit it, plus the heap's overhead for each.
fn max_bytes(keys: u64) -> u64 {
    keys * (40 + 512) * 9 / 8
}

fn main() -> ExitCode {
    let keys = std::env::args()
        .nth(1)
        .map_or(Ok(50_000_000), |keys| keys.replace('_', "").parse());
    let Ok(keys) = keys else {
        eprintln!("usage: flood [KEYS]");
        return ExitCode::from(2);
    };
    let mut broken = false;
    for limit in ["10/s", "5/min", "10/s sliding_log"] {
        broken |= run_flood(limit.parse().expect("a limit"), keys);
    }
    if broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Runs the simulation and prints a report; returns whether a bound broke.
fn run_flood(limit: Limit, keys: u64) -> bool {
    let max_keys = 100_000;
    let flood = Flood {
        limit,
        keys,
        max_keys,
        per_second: 1_000_000,
    };
    let began = std::time::Instant::now();
    let report = flood.run();
    let stats = report.stats;
    let mut broken = false;
    println!(
        "{limit}: {keys} keys, {max_keys} at most, 1,000,000 a second of simulated time ({:.1?})",
        began.elapsed()
    );
    for abuser in &report.abusers {
        let calls = abuser.calls;
        let allowed = abuser.allowed.len();
        match &abuser.violation {
            None => println!(
                "  abuser, {}: {allowed} of {calls} calls allowed, within its bound",
                abuser.name
            ),
            Some(violation) => {
                println!(
                    "  BROKEN: abuser, {}: {allowed} of {calls} calls allowed: {violation}",
                    abuser.name
                );
                broken = true;
            }
        }
    }
    let denied: Vec<_> = report
        .denied
        .iter()
        .map(|denied| format!("{:.2}", percent(*denied, keys / 10)))
        .collect();
    println!(
        "  new keys denied: {:.3} %; by tenth: {}",
        percent(report.denied(), keys),
        denied.join(" ")
    );
    println!(
        "  keys {} in {} slots, live {}; evicted fresh {}, evicted live {}",
        stats.keys,
        slots(&stats),
        stats.live,
        stats.evicted_fresh,
        stats.evicted_live
    );
    let resident: Vec<_> = report
        .resident
        .iter()
        .map(|bytes| format!("{:.1}", *bytes as f64 / MIB as f64))
        .collect();
    let max_bytes = max_bytes(max_keys as u64);
    let table_mib = stats.bytes as f64 / MIB as f64;
    println!(
        "  memory in MiB, by tenth: {}; the table reports {table_mib:.1}",
        resident.join(" ")
    );
    if report.most_keys > slots(&stats) {
        println!(
            "  BROKEN: {} keys in {} slots",
            report.most_keys,
            slots(&stats)
        );
        broken = true;
    }
    let max_resident = report.resident.into_iter().max().unwrap_or(0);
    if max_resident > max_bytes + SLACK {
        println!("  BROKEN: {max_resident} bytes resident, at most {max_bytes} expected");
        broken = true;
    }
    broken
}
