//! Runs promtool.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The output of `promtool` for arguments and input.
pub(crate) fn promtool(args: &[&str], at: &Path, input: &str) -> Output {
    let mut command = Command::new("promtool");
    command
        .args(args)
        .current_dir(at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut promtool = command
        .spawn()
        .expect("promtool cannot be started: `make tools` installs it");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    promtool.wait_with_output().unwrap()
}
