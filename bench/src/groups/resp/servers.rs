//! The three servers, each a child process that ends with this one.

use super::CHILD;
use crate::programs;
use ratekeeper_testkit::RedisServer;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub(super) struct Servers {
    /// Their ports.
    pub(super) ours: u16,
    pub(super) bare: u16,
    pub(super) redis: RedisServer,
    _processes: [KillOnDrop; 2],
}

/// Kills a child process when it is dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Servers {
    pub(super) fn start() -> Result<Self, String> {
        if Command::new("redis-server")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            return Err(
                "redis-server is not installed (on Debian: apt-get install redis-server)".into(),
            );
        }
        let mut command = Command::new(programs::ratekeeper()?);
        command
            .env("RATEKEEPER_SERVER__HTTP", "off")
            .env("RATEKEEPER_SERVER__ADMIN", "off");
        command.env("RATEKEEPER_SERVER__RESP", "127.0.0.1:0");
        let (ours, at) = started(command, |line| {
            line.strip_prefix("RESP: ")?
                .split(',')
                .next()?
                .rsplit(':')
                .next()
        })?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.arg(CHILD);
        let (bare, bare_at) = started(command, |line| Some(line.trim()))?;
        Ok(Self {
            ours: at,
            bare: bare_at,
            redis: RedisServer::start(),
            _processes: [ours, bare],
        })
    }
}

/// Starts a process and waits until it has printed its port.
fn started(
    mut command: Command,
    port: impl Fn(&str) -> Option<&str>,
) -> Result<(KillOnDrop, u16), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = process.map_err(|error| format!("{name}: {error}"))?;
    let stdout = process.stdout.take();
    let process = KillOnDrop(process);
    for line in stdout
        .into_iter()
        .flat_map(|stdout| BufReader::new(stdout).lines())
    {
        let line = line.map_err(|error| error.to_string())?;
        if let Some(port) = port(&line).and_then(|port| port.parse().ok()) {
            return Ok((process, port));
        }
    }
    Err(format!("{name} did not start"))
}
