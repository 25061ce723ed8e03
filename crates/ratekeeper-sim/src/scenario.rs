//! [`Scenario`]: the traffic, the service, and the length of a run.

use crate::admission_control::AdmissionControl;
use crate::run_outcome::RunOutcome;
use crate::schedule::Schedule;
use crate::simulation::Simulation;
use crate::{MILLI, SECOND};
use ratekeeper::ManualClock;

/// Calls of one kind, which arrive at random and do not wait for each other.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The average rate per second.
    pub rate: Schedule<f64>,
    /// The client's timeout; a later response is worthless.
    pub timeout: u64,
    /// The work of a call, relative to that of the service.
    pub weight: f64,
    /// How often a client retries after a denial or a timeout.
    pub retries: u32,
    /// The average pause before a retry: from half to one and a half of it.
    pub pause: u64,
}

impl Stream {
    /// A constant rate per second, by clients with a timeout of one second and no retries.
    pub fn of(per_second: f64) -> Self {
        Self::planned(Schedule::always(per_second))
    }

    /// A rate that changes.
    pub fn planned(rate: Schedule<f64>) -> Self {
        Self {
            rate,
            timeout: SECOND,
            weight: 1.0,
            retries: 0,
            pause: 100 * MILLI,
        }
    }

    /// Sets the relative work of a call.
    #[must_use]
    pub fn weighing(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the number of retries.
    #[must_use]
    pub fn retrying(mut self, times: u32) -> Self {
        self.retries = times;
        self
    }
}

/// A service with workers and an unbounded queue. It does not notice that a client has timed out.
#[derive(Clone, Debug)]
pub struct Backend {
    /// How many calls it works on at once.
    pub workers: Schedule<usize>,
    /// The average work of a call, half of which is constant and half random. Waiting for a
    /// dependency is part of it: a slow one is a step here.
    pub work: Schedule<u64>,
    /// The cost of a queue: with as many calls in the queue as there are workers, work takes longer
    /// by this share.
    pub contention: f64,
}

impl Backend {
    /// The service of the docs: 10 workers, 40 ms per call, so at most 250 per second.
    pub fn usual() -> Self {
        Self {
            workers: Schedule::always(10),
            work: Schedule::always(40 * MILLI),
            contention: 0.03,
        }
    }

    /// The maximum rate per second.
    pub fn peak(&self, now: u64) -> f64 {
        self.workers.at(now) as f64 * SECOND as f64 / self.work.at(now) as f64
    }
}

/// A run: the traffic, the service, the length and the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The streams of calls; the admission control gets the index of a stream.
    pub streams: Vec<Stream>,
    /// The service.
    pub backend: Backend,
    /// How long calls arrive.
    pub length: u64,
    /// The interval between samples of the limit.
    pub sample_interval: u64,
    /// The seed of all random numbers.
    pub seed: u64,
}

impl Scenario {
    /// These streams on the service of the docs, for `length`.
    pub fn new(streams: impl Into<Vec<Stream>>, length: u64) -> Self {
        Self {
            streams: streams.into(),
            backend: Backend::usual(),
            length,
            sample_interval: 100 * MILLI,
            seed: 1,
        }
    }

    /// Sets the service.
    #[must_use]
    pub fn on(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs it with an admission control that uses the given clock.
    pub fn run<G: AdmissionControl>(&self, gate: impl FnOnce(ManualClock) -> G) -> RunOutcome {
        let clock = ManualClock::new();
        Simulation::new(self, gate(clock.clone()), clock).run()
    }
}
