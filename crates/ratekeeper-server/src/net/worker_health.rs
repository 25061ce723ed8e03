//! Heartbeats of the worker threads, for `/readyz`, `/livez` and systemd's watchdog.
//!
//! A worker has one thread, so a task that never yields stops everything it serves. Each worker
//! therefore runs a small task that beats once a second, and the main thread checks the beats.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often workers beat, and how often that is checked.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A worker that has not beaten for this long is stalled: the process is not ready.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that has not beaten for this long is dead: only a restart helps.
const DEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// The heartbeat of one worker.
pub(crate) struct Heartbeat {
    worker: String,
    beats: AtomicU64,
}

impl Heartbeat {
    /// Beats for as long as its runtime runs.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.beat();
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
    }

    fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
    }
}

/// A worker that has not beaten for too long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StalledWorker {
    pub(crate) worker: String,
    pub(crate) silent: Duration,
}

impl fmt::Display for StalledWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "worker {} has not run for {} s",
            self.worker,
            self.silent.as_secs()
        )
    }
}

/// The health of all workers, as of the last check.
#[derive(Default)]
pub(crate) struct WorkerHealth(Mutex<HealthState>);

/// The workers, and the time of the last check.
#[derive(Default)]
struct HealthState {
    at: Option<Instant>,
    workers: Vec<Worker>,
}

/// One worker, as of the last check.
struct Worker {
    heartbeat: Arc<Heartbeat>,
    /// Its beats at the last check.
    last_beats: u64,
    /// How long it has not beaten.
    silent: Duration,
}

impl Worker {
    fn stalled(&self) -> StalledWorker {
        StalledWorker {
            worker: self.heartbeat.worker.clone(),
            silent: self.silent,
        }
    }
}

impl WorkerHealth {
    /// Registers a worker, and returns its heartbeat. It is checked from now on.
    pub(crate) fn register(&self, worker: &str) -> Arc<Heartbeat> {
        let heartbeat = Arc::new(Heartbeat {
            worker: worker.to_owned(),
            beats: AtomicU64::new(0),
        });
        self.lock().workers.push(Worker {
            heartbeat: Arc::clone(&heartbeat),
            last_beats: 0,
            silent: Duration::ZERO,
        });
        heartbeat
    }

    /// Checks which workers have beaten since the last check, and logs those that stall or recover.
    ///
    /// At most two intervals count between two checks: a process that was stopped as a whole, by
    /// SIGSTOP or with its container, finds its workers silent for as long as that took, and
    /// nothing is wrong with them.
    pub(crate) fn check(&self, now: Instant) {
        let (mut stalled, mut recovered) = (Vec::new(), Vec::new());
        let mut checked = self.lock();
        let last = checked.at.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(last).min(2 * BEAT_INTERVAL);
        for worker in &mut checked.workers {
            let beats = worker.heartbeat.beats.load(Relaxed);
            let (before, was) = (worker.silent, worker.stalled());
            worker.silent = if beats == worker.last_beats {
                before + elapsed
            } else {
                Duration::ZERO
            };
            worker.last_beats = beats;
            match (before >= STALL_TIMEOUT, worker.silent >= STALL_TIMEOUT) {
                (false, true) => stalled.push(worker.stalled()),
                (true, false) => recovered.push(was),
                _ => {}
            }
        }
        // Readers of the health do not wait for the log.
        drop(checked);
        for StalledWorker { worker, silent } in stalled {
            let seconds = silent.as_secs();
            tracing::error!(
                "worker {worker} has not run for {seconds} s: its connections are stuck, and /readyz returns 503"
            );
        }
        for StalledWorker { worker, silent } in recovered {
            tracing::warn!("worker {worker} runs again after {} s", silent.as_secs());
        }
    }

    /// The worker that has been silent for longest, if that makes the process not ready.
    pub(crate) fn stalled(&self) -> Option<StalledWorker> {
        self.silent_for(STALL_TIMEOUT)
    }

    /// The worker that has been silent for longest, if only a restart helps.
    pub(crate) fn dead(&self) -> Option<StalledWorker> {
        self.silent_for(DEAD_TIMEOUT)
    }

    fn silent_for(&self, timeout: Duration) -> Option<StalledWorker> {
        let checked = self.lock();
        let longest = checked.workers.iter().max_by_key(|worker| worker.silent)?;
        (longest.silent >= timeout).then(|| longest.stalled())
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the silence of one worker, for tests of the code that depends on the health.
    #[cfg(test)]
    pub(crate) fn silence(&self, worker: &str, silent: Duration) {
        let mut checked = self.lock();
        checked
            .workers
            .iter_mut()
            .find(|known| known.heartbeat.worker == worker)
            .unwrap()
            .silent = silent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::log::tests::logged;

    /// Checks once a second, on a test clock.
    struct Checks {
        health: WorkerHealth,
        now: Instant,
    }

    impl Checks {
        fn new() -> Self {
            let checks = Self {
                health: WorkerHealth::default(),
                now: Instant::now(),
            };
            checks.health.check(checks.now);
            checks
        }

        fn after(&mut self, seconds: u64, beating: &[&Heartbeat]) {
            for _ in 0..seconds {
                beating.iter().for_each(|heartbeat| heartbeat.beat());
                self.now += Duration::from_secs(1);
                self.health.check(self.now);
            }
        }

        /// The worst stalled and the worst dead worker.
        fn seen(&self) -> [Option<String>; 2] {
            [self.health.stalled(), self.health.dead()]
                .map(|stalled| stalled.map(|stalled| stalled.to_string()))
        }
    }

    #[test]
    fn a_worker_that_stops_is_stalled_after_five_seconds_and_dead_after_fifteen() {
        let mut checks = Checks::new();
        let [stuck, other] = ["gateway-0", "gateway-1"].map(|name| checks.health.register(name));
        checks.after(10, &[&stuck, &other]);
        assert_eq!(checks.seen(), [None, None]);
        checks.after(4, &[&other]);
        assert_eq!(checks.seen(), [None, None]);
        let silent = |seconds: u64| Some(format!("worker gateway-0 has not run for {seconds} s"));
        checks.after(1, &[&other]);
        assert_eq!(checks.seen(), [silent(5), None]);
        checks.after(9, &[&other]);
        assert_eq!(checks.seen(), [silent(14), None]);
        checks.after(1, &[&other]);
        assert_eq!(checks.seen(), [silent(15), silent(15)]);
        checks.after(1, &[&stuck, &other]);
        assert_eq!(checks.seen(), [None, None]);
    }

    #[test]
    fn a_worker_that_never_begins_is_stalled_too() {
        let mut checks = Checks::new();
        let _never = checks.health.register("admin-0");
        checks.after(5, &[]);
        assert_eq!(
            checks.seen()[0].as_deref(),
            Some("worker admin-0 has not run for 5 s")
        );
    }

    #[test]
    fn one_line_names_a_stuck_worker_and_one_says_that_it_runs_again() {
        let mut checks = Checks::new();
        let [stuck, other] = ["gateway-0", "gateway-1"].map(|name| checks.health.register(name));
        let lines = logged(|| {
            checks.after(3, &[&stuck, &other]);
            checks.after(4, &[&other]);
        });
        assert_eq!(lines, [""; 0]);
        let lines = logged(|| checks.after(60, &[&other]));
        assert!(
            lines.len() == 1
                && lines[0].contains("ERROR")
                && lines[0].contains(
                    "worker gateway-0 has not run for 5 s: its connections are stuck, and /readyz returns 503"
                ),
            "{lines:#?}"
        );
        let lines = logged(|| checks.after(10, &[&stuck, &other]));
        assert!(
            lines.len() == 1
                && lines[0].contains("WARN")
                && lines[0].ends_with("worker gateway-0 runs again after 64 s"),
            "{lines:#?}"
        );
    }

    #[test]
    fn a_process_that_was_stopped_is_not_dead_when_it_continues() {
        let mut checks = Checks::new();
        let worker = checks.health.register("http-0");
        checks.after(3, &[&worker]);
        checks.now += Duration::from_secs(3_600);
        checks.health.check(checks.now);
        assert_eq!(checks.seen(), [None, None]);
        checks.after(1, &[&worker]);
        assert_eq!(checks.seen(), [None, None]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_runs_beats_once_a_second() {
        let health = WorkerHealth::default();
        let heartbeat = health.register("resp-0");
        tokio::spawn(Arc::clone(&heartbeat).run());
        tokio::time::sleep(Duration::from_millis(10_500)).await;
        assert_eq!(heartbeat.beats.load(Relaxed), 11);
    }
}
