//! The flood: 50 M distinct random keys against a table of 100,000 while two abusers keep calling.
//!
//! Memory must stay at the cap and no abuser may be admitted more than its bound in any interval;
//! if one of these does not hold the program says so and ends with 1. How often a new key is turned
//! away is printed: that is the price.

#[path = "../../crates/ratekeeper/tests/common/bounds.rs"]
#[allow(dead_code, reason = "shared with the tests of ratekeeper")]
mod bounds;
#[path = "../../crates/ratekeeper/tests/common/flood.rs"]
mod flood;
#[path = "../../crates/ratekeeper/tests/common/oracle.rs"]
#[allow(dead_code, reason = "shared with the tests of ratekeeper")]
mod oracle;

use flood::{Flood, slots};
use ratekeeper::Limit;
use std::process::ExitCode;

const MIB: u64 = 1 << 20;
/// What a process may grow by beside the table: what the abusers were admitted, and the heap's own.
const SLACK: u64 = 2 * MIB;

/// What a table may use in which nothing is settled: 40 bytes a key, and 512 for states that do not
/// fit it, plus what the heap keeps beside each.
fn most_bytes(keys: u64) -> u64 {
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
        broken |= flooded(limit.parse().expect("a limit"), keys);
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

/// Runs it and tells; whether something did not hold.
fn flooded(limit: Limit, keys: u64) -> bool {
    let cap = 100_000;
    let flood = Flood {
        limit,
        keys,
        cap,
        per_second: 1_000_000,
    };
    let began = std::time::Instant::now();
    let report = flood.run();
    let figures = report.figures;
    let mut broken = false;
    println!(
        "{limit}: {keys} keys, {cap} at most, 1,000,000 a second of simulated time ({:.1?})",
        began.elapsed()
    );
    for abuser in &report.abusers {
        let (calls, admitted) = (abuser.calls, abuser.admitted.len());
        match &abuser.broken {
            None => println!(
                "  abuser, {}: {admitted} of {calls} calls admitted, within its bound",
                abuser.name
            ),
            Some(how) => {
                println!(
                    "  BROKEN abuser, {}: {admitted} of {calls} calls admitted: {how}",
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
        "  keys {} in {} slots, live {}; evicted without loss {}, displaced {}",
        figures.keys,
        slots(&figures),
        figures.live,
        figures.evicted_fresh,
        figures.evicted_live
    );
    let resident: Vec<_> = report
        .resident
        .iter()
        .map(|bytes| format!("{:.1}", *bytes as f64 / MIB as f64))
        .collect();
    let (cap, says) = (most_bytes(cap as u64), figures.bytes as f64 / MIB as f64);
    println!(
        "  memory in MiB, by tenth: {}; the table says {says:.1}",
        resident.join(" ")
    );
    if report.most_keys > slots(&figures) {
        println!(
            "  BROKEN: {} keys, room for {}",
            report.most_keys,
            slots(&figures)
        );
        broken = true;
    }
    let most = report.resident.into_iter().max().unwrap_or(0);
    if most > cap + SLACK {
        println!("  BROKEN: {most} bytes resident, the cap is {cap}");
        broken = true;
    }
    broken
}
