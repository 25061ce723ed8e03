//! What is offered, and what it meets.

use crate::gate::Gate;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::world::World;
use crate::{MILLI, SECOND};
use ratekeeper::ManualClock;

/// Calls of one kind, which come at random and do not wait for each other.
#[derive(Clone, Debug)]
pub struct Stream {
    /// How many a second on average.
    pub rate: Plan<f64>,
    /// A client leaves after this long; what is answered later is worth nothing.
    pub timeout: u64,
    /// How much work a call is: 1 is what the service tells.
    pub weight: f64,
    /// How often a client tries again that was turned away or left.
    pub retries: u32,
    /// About how long it pauses before that: half to one and a half of it.
    pub pause: u64,
}

impl Stream {
    /// So many a second, by clients that leave after a second and do not try again.
    pub fn of(per_second: f64) -> Self {
        Self::planned(Plan::always(per_second))
    }

    /// The same at a rate that changes.
    pub fn planned(rate: Plan<f64>) -> Self {
        Self {
            rate,
            timeout: SECOND,
            weight: 1.0,
            retries: 0,
            pause: 100 * MILLI,
        }
    }

    /// Calls that are so many times the work.
    #[must_use]
    pub fn weighing(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Clients that try again so often.
    #[must_use]
    pub fn retrying(mut self, times: u32) -> Self {
        self.retries = times;
        self
    }
}

/// A service with workers and a queue that turns nobody away. It does not notice that a client has
/// left.
#[derive(Clone, Debug)]
pub struct Backend {
    /// How many calls it works on at once.
    pub workers: Plan<usize>,
    /// How long a call takes on average, half of which is always the same and half of which is
    /// chance. Waiting for a dependency is a part of it: one that is slow is a step here.
    pub work: Plan<u64>,
    /// What a queue costs: with as many calls in the queue as there are workers, work takes longer
    /// by this share.
    pub contention: f64,
}

impl Backend {
    /// The service of the docs: 10 workers, 40 ms a call, so 250 a second at best.
    pub fn usual() -> Self {
        Self {
            workers: Plan::always(10),
            work: Plan::always(40 * MILLI),
            contention: 0.03,
        }
    }

    /// Answers a second at best.
    pub fn peak(&self, now: u64) -> f64 {
        self.workers.at(now) as f64 * SECOND as f64 / self.work.at(now) as f64
    }
}

/// A run: who calls, what they call, for how long, and by which chance.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Who calls; a gate knows them by their number.
    pub streams: Vec<Stream>,
    /// What is called.
    pub backend: Backend,
    /// How long calls come in.
    pub length: u64,
    /// How often the limit is noted.
    pub look: u64,
    /// The seed of all chance.
    pub seed: u64,
}

impl Scenario {
    /// These calls on the usual service, for so long.
    pub fn new(streams: impl Into<Vec<Stream>>, length: u64) -> Self {
        Self {
            streams: streams.into(),
            backend: Backend::usual(),
            length,
            look: 100 * MILLI,
            seed: 1,
        }
    }

    /// The same with another service.
    #[must_use]
    pub fn on(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// The same by another chance.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs it through a gate, which goes by the clock that it is given.
    pub fn run<G: Gate>(&self, gate: impl FnOnce(ManualClock) -> G) -> Outcome {
        let clock = ManualClock::new();
        World::new(self, gate(clock.clone()), clock).run()
    }
}
