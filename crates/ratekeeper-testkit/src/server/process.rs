//! [`Process`]: a `redis-server` process, killed when it is dropped.

use super::{ClockFile, Files};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    pub(super) fn spawn(files: &Files, clock: Option<&ClockFile>) -> Self {
        // A server that was killed leaves its socket behind.
        let _ = fs::remove_file(&files.socket);
        // Errors in the settings are written there.
        let errors = File::options()
            .append(true)
            .create(true)
            .open(&files.log)
            .expect("the log can be written to");
        let mut command = Command::new("redis-server");
        command
            .arg(&files.config)
            .args(files.sentinel.then_some("--sentinel"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        if let Some(clock) = clock {
            clock.apply(&mut command);
        }
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("redis-server is not installed; on Debian it is in the package redis-server")
            }
            Err(error) => panic!("redis-server does not start: {error}"),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child can be waited for")
    }

    pub(super) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The child is ours and not yet waited for, so its pid cannot have been reused.
        kill_process(Pid::from_child(&self.0), signal).expect("redis-server takes signals");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL, which also ends a stopped process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
