//! wrk, on the core that the servers leave free: each server has its own wrk, and both are stopped
//! except during their runs.
//!
//! The machine changes its speed by a third within a second, so turns are short: other load then
//! affects all alike.

use super::Run;
use super::server::Server;
use crate::cpu_time;
use crate::programs::Process;
use crate::web::Competitor;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const CONNECTIONS: u32 = 64;
pub(super) const RUN: Duration = Duration::from_millis(100);

const CORE: &str = "1";

/// Longer than any round: wrk is stopped by a signal.
const LENGTH: &str = "-d600s";

/// The time in which wrk prints its counts.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that wrk is installed, and that there is a core for it.
pub(super) fn is_possible() -> Result<(), String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return Err("two cores are needed, one for the server and one for wrk".into());
    }
    // It prints its version, and exits with 1.
    let Err(_) = Command::new("wrk").arg("-v").output() else {
        return Ok(());
    };
    Err(
        "wrk is not installed (on Debian: apt-get install wrk, which make bench does as root)"
            .into(),
    )
}

/// A server, and the wrk that loads it.
pub(super) struct Pair {
    server: Server,
    wrk: Wrk,
    /// How long they ran.
    ran: Duration,
    before: [Duration; 2],
}

impl Pair {
    /// Starts both, and makes their first run.
    pub(super) fn start(program: &Path, competitor: Competitor) -> Result<Self, String> {
        let server = Server::start(program, competitor)?;
        let before = cpu_time::times(server.id())?;
        let start = Instant::now();
        let wrk = Wrk::start(&server.url())?;
        let mut pair = Self {
            server,
            wrk,
            ran: Duration::ZERO,
            before,
        };
        pair.run_from(start)?;
        Ok(pair)
    }

    /// Makes their next run.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        let start = Instant::now();
        tell(self.server.id(), Signal::GoOn)?;
        tell(self.wrk.0.id(), Signal::GoOn)?;
        self.run_from(start)
    }

    fn run_from(&mut self, start: Instant) -> Result<(), String> {
        std::thread::sleep(RUN.saturating_sub(start.elapsed()));
        tell(self.wrk.0.id(), Signal::Halt)?;
        tell(self.server.id(), Signal::Halt)?;
        self.ran += start.elapsed();
        Ok(())
    }

    /// Returns the result of their runs. The server stays stopped, so that only measured time is
    /// counted.
    pub(super) fn end(self) -> Result<Run, String> {
        let after = cpu_time::times(self.server.id())?;
        let [spent, waited] =
            [0, 1].map(|at| after[at].saturating_sub(self.before[at]).as_secs_f64());
        let text = self.wrk.end()?;
        // It prints errors only if there were any.
        if text.contains("Non-2xx") || text.contains("Socket errors") {
            return Err(format!("not every request was answered:\n{text}"));
        }
        let requests = text.lines().find_map(|line| {
            line.trim()
                .split_once(" requests in ")?
                .0
                .parse::<f64>()
                .ok()
        });
        let Some(requests) = requests.filter(|requests| *requests > 0.0) else {
            return Err(format!("unexpected output of wrk:\n{text}"));
        };
        let ran = self.ran.as_secs_f64();
        Ok(Run {
            rate: requests / ran,
            micros: spent * 1e6 / requests,
            waited: waited / ran,
        })
    }
}

struct Wrk(Process);

impl Wrk {
    fn start(url: &str) -> Result<Self, String> {
        // Requests in flight when it is halted take as long as the turns of the others.
        let connections = format!("-c{CONNECTIONS}");
        let mut command = Command::new("taskset");
        command.args(["-c", CORE, "wrk", "-t1", &connections, LENGTH]);
        command.args(["--timeout", "600s", url]);
        Process::start(&mut command).map(Self)
    }

    /// Stops it and returns what it printed.
    fn end(mut self) -> Result<String, String> {
        let id = self.0.id();
        tell(id, Signal::GoOn)?;
        let until = Instant::now() + TIMEOUT;
        // Repeatedly: a signal that arrives before it runs again may reach another thread than the
        // one that sleeps.
        while self
            .0
            .0
            .try_wait()
            .map_err(|error| error.to_string())?
            .is_none()
        {
            if Instant::now() > until {
                return Err("wrk does not exit".into());
            }
            std::thread::sleep(Duration::from_millis(10));
            tell(id, Signal::End)?;
        }
        let mut text = String::new();
        let out = self
            .0
            .0
            .stdout
            .take()
            .map(|mut stdout| std::io::Read::read_to_string(&mut stdout, &mut text));
        out.transpose().map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// A signal to a process.
#[derive(Clone, Copy)]
enum Signal {
    Halt,
    GoOn,
    End,
}

#[cfg(unix)]
fn tell(process: u32, signal: Signal) -> Result<(), String> {
    use rustix::process::{Pid, Signal as Number, kill_process};
    let number = match signal {
        Signal::Halt => Number::STOP,
        Signal::GoOn => Number::CONT,
        Signal::End => Number::INT,
    };
    let id = i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or("no process")?;
    kill_process(id, number).map_err(|error| format!("process {process}: {error}"))
}

#[cfg(not(unix))]
fn tell(_: u32, _: Signal) -> Result<(), String> {
    Err("processes cannot be halted here".into())
}
