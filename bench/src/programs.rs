//! The programs that a group starts: built from the current sources, and killed with it.

use crate::report::target;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Builds the server with the profile `dist`, once per run.
pub(crate) fn ratekeeper() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let args = ["--profile", "dist", "-p", "ratekeeper-server"];
        build(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &args)?;
        Ok(target().join("dist/ratekeeper"))
    };
    BUILT.get_or_init(build).clone()
}

/// Builds another program of this package.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let args = ["--release", "--bin", name];
    build(Path::new(env!("CARGO_MANIFEST_DIR")), &args)?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name(name))
}

fn build(workspace: &Path, args: &[&str]) -> Result<(), String> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet"])
        .args(args)
        .current_dir(workspace)
        .status();
    if built.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(format!(
        "cannot build a program; run cargo build {} in {} to see why",
        args.join(" "),
        workspace.display()
    ))
}

/// This program, with an argument that makes it a child.
pub(crate) fn own(argument: &str) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg(argument);
    Ok(command)
}

/// A child process. It is killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        process
            .map(Self)
            .map_err(|error| format!("{name}: {error}"))
    }

    /// Starts a server, and waits until a line of its output has its port.
    pub(crate) fn listening(
        command: &mut Command,
        port: impl Fn(&str) -> Option<&str>,
    ) -> Result<(Self, u16), String> {
        let mut process = Self::start(command)?;
        let lines = process.0.stdout.take().map(BufReader::new).into_iter();
        let found = lines
            .flat_map(BufRead::lines)
            .map_while(Result::ok)
            .find_map(|line| port(line.trim())?.parse().ok());
        let name = command.get_program().to_string_lossy();
        found
            .map(|port| (process, port))
            .ok_or_else(|| format!("{name} did not start"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
