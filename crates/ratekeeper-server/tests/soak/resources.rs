//! Memory and file descriptors of a process.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The max that memory may grow between the early and the late part of a run, as allocators keep
/// some. A leak of a byte per request, at some thousand requests a second, would be ten times as much
/// in ten minutes.
const MAX_GROWTH: u64 = 8 << 20;

/// Samples the memory of a process.
pub(crate) struct ProcessMonitor {
    name: &'static str,
    process: u32,
    descriptors: usize,
    memory: Mutex<Vec<u64>>,
}

/// Waits for the stop, for `max` at max. Returns whether it has come.
pub(crate) fn stopped_within(stopped: &AtomicBool, max: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < max && !stopped.load(Relaxed) {
        thread::sleep(max.min(Duration::from_millis(10)));
    }
    stopped.load(Relaxed)
}

impl ProcessMonitor {
    pub(crate) fn new(name: &'static str, process: u32) -> Self {
        Self {
            name,
            process,
            descriptors: descriptors(process),
            memory: Mutex::default(),
        }
    }

    /// Takes samples until stopped.
    pub(crate) fn run(&self, stopped: &AtomicBool) {
        while !stopped_within(stopped, Duration::from_millis(100)) {
            self.memory.lock().unwrap().push(resident(self.process));
        }
    }

    /// Prints its line. No descriptor is left stopped, and memory has stayed.
    pub(crate) fn report(&self, seconds: u64) {
        super::eventually("the descriptors are closed", || {
            descriptors(self.process) <= self.descriptors + MAX_NEW_DESCRIPTORS
        });
        let memory = self.memory.lock().unwrap();
        let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
        let fifth = memory.len() / 5;
        let (early, late) = (mean(&memory[fifth..2 * fifth]), mean(&memory[4 * fifth..]));
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "| {} | {:.1} MB | {:.1} MB | {:+.1} MB | {} and {} |",
            self.name,
            mb(early),
            mb(late),
            mb(late) - mb(early),
            self.descriptors,
            descriptors(self.process)
        );
        // After a few seconds a process has not seen all keys yet.
        if seconds >= 60 {
            assert!(
                late <= early + MAX_GROWTH,
                "{}: from {early} to {late} bytes",
                self.name
            );
        }
    }
}

/// Descriptors that a process may open after its start: connections to Redis and to a service.
const MAX_NEW_DESCRIPTORS: usize = 16;

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let kib = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or_else(|| panic!("no memory in {status}")) * 1024
}
