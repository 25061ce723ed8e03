//! The worker threads of a server: started by name, watched by their heartbeats, joined with a
//! timeout.

use crate::net::worker_health::{Heartbeat, WorkerHealth};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The running worker threads, by name.
pub(crate) struct Workers {
    health: Arc<WorkerHealth>,
    threads: Vec<(String, JoinHandle<()>)>,
    /// Each thread holds a sender until it ends; nothing is ever sent.
    running: Sender<()>,
    ended: Receiver<()>,
}

impl Workers {
    /// An empty set of workers, whose health is recorded in `health`.
    pub(crate) fn new(health: Arc<WorkerHealth>) -> Self {
        let (running, ended) = channel();
        Self {
            health,
            threads: Vec::new(),
            running,
            ended,
        }
    }

    /// Starts one more worker for a listener. Threads are named `http-0`, `http-1` and so on.
    pub(crate) fn spawn(
        &mut self,
        listener: &str,
        run: impl FnOnce(Arc<Heartbeat>) + Send + 'static,
    ) -> io::Result<()> {
        let is_of_listener =
            |name: &str| name.rsplit_once('-').is_some_and(|(of, _)| of == listener);
        let number = self
            .threads
            .iter()
            .filter(|(name, _)| is_of_listener(name))
            .count();
        let name = format!("{listener}-{number}");
        let (heartbeat, running) = (self.health.register(&name), self.running.clone());
        let run = move || {
            let _running = running;
            run(heartbeat);
        };
        let thread = thread::Builder::new().name(name.clone()).spawn(run)?;
        self.threads.push((name, thread));
        Ok(())
    }

    /// Checks the heartbeats. Whether the process is alive: no worker has ended, and none is dead.
    pub(crate) fn check(&self) -> bool {
        self.health.check(Instant::now());
        self.health.dead().is_none() && !self.threads.iter().any(|(_, thread)| thread.is_finished())
    }

    /// Waits until one of the workers has ended. For tests of [`check`](Self::check).
    #[cfg(test)]
    pub(crate) fn wait_until_one_ends(&self) {
        while !self.threads.iter().any(|(_, thread)| thread.is_finished()) {
            thread::yield_now();
        }
    }

    /// Waits until all workers have ended, for `grace` at most: a stuck one ends with the process.
    /// Returns the names of those still running.
    pub(crate) fn join(self, grace: Duration) -> Vec<String> {
        drop(self.running);
        let timed_out = self.ended.recv_timeout(grace) == Err(RecvTimeoutError::Timeout);
        let mut stuck = Vec::new();
        for (name, thread) in self.threads {
            if timed_out && !thread.is_finished() {
                tracing::error!(
                    "worker {name} did not stop within {grace:?}: the process exits without it"
                );
                stuck.push(name);
            } else if thread.join().is_err() {
                tracing::error!("worker {name} panicked");
            }
        }
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_worker_does_not_delay_a_stop() {
        let mut workers = Workers::new(Arc::default());
        for listener in ["http", "gateway", "http", "http"] {
            workers.spawn(listener, |_| {}).unwrap();
        }
        workers
            .spawn("gateway", |_| {
                loop {
                    thread::park();
                }
            })
            .unwrap();
        let names: Vec<&str> = workers.threads.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            ["http-0", "gateway-0", "http-1", "http-2", "gateway-1"]
        );
        assert_eq!(workers.join(Duration::from_millis(300)), ["gateway-1"]);
    }

    #[test]
    fn join_returns_as_soon_as_all_workers_have_ended() {
        let mut workers = Workers::new(Arc::default());
        let (end, ends) = channel::<()>();
        workers.spawn("http", move |_| _ = ends.recv()).unwrap();
        workers
            .spawn("admin", |_| panic!("a worker that panics has ended, too"))
            .unwrap();
        drop(end);
        assert_eq!(workers.join(Duration::from_secs(3_600)), [""; 0]);
    }

    /// Its thread runs, and nothing that it serves does.
    #[test]
    fn a_worker_that_is_dead_is_seen() {
        let mut workers = Workers::new(Arc::default());
        let (end, ends) = channel::<()>();
        workers.spawn("http", move |_| _ = ends.recv()).unwrap();
        assert!(workers.check());
        workers.health.silence("http-0", Duration::from_secs(10));
        assert!(workers.check(), "stalled, and not yet dead");
        workers.health.silence("http-0", Duration::from_secs(15));
        assert!(!workers.check());
        workers.health.silence("http-0", Duration::ZERO);
        assert!(workers.check(), "it runs again");
        drop(end);
    }

    #[test]
    fn an_ended_worker_fails_the_check() {
        let mut workers = Workers::new(Arc::default());
        let (end, ends) = channel::<()>();
        workers.spawn("http", move |_| _ = ends.recv()).unwrap();
        assert!(workers.check());
        drop(end);
        workers.wait_until_one_ends();
        assert!(!workers.check());
    }
}
