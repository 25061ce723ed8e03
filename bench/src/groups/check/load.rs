//! The two servers on one core, and wrk on the other.

use super::{Run, echo};
use crate::cpu_time;
use crate::programs;
use crate::report::target;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(super) const CONNECTIONS: u32 = 64;
pub(super) const LENGTH: Duration = Duration::from_secs(2);
pub(super) const WARM_UP_CALLS: Duration = Duration::from_secs(1);

/// The core of the servers, one of which is busy at a time, and that of wrk.
const CORES: [&str; 2] = ["0", "1"];

const PATH: &str = "/v1/check";

const BODY: &str = r#"{"subject":{"ip":"203.0.113.7","user":"ann","method":"GET","path":"/api/items/42"},"cost":1,"peek":false}"#;

/// A limit that is never reached.
const LIMITS: &str = "[[policy]]\nname = \"everybody\"\nkey = [\"ip\"]\nlimit = \"1000000000/s\"\n";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Competitor {
    Bare,
    Ratekeeper,
}

impl Competitor {
    pub(super) const ALL: [Self; 2] = [Self::Bare, Self::Ratekeeper];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare axum JSON echo",
            Self::Ratekeeper => "ratekeeper",
        }
    }
}

/// A running server.
pub(super) struct Server {
    process: Child,
    address: String,
}

impl Server {
    pub(super) fn start(competitor: Competitor) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("taskset");
        command.args(["-c", CORES[0]]);
        match competitor {
            Competitor::Bare => {
                command.arg(own).arg(echo::CHILD);
            }
            Competitor::Ratekeeper => {
                command
                    .arg(programs::ratekeeper()?)
                    .args(["serve", "--config"])
                    .arg(file("check.toml", LIMITS)?);
                command.env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0");
                for listener in ["GRPC", "RESP", "ADMIN"] {
                    command.env(format!("RATEKEEPER_SERVER__{listener}"), "off");
                }
            }
        }
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.map_err(|error| format!("taskset: {error}"))?;
        let stdout = process.stdout.take();
        let mut server = Self {
            process,
            address: String::new(),
        };
        // Both print their address in their first line.
        let text = stdout.and_then(|stdout| BufReader::new(stdout).lines().next()?.ok());
        let address = text
            .as_deref()
            .and_then(|line| line.rsplit(['/', ' ']).next());
        server.address = address
            .filter(|address| address.contains(':'))
            .unwrap_or_default()
            .to_owned();
        if server.address.is_empty() {
            Err(format!("{} did not start", competitor.name()))
        } else {
            Ok(server)
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn file(name: &str, content: &str) -> Result<PathBuf, String> {
    let path = target().join(name);
    let written = std::fs::create_dir_all(target()).and_then(|()| std::fs::write(&path, content));
    written.map(|()| path).map_err(|error| error.to_string())
}

/// An installed wrk, and its script.
pub(super) struct Wrk {
    script: PathBuf,
}

impl Wrk {
    pub(super) fn find() -> Result<Self, String> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err("two cores are needed, one for the server and one for wrk".into());
        }
        // It prints its version, and exits with 1.
        if Command::new("wrk").arg("-v").output().is_err() {
            return Err("wrk is not installed (on Debian: apt-get install wrk, which make bench does as root)".into());
        }
        let script = format!(
            "wrk.method = \"POST\"\nwrk.headers[\"Content-Type\"] = \"application/json\"\nwrk.body = [[{BODY}]]\n"
        );
        Ok(Self {
            script: file("check.lua", &script)?,
        })
    }

    /// Loads that server for this long, over connections that stay open.
    pub(super) fn load(&self, server: &Server, length: Duration) -> Result<Run, String> {
        let (connections, seconds) = (
            format!("-c{CONNECTIONS}"),
            format!("-d{}s", length.as_secs()),
        );
        let before = cpu_time::times(server.process.id())?;
        let output = Command::new("taskset")
            .args(["-c", CORES[1], "wrk", "-t1", &connections, &seconds, "-s"])
            .arg(&self.script)
            .arg(format!("http://{}{PATH}", server.address))
            .output()
            .map_err(|error| format!("taskset: {error}"))?;
        let after = cpu_time::times(server.process.id())?;
        let [spent, waited] = [0, 1].map(|at| after[at].saturating_sub(before[at]).as_secs_f64());
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
        let requests = text.lines().find_map(|line| {
            line.trim()
                .split_once(" requests in ")?
                .0
                .parse::<f64>()
                .ok()
        });
        match (rate, requests) {
            (Some(rate), Some(requests)) if requests > 0.0 => Ok(Run {
                rate,
                micros: spent * 1e6 / requests,
                waited: waited / length.as_secs_f64(),
            }),
            _ => Err(format!(
                "unexpected output of wrk:\n{text}{}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}
