//! Overload test: the gateway in front of a service that slows down under load, at five times its
//! peak. Compares the goodput with an adaptive limit and without one, with real sockets and the
//! real binary: `make overload`.

mod backend;
mod gateway;
mod load;

use backend::Backend;
use gateway::Gateway;
use load::{CLIENT_TIMEOUT, Counts};
use std::process::ExitCode;
use std::time::Duration;

/// The offered load, as a multiple of the peak.
const LOAD_FACTOR: f64 = 5.0;
/// The minimum goodput with an adaptive limit, as a share of the peak.
const MIN_GOODPUT: f64 = 0.9;
/// The maximum goodput without a limit; above it the run proves nothing.
const MAX_COLLAPSED_GOODPUT: f64 = 0.2;
/// The time before each measurement, and its length.
const WARM_UP: Duration = Duration::from_secs(8);
const MEASUREMENT: Duration = Duration::from_secs(15);

/// Each row: its name, the policy, and the bound on its goodput.
const ROWS: [(&str, &str, Bound); 5] = [
    ("no limit", NO_LIMIT, Bound::AtMost(MAX_COLLAPSED_GOODPUT)),
    (
        "a good fixed limit, `20 concurrent`",
        "limit = \"20 concurrent\"\nstatus = 503",
        Bound::None,
    ),
    (
        "a bad fixed limit, `200 concurrent`",
        "limit = \"200 concurrent\"\nstatus = 503",
        Bound::None,
    ),
    (
        "`adaptive = {}`, which is `gradient2`",
        "adaptive = {}",
        Bound::AtLeast(MIN_GOODPUT),
    ),
    (
        "`control = \"aimd\"`, `timeout = \"500ms\"`",
        "adaptive = { control = \"aimd\", timeout = \"500ms\" }",
        Bound::None,
    ),
];
const NO_LIMIT: &str = "limit = \"unlimited\"";

#[derive(Clone, Copy)]
enum Bound {
    None,
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, share: f64) -> bool {
        match self {
            Self::None => true,
            Self::AtLeast(least) => share >= least,
            Self::AtMost(most) => share <= most,
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, String> {
    let peak = peak()?;
    println!(
        "Peak: {:.0} requests a second. Offered: {:.0} a second.\n",
        peak,
        LOAD_FACTOR * peak
    );
    println!(
        "| in the gateway | answered in time, a second | share of peak | denied at once | unanswered | p99 |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut is_passed = true;
    for (name, policy, bound) in ROWS {
        // A separate service for each row, so that none inherits work of another.
        let backend = Backend::start()?;
        let gateway = Gateway::start(backend.address, policy)?;
        let counts = load::open(gateway.address, LOAD_FACTOR * peak, WARM_UP, MEASUREMENT)?;
        let goodput = counts.good as f64 / MEASUREMENT.as_secs_f64();
        println!("{}", row(name, &counts, goodput, peak));
        is_passed &= bound.holds(goodput / peak);
    }
    println!();
    if is_passed {
        println!(
            "PASSED: at least {:.0} % of the peak with an adaptive limit, and collapse without one.",
            MIN_GOODPUT * 100.0
        );
    } else {
        println!(
            "FAILED: expected at least {MIN_GOODPUT} of the peak with an adaptive limit, at most {MAX_COLLAPSED_GOODPUT} without."
        );
    }
    Ok(is_passed)
}

fn row(name: &str, counts: &Counts, goodput: f64, peak: f64) -> String {
    let share = |count: u64| {
        format!(
            "{:.0} %",
            100.0 * count as f64 / counts.offered().max(1) as f64
        )
    };
    let p99 = match counts.p99() {
        Some(p99) => format!("{} ms", p99.as_millis()),
        None => format!("over {} ms", CLIENT_TIMEOUT.as_millis()),
    };
    let of_peak = format!("{:.0} %", 100.0 * goodput / peak);
    let cells = [
        name,
        &format!("{goodput:.0}"),
        &of_peak,
        &share(counts.denied),
        &share(counts.unanswered),
        &p99,
    ];
    format!("| {} |", cells.join(" | "))
}

/// The peak: the highest goodput of closed-loop clients through a gateway without a limit.
fn peak() -> Result<f64, String> {
    let mut peak = 0.0_f64;
    for clients in [8, 10, 12, 16] {
        let backend = Backend::start()?;
        let gateway = Gateway::start(backend.address, NO_LIMIT)?;
        let counts = load::closed(
            gateway.address,
            clients,
            Duration::from_secs(2),
            Duration::from_secs(5),
        )?;
        let goodput = counts.good as f64 / 5.0;
        println!("{clients} clients in turn: {goodput:.0} a second");
        peak = peak.max(goodput);
    }
    Ok(peak)
}
