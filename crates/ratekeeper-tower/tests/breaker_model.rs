//! The breaker against a naive model that keeps every outcome in a list.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratekeeper::ManualClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::{CallGuard, Force, State};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

const MS: u64 = 1_000_000;
const BUCKETS: u64 = 4;
const BUCKET: u64 = 1_000 * MS;
const MIN_CALLS: usize = 4;
const SLOW_AFTER: u64 = 300 * MS;
const OPEN_FOR: u64 = 2_000 * MS;
const MAX_OPEN_FOR: u64 = 7_000 * MS;
const PROBES: usize = 3;
const DEADLINE: u64 = 1_500 * MS;

#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire,
    Finish {
        which: prop::sample::Index,
        outcome: ModelOutcome,
    },
    Advance(u64),
    Force(Force),
}

#[derive(Clone, Copy, Debug)]
enum ModelOutcome {
    Success,
    Failure,
    Ignore,
    Drop,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let outcome = prop_oneof![
        4 => Just(ModelOutcome::Success),
        3 => Just(ModelOutcome::Failure),
        1 => Just(ModelOutcome::Ignore),
        1 => Just(ModelOutcome::Drop),
    ];
    let by = prop_oneof![
        3 => 0..2 * MS,
        3 => (0..700u64).prop_map(|ms| ms * MS),
        2 => (0..3_000u64).prop_map(|ms| ms * MS),
        1 => 0..10_000 * MS,
    ];
    let force = prop::sample::select(&[
        Force::Open,
        Force::Closed,
        Force::MetricsOnly,
        Force::Auto,
        Force::Auto,
        Force::Auto,
    ]);
    let op = prop_oneof![
        40 => Just(Op::Acquire),
        36 => (any::<prop::sample::Index>(), outcome)
            .prop_map(|(which, outcome)| Op::Finish { which, outcome }),
        20 => by.prop_map(Op::Advance),
        1 => force.prop_map(Op::Force),
    ];
    prop::collection::vec(op, 1..300)
}

/// The model; all times in nanoseconds since the breaker was made.
struct Model {
    now: u64,
    state: ModelState,
    /// Incremented with every change of state.
    era: u64,
    failed_recoveries: u32,
    /// Time, failed, slow: of this era.
    outcomes: Vec<(u64, bool, bool)>,
    calls: u64,
    failures: u64,
    slow: u64,
    rejected: u64,
    opened: u64,
}

enum ModelState {
    Closed,
    Open { until: u64 },
    HalfOpen { slots: [Slot; PROBES] },
    Forced(State),
}

#[derive(Clone, Copy, PartialEq)]
enum Slot {
    Free,
    Taken { since: u64, by: u64 },
    Succeeded,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ModelCall {
    number: u64,
    era: u64,
    started: u64,
    slot: Option<usize>,
}

fn whole_ms(nanos: u64) -> u64 {
    nanos.div_ceil(MS) * MS
}

impl Model {
    fn new() -> Self {
        let (state, outcomes) = (ModelState::Closed, Vec::new());
        Self {
            now: 0,
            state,
            era: 0,
            failed_recoveries: 0,
            outcomes,
            calls: 0,
            failures: 0,
            slow: 0,
            rejected: 0,
            opened: 0,
        }
    }

    fn change_state(&mut self, state: ModelState) {
        self.state = state;
        self.era += 1;
        self.outcomes.clear();
    }

    fn state(&self) -> State {
        match &self.state {
            ModelState::Closed => State::Closed,
            ModelState::Open { until } if *until > self.now => State::Open,
            ModelState::Open { .. } | ModelState::HalfOpen { .. } => State::HalfOpen,
            ModelState::Forced(state) => *state,
        }
    }

    /// Allows a call, or returns the time to retry after.
    fn acquire(&mut self, number: u64) -> Result<ModelCall, u64> {
        if let ModelState::Open { until } = self.state {
            if until > self.now {
                self.rejected += 1;
                return Err(until - self.now);
            }
            self.change_state(ModelState::HalfOpen {
                slots: [Slot::Free; PROBES],
            });
        }
        let (now, era) = (self.now, self.era);
        let model_call = ModelCall {
            number,
            era,
            started: now,
            slot: None,
        };
        match &mut self.state {
            ModelState::Forced(State::ForcedOpen) => {
                self.rejected += 1;
                Err(OPEN_FOR)
            }
            ModelState::HalfOpen { slots } => {
                let ends = |slot: &Slot| match slot {
                    Slot::Free => Some(0),
                    Slot::Taken { since, .. } => Some(whole_ms(since + DEADLINE)),
                    Slot::Succeeded => None,
                };
                match slots
                    .iter()
                    .position(|slot| ends(slot).is_some_and(|end| end <= now))
                {
                    Some(slot) => {
                        slots[slot] = Slot::Taken {
                            since: now,
                            by: number,
                        };
                        Ok(ModelCall {
                            slot: Some(slot),
                            ..model_call
                        })
                    }
                    None => {
                        self.rejected += 1;
                        let soonest = slots.iter().filter_map(ends).min().unwrap();
                        Err((soonest - now).min(1_000 * MS))
                    }
                }
            }
            _ => Ok(model_call),
        }
    }

    fn finish(&mut self, model_call: ModelCall, outcome: ModelOutcome) {
        let failed = match outcome {
            ModelOutcome::Success => false,
            ModelOutcome::Failure => true,
            ModelOutcome::Ignore | ModelOutcome::Drop => return self.cancel(model_call),
        };
        let slow = self.now - model_call.started > SLOW_AFTER;
        self.calls += 1;
        self.failures += u64::from(failed);
        self.slow += u64::from(slow);
        if model_call.era != self.era {
            return;
        }
        match &mut self.state {
            ModelState::HalfOpen { .. } if failed || slow => {
                self.failed_recoveries += 1;
                self.open();
            }
            ModelState::HalfOpen { slots } => {
                slots[model_call.slot.unwrap()] = Slot::Succeeded;
                if *slots == [Slot::Succeeded; PROBES] {
                    self.failed_recoveries = 0;
                    self.change_state(ModelState::Closed);
                }
            }
            ModelState::Forced(State::ForcedClosed) => {}
            ModelState::Forced(_) => self.outcomes.push((self.now, failed, slow)),
            _ => {
                self.outcomes.push((self.now, failed, slow));
                let (calls, failures, slow) = self.recent();
                if calls >= MIN_CALLS && (failures * 2 >= calls || slow * 5 >= calls * 4) {
                    self.failed_recoveries = 0;
                    self.open();
                }
            }
        }
    }

    fn cancel(&mut self, model_call: ModelCall) {
        if let (ModelState::HalfOpen { slots }, Some(slot), true) =
            (&mut self.state, model_call.slot, model_call.era == self.era)
            && matches!(slots[slot], Slot::Taken { by, .. } if by == model_call.number)
        {
            slots[slot] = Slot::Free;
        }
    }

    fn open(&mut self) {
        self.opened += 1;
        let time = (OPEN_FOR * 2u64.pow(self.failed_recoveries.min(10))).min(MAX_OPEN_FOR);
        self.change_state(ModelState::Open {
            until: whole_ms(self.now + time),
        });
    }

    fn force(&mut self, force: Force) {
        let forced = matches!(self.state, ModelState::Forced(_));
        let to = match force {
            Force::Open => State::ForcedOpen,
            Force::Closed => State::ForcedClosed,
            Force::MetricsOnly => State::MetricsOnly,
            _ if forced => {
                self.failed_recoveries = 0;
                return self.change_state(ModelState::Closed);
            }
            _ => return,
        };
        if !matches!(self.state, ModelState::Forced(state) if state == to) {
            self.change_state(ModelState::Forced(to));
        }
    }

    fn recent(&self) -> (usize, usize, usize) {
        let oldest = (self.now / BUCKET).saturating_sub(BUCKETS - 1) * BUCKET;
        let counted = || self.outcomes.iter().filter(|(at, ..)| *at >= oldest);
        (
            counted().count(),
            counted().filter(|(_, failed, _)| *failed).count(),
            counted().filter(|o| o.2).count(),
        )
    }
}

fn run(ops: &[Op], seen: &mut BTreeSet<(&'static str, &'static str)>) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .buckets(BUCKETS as usize)
        .bucket_length(Duration::from_nanos(BUCKET))
        .min_calls(MIN_CALLS as u64)
        .slow_after(Duration::from_nanos(SLOW_AFTER))
        .open_for(Duration::from_nanos(OPEN_FOR))
        .max_open_for(Duration::from_nanos(MAX_OPEN_FOR))
        .probes(PROBES)
        .probe_timeout(Duration::from_nanos(DEADLINE))
        .jitter_percent(0)
        .clock(clock.clone())
        .build()
        .unwrap();
    let mut model = Model::new();
    let mut out: Vec<(CallGuard<ManualClock>, ModelCall)> = Vec::new();
    for (number, op) in ops.iter().enumerate() {
        let before = breaker.state();
        match *op {
            Op::Acquire => match (breaker.try_acquire(), model.acquire(number as u64)) {
                (Ok(call), Ok(model_call)) => {
                    prop_assert_eq!(call.is_probe(), model_call.slot.is_some());
                    out.push((call, model_call));
                }
                (Err(open), Err(left)) => {
                    prop_assert_eq!(open.retry_after(), Duration::from_nanos(left));
                }
                (real, naive) => prop_assert!(false, "{number}: {real:?}, not {naive:?}"),
            },
            Op::Finish { .. } if out.is_empty() => {}
            Op::Finish { which, outcome } => {
                let (call, model_call) = out.swap_remove(which.index(out.len()));
                match outcome {
                    ModelOutcome::Success => call.success(),
                    ModelOutcome::Failure => call.failure(),
                    ModelOutcome::Ignore => call.ignore(),
                    ModelOutcome::Drop => drop(call),
                }
                model.finish(model_call, outcome);
            }
            Op::Advance(by) => {
                clock.advance(Duration::from_nanos(by));
                model.now += by;
            }
            Op::Force(force) => {
                breaker.force(force);
                model.force(force);
            }
        }
        prop_assert_eq!(breaker.state(), model.state(), "after {}: {:?}", number, op);
        seen.insert((before.as_str(), breaker.state().as_str()));
        let recent = breaker.recent();
        let (calls, failures, slow) = model.recent();
        prop_assert_eq!(
            (recent.calls, recent.failures, recent.slow),
            (calls as u64, failures as u64, slow as u64)
        );
        let figures = breaker.stats();
        prop_assert_eq!(
            (
                figures.calls,
                figures.failures,
                figures.slow,
                figures.rejected,
                figures.opened
            ),
            (
                model.calls,
                model.failures,
                model.slow,
                model.rejected,
                model.opened
            )
        );
    }
    Ok(())
}

#[test]
fn every_state_is_that_of_the_naive_breaker() {
    let seen = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new(Config {
        cases: 500,
        source_file: Some(file!()),
        ..Config::default()
    });
    runner
        .run(&ops(), |ops| run(&ops, &mut seen.borrow_mut()))
        .unwrap();
    // The generated runs must cover these changes of state.
    let changes = [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "open"),
        ("half_open", "closed"),
    ];
    let forced = ["forced_open", "forced_closed", "metrics_only"].map(|state| (state, "closed"));
    for change in changes.into_iter().chain(forced) {
        assert!(
            seen.borrow().contains(&change),
            "{change:?} never happened: {seen:?}"
        );
    }
}
