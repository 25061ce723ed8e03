//! wrk, on the core that the servers leave free.

use super::Run;
use super::server::Server;
use std::process::Command;
use std::time::Duration;

pub(super) const CONNECTIONS: u32 = 64;
pub(super) const LENGTH: Duration = Duration::from_secs(1);
pub(super) const WARM_UP: Duration = Duration::from_secs(1);

const CORE: &str = "1";

/// A wrk that there is.
pub(super) struct Wrk(());

impl Wrk {
    pub(super) fn find() -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            return Err("it takes two cores, one for the server and one for wrk".into());
        }
        // It says its version, and ends with 1.
        let Err(_) = Command::new("wrk").arg("-v").output() else { return Ok(Self(())) };
        Err("wrk is not installed (on Debian: apt-get install wrk, which make bench does as root)".into())
    }

    /// Asks that server for so long, over connections that stay.
    pub(super) fn load(&self, server: &Server, length: Duration) -> Result<Run, String> {
        let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{}s", length.as_secs()));
        let before = server.times()?;
        let output = Command::new("taskset")
            .args(["-c", CORE, "wrk", "-t1", &connections, &seconds, &server.url()])
            .output()
            .map_err(|error| format!("taskset: {error}"))?;
        let after = server.times()?;
        let [spent, waited] = [0, 1].map(|at| after[at].saturating_sub(before[at]).as_secs_f64());
        let said = String::from_utf8_lossy(&output.stdout);
        // It tells of what it should not have met, and only then.
        if said.contains("Non-2xx") || said.contains("Socket errors") {
            return Err(format!("not every request was answered:\n{said}"));
        }
        let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse::<f64>().ok());
        let requests = said.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse::<f64>().ok());
        match (rate, requests) {
            (Some(rate), Some(requests)) if requests > 0.0 => {
                Ok(Run { rate, micros: spent * 1e6 / requests, waited: waited / length.as_secs_f64() })
            }
            _ => Err(format!("wrk says:\n{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}
