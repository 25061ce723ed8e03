//! The gateway in front of a service that slows down under load, at five times what that service
//! can do: what is answered in time with an adaptive limit, and without one, in the same run. Real
//! sockets, the real binary: `make overload`.

mod backend;
mod gateway;
mod load;

use backend::Backend;
use gateway::Gateway;
use load::{Counts, PATIENCE};
use std::process::ExitCode;
use std::time::Duration;

/// How many times the peak is offered.
const TIMES: f64 = 5.0;
/// At least this share of the peak must be answered in time with an adaptive limit …
const KEPT: f64 = 0.9;
/// … and at most this without one, or the run shows nothing.
const COLLAPSED: f64 = 0.2;
/// Each row: so long until all has settled, and so long under measurement.
const SETTLES: Duration = Duration::from_secs(8);
const MEASURED: Duration = Duration::from_secs(15);

/// Each row: what it is called, what stands in the policy, and what it must keep of the peak.
const ROWS: [(&str, &str, Bound); 5] = [
    ("no limit", OPEN, Bound::AtMost(COLLAPSED)),
    (
        "a fixed limit that is right, `20 concurrent`",
        "limit = \"20 concurrent\"\nstatus = 503",
        Bound::None,
    ),
    (
        "a fixed limit that is wrong, `200 concurrent`",
        "limit = \"200 concurrent\"\nstatus = 503",
        Bound::None,
    ),
    (
        "`adaptive = {}`, which is `gradient2`",
        "adaptive = {}",
        Bound::AtLeast(KEPT),
    ),
    (
        "`control = \"aimd\"`, `timeout = \"500ms\"`",
        "adaptive = { control = \"aimd\", timeout = \"500ms\" }",
        Bound::None,
    ),
];
const OPEN: &str = "limit = \"unlimited\"";

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
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, String> {
    let peak = peak()?;
    println!(
        "{:.0} a second is the most that the service answers. Offered: {:.0} a second.\n",
        peak,
        TIMES * peak
    );
    println!(
        "| in the gateway | answered in time, a second | share of peak | denied at once | unanswered | p99 |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut met = true;
    for (name, policy, bound) in ROWS {
        // A service of its own for each, so that none inherits what another left behind.
        let backend = Backend::start()?;
        let gateway = Gateway::start(backend.address, policy)?;
        let counts = load::open(gateway.address, TIMES * peak, SETTLES, MEASURED)?;
        let goodput = counts.good as f64 / MEASURED.as_secs_f64();
        println!("{}", row(name, &counts, goodput, peak));
        met &= bound.holds(goodput / peak);
    }
    println!();
    if met {
        println!(
            "As it must be: an adaptive limit keeps {:.0} % or more, and without one it collapses.",
            KEPT * 100.0
        )
    } else {
        println!(
            "NOT as it must be: at least {KEPT} of the peak with an adaptive limit, at most {COLLAPSED} without."
        )
    }
    Ok(met)
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
        None => format!("over {} ms", PATIENCE.as_millis()),
    };
    let of_peak = format!("{:.0} %", 100.0 * goodput / peak);
    let cells = [
        name,
        &format!("{goodput:.0}"),
        &of_peak,
        &share(counts.refused),
        &share(counts.left),
        &p99,
    ];
    format!("| {} |", cells.join(" | "))
}

/// The most that the service answers in time: so many clients through an open gateway, each asking
/// again as soon as it has its answer.
fn peak() -> Result<f64, String> {
    let mut peak = 0.0_f64;
    for clients in [8, 10, 12, 16] {
        let backend = Backend::start()?;
        let gateway = Gateway::start(backend.address, OPEN)?;
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
