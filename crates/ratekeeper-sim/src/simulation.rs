//! [`Simulation`]: the run itself: events in order of time.

use crate::SECOND;
use crate::admission_control::{AdmissionControl, Wait};
use crate::rng::Rng;
use crate::run_outcome::{CallRecord, LimitSample, RunOutcome};
use crate::scenario::Scenario;
use ratekeeper::{Clock, ManualClock, Timestamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::task::Poll;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A stream has a new call.
    Call { stream: usize },
    /// A client retries.
    Retry { stream: usize, retries_before: u32 },
    /// A client times out if it has not been answered.
    Leave { record: usize },
    /// A worker is done.
    Done { slot: usize },
    /// A waiting call times out.
    WaitTimeout,
    /// The service changes.
    BackendChange,
    /// The limit is sampled.
    SampleLimit,
}

/// A call in the service.
struct CallInService<P> {
    record: usize,
    permit: P,
}

pub(crate) struct Simulation<'a, G: AdmissionControl> {
    scenario: &'a Scenario,
    gate: G,
    clock: ManualClock,
    start: Timestamp,
    now: u64,
    /// The second number keeps events of one instant in the order in which they were added.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    /// Calls that wait for a permit.
    waiting: Vec<(usize, Wait<G::Permit>)>,
    queue: VecDeque<CallInService<G::Permit>>,
    working: Vec<Option<CallInService<G::Permit>>>,
    busy: usize,
    /// Separate random numbers for arrivals and for work, so that the same calls arrive whatever
    /// the limit does.
    arrivals: Vec<Rng>,
    chance: Rng,
    outcome: RunOutcome,
}

impl<'a, G: AdmissionControl> Simulation<'a, G> {
    pub(crate) fn new(scenario: &'a Scenario, gate: G, clock: ManualClock) -> Self {
        let seed = |salt: u64| Rng::new(scenario.seed.wrapping_mul(1_000_003).wrapping_add(salt));
        let start = clock.now();
        let mut simulation = Self {
            scenario,
            gate,
            clock,
            start,
            now: 0,
            events: BinaryHeap::new(),
            made: 0,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            working: Vec::new(),
            busy: 0,
            arrivals: (1..=scenario.streams.len() as u64).map(seed).collect(),
            chance: seed(0),
            outcome: RunOutcome::default(),
        };
        for stream in 0..scenario.streams.len() {
            simulation.next_call(stream);
        }
        let steps: Vec<u64> = scenario
            .backend
            .workers
            .steps()
            .chain(scenario.backend.work.steps())
            .collect();
        steps
            .into_iter()
            .for_each(|at| simulation.push(at, Event::BackendChange));
        simulation.push(0, Event::SampleLimit);
        simulation
    }

    pub(crate) fn run(mut self) -> RunOutcome {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.clock.set(self.start + Duration::from_nanos(at));
            match event {
                Event::Call { stream } => {
                    self.call(stream, 0);
                    self.next_call(stream);
                }
                Event::Retry {
                    stream,
                    retries_before,
                } => self.call(stream, retries_before),
                Event::Leave { record } => {
                    let CallRecord {
                        stream,
                        retries_before,
                        latency,
                        ..
                    } = self.outcome.records[record];
                    if latency.is_none() {
                        self.retry(stream, retries_before);
                    }
                }
                Event::Done { slot } => self.done(slot),
                Event::WaitTimeout => self.poll_waiting(),
                Event::BackendChange => self.work(),
                Event::SampleLimit => {
                    let (limit, probing, level) =
                        (self.gate.limit(), self.gate.probing(), self.gate.level());
                    self.outcome.limit_samples.push(LimitSample {
                        at,
                        limit,
                        probing,
                        level,
                    });
                    if at + self.scenario.sample_interval <= self.scenario.length {
                        self.push(at + self.scenario.sample_interval, Event::SampleLimit);
                    }
                }
            }
        }
        self.outcome
    }

    fn push(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event)));
    }

    /// Schedules the next call of a stream: a Poisson process, restarted wherever its rate changes.
    fn next_call(&mut self, stream: usize) {
        let rate = &self.scenario.streams[stream].rate;
        let mut from = self.now;
        loop {
            let next = match rate.at(from) {
                rate if rate > 0.0 => {
                    let gap = self.arrivals[stream].exponential() * SECOND as f64 / rate;
                    Some(from + (gap as u64).max(1))
                }
                _ => None,
            };
            let at = match (next, rate.next_step(from)) {
                (Some(next), Some(step)) if next >= step => Err(step),
                (Some(next), _) => Ok(next),
                (None, Some(step)) => Err(step),
                (None, None) => return,
            };
            match at {
                Ok(at) if at >= self.scenario.length => return,
                Ok(at) => return self.push(at, Event::Call { stream }),
                Err(step) => from = step,
            }
        }
    }

    fn call(&mut self, stream: usize, retries_before: u32) {
        let client = &self.scenario.streams[stream];
        let timeout = client.timeout;
        let permit = self.gate.admit(stream);
        let record = self.outcome.records.len();
        let admitted = permit.is_some();
        self.outcome.records.push(CallRecord {
            at: self.now,
            stream,
            retries_before,
            admitted,
            latency: None,
            timeout,
        });
        match permit {
            Some(permit) => self.enter(record, permit),
            None => match self.gate.wait(stream) {
                Some(wait) => {
                    self.push(
                        (wait.until - self.start).as_nanos() as u64,
                        Event::WaitTimeout,
                    );
                    self.waiting.push((record, wait));
                    self.poll_waiting();
                }
                None => self.retry(stream, retries_before),
            },
        }
    }

    /// Puts a call into the service.
    fn enter(&mut self, record: usize, permit: G::Permit) {
        let CallRecord {
            at,
            stream,
            retries_before,
            timeout,
            ..
        } = self.outcome.records[record];
        if retries_before < self.scenario.streams[stream].retries {
            self.push(at + timeout, Event::Leave { record });
        }
        self.queue.push_back(CallInService { record, permit });
        self.work();
    }

    /// Handles waiting calls that got a permit or timed out.
    fn poll_waiting(&mut self) {
        for (record, mut wait) in std::mem::take(&mut self.waiting) {
            match wait.poll() {
                Poll::Pending => self.waiting.push((record, wait)),
                Poll::Ready(Some(permit)) => {
                    self.outcome.records[record].admitted = true;
                    self.enter(record, permit);
                }
                Poll::Ready(None) => {
                    let CallRecord {
                        stream,
                        retries_before,
                        ..
                    } = self.outcome.records[record];
                    self.retry(stream, retries_before);
                }
            }
        }
    }

    fn retry(&mut self, stream: usize, retries_before: u32) {
        let client = &self.scenario.streams[stream];
        if retries_before < client.retries {
            let pause = client.pause as f64 * (0.5 + self.arrivals[stream].unit());
            self.push(
                self.now + pause as u64,
                Event::Retry {
                    stream,
                    retries_before: retries_before + 1,
                },
            );
        }
    }

    /// Free workers take calls from the queue, oldest first.
    fn work(&mut self) {
        let backend = &self.scenario.backend;
        let (workers, mean) = (backend.workers.at(self.now), backend.work.at(self.now));
        while self.busy < workers {
            let Some(held) = self.queue.pop_front() else {
                return;
            };
            let slowdown = 1.0 + backend.contention * self.queue.len() as f64 / workers as f64;
            let weight = self.scenario.streams[self.outcome.records[held.record].stream].weight;
            let takes = mean as f64 * weight * (0.5 + 0.5 * self.chance.exponential()) * slowdown;
            let slot = self
                .working
                .iter()
                .position(Option::is_none)
                .unwrap_or_else(|| {
                    self.working.push(None);
                    self.working.len() - 1
                });
            self.working[slot] = Some(held);
            self.busy += 1;
            self.push(self.now + takes as u64, Event::Done { slot });
        }
    }

    fn done(&mut self, slot: usize) {
        let Some(CallInService { record, permit }) = self.working[slot].take() else {
            return;
        };
        self.busy -= 1;
        let record = &mut self.outcome.records[record];
        record.latency = Some(self.now - record.at);
        let in_time = record.is_in_time();
        self.gate.done(permit, in_time);
        self.poll_waiting();
        self.work();
    }
}
