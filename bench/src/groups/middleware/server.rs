//! The web service: a child process on a core of its own.

use crate::programs;
use crate::web::Competitor;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The core of the servers, one of which is busy at a time.
const CORE: &str = "0";

/// The program of the web service.
const PROGRAM: &str = "web-service";

pub(super) fn program() -> Result<PathBuf, String> {
    programs::program(PROGRAM)
}

/// A copy of the program, at another memory address. Removed when it is dropped; processes that run
/// it continue.
pub(super) struct ProgramCopy(PathBuf);

impl ProgramCopy {
    pub(super) fn of(program: &Path) -> Result<Self, String> {
        let to = program.with_extension("copy");
        std::fs::copy(program, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        Ok(Self(to))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ProgramCopy {
    fn drop(&mut self) {
        // If it cannot be removed, the next copy overwrites it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running server.
pub(super) struct Server {
    process: Child,
    port: u16,
}

impl Server {
    pub(super) fn start(program: &Path, competitor: Competitor) -> Result<Self, String> {
        let mut command = Command::new("taskset");
        command
            .args(["-c", CORE])
            .arg(program)
            .arg(competitor.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| format!("taskset: {error}"))?;
        let mut text = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut text)
                .map_err(|error| error.to_string())?;
        }
        let server = Self {
            process,
            port: text.trim().parse().unwrap_or(0),
        };
        if server.port == 0 {
            Err(format!("{} did not start", competitor.name()))
        } else {
            Ok(server)
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
