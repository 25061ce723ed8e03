//! The run itself: events in the order of their time.

use crate::SECOND;
use crate::gate::{Gate, Wait};
use crate::outcome::{Look, Outcome, Record};
use crate::rng::Rng;
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
    /// A client comes again.
    Again { stream: usize, tried: u32 },
    /// A client leaves if it has not been answered.
    Leave { record: usize },
    /// A worker is done.
    Done { slot: usize },
    /// A call has waited at the gate for as long as it may.
    GiveUp,
    /// The service changes.
    Step,
    /// The limit is noted.
    Look,
}

/// A call in the service.
struct Held<P> {
    record: usize,
    pass: P,
}

pub(crate) struct World<'a, G: Gate> {
    scenario: &'a Scenario,
    gate: G,
    clock: ManualClock,
    start: Timestamp,
    now: u64,
    /// The number keeps events of one instant in the order in which they were made.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    /// Those who wait at the gate.
    waiting: Vec<(usize, Wait<G::Pass>)>,
    queue: VecDeque<Held<G::Pass>>,
    working: Vec<Option<Held<G::Pass>>>,
    busy: usize,
    /// Chance of its own for calls and for work, so that the same calls come whatever the gate
    /// does.
    arrivals: Vec<Rng>,
    chance: Rng,
    outcome: Outcome,
}

impl<'a, G: Gate> World<'a, G> {
    pub(crate) fn new(scenario: &'a Scenario, gate: G, clock: ManualClock) -> Self {
        let seed = |salt: u64| Rng::new(scenario.seed.wrapping_mul(1_000_003).wrapping_add(salt));
        let start = clock.now();
        let mut world = Self {
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
            outcome: Outcome::default(),
        };
        for stream in 0..scenario.streams.len() {
            world.next_call(stream);
        }
        let steps: Vec<u64> = scenario
            .backend
            .workers
            .steps()
            .chain(scenario.backend.work.steps())
            .collect();
        steps.into_iter().for_each(|at| world.push(at, Event::Step));
        world.push(0, Event::Look);
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.clock.set(self.start + Duration::from_nanos(at));
            match event {
                Event::Call { stream } => {
                    self.call(stream, 0);
                    self.next_call(stream);
                }
                Event::Again { stream, tried } => self.call(stream, tried),
                Event::Leave { record } => {
                    let Record {
                        stream,
                        tried,
                        took,
                        ..
                    } = self.outcome.records[record];
                    if took.is_none() {
                        self.again(stream, tried);
                    }
                }
                Event::Done { slot } => self.done(slot),
                Event::GiveUp => self.turns(),
                Event::Step => self.work(),
                Event::Look => {
                    let (limit, probing, level) =
                        (self.gate.limit(), self.gate.probing(), self.gate.level());
                    self.outcome.looks.push(Look {
                        at,
                        limit,
                        probing,
                        level,
                    });
                    if at + self.scenario.look <= self.scenario.length {
                        self.push(at + self.scenario.look, Event::Look);
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

    /// The next call of a stream: a Poisson process, begun anew wherever its rate changes.
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

    fn call(&mut self, stream: usize, tried: u32) {
        let client = &self.scenario.streams[stream];
        let patience = client.timeout;
        let pass = self.gate.admit(stream);
        let record = self.outcome.records.len();
        let admitted = pass.is_some();
        self.outcome.records.push(Record {
            at: self.now,
            stream,
            tried,
            admitted,
            took: None,
            patience,
        });
        match pass {
            Some(pass) => self.enter(record, pass),
            None => match self.gate.wait(stream) {
                Some(wait) => {
                    self.push((wait.until - self.start).as_nanos() as u64, Event::GiveUp);
                    self.waiting.push((record, wait));
                    self.turns();
                }
                None => self.again(stream, tried),
            },
        }
    }

    /// A call is in the service.
    fn enter(&mut self, record: usize, pass: G::Pass) {
        let Record {
            at,
            stream,
            tried,
            patience,
            ..
        } = self.outcome.records[record];
        if tried < self.scenario.streams[stream].retries {
            self.push(at + patience, Event::Leave { record });
        }
        self.queue.push_back(Held { record, pass });
        self.work();
    }

    /// Those at the gate whose turn has come, or whose time is over.
    fn turns(&mut self) {
        for (record, mut wait) in std::mem::take(&mut self.waiting) {
            match wait.poll() {
                Poll::Pending => self.waiting.push((record, wait)),
                Poll::Ready(Some(pass)) => {
                    self.outcome.records[record].admitted = true;
                    self.enter(record, pass);
                }
                Poll::Ready(None) => {
                    let Record { stream, tried, .. } = self.outcome.records[record];
                    self.again(stream, tried);
                }
            }
        }
    }

    fn again(&mut self, stream: usize, tried: u32) {
        let client = &self.scenario.streams[stream];
        if tried < client.retries {
            let pause = client.pause as f64 * (0.5 + self.arrivals[stream].unit());
            self.push(
                self.now + pause as u64,
                Event::Again {
                    stream,
                    tried: tried + 1,
                },
            );
        }
    }

    /// Free workers take what is in the queue, oldest first.
    fn work(&mut self) {
        let backend = &self.scenario.backend;
        let (workers, mean) = (backend.workers.at(self.now), backend.work.at(self.now));
        while self.busy < workers {
            let Some(held) = self.queue.pop_front() else {
                return;
            };
            let crowd = 1.0 + backend.contention * self.queue.len() as f64 / workers as f64;
            let weight = self.scenario.streams[self.outcome.records[held.record].stream].weight;
            let takes = mean as f64 * weight * (0.5 + 0.5 * self.chance.exponential()) * crowd;
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
        let Some(Held { record, pass }) = self.working[slot].take() else {
            return;
        };
        self.busy -= 1;
        let record = &mut self.outcome.records[record];
        record.took = Some(self.now - record.at);
        let in_time = record.good();
        self.gate.done(pass, in_time);
        self.turns();
        self.work();
    }
}
