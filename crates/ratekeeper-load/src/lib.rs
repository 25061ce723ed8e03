//! The load of this container or machine, for [`ratekeeper::adaptive::Adaptive`] limits: read from
//! cgroup v2, else from `/proc` (Linux).
//!
//! ```no_run
//! use ratekeeper::{adaptive::Adaptive, Limit};
//! use ratekeeper_load::LoadReader;
//!
//! let adaptive = Adaptive::between(Limit::per_second(50), Limit::per_second(500)).build(LoadReader::new().into_fn());
//! if adaptive.check().is_allowed() { /* … */ }
//! ```
//!
//! In a container with limits of its own, shares are of those limits; elsewhere of the machine. A
//! share that cannot be read is [`f64::NAN`], which moves no limit.

mod parse;

use ratekeeper::adaptive::Load;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Reads the load; the share of the processors is that since the previous read.
#[derive(Debug)]
pub struct LoadReader {
    root: PathBuf,
    cgroup: Option<PathBuf>,
    last: Mutex<Option<Sample>>,
}

/// Processor time used and available, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    used: f64,
    total: f64,
}

impl LoadReader {
    /// Creates a reader of this process's own cgroup, or of the machine if there is none.
    pub fn new() -> Self {
        Self::with_root(Path::new("/"))
    }

    /// Creates a reader of the files below another root, as a container's host would mount them.
    pub fn with_root(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).ok();
        let own = own
            .as_deref()
            .and_then(parse::own_cgroup)
            .map(|path| root.join("sys/fs/cgroup").join(path));
        let reader = Self {
            root: root.to_owned(),
            cgroup: own.filter(|path| path.join("cpu.stat").exists()),
            last: Mutex::new(None),
        };
        // The first share is that since now, not since the machine was started.
        *reader.lock() = reader.sample(&reader.started());
        reader
    }

    /// The current load; the share of the processors is that since the last call.
    pub fn read(&self) -> Load {
        Load {
            cpu: self.cpu().unwrap_or(f64::NAN),
            memory: self.memory().unwrap_or(f64::NAN),
        }
    }

    /// Converts the reader to a function, for [`ratekeeper::adaptive::AdaptiveBuilder::build`].
    pub fn into_fn(self) -> impl Fn() -> Load + Send + Sync + 'static {
        move || self.read()
    }

    fn cpu(&self) -> Option<f64> {
        let now = self.sample(&self.started())?;
        let before = self.lock().replace(now)?;
        let total = now.total - before.total;
        (total > 0.0).then(|| ((now.used - before.used) / total).clamp(0.0, 1.0))
    }

    fn memory(&self) -> Option<f64> {
        let machine = parse::memory_of_machine(&self.file("proc/meminfo")?)?;
        let own = || {
            let max: f64 = self.own("memory.max")?.trim().parse().ok()?;
            let cached = self
                .own("memory.stat")
                .and_then(|text| parse::field(&text, "inactive_file"))
                .unwrap_or(0.0);
            let used: f64 = self.own("memory.current")?.trim().parse().ok()?;
            Some(((used - cached) / max).clamp(0.0, 1.0))
        };
        // The one that runs out first.
        Some(own().unwrap_or(0.0).max(machine))
    }

    fn sample(&self, started: &Instant) -> Option<Sample> {
        if let Some(used) = self
            .own("cpu.stat")
            .and_then(|text| parse::field(&text, "usage_usec"))
        {
            let cores = self.own("cpu.max").and_then(|text| parse::quota(&text));
            let cores = cores.unwrap_or_else(|| {
                std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64)
            });
            return Some(Sample {
                used,
                total: started.elapsed().as_micros() as f64 * cores,
            });
        }
        parse::cpu_of_machine(&self.file("proc/stat")?)
    }

    /// An instant fixed once per process, from which time is counted.
    fn started(&self) -> Instant {
        static STARTED: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *STARTED.get_or_init(Instant::now)
    }

    fn own(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.cgroup.as_ref()?.join(name)).ok()
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(name)).ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Sample>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LoadReader {
    fn default() -> Self {
        Self::new()
    }
}
