//! The rows of Go's x/time/rate: builds and runs bench/go, if there is a Go toolchain and the
//! module can be downloaded.

use crate::report::target;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

/// The built program.
pub(crate) struct Program(PathBuf);

impl Program {
    /// Builds it; the error is one line.
    pub(crate) fn build() -> Result<Self, String> {
        let binary = target().join("bench-go");
        std::fs::create_dir_all(target()).map_err(|error| error.to_string())?;
        let built = Command::new("go")
            .args(["build", "-mod=readonly", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/go"))
            .output()
            .map_err(|error| format!("cannot start go: {error}"))?;
        if built.status.success() {
            Ok(Self(binary))
        } else {
            Err(format!("go build: {}", one_line(&built.stderr)))
        }
    }

    /// Runs it; returns the values by name, as main.go prints them.
    pub(crate) fn run(&self) -> Result<HashMap<String, f64>, String> {
        let run = Command::new(&self.0)
            .output()
            .map_err(|error| error.to_string())?;
        if run.status.success() {
            serde_json::from_slice(&run.stdout).map_err(|error| format!("bench-go: {error}"))
        } else {
            Err(format!("bench-go: {}", one_line(&run.stderr)))
        }
    }
}

fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text)
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join("; ")
}
