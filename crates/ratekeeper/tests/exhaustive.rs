//! Exhaustive: every short sequence of calls on a small bucket keeps P1 at act times, on the net
//! cost, in every state.

mod common;

use common::traces::{instant, limiter, whole_interval};
use ratekeeper::{Charge, Limiter, ManualClock, Reservation};
use ratekeeper_testkit::{BucketRule, Event};

/// The time of a token; half of it is the smallest step.
const TOKEN: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Check(u64),
    Reserve(u64),
    Take(u64),
    /// The n-th reservation of the trace.
    Cancel(usize),
    /// The n-th charge of the trace, settled at this cost.
    Settle(usize, u64),
    Pass(u64),
}

/// A limiter after some calls, and their history.
struct State {
    limiter: Limiter<ManualClock>,
    now: u64,
    checked: Vec<Event>,
    slots: Vec<(Option<Reservation<ManualClock>>, Event)>,
    charges: Vec<(Option<Charge<ManualClock>>, Event)>,
}

impl State {
    /// Plays a trace; a limiter cannot be copied, so every state is reached from the beginning.
    fn after(burst: u64, trace: &[Op]) -> (Self, bool) {
        let (limiter, now) = limiter(whole_interval(TOKEN, burst));
        let mut state = Self {
            limiter,
            now,
            checked: Vec::new(),
            slots: Vec::new(),
            charges: Vec::new(),
        };
        let mut last = true;
        for op in trace {
            last = state.run(*op);
        }
        (state, last)
    }

    /// Whether it did anything.
    fn run(&mut self, op: Op) -> bool {
        let at = self.limiter.at(instant(self.now));
        match op {
            Op::Pass(nanos) => self.now += nanos,
            Op::Check(cost) => {
                if at.check_n(cost).is_denied() {
                    return false;
                }
                self.checked.push(Event { at: self.now, cost });
            }
            Op::Reserve(cost) => {
                let slot = at.reserve(cost).expect("at most the burst");
                let event = Event {
                    at: slot.act_at().as_unix_nanos(),
                    cost,
                };
                self.slots.push((Some(slot), event));
            }
            Op::Take(cost) => {
                let Ok(charge) = at.take(cost) else {
                    return false;
                };
                self.charges
                    .push((Some(charge), Event { at: self.now, cost }));
            }
            Op::Cancel(which) => {
                let (slot, event) = &mut self.slots[which];
                at.cancel(slot.take().expect("outstanding"));
                if event.at >= self.now {
                    event.cost = 0;
                }
            }
            Op::Settle(which, actual) => {
                let (charge, event) = &mut self.charges[which];
                at.settle(charge.take().expect("outstanding"), actual);
                event.cost = actual;
            }
        }
        true
    }

    /// The possible next steps. For the passing of time one order is enough: whole tokens first.
    fn next(&self, small: &SmallBucket, last: Option<Op>) -> Vec<Op> {
        let mut ops = match last {
            Some(Op::Pass(nanos)) if nanos < TOKEN => Vec::new(),
            _ => vec![Op::Pass(TOKEN), Op::Pass(TOKEN / 2)],
        };
        ops.push(Op::Check(1));
        ops.extend((1..=small.burst).map(Op::Reserve));
        ops.extend(small.takes.iter().copied().map(Op::Take));
        let slots = self.slots.iter().enumerate();
        // A reservation that has acted gives nothing back: other tests check that.
        ops.extend(
            slots
                .filter(|(_, slot)| slot.0.is_some() && slot.1.at >= self.now)
                .map(|(i, _)| Op::Cancel(i)),
        );
        for (i, (charge, event)) in self.charges.iter().enumerate() {
            if charge.is_some() {
                ops.push(Op::Settle(i, 0));
                ops.extend((event.cost > 1).then_some(Op::Settle(i, event.cost - 1)));
            }
        }
        ops
    }

    fn net(&self) -> Vec<Event> {
        let slots = self.slots.iter().map(|(_, event)| *event);
        let charges = self.charges.iter().map(|(_, event)| *event);
        self.checked
            .iter()
            .copied()
            .chain(slots)
            .chain(charges)
            .filter(|event| event.cost > 0)
            .collect()
    }

    /// Neither promised slots nor anything on offer, now or until the bucket is full again, breaks
    /// P1.
    fn assert_p1(&self, rule: &BucketRule, trace: &[Op]) {
        let net = self.net();
        assert_eq!(rule.violation(&net), None, "{trace:?}");
        let last = net
            .iter()
            .map(|event| event.at)
            .max()
            .unwrap_or(self.now)
            .max(self.now);
        for a in (self.now..=last + TOKEN).step_by(TOKEN as usize / 2) {
            let room = rule.whole(rule.headroom(&net, a));
            let offered = self.limiter.at(instant(a)).peek().remaining();
            assert!(
                offered <= room,
                "{offered} offered after {} ns, room for {room}: {trace:?}",
                a - self.now
            );
        }
    }
}

/// A bucket small enough to try everything.
struct SmallBucket {
    burst: u64,
    /// What may be taken, to be settled.
    takes: &'static [u64],
    depth: usize,
}

/// Visits every state that so many calls reach, and returns how many there are.
fn visit(small: &SmallBucket, trace: &mut Vec<Op>) -> u64 {
    let rule = BucketRule {
        per_nano: 1,
        token: i128::from(TOKEN),
        burst: i128::from(small.burst),
    };
    let (state, changed) = State::after(small.burst, trace);
    if !changed {
        return 0;
    }
    // The future of a state that only time has changed has been visited already.
    if !matches!(trace.last(), Some(Op::Pass(_))) {
        state.assert_p1(&rule, trace);
    }
    if trace.len() == small.depth {
        return 1;
    }
    let mut states = 1;
    for op in state.next(small, trace.last().copied()) {
        trace.push(op);
        states += visit(small, trace);
        trace.pop();
    }
    states
}

#[test]
fn every_short_trace_on_a_burst_of_1_keeps_p1() {
    let states = visit(
        &SmallBucket {
            burst: 1,
            takes: &[1],
            depth: 8,
        },
        &mut Vec::new(),
    );
    assert!(states > 50_000, "{states} states");
}

#[test]
fn every_short_trace_on_a_burst_of_2_keeps_p1() {
    let states = visit(
        &SmallBucket {
            burst: 2,
            takes: &[1, 2],
            depth: 6,
        },
        &mut Vec::new(),
    );
    assert!(states > 50_000, "{states} states");
}

#[test]
fn every_short_trace_on_a_burst_of_3_keeps_p1() {
    let states = visit(
        &SmallBucket {
            burst: 3,
            takes: &[3],
            depth: 7,
        },
        &mut Vec::new(),
    );
    assert!(states > 50_000, "{states} states");
}

#[test]
fn every_short_trace_of_small_charges_on_a_burst_of_3_keeps_p1() {
    let states = visit(
        &SmallBucket {
            burst: 3,
            takes: &[1, 2],
            depth: 6,
        },
        &mut Vec::new(),
    );
    assert!(states > 50_000, "{states} states");
}
