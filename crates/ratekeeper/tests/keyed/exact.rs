//! With a slot for every key, each key behaves as a limiter of its own.

use super::common::traces::{Step, any_limits, cases, instant, moved_by, same_kind, steps};
use proptest::prelude::*;
use ratekeeper::{Charge, Clock, Keyed, Limit, Limiter, ManualClock, Reservation, limiter::Carry};
use ratekeeper_testkit::{DecisionInfo, Model};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Few enough keys that no cache line of the table overflows.
const KEYS: u64 = 6;
const ROOM: usize = 4_096;
/// Here they do not overflow either, but are close together.
const LITTLE_ROOM: usize = 8;

fn keyed(limit: Limit) -> (Keyed<u64, ManualClock>, ManualClock) {
    keyed_with(ROOM, limit)
}

fn keyed_with(room: usize, limit: Limit) -> (Keyed<u64, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Keyed::builder(limit)
            .max_keys(room)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

/// The possible histories of a key. There is more than one after a change of the limit: whether a
/// key that was fresh has been evicted, and is new under the new limit, or is still in the table,
/// cannot be seen from outside.
struct Histories(Vec<Model>);

impl Histories {
    fn new(limit: Limit) -> Self {
        Self(vec![Model::new(limit)])
    }

    fn change(&mut self, limit: Limit, now: u64) {
        let fresh = self.0.iter().any(|model| model.is_fresh(now));
        self.0.iter_mut().for_each(|model| model.keep(limit, now));
        self.0.extend(fresh.then(|| Model::new(limit)));
    }

    fn is_silent_on(&self, now: u64, cost: u64) -> bool {
        self.0.iter().any(|model| model.is_silent_on(now, cost))
    }

    /// Whether a call's answer is that of one of them; the others are dropped.
    fn retain_matching(
        &mut self,
        answer: DecisionInfo,
        call: impl Fn(&mut Model) -> DecisionInfo,
    ) -> bool {
        self.0.retain_mut(|model| call(model) == answer);
        !self.0.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    key: u64,
    step: Step,
    cost: u64,
    verb: Verb,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Check,
    Peek,
    Take,
}

fn calls() -> impl Strategy<Value = Call> {
    let verb = prop_oneof![4 => Just(Verb::Check), 1 => Just(Verb::Peek), 1 => Just(Verb::Take)];
    let cost = prop_oneof![1 => Just(0_u64), 6 => Just(1_u64), 3 => 2_u64..6, 1 => Just(u64::MAX)];
    (0..KEYS, steps(), cost, verb).prop_map(|(key, step, cost, verb)| Call {
        key,
        step,
        cost,
        verb,
    })
}

fn answer(view: &ratekeeper::keyed::Key<'_, ManualClock>, cost: u64, verb: Verb) -> DecisionInfo {
    DecisionInfo::from(match verb {
        Verb::Check => view.check_n(cost),
        Verb::Peek => view.peek_n(cost),
        // `take` returns no numbers: what remains is read separately.
        Verb::Take => match view.take(cost) {
            Ok(charge) => {
                assert_eq!(charge.cost(), cost);
                let mut answer = DecisionInfo::from(view.peek_n(0));
                // Cost 0 is denied while there is debt, which a take never leaves.
                answer.outcome = ratekeeper::Outcome::Allowed;
                return answer;
            }
            Err(denied) => denied.decision(),
        },
    })
}

fn modelled(model: &mut Model, at: u64, cost: u64, verb: Verb) -> DecisionInfo {
    match verb {
        Verb::Check => model.check(at, cost),
        Verb::Peek => model.peek(at, cost),
        Verb::Take => {
            let answer = model.check(at, cost);
            if answer.outcome != ratekeeper::Outcome::Allowed {
                return answer;
            }
            DecisionInfo {
                outcome: ratekeeper::Outcome::Allowed,
                ..model.peek(at, 0)
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(250))]

    /// Decisions and their numbers, for every algorithm, any costs, idle spells, stale instants and
    /// live changes.
    #[test]
    fn each_key_decides_as_its_model(
        limit in any_limits(),
        changes in prop::collection::vec((1_u64..=9, 1_u64..=9), 3),
        ops in prop::collection::vec((calls(), prop::option::weighted(0.03, 0_usize..3)), 1..120),
    ) {
        let (keyed, clock) = keyed(limit);
        let mut now = clock.now().as_unix_nanos();
        let mut models: BTreeMap<u64, Histories> = (0..KEYS).map(|key| (key, Histories::new(limit))).collect();
        for (Call { key, step, cost, verb }, change) in ops {
            let at = moved_by(&mut now, step, &keyed.limit());
            clock.set(instant(now));
            let model = models.get_mut(&key).expect("a key");
            let silent = model.is_silent_on(at, cost) || verb == Verb::Take && model.is_silent_on(at, 0);
            if !silent {
                let view = keyed.key(&key);
                let answer = if at == now { answer(&view, cost, verb) } else { answer(&view.at(instant(at)), cost, verb) };
                let before = model.0.clone();
                let known = model.retain_matching(answer, |model| modelled(model, at, cost, verb));
                if !known && keyed.stats().evicted_fresh > 0 {
                    return Ok(());
                }
                prop_assert!(known, "{:?} {} of key {} at {}: {:?}\nnot of {:?}", verb, cost, key, at, answer, before);
            }
            if let Some(next) = change.and_then(|which| same_kind(&limit, changes[which])) {
                keyed.set_limit(next);
                models.values_mut().for_each(|model| model.change(next, now));
            }
        }
        prop_assert_eq!(keyed.stats().evicted_live, 0);
    }
}

/// One operation on a key, or on all keys.
#[derive(Clone, Copy, Debug)]
enum Op {
    Check(u64),
    Stale(u64, u64),
    Peek(u64),
    Take(u64),
    Reserve(u64),
    Within(u64, u64),
    /// Settles one outstanding charge, at this many eighths.
    Settle(usize, u64),
    Cancel(usize),
    Grant(u64),
    Reset,
    Pass(u64),
    Change(usize, Carry),
    ResetAll,
}

fn ops() -> impl Strategy<Value = Op> {
    let carry = prop::sample::select(vec![
        Carry::Keep,
        Carry::Keep,
        Carry::Proportional,
        Carry::Additive,
        Carry::Reset,
    ]);
    prop_oneof![
        8 => (0_u64..5).prop_map(Op::Check),
        2 => (1_u64..4, 1_u64..60).prop_map(|(cost, back)| Op::Stale(cost, back)),
        2 => (0_u64..5).prop_map(Op::Peek),
        4 => (1_u64..5).prop_map(Op::Take),
        3 => (1_u64..5).prop_map(Op::Reserve),
        1 => (1_u64..5, 0_u64..60).prop_map(|(cost, longest)| Op::Within(cost, longest)),
        4 => (0_usize..8, 0_u64..16).prop_map(|(which, eighths)| Op::Settle(which, eighths)),
        2 => (0_usize..8).prop_map(Op::Cancel),
        1 => (1_u64..5).prop_map(Op::Grant),
        1 => Just(Op::Reset),
        6 => prop_oneof![0_u64..20, 0_u64..200].prop_map(Op::Pass),
        1 => (0_usize..4, carry).prop_map(|(which, carry)| Op::Change(which, carry)),
        1 => Just(Op::ResetAll),
    ]
}

/// A limiter that a key may equal, with its outstanding charges and reservations.
struct Twin {
    limiter: Limiter<ManualClock>,
    charges: Vec<Option<Charge<ManualClock>>>,
    slots: Vec<Option<Reservation<ManualClock>>>,
}

/// What a verb returned.
#[derive(Clone, PartialEq, Debug)]
enum Observation {
    Decision(DecisionInfo),
    Charged(bool),
    Slot(Result<Duration, Option<DecisionInfo>>),
    Nothing,
}

proptest! {
    #![proptest_config(cases(250))]

    /// Every verb behaves as on a limiter of its own, whatever the limit changes to and whatever
    /// other keys do.
    #[test]
    fn each_key_behaves_as_a_limiter_of_its_own(
        room in prop::sample::select(vec![LITTLE_ROOM, ROOM]),
        limits in prop::collection::vec(any_limits(), 4),
        ops in prop::collection::vec((ops(), 0..KEYS), 1..100),
    ) {
        let (keyed, clock) = keyed_with(room, limits[0]);
        let mut twins: BTreeMap<u64, Vec<Twin>> = BTreeMap::new();
        let fresh = |limit: Limit| {
            let limiter = Limiter::with_clock(limit, clock.clone());
            Twin { limiter, charges: Vec::new(), slots: Vec::new() }
        };
        for key in 0..KEYS {
            twins.insert(key, vec![fresh(limits[0])]);
        }
        let mut outstanding: BTreeMap<u64, (Vec<_>, Vec<_>)> = BTreeMap::new();
        // At an instant before a reset either may only be stricter.
        let mut was_reset = BTreeSet::new();
        for (op, key) in ops {
            let now = clock.now();
            let unit = keyed.limit().fills_in().unwrap_or(Duration::from_micros(1)).min(Duration::from_secs(86_400)) / 64;
            let unit = unit.max(Duration::from_nanos(1));
            match op {
                Op::Pass(by) => {
                    clock.advance(unit * by as u32);
                    continue;
                }
                Op::Change(..) | Op::ResetAll => {
                    let (limit, carry) = match op {
                        Op::Change(which, carry) => (limits[which], carry),
                        _ => (keyed.limit(), Carry::Reset),
                    };
                    match op {
                        Op::ResetAll => keyed.reset(),
                        _ => keyed.set_limit_with(limit, carry),
                    }
                    // What was charged or reserved before a change is not refunded to a key, but is
                    // to a limiter.
                    outstanding.clear();
                    for possible in twins.values_mut() {
                        possible.iter_mut().for_each(|twin| twin.charges.clear());
                        possible.iter_mut().for_each(|twin| twin.slots.clear());
                        let new = possible.iter().any(|twin| twin.limiter.peek_n(0).reset_after().is_zero());
                        possible.iter_mut().for_each(|twin| twin.limiter.set_limit_with(limit, carry));
                        possible.extend(new.then(|| fresh(limit)));
                    }
                    continue;
                }
                _ => {}
            }
            if matches!(op, Op::Stale(..)) && was_reset.contains(&key) {
                continue;
            }
            let view = keyed.key(&key);
            let (charges, slots) = outstanding.entry(key).or_default();
            let observed = match op {
                Op::Check(cost) => Observation::Decision(view.check_n(cost).into()),
                Op::Stale(cost, back) => Observation::Decision(view.at(now - unit * back as u32).check_n(cost).into()),
                Op::Peek(cost) => Observation::Decision(view.peek_n(cost).into()),
                Op::Take(cost) => {
                    let taken = view.take(cost).ok();
                    let observed = Observation::Charged(taken.is_some());
                    charges.push(taken);
                    observed
                }
                Op::Reserve(cost) | Op::Within(cost, _) => {
                    let longest = if let Op::Within(_, units) = op { unit * units as u32 } else { Duration::MAX };
                    let slot = view.reserve_within(cost, longest);
                    let observed = slot.as_ref().map(|slot| slot.delay()).map_err(|error| error.decision().map(DecisionInfo::from));
                    slots.push(slot.ok());
                    Observation::Slot(observed)
                }
                Op::Settle(which, eighths) => {
                    let which = which % charges.len().max(1);
                    if let Some(charge) = charges.get_mut(which).and_then(Option::take) {
                        let actual = (charge.cost() * eighths).div_ceil(8);
                        charge.settle(actual);
                        for twin in twins.get_mut(&key).expect("a key") {
                            if let Some(charge) = twin.charges.get_mut(which).and_then(Option::take) {
                                charge.settle(actual);
                            }
                        }
                    }
                    Observation::Nothing
                }
                Op::Cancel(which) => {
                    let which = which % slots.len().max(1);
                    if let Some(slot) = slots.get_mut(which).and_then(Option::take) {
                        slot.cancel();
                        for twin in twins.get_mut(&key).expect("a key") {
                            if let Some(slot) = twin.slots.get_mut(which).and_then(Option::take) {
                                slot.cancel();
                            }
                        }
                    }
                    Observation::Nothing
                }
                Op::Grant(tokens) => {
                    view.grant(tokens);
                    Observation::Nothing
                }
                Op::Reset => {
                    view.reset();
                    Observation::Nothing
                }
                Op::Pass(_) | Op::Change(..) | Op::ResetAll => unreachable!(),
            };
            let after = (DecisionInfo::from(view.peek()), view.tokens());
            let possible = twins.get_mut(&key).expect("a key");
            let mut others = Vec::new();
            possible.retain_mut(|twin| {
                let limiter = &twin.limiter;
                let would = match op {
                    Op::Check(cost) => Observation::Decision(limiter.check_n(cost).into()),
                    Op::Stale(cost, back) => Observation::Decision(limiter.at(now - unit * back as u32).check_n(cost).into()),
                    Op::Peek(cost) => Observation::Decision(limiter.peek_n(cost).into()),
                    Op::Take(cost) => {
                        let taken = limiter.take(cost).ok();
                        let observed = Observation::Charged(taken.is_some());
                        twin.charges.resize_with(charges.len() - 1, || None);
                        twin.charges.push(taken);
                        observed
                    }
                    Op::Reserve(cost) | Op::Within(cost, _) => {
                        let longest = if let Op::Within(_, units) = op { unit * units as u32 } else { Duration::MAX };
                        let slot = limiter.reserve_within(cost, longest);
                        let observed =
                            slot.as_ref().map(|slot| slot.delay()).map_err(|error| error.decision().map(DecisionInfo::from));
                        twin.slots.resize_with(slots.len() - 1, || None);
                        twin.slots.push(slot.ok());
                        Observation::Slot(observed)
                    }
                    Op::Grant(tokens) => {
                        limiter.grant(tokens);
                        Observation::Nothing
                    }
                    Op::Reset => {
                        limiter.reset();
                        Observation::Nothing
                    }
                    _ => Observation::Nothing,
                };
                let then = (DecisionInfo::from(limiter.peek()), limiter.tokens());
                let same = would == observed && then == after;
                if !same {
                    others.push((would, then));
                }
                same
            });
            if possible.is_empty() && keyed.stats().evicted_fresh > 0 {
                return Ok(());
            }
            prop_assert!(
                !possible.is_empty(),
                "{:?} of key {} under {}: {:?} and then {:?}\nnot {:?}", op, key, keyed.limit(), observed, after, others
            );
            if let Op::Reset = op {
                was_reset.insert(key);
            }
        }
        prop_assert_eq!(keyed.stats().evicted_live, 0);
    }
}

/// The limit in force, its burst, and the counters: of the table as of a limiter.
#[test]
fn a_table_returns_its_limit_and_counts_adjustments() {
    let (keyed, _) = keyed(Limit::per_second(2).burst(10));
    assert_eq!(
        (keyed.limit(), keyed.burst()),
        (Limit::per_second(2).burst(10), 10)
    );
    assert!(keyed.check_n(&1, 10).is_allowed());
    keyed.key(&1).grant(3);
    assert_eq!(keyed.key(&1).peek().remaining(), 3);
    keyed.set_burst(20);
    assert_eq!(
        (keyed.burst(), keyed.limit()),
        (20, Limit::per_second(2).burst(20))
    );
    let counts = keyed.adjustments();
    assert_eq!((counts.granted, counts.changes), (3, 1));
    let handle = keyed.clone();
    assert!(
        handle.check_n(&1, 3).is_allowed(),
        "a handle shares the table"
    );
    assert!(keyed.check(&1).is_denied());
    keyed.reset();
    assert_eq!(keyed.key(&1).peek().remaining(), 20);
    assert_eq!(keyed.key(&2).peek().remaining(), 20);
}

/// Setting the value in force changes nothing.
#[test]
fn setting_the_limit_that_is_in_force_does_nothing() {
    let (keyed, _) = keyed(Limit::per_second(1).burst(10));
    let charge = keyed.key(&1).take(10).unwrap();
    keyed.set_limit(Limit::per_second(1).burst(10));
    charge.settle(4);
    assert_eq!(keyed.key(&1).tokens(), 6.0);
    assert_eq!(keyed.adjustments().changes, 0);
}
