//! Builds the programs that a group starts, from the current sources.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Builds the server, once per run.
pub(crate) fn ratekeeper() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT
        .get_or_init(|| program("ratekeeper-server", "ratekeeper"))
        .clone()
}

/// Builds a program of a package.
pub(crate) fn program(package: &str, name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = [
        "build",
        "--release",
        "--quiet",
        "-p",
        package,
        "--bin",
        name,
    ];
    let built = Command::new(cargo)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(format!(
            "cannot build {name}; run cargo build --release -p {package} to see why"
        ));
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name(name);
    if program.exists() {
        Ok(program)
    } else {
        Err(format!("{} does not exist", program.display()))
    }
}
