//! How much a process has.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How much memory may come on top between the early and the late part of a run: what an allocator
/// keeps, and no leak. A byte lost at each of some thousand requests a second would be ten times as
/// much in ten minutes.
const GROWTH: u64 = 8 << 20;

pub(crate) struct Watched {
    name: &'static str,
    process: u32,
    descriptors: usize,
    memory: Mutex<Vec<u64>>,
}

/// Whether it is over, at the latest after that long.
pub(crate) fn over_within(over: &AtomicBool, most: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < most && !over.load(Relaxed) {
        thread::sleep(most.min(Duration::from_millis(10)));
    }
    over.load(Relaxed)
}

impl Watched {
    pub(crate) fn new(name: &'static str, process: u32) -> Self {
        Self {
            name,
            process,
            descriptors: descriptors(process),
            memory: Mutex::default(),
        }
    }

    pub(crate) fn until(&self, over: &AtomicBool) {
        while !over_within(over, Duration::from_millis(100)) {
            self.memory.lock().unwrap().push(resident(self.process));
        }
    }

    /// Prints its line. No descriptor is left over, and memory has stayed.
    pub(crate) fn report(&self, seconds: u64) {
        super::eventually("the descriptors are given back", || {
            descriptors(self.process) <= self.descriptors + MORE
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
        // In a few seconds a process has not had all its keys yet.
        if seconds >= 60 {
            assert!(
                late <= early + GROWTH,
                "{}: from {early} to {late} bytes",
                self.name
            );
        }
    }
}

/// What a process may open later than at its start: connections to Redis and to a service.
const MORE: usize = 16;

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
