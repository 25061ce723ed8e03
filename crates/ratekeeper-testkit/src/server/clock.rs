//! A clock for one process, by libfaketime: the file contains its offset.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The paths of the library on Debian and others.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
];

#[derive(Debug)]
pub(super) struct ClockFile {
    path: PathBuf,
    library: &'static str,
    /// In µs.
    off_by: Mutex<i64>,
}

impl ClockFile {
    pub(super) fn make(dir: &Path) -> Self {
        let library = LIBRARIES
            .into_iter()
            .find(|library| Path::new(library).exists())
            .unwrap_or_else(|| {
                panic!("libfaketime is not installed; on Debian it is in the package faketime")
            });
        let clock = Self {
            path: dir.join("clock"),
            library,
            off_by: Mutex::new(0),
        };
        clock.step(Duration::ZERO, true);
        clock
    }

    pub(super) fn step(&self, by: Duration, forward: bool) {
        let by = i64::try_from(by.as_micros()).expect("a step of less than 292,000 years");
        let mut off_by = self.off_by.lock().unwrap_or_else(PoisonError::into_inner);
        *off_by += if forward { by } else { -by };
        let sign = if *off_by < 0 { '-' } else { '+' };
        let (seconds, micros) = (
            off_by.unsigned_abs() / 1_000_000,
            off_by.unsigned_abs() % 1_000_000,
        );
        // Renamed into place, so that no reader sees half of it.
        let draft = self.path.with_extension("new");
        fs::write(&draft, format!("{sign}{seconds}.{micros:06}\n"))
            .expect("the directory can be written to");
        fs::rename(&draft, &self.path).expect("the directory can be written to");
    }

    pub(super) fn apply(&self, command: &mut Command) {
        command
            // libc is preloaded as well, so that its malloc is found before that of jemalloc, which
            // asks for the time while libfaketime initializes and so never lets it.
            .env("LD_PRELOAD", format!("{} libc.so.6", self.library))
            .env("FAKETIME_TIMESTAMP_FILE", &self.path)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}
