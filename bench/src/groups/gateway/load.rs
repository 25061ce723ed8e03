//! wrk, on the core that the proxies leave free.

use super::servers::{FREE_CORE, Server};
use std::process::Command;
use std::time::Duration;

pub(super) const CONNECTIONS: u32 = 64;
pub(super) const LENGTH: Duration = Duration::from_secs(3);
pub(super) const WARM_UP: Duration = Duration::from_secs(1);

/// What wrk says of a run.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) rate: f64,
    /// In milliseconds.
    pub(super) p99: f64,
}

/// A wrk that there is.
pub(super) struct Wrk(());

impl Wrk {
    pub(super) fn find() -> Result<Self, String> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err("it takes two cores, one for the proxy and one for the rest".into());
        }
        // It says its version, and ends with 1.
        let Err(_) = Command::new("wrk").arg("-v").output() else { return Ok(Self(())) };
        Err("wrk is not installed (on Debian: apt-get install wrk)".into())
    }

    pub(super) fn load(&self, server: &Server, length: Duration) -> Result<Run, String> {
        let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{}s", length.as_secs()));
        let output = Command::new("taskset")
            .args(["-c", FREE_CORE, "wrk", "-t1", "--latency", &connections, &seconds, &server.url])
            .output()
            .map_err(|error| format!("taskset: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        // It tells of what it should not have met, and only then.
        if said.contains("Non-2xx") || said.contains("Socket errors") {
            return Err(format!("not every request was answered:\n{said}"));
        }
        let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse::<f64>().ok());
        let p99 = said.lines().find_map(|line| millis(line.trim().strip_prefix("99%")?.trim()));
        match (rate, p99) {
            (Some(rate), Some(p99)) if rate > 0.0 => Ok(Run { rate, p99 }),
            _ => Err(format!("wrk says:\n{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// `1.23ms`, `456.00us` or `1.20s`.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units.iter().find_map(|(unit, times)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * times))
}
