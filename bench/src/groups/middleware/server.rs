//! The web service: a child process on a core of its own.

use crate::programs::{self, Process};
use crate::web::Competitor;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    process: Process,
    port: u16,
}

impl Server {
    pub(super) fn start(program: &Path, competitor: Competitor) -> Result<Self, String> {
        let mut command = Command::new("taskset");
        command
            .args(["-c", CORE])
            .arg(program)
            .arg(competitor.name());
        let (process, port) = Process::listening(&mut command, |line| Some(line))?;
        Ok(Self { process, port })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}
