//! Builds the programs that a group starts, from the current sources.

use crate::report::target;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the server as it is shipped, once per run.
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
