//! wrk and h2load, on the core that the proxies leave free.

use super::servers::{FREE_CORE, Server};
use super::{Load, Workload};
use crate::cpu_time;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Connections of wrk; for h2load, streams on all of its connections.
pub(super) const CONNECTIONS: u32 = 64;
const H2_CONNECTIONS: u32 = 8;
const WARM_UP_CALLS: Duration = Duration::from_secs(1);

/// Each connection waits for this many milliseconds before its next request, 3 on average: 64 of
/// them make about 16,000 requests per second, less than either proxy can do.
const PACE: &str = "function delay() return math.random(1, 5) end\n";

/// Each request has a body of 64 KB.
const POST: &str = "wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", 65536)\n";

/// The result of a run of wrk or h2load, and the proxy's processor time meanwhile.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) rate: f64,
    /// In milliseconds.
    pub(super) p99: f64,
    /// Microseconds of processor time of the proxy per request.
    pub(super) micros: f64,
    /// The 99th percentile at a pace that both can keep up with.
    pub(super) paced: f64,
}

/// The programs that make requests, and the directory of their scripts and logs.
pub(super) struct Loader {
    pace: PathBuf,
    post: PathBuf,
    log: PathBuf,
}

impl Loader {
    /// Writes the scripts to that directory.
    pub(super) fn find(directory: &Path) -> Result<Self, String> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err("two cores are needed, one for the proxy and one for the rest".into());
        }
        // It prints its version, and exits with 1.
        if Command::new("wrk").arg("-v").output().is_err() {
            return Err("wrk is not installed (on Debian: apt-get install wrk)".into());
        }
        if Command::new("h2load").arg("--version").output().is_err() {
            return Err(
                "h2load is not installed (on Debian: apt-get install nghttp2-client)".into(),
            );
        }
        let [pace, post, log] =
            ["pace.lua", "post.lua", "h2load.log"].map(|name| directory.join(name));
        fs::write(&pace, PACE)
            .and_then(|()| fs::write(&post, POST))
            .map_err(|error| error.to_string())?;
        Ok(Self { pace, post, log })
    }

    /// Runs at full speed, and then, if the workload is a goal, at a fixed pace.
    pub(super) fn measure(&self, server: &Server, workload: &Workload) -> Result<Run, String> {
        let [before, _] = cpu_time::times(server.id())?;
        let full = self.load(server, workload, workload.length)?;
        let [after, _] = cpu_time::times(server.id())?;
        let requests = full.rate * workload.length.as_secs_f64();
        let micros = (after - before).as_secs_f64() * 1e6 / requests;
        if !workload.is_goal {
            return Ok(Run { micros, ..full });
        }
        let paced = self.wrk(server, workload.length, Some(&self.pace))?;
        Ok(Run {
            micros,
            paced: paced.p99,
            ..full
        })
    }

    /// Warms up, uncounted.
    pub(super) fn warm_up(&self, server: &Server, workload: &Workload) -> Result<(), String> {
        self.load(server, workload, WARM_UP_CALLS).map(drop)
    }

    fn load(&self, server: &Server, workload: &Workload, length: Duration) -> Result<Run, String> {
        match workload.load {
            Load::Get => self.wrk(server, length, None),
            Load::Post => self.wrk(server, length, Some(&self.post)),
            Load::Http2 => self.h2load(server, length),
        }
    }

    fn wrk(&self, server: &Server, length: Duration, script: Option<&Path>) -> Result<Run, String> {
        let (connections, seconds) = (
            format!("-c{CONNECTIONS}"),
            format!("-d{}s", length.as_secs()),
        );
        let mut command = Command::new("taskset");
        command.args([
            "-c",
            FREE_CORE,
            "wrk",
            "-t1",
            "--latency",
            &connections,
            &seconds,
        ]);
        if let Some(script) = script {
            command.arg("-s").arg(script);
        }
        let output = command
            .arg(&server.url)
            .output()
            .map_err(|error| format!("taskset: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // It prints errors only if there were any.
        if text.contains("Non-2xx") || text.contains("Socket errors") {
            return Err(format!("not every request was answered:\n{text}"));
        }
        let rate = text.lines().find_map(|line| {
            line.strip_prefix("Requests/sec:")?
                .trim()
                .parse::<f64>()
                .ok()
        });
        let p99 = text
            .lines()
            .find_map(|line| millis(line.trim().strip_prefix("99%")?.trim()));
        match (rate, p99) {
            (Some(rate), Some(p99)) if rate > 0.0 => Ok(Run {
                rate,
                p99,
                ..Run::default()
            }),
            _ => Err(format!(
                "unexpected output of wrk:\n{text}{}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// 8 connections with 8 streams each. It prints no percentile: that is taken from its log.
    fn h2load(&self, server: &Server, length: Duration) -> Result<Run, String> {
        let (streams, clients) = (CONNECTIONS / H2_CONNECTIONS, H2_CONNECTIONS);
        let duration = length.as_secs().to_string();
        // It appends to an existing log.
        drop(fs::remove_file(&self.log));
        let output = Command::new("taskset")
            .args([
                "-c",
                FREE_CORE,
                "h2load",
                "-t1",
                "-c",
                &clients.to_string(),
                "-m",
                &streams.to_string(),
            ])
            .args(["-D", &duration, "--log-file"])
            .arg(&self.log)
            .arg(&server.url)
            .output()
            .map_err(|error| format!("taskset: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let log = fs::read_to_string(&self.log)
            .map_err(|error| format!("h2load wrote no log: {error}\n{text}"))?;
        // The time it was sent, the status, and how many microseconds it took.
        let mut times = Vec::new();
        for line in log.lines() {
            let mut words = line.split_whitespace().skip(1);
            match (
                words.next(),
                words.next().and_then(|time| time.parse::<u64>().ok()),
            ) {
                (Some("200"), Some(time)) => times.push(time),
                _ => return Err(format!("not every request was answered: {line}\n{text}")),
            }
        }
        times.sort_unstable();
        let Some(p99) = times.get(times.len() * 99 / 100) else {
            return Err(format!("unexpected output of h2load:\n{text}"));
        };
        let rate = times.len() as f64 / length.as_secs_f64();
        Ok(Run {
            rate,
            p99: *p99 as f64 / 1e3,
            ..Run::default()
        })
    }
}

/// The time of all cores in the kernel's ticks, and the part of it that other virtual machines had,
/// as the kernel counts it. `None` where the kernel does not report it.
#[derive(Default)]
pub(super) struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    pub(super) fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        // cpu, then: user, nice, system, idle, iowait, irq, softirq, steal.
        let cores = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .take(8);
        let ticks: Vec<u64> = cores.filter_map(|ticks| ticks.parse().ok()).collect();
        Self {
            all: ticks.iter().sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    pub(super) fn stolen_since(&self, before: &Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.all - before.all).max(1) as f64
    }
}

/// `1.23ms`, `456.00us` or `1.20s`.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units
        .iter()
        .find_map(|(unit, times)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * times))
}
