//! wrk, on the core that the proxies leave free.

use super::servers::{FREE_CORE, Server};
use crate::processor;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const CONNECTIONS: u32 = 64;
const WARM_UP: Duration = Duration::from_secs(1);

/// Each connection thinks for so many milliseconds before it asks again, 3 in the mean: 64 of them make about 16,000 requests a
/// second, less than either proxy can do.
const PACE: &str = "function delay() return math.random(1, 5) end\n";

/// What wrk says of a run, and what the system says of the proxy meanwhile.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) rate: f64,
    /// In milliseconds.
    pub(super) p99: f64,
    /// Microseconds of a core that the proxy spent on a request.
    pub(super) micros: f64,
    /// The 99th percentile at a pace that both can keep up with.
    pub(super) paced: f64,
}

/// A wrk that there is, and the script that has it keep a pace.
pub(super) struct Wrk {
    pace: PathBuf,
}

impl Wrk {
    /// The script is written to that directory.
    pub(super) fn find(directory: &Path) -> Result<Self, String> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err("it takes two cores, one for the proxy and one for the rest".into());
        }
        // It says its version, and ends with 1.
        if Command::new("wrk").arg("-v").output().is_err() {
            return Err("wrk is not installed (on Debian: apt-get install wrk)".into());
        }
        let pace = directory.join("pace.lua");
        fs::write(&pace, PACE).map_err(|error| error.to_string())?;
        Ok(Self { pace })
    }

    /// For so long as fast as it goes, and then for as long at a pace.
    pub(super) fn measure(&self, server: &Server, length: Duration) -> Result<Run, String> {
        let [before, _] = processor::times(server.id())?;
        let full = self.load(server, length, &[])?;
        let [after, _] = processor::times(server.id())?;
        let paced = self.load(server, length, &["-s".as_ref(), self.pace.as_os_str()])?;
        let requests = full.rate * length.as_secs_f64();
        Ok(Run { micros: (after - before).as_secs_f64() * 1e6 / requests, paced: paced.p99, ..full })
    }

    /// Before anything counts.
    pub(super) fn warm_up(&self, server: &Server) -> Result<(), String> {
        self.load(server, WARM_UP, &[]).map(drop)
    }

    fn load(&self, server: &Server, length: Duration, more: &[&OsStr]) -> Result<Run, String> {
        let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{}s", length.as_secs()));
        let output = Command::new("taskset")
            .args(["-c", FREE_CORE, "wrk", "-t1", "--latency", &connections, &seconds])
            .args(more)
            .arg(&server.url)
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
            (Some(rate), Some(p99)) if rate > 0.0 => Ok(Run { rate, p99, ..Run::default() }),
            _ => Err(format!("wrk says:\n{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// The time of all cores in the kernel's ticks, and that part of it which others had, as the kernel of a virtual machine counts
/// it. None where the kernel does not say.
#[derive(Default)]
pub(super) struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    pub(super) fn now() -> Self {
        let said = fs::read_to_string("/proc/stat").unwrap_or_default();
        // cpu, then: user, nice, system, idle, iowait, irq, softirq, steal.
        let cores = said.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = cores.filter_map(|ticks| ticks.parse().ok()).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or(0) }
    }

    pub(super) fn stolen_since(&self, before: &Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.all - before.all).max(1) as f64
    }
}

/// `1.23ms`, `456.00us` or `1.20s`.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units.iter().find_map(|(unit, times)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * times))
}
