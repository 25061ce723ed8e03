//! Reserve, cancel and live changes against a model with the whole history: P1 counted at act
//! times, and the rules 1 to 7 of docs/spec/algorithms.md.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod stale;

use common::traces::{
    cases, everyday, fine, instant, limiter, limits, nanos, of_nanos, rounded, whole_interval,
};
use proptest::prelude::*;
use ratekeeper::{Limit, Limiter, ManualClock, Reservation};
use ratekeeper_testkit::{BucketRule, Event};
use std::sync::Mutex;
use std::time::Duration;

/// An operation. Times are in quarters of a token's time, so that slots and calls fall between each
/// other.
#[derive(Clone, Copy, Debug)]
enum Op {
    Check(u64),
    Reserve(u64),
    /// With a longest wait in quarters.
    ReserveWithin(u64, u64),
    /// One of those outstanding, counted from the oldest.
    Cancel(usize),
    /// The youngest outstanding.
    CancelLast,
    Pass(u64),
}

fn ops(most: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..=most).prop_map(Op::Check),
        5 => (1..=most).prop_map(Op::Reserve),
        2 => (0..=most, 0_u64..24).prop_map(|(cost, longest)| Op::ReserveWithin(cost, longest)),
        3 => any::<prop::sample::Index>().prop_map(|index| Op::Cancel(index.index(64))),
        1 => Just(Op::CancelLast),
        5 => (0_u64..12).prop_map(Op::Pass),
    ]
}

fn ops_without_cancels(most: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..=most).prop_map(Op::Check),
        5 => (1..=most).prop_map(Op::Reserve),
        2 => (0..=most, 0_u64..24).prop_map(|(cost, longest)| Op::ReserveWithin(cost, longest)),
        5 => (0_u64..12).prop_map(Op::Pass),
    ]
}

/// A token takes whole nanoseconds, four at least: act times are told exactly, quarters are whole.
fn whole() -> impl Strategy<Value = Limit> {
    (1_u64..=5, 1_u64..=6).prop_map(|(quarter, burst)| whole_interval(4 * quarter, burst))
}

/// A reservation and its reported time.
struct Slot {
    held: Option<Reservation<ManualClock>>,
    cost: u64,
    act: u64,
}

/// A limiter and its history.
struct LimiterHistory {
    limiter: Limiter<ManualClock>,
    rule: BucketRule,
    quarter: u64,
    now: u64,
    slots: Vec<Slot>,
    checked: Vec<Event>,
}

impl LimiterHistory {
    fn new(limit: Limit) -> Self {
        let (limiter, now) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let quarter = (rule.token_nanos() / 4).max(1);
        Self {
            limiter,
            rule,
            quarter,
            now,
            slots: Vec::new(),
            checked: Vec::new(),
        }
    }

    /// Runs it, and returns the event if something was admitted.
    fn run(&mut self, op: Op) -> Option<Event> {
        let at = self.limiter.at(instant(self.now));
        let granted = match op {
            Op::Pass(quarters) => {
                self.now += quarters * self.quarter;
                return None;
            }
            Op::Check(cost) => {
                let event = at
                    .check_n(cost)
                    .is_allowed()
                    .then_some(Event { at: self.now, cost });
                self.checked.extend(event);
                return event;
            }
            Op::Cancel(index) => {
                let outstanding = self.outstanding();
                if !outstanding.is_empty() {
                    self.cancel(outstanding[index % outstanding.len()]);
                }
                return None;
            }
            Op::CancelLast => {
                if let Some(last) = self.outstanding().pop() {
                    self.cancel(last);
                }
                return None;
            }
            Op::Reserve(cost) => at.reserve(cost).map(|held| (held, cost)),
            Op::ReserveWithin(cost, quarters) => at
                .reserve_within(cost, Duration::from_nanos(quarters * self.quarter))
                .map(|held| (held, cost)),
        };
        let (held, cost) = granted.ok()?;
        let act = held.act_at().as_unix_nanos();
        assert_eq!(
            held.delay_from(instant(self.now)),
            Duration::from_nanos(act - self.now)
        );
        self.slots.push(Slot {
            held: Some(held),
            cost,
            act,
        });
        Some(Event { at: act, cost })
    }

    /// Those that have not been cancelled.
    fn outstanding(&self) -> Vec<usize> {
        (0..self.slots.len())
            .filter(|slot| self.slots[*slot].held.is_some())
            .collect()
    }

    /// A cancelled reservation does not act, unless the time to act has passed.
    fn cancel(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        let held = slot.held.take().expect("outstanding");
        self.limiter.at(instant(self.now)).cancel(held);
        if slot.act < self.now {
            self.checked.push(Event {
                at: slot.act,
                cost: slot.cost,
            });
        }
    }

    /// Everything that was admitted, each at the time it acts.
    fn events(&self) -> Vec<Event> {
        let acting = self.slots.iter().filter(|slot| slot.held.is_some());
        let acting = acting.map(|slot| Event {
            at: slot.act,
            cost: slot.cost,
        });
        self.checked.iter().copied().chain(acting).collect()
    }

    /// The level in parts, read from outside.
    fn level(&self) -> i128 {
        level(&self.limiter, self.now, self.rule.token)
    }

    /// Instants from now until all promised slots have passed.
    fn probes(&self) -> impl Iterator<Item = u64> + use<> {
        let last = self
            .slots
            .iter()
            .map(|slot| slot.act)
            .max()
            .unwrap_or(0)
            .max(self.now);
        let end = last + (self.rule.burst as u64 + 1) * 4 * self.quarter;
        (self.now..=end).step_by(self.quarter as usize)
    }

    /// Asserts P1 in every interval, and that nothing on offer, now or later, would break it.
    fn assert_p1(&self) -> Result<(), TestCaseError> {
        let events = self.events();
        prop_assert_eq!(self.rule.violation(&events), None, "{:?}", events);
        for a in self.probes() {
            let room = self.rule.whole(self.rule.headroom(&events, a));
            let offered = self.limiter.at(instant(a)).peek().remaining();
            prop_assert!(
                offered <= room,
                "{} offered at {}, room for {} beside {:?}",
                offered,
                a,
                room,
                events
            );
        }
        for slot in &self.slots {
            if let Some(held) = &slot.held {
                prop_assert_eq!(held.act_at(), instant(slot.act), "the act time is fixed");
            }
        }
        Ok(())
    }
}

/// `tokens()` is a float for display; for small levels it is exact.
fn level(limiter: &Limiter<ManualClock>, now: u64, token: i128) -> i128 {
    let parts = limiter.at(instant(now)).tokens() * token as f64;
    assert!(
        parts.abs() < (1_u64 << 47) as f64 && (parts - parts.round()).abs() < 0.1,
        "{parts} is not whole"
    );
    parts.round() as i128
}

/// Everything observable of a limiter, now and later.
fn look(
    limiter: &Limiter<ManualClock>,
    now: u64,
) -> Vec<(f64, ratekeeper::Decision, ratekeeper::Decision)> {
    let at = |by: u64| limiter.at(instant(now + by));
    [0, 1, 2, 7, 1_000]
        .map(|by| {
            (
                at(by).tokens(),
                at(by).peek(),
                at(by).peek_n(limiter.burst()),
            )
        })
        .to_vec()
}

proptest! {
    #![proptest_config(cases(400))]

    /// Rules 1 to 3, P1 and P2, no cancels: slots are FIFO, and each is the earliest that keeps P1
    /// behind those before it; a check is allowed iff it fits beside all that was promised.
    #[test]
    fn each_slot_is_the_earliest_that_keeps_p1(
        limit in whole(),
        ops in prop::collection::vec(ops_without_cancels(7), 1..30),
    ) {
        earliest_slots(limit, &ops)?;
    }

    /// Where a token takes a fraction of a nanosecond, slots are apart to the tick: one begins when
    /// the tokens that are missing have come, and is told as the first nanosecond that is not
    /// before that.
    #[test]
    fn each_slot_is_the_first_nanosecond_at_which_its_tokens_are_there(
        limit in prop_oneof![fine(), whole(), everyday(), rounded()],
        burst in 1_u64..9,
        ops in prop::collection::vec(ops_without_cancels(7), 1..30),
    ) {
        let mut world = LimiterHistory::new(limit.burst(burst));
        let rule = world.rule;
        let mut calls = Vec::new();
        for op in ops {
            let now = world.now;
            let level = rule.tokens(&calls, now);
            let wait = |cost: u64| {
                let wait = rule.nanos_for(i128::from(cost) * rule.token - level).expect("refills") as u64;
                (i128::from(cost) <= rule.burst).then_some(wait)
            };
            let (cost, expected) = match op {
                Op::Check(cost) => (cost, wait(cost).filter(|wait| *wait == 0)),
                Op::Reserve(cost) => (cost, wait(cost)),
                Op::ReserveWithin(cost, longest) => {
                    (cost, wait(cost).filter(|wait| *wait <= longest * world.quarter))
                }
                _ => (0, None),
            };
            let granted = world.run(op).map(|event| event.at - now);
            prop_assert_eq!(granted, expected, "{:?} at {} after {:?}", op, now, calls);
            if granted.is_some() {
                calls.push(Event { at: now, cost });
            }
        }
    }

    /// Whatever the interval and the cancels: told in whole nanoseconds, P1 holds to less than one.
    #[test]
    fn p1_holds_at_act_times_to_less_than_a_nanosecond(limit in fine(), ops in prop::collection::vec(ops(7), 1..40)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            prop_assert_eq!(world.rule.violation_beyond_a_nano(&world.events()), None, "{:?}", world.events());
        }
    }

    /// Rule 4: reserve, cancel and check in any order keep P1 at act times, and offer nothing that
    /// would break it.
    #[test]
    fn cancels_in_any_order_keep_p1_at_act_times(limit in whole(), ops in prop::collection::vec(ops(7), 1..40)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            world.assert_p1()?;
        }
    }

    /// Rule 4: a cancel gives back between nothing and what was taken; nothing once the time to act
    /// has gone by.
    #[test]
    fn a_cancel_never_gives_back_more_than_was_taken(limit in whole(), ops in prop::collection::vec(ops(7), 1..40)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            let before = (world.level(), world.outstanding());
            world.run(op);
            let gone = before.1.into_iter().find(|slot| world.slots[*slot].held.is_none());
            if let Some(Slot { cost, act, .. }) = gone.map(|slot| &world.slots[slot]) {
                let given = world.level() - before.0;
                prop_assert!((0..=i128::from(*cost) * world.rule.token).contains(&given), "{} for {}", given, cost);
                prop_assert!(*act >= world.now || given == 0);
            }
        }
    }

    /// Rule 4: the first cancel gives back what golang.org/x/time/rate does: the cost less what was
    /// promised after it.
    #[test]
    fn a_first_cancel_gives_back_all_but_what_was_promised_later(
        limit in prop_oneof![fine(), whole(), everyday(), rounded()],
        burst in 1_u64..9,
        ops in prop::collection::vec(ops_without_cancels(7), 1..20),
        which in any::<prop::sample::Index>(),
    ) {
        let mut world = LimiterHistory::new(limit.burst(burst));
        prop_assume!(world.rule.token < 1 << 40);
        // Where each call leaves the last slot, in parts from the beginning: when the bucket owes
        // nothing more, less a full bucket.
        let birth = world.now;
        let last = |world: &LimiterHistory| {
            i128::from(world.now - birth) * world.rule.per_nano - world.level()
        };
        let mut ends = Vec::new();
        for op in ops {
            if let Op::Reserve(_) | Op::ReserveWithin(..) = op {
                let granted = world.run(op).is_some();
                if granted {
                    ends.push(last(&world).max(i128::from(world.now - birth) * world.rule.per_nano));
                }
            } else {
                world.run(op);
            }
        }
        if world.slots.is_empty() {
            return Ok(());
        }
        let slot = which.index(world.slots.len());
        let (cost, act) = (world.slots[slot].cost, world.slots[slot].act);
        let promised_later = (last(&world) - ends[slot]).max(0);
        let expected = if act < world.now { 0 } else { (i128::from(cost) * world.rule.token - promised_later).max(0) };
        let before = world.level();
        world.cancel(slot);
        // A bucket that time has filled meanwhile cannot hold more.
        prop_assert_eq!(world.level(), (before + expected).min(world.rule.capacity()));
    }

    /// Rule 4: cancelling everything in reverse order leaves the limiter as it was, to the tick, at
    /// any rate.
    #[test]
    fn cancelling_in_reverse_order_restores_exactly(
        limit in limits(),
        before in prop::collection::vec(0_u64..5, 0..10),
        costs in prop::collection::vec(0_u64..6, 1..12),
    ) {
        let (limiter, now) = limiter(limit);
        let at = limiter.at(instant(now));
        for cost in before {
            let _ = at.check_n(cost);
        }
        // Owing already, or not.
        drop(at.reserve(1));
        let mut seen = Vec::new();
        let mut slots = Vec::new();
        for cost in costs {
            let was = look(&limiter, now);
            if let Ok(slot) = at.reserve(cost) {
                seen.push(was);
                slots.push(slot);
            }
        }
        while let (Some(slot), Some(was)) = (slots.pop(), seen.pop()) {
            at.cancel(slot);
            prop_assert_eq!(look(&limiter, now), was);
        }
    }

    /// The same when time has passed in between: as if the reservations had never been.
    #[test]
    fn cancelling_in_reverse_order_later_is_as_if_nothing_was_reserved(
        limit in prop_oneof![whole(), fine()],
        costs in prop::collection::vec(1_u64..6, 1..12),
        passed in 0_u64..400,
    ) {
        let (limiter, now) = limiter(limit);
        let twin = common::traces::limiter(limit).0;
        let mut slots = Vec::new();
        for limiter in [&limiter, &twin] {
            let _ = limiter.at(instant(now)).check_n(limit.capacity());
            drop(limiter.at(instant(now)).reserve(limit.capacity()));
        }
        for cost in costs {
            slots.extend(limiter.at(instant(now)).reserve(cost));
        }
        let first = slots.first().map_or(now, |slot| slot.act_at().as_unix_nanos());
        let later = now + passed.min(first - now);
        while let Some(slot) = slots.pop() {
            limiter.at(instant(later)).cancel(slot);
        }
        prop_assert_eq!(look(&limiter, later), look(&twin, later));
    }

    /// Rule 2: the longest wait is inclusive; an error changes nothing; above the burst is never.
    #[test]
    fn the_longest_wait_is_inclusive_and_a_denial_changes_nothing(
        limit in prop_oneof![fine(), whole()],
        ops in prop::collection::vec(ops(7), 1..30),
        cost in 0_u64..9,
    ) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
        }
        let at = world.limiter.at(instant(world.now));
        let before = look(&world.limiter, world.now);
        if cost > limit.capacity() {
            let refused = at.reserve(cost).expect_err("above the burst");
            prop_assert!(refused.is_never() && refused.retry_after().is_none());
            prop_assert_eq!(look(&world.limiter, world.now), before);
            return Ok(());
        }
        // The wait, by the level: what is missing must come first.
        let missing = i128::from(cost) * world.rule.token - world.level();
        let wait = nanos(world.rule.nanos_for(missing).expect("refills"));
        if let Some(shorter) = wait.checked_sub(Duration::from_nanos(1)) {
            for longest in [shorter, Duration::ZERO] {
                let refused = at.reserve_within(cost, longest).expect_err("too long a wait");
                prop_assert!(!refused.is_never());
                prop_assert_eq!(refused.retry_after(), Some(wait));
                prop_assert_eq!(refused.decision(), Some(at.peek_n(cost)));
                prop_assert_eq!(look(&world.limiter, world.now), before.clone());
            }
        }
        let held = at.reserve_within(cost, wait).expect("inclusive");
        prop_assert_eq!(held.act_at(), instant(world.now) + wait);
        let taken = i128::from(cost) * world.rule.token;
        let token = world.rule.token as f64;
        prop_assert_eq!(world.level(), (before[0].0 * token).round() as i128 - taken);
        // Cost 0 waits for the debt and writes nothing.
        prop_assert!(cost > 0 || look(&world.limiter, world.now) == before);
    }

    /// Rule 1: a check is denied while there is debt, also one of cost 0.
    #[test]
    fn a_check_is_denied_while_there_is_debt(
        limit in prop_oneof![fine(), whole()],
        ops in prop::collection::vec(ops(7), 1..30),
    ) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            let level = world.level();
            let at = world.limiter.at(instant(world.now));
            prop_assert_eq!(at.peek_n(0).is_allowed(), level >= 0);
            prop_assert_eq!(at.peek_n(1).is_allowed(), level >= world.rule.token);
            let before = look(&world.limiter, world.now);
            let debt_gone = at.check_n(0).retry_after().unwrap_or_default();
            prop_assert_eq!(debt_gone, nanos(world.rule.nanos_for(-level).expect("refills")));
            prop_assert_eq!(look(&world.limiter, world.now), before);
        }
    }
}

fn earliest_slots(limit: Limit, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = LimiterHistory::new(limit);
    let rule = world.rule;
    let mut last = world.now;
    for op in ops.iter().copied() {
        let now = world.now;
        let events = world.events();
        let fits = |a: u64, cost: u64| rule.headroom(&events, a) >= i128::from(cost) * rule.token;
        let earliest = |cost: u64| {
            let ever = i128::from(cost) <= rule.burst;
            ever.then(|| {
                (last.max(now)..)
                    .find(|a| fits(*a, cost))
                    .expect("time brings it")
            })
        };
        match op {
            Op::Check(cost) => {
                let passed = world.run(op).is_some();
                // Behind what was promised, cost 0 too.
                prop_assert_eq!(
                    passed,
                    last <= now && fits(now, cost),
                    "check {} beside {:?}",
                    cost,
                    events
                );
            }
            Op::Reserve(cost) => {
                let slot = world.run(op).map(|event| event.at);
                prop_assert_eq!(
                    slot,
                    earliest(cost),
                    "reserve {} at {} behind {:?}",
                    cost,
                    now,
                    events
                );
                last = last.max(slot.filter(|_| cost > 0).unwrap_or(last));
            }
            Op::ReserveWithin(cost, quarters) => {
                let expected = earliest(cost).filter(|slot| slot - now <= quarters * world.quarter);
                let slot = world.run(op).map(|event| event.at);
                prop_assert_eq!(
                    slot,
                    expected,
                    "reserve {} within {} at {}: {:?}",
                    cost,
                    quarters,
                    now,
                    events
                );
                last = last.max(slot.filter(|_| cost > 0).unwrap_or(last));
            }
            _ => drop(world.run(op)),
        }
        prop_assert_eq!(
            rule.violation(&world.events()),
            None,
            "{:?}",
            world.events()
        );
    }
    Ok(())
}

/// Rule 4: the time to act itself is still in time to cancel; a nanosecond later is not.
#[test]
fn a_cancel_counts_up_to_the_time_to_act_and_not_after() {
    for (late, tokens) in [(0, 1.0), (1, 0.001)] {
        let (limiter, now) = limiter(whole_interval(1_000, 1));
        assert!(limiter.at(instant(now)).check().is_allowed());
        let slot = limiter.at(instant(now)).reserve(1).unwrap();
        assert_eq!(slot.act_at(), instant(now + 1_000));
        let then = instant(now + 1_000 + late);
        limiter.at(then).cancel(slot);
        assert_eq!(limiter.at(then).tokens(), tokens);
    }
}

/// Rule 2: a wait beyond the horizon is never and takes nothing; up to there slots stay in order
/// and apart.
#[test]
fn a_wait_beyond_the_horizon_is_never_and_takes_nothing() {
    const DAY: u64 = 86_400_000_000_000;
    for limit in [
        whole_interval(3_000 * DAY, 1),
        whole_interval(400 * DAY, 5),
        of_nanos(58, 59 * DAY, 3),
        Limit::per_day(7),
    ] {
        let (limiter, now) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut acts = Vec::new();
        let at = limiter.at(instant(now));
        let refused = loop {
            let before = look(&limiter, now);
            match at.reserve(limit.capacity()) {
                Ok(slot) => acts.push(Event {
                    at: slot.act_at().as_unix_nanos(),
                    cost: limit.capacity(),
                }),
                Err(refused) => {
                    assert_eq!(look(&limiter, now), before);
                    break refused;
                }
            }
        };
        assert!(refused.is_never() && refused.retry_after().is_none());
        assert!(acts.len() > 1, "{limit}");
        for (i, act) in acts.iter().enumerate() {
            let slot = rule
                .nanos_for(rule.capacity() * i as i128)
                .expect("refills");
            assert_eq!(i128::from(act.at - now), slot, "{limit}");
        }
    }
}

/// Rule 7: a bucket that never refills can be spent, reserved from and cancelled, and promises
/// nothing for later.
#[test]
fn rate_zero_spends_the_bucket_and_promises_nothing() {
    let (limiter, now) = limiter(Limit::deny_all().burst(3));
    let at = limiter.at(instant(now));
    let slot = at.reserve(2).unwrap();
    assert_eq!(slot.act_at(), instant(now));
    assert!(at.reserve(2).unwrap_err().is_never());
    assert!(at.reserve_within(4, Duration::MAX).unwrap_err().is_never());
    assert!(at.check().is_allowed());
    assert!(limiter.at(instant(u64::MAX)).check().is_never());
    assert_eq!(at.tokens(), 0.0);
    drop(slot);
}

/// Rule 7: unlimited touches no state.
#[test]
fn unlimited_reserves_at_once() {
    let (limiter, now) = limiter(Limit::unlimited());
    let slot = limiter.at(instant(now)).reserve(u64::MAX).unwrap();
    assert_eq!(slot.act_at(), instant(now));
    limiter.at(instant(now)).cancel(slot);
    assert!(limiter.at(instant(now)).check_n(u64::MAX).is_allowed());
}

/// P1 for any threads: for any reserves, cancels and checks on a frozen clock, every interval keeps
/// it.
#[test]
fn threads_that_reserve_and_cancel_keep_p1_at_act_times() {
    for round in 0..30_u64 {
        let limit = whole_interval(1_000, 1 + round % 5);
        let (limiter, now) = limiter(limit);
        let acted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (limiter, acted) = (&limiter, &acted);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    let mut random = round * 31 + thread + 1;
                    for _ in 0..60 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let pick = (random >> 33) as usize;
                        let cost = 1 + pick as u64 / 8 % limit.capacity();
                        match pick % 8 {
                            0..=3 => held.extend(limiter.reserve(cost).map(|slot| (slot, cost))),
                            4 if limiter.check_n(cost).is_allowed() => {
                                acted.lock().unwrap().push(Event { at: now, cost });
                            }
                            5..=7 if !held.is_empty() => {
                                held.swap_remove(pick / 8 % held.len()).0.cancel();
                            }
                            _ => {}
                        }
                    }
                    let kept = held.iter().map(|(slot, cost)| Event {
                        at: slot.act_at().as_unix_nanos(),
                        cost: *cost,
                    });
                    acted.lock().unwrap().extend(kept);
                });
            }
        });
        let mut events = acted.into_inner().unwrap();
        let rule = BucketRule::decided(&limit);
        assert_eq!(rule.violation(&events), None);
        // A later call finds no more than is left.
        let last = events.iter().map(|event| event.at).max().unwrap_or(now);
        for at in (now..last + 10_000).step_by(500) {
            let cost = limiter.at(instant(at)).peek().remaining();
            assert!(limiter.at(instant(at)).check_n(cost).is_allowed() || cost == 0);
            events.push(Event { at, cost });
        }
        assert_eq!(rule.violation(&events), None);
    }
}
