//! Rule 6: live changes, between reservations and cancels.

use super::common::traces::{cases, instant, limiter, limits, whole_interval};
use super::{LimiterHistory, Op, level, look, ops};
use proptest::prelude::*;
use ratekeeper::{Clock, Limit, Limiter, ManualClock, Reservation, limiter::Carry};
use ratekeeper_testkit::Event;
use ratekeeper_testkit::changing_bucket::{Era, PARTS, violation};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Interval(u64),
    Frozen,
    Unlimited,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Op(Op),
    Limit(Kind, u64, Carry),
    Burst(u64),
}

fn carries() -> impl Strategy<Value = Carry> {
    prop_oneof![
        3 => Just(Carry::Keep),
        1 => Just(Carry::Proportional),
        1 => Just(Carry::Additive),
        1 => Just(Carry::Reset),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![8 => (1_u64..=10).prop_map(Kind::Interval), 1 => Just(Kind::Frozen), 1 => Just(Kind::Unlimited)]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => ops(6).prop_map(Step::Op),
        1 => (kinds(), 1_u64..=6, carries()).prop_map(|(kind, burst, carry)| Step::Limit(kind, burst, carry)),
        1 => (0_u64..=6).prop_map(Step::Burst),
    ]
}

fn limit_of(kind: Kind, burst: u64) -> Limit {
    match kind {
        Kind::Interval(interval) => whole_interval(interval, burst),
        Kind::Frozen => Limit::deny_all().burst(burst),
        Kind::Unlimited => Limit::unlimited(),
    }
}

/// A slot or an admission, and the changes since.
#[derive(Clone, Copy, Debug)]
struct Admission {
    event: Event,
    /// The era it was granted in.
    era: usize,
    /// Reserved before a change and still to act, or to cancel, at that change.
    crossed: bool,
    cancelled: bool,
}

/// A limiter whose limit changes, and its history.
struct ChangingLimiter {
    limiter: Limiter<ManualClock>,
    now: u64,
    eras: Vec<Era>,
    admitted: Vec<Admission>,
    held: Vec<(Reservation<ManualClock>, usize)>,
}

impl ChangingLimiter {
    fn new(limit: Limit) -> Self {
        let (limiter, now) = limiter(limit);
        let era = Era::new(now, &limit, 0);
        Self {
            limiter,
            now,
            eras: vec![era],
            admitted: Vec::new(),
            held: Vec::new(),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Op(op) => self.call(op),
            Step::Limit(kind, burst, carry) => self.change(limit_of(kind, burst), carry),
            Step::Burst(burst) => self.change(self.limiter.limit().burst(burst), Carry::Keep),
        }
    }

    fn admit(&mut self, at: u64, cost: u64) {
        let era = self.eras.len() - 1;
        let event = Event { at, cost };
        self.admitted.push(Admission {
            event,
            era,
            crossed: false,
            cancelled: false,
        });
    }

    fn reserve(&mut self, cost: u64, longest: Duration) {
        if let Ok(slot) = self
            .limiter
            .at(instant(self.now))
            .reserve_within(cost, longest)
        {
            let act = slot.act_at().as_unix_nanos();
            self.held.push((slot, self.admitted.len()));
            self.admit(act, cost);
        }
    }

    fn cancel(&mut self, which: usize) {
        let (slot, index) = self.held.remove(which);
        self.limiter.at(instant(self.now)).cancel(slot);
        self.admitted[index].cancelled = self.admitted[index].event.at >= self.now;
    }

    fn call(&mut self, op: Op) {
        match op {
            Op::Pass(quarters) => self.now += quarters,
            Op::Check(cost)
                if self
                    .limiter
                    .at(instant(self.now))
                    .check_n(cost)
                    .is_allowed() =>
            {
                self.admit(self.now, cost);
            }
            Op::Check(_) => {}
            Op::Reserve(cost) => self.reserve(cost, Duration::MAX),
            Op::ReserveWithin(cost, longest) => self.reserve(cost, Duration::from_nanos(longest)),
            Op::Cancel(which) if !self.held.is_empty() => self.cancel(which % self.held.len()),
            Op::CancelLast if !self.held.is_empty() => self.cancel(self.held.len() - 1),
            Op::Cancel(_) | Op::CancelLast => {}
        }
    }

    fn change(&mut self, limit: Limit, carry: Carry) {
        if limit == self.limiter.limit() && carry != Carry::Reset {
            return;
        }
        self.limiter
            .at(instant(self.now))
            .set_limit_with(limit, carry);
        for (_, index) in &self.held {
            let admission = &mut self.admitted[*index];
            admission.crossed |= admission.event.at >= self.now;
        }
        let old = self.eras.last_mut().expect("an era");
        old.to = self.now;
        let mut era = Era::new(self.now, &limit, 0);
        era.added = match (carry, old.limit, era.limit) {
            (Carry::Keep, ..) | (_, None, _) | (_, _, None) => 0,
            (Carry::Proportional | Carry::Additive, Some((_, was)), Some((_, is))) => {
                i128::from(is.saturating_sub(was)) * PARTS
            }
            (Carry::Reset, _, Some((_, is))) => i128::from(is) * PARTS,
        };
        self.eras.push(era);
    }

    /// The events that act, and were granted under a limit.
    fn acting(&self) -> impl Iterator<Item = &Admission> {
        self.admitted
            .iter()
            .filter(|admission| !admission.cancelled && self.eras[admission.era].limit.is_some())
    }

    /// `events` and everything on offer later keep the bound, except for `on_top`.
    fn assert_bound(&self, mut events: Vec<Event>, on_top: i128) -> Result<(), TestCaseError> {
        prop_assert_eq!(
            violation(&self.eras, &events, |_| on_top),
            None,
            "{:?} in {:?}",
            events,
            self.eras
        );
        if self.limiter.limit().is_unlimited() {
            return Ok(());
        }
        for by in [0, 1, 2, 3, 5, 10, 20, 40, 100] {
            let at = self.now + by;
            let cost = self.limiter.at(instant(at)).peek().remaining();
            events.push(Event { at, cost });
            let broken = violation(&self.eras, &events, |_| on_top);
            prop_assert_eq!(
                broken,
                None,
                "on offer: the last of {:?} in {:?}",
                events,
                self.eras
            );
            events.pop();
        }
        Ok(())
    }

    /// As rule 6 says: at most what was reserved and not yet due at a change comes on top, in any
    /// interval.
    fn assert_p1(&self) -> Result<(), TestCaseError> {
        let crossed = self.admitted.iter().filter(|admission| admission.crossed);
        let on_top = crossed
            .map(|admission| i128::from(admission.event.cost))
            .sum::<i128>()
            * PARTS;
        self.assert_bound(
            self.acting().map(|admission| admission.event).collect(),
            on_top,
        )
    }

    /// Where it comes on top: at its own act time, or, cancelled, in an interval that holds the
    /// change. An interval that begins after the change and holds no such slot is within the limit
    /// that is then in force.
    fn assert_p1_without_those_on_top(&self) -> Result<(), TestCaseError> {
        let mut eras = self.eras.clone();
        for admission in self
            .admitted
            .iter()
            .filter(|admission| admission.crossed && admission.cancelled)
        {
            for era in eras
                .iter_mut()
                .skip(admission.era + 1)
                .filter(|era| era.from <= admission.event.at)
            {
                era.added += i128::from(admission.event.cost) * PARTS;
            }
        }
        let events = self
            .acting()
            .filter(|admission| !admission.crossed)
            .map(|admission| admission.event)
            .collect();
        let changing = Self {
            limiter: self.limiter.clone(),
            now: self.now,
            eras,
            admitted: Vec::new(),
            held: Vec::new(),
        };
        changing.assert_bound(events, 0)
    }
}

proptest! {
    #![proptest_config(cases(600))]

    /// P1 across changes: what comes on top of B + r·length is at most what was reserved and not
    /// yet due, and what the way of carrying over adds.
    #[test]
    fn a_change_adds_at_most_what_was_reserved_and_not_yet_due(
        interval in 1_u64..=10,
        burst in 1_u64..=6,
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let mut changing = ChangingLimiter::new(whole_interval(interval, burst));
        for step in steps {
            changing.run(step);
            changing.assert_p1()?;
        }
    }

    /// More precisely: an interval that begins after a change and holds nothing reserved across one
    /// is within the limit in force, whatever is cancelled that was reserved before it.
    #[test]
    fn a_cancel_across_a_change_keeps_the_new_limit(
        interval in 1_u64..=10,
        burst in 1_u64..=6,
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let mut changing = ChangingLimiter::new(whole_interval(interval, burst));
        for step in steps {
            changing.run(step);
            changing.assert_p1_without_those_on_top()?;
        }
    }

    /// The level after a change, to the tick: keep clips and adds nothing, debt stays debt, the
    /// others add at most the difference.
    #[test]
    fn the_level_is_carried_over_exactly(
        (interval, burst) in (1_u64..=10_000, 1_u64..=10),
        ops in prop::collection::vec(ops(10), 0..12),
        (new_interval, new_burst) in (1_u64..=10_000, 0_u64..=20),
        carry in carries(),
    ) {
        let mut world = LimiterHistory::new(whole_interval(interval, burst));
        for op in ops {
            world.run(op);
        }
        prop_assume!((interval, burst) != (new_interval, new_burst));
        let x = world.level();
        let limit = whole_interval(new_interval, new_burst);
        world.limiter.at(instant(world.now)).set_limit_with(limit, carry);
        let (from, to) = (i128::from(interval), i128::from(new_interval));
        let (old_burst, new_burst) = (i128::from(burst), i128::from(new_burst));
        let full = new_burst * to;
        let kept = (x * to).div_euclid(from);
        let after = level(&world.limiter, world.now, to);
        match carry {
            Carry::Keep => prop_assert_eq!(after, kept.min(full)),
            Carry::Additive => {
                prop_assert_eq!(after, (kept + (new_burst - old_burst).max(0) * to).min(full));
            }
            Carry::Reset => prop_assert_eq!(after, full),
            Carry::Proportional if x <= 0 => prop_assert_eq!(after, kept.min(full)),
            Carry::Proportional => {
                // Rounded to the strict side, by less than a tick each time.
                let exact = x * new_burst * to;
                let scale = old_burst * from;
                prop_assert!(after * scale <= exact && (after + 2) * scale > exact, "{} of {}/{}", after, exact, scale);
            }
        }
        prop_assert_eq!(world.limiter.adjustments().changes, 1);
    }

    /// The same for any rates: keep adds no tokens.
    #[test]
    fn keep_adds_no_tokens_at_any_rate(
        first in limits(),
        changes in prop::collection::vec(limits(), 1..8),
        costs in prop::collection::vec(0_u64..9, 0..6),
    ) {
        let (limiter, now) = limiter(first);
        let at = limiter.at(instant(now));
        for cost in costs {
            let _ = at.check_n(cost);
        }
        drop(at.reserve(1));
        for limit in changes {
            let before = at.tokens();
            at.set_limit(limit);
            let after = at.tokens();
            let most = before.min(limit.capacity() as f64);
            prop_assert!(after <= most + most.abs() * 1e-12, "{} of {}", after, before);
        }
    }

    /// Rule 3: no change moves a slot; rule 4: a slot from before a change still gives back at most
    /// what it took, nothing after a reset.
    #[test]
    fn a_slot_from_before_a_change_keeps_its_time_and_gives_back_at_most_its_cost(
        interval in 1_u64..=10,
        costs in prop::collection::vec(1_u64..=4, 1..8),
        new_interval in 1_u64..=10,
        new_burst in 4_u64..=8,
        carry in carries(),
        order in any::<prop::sample::Index>(),
    ) {
        let mut world = LimiterHistory::new(whole_interval(interval, 4));
        for cost in &costs {
            world.run(Op::Reserve(*cost));
        }
        let acts: Vec<_> = world.slots.iter().map(|slot| slot.act).collect();
        world.limiter.at(instant(world.now)).set_limit_with(whole_interval(new_interval, new_burst), carry);
        for (slot, act) in world.slots.iter().zip(&acts) {
            prop_assert_eq!(slot.held.as_ref().map(|held| held.act_at()), Some(instant(*act)));
        }
        let mut left: Vec<_> = (0..costs.len()).collect();
        let token = i128::from(new_interval);
        let full = i128::from(new_burst) * token;
        let unspent = level(&world.limiter, world.now, token);
        let mut given = 0;
        while !left.is_empty() {
            let slot = left.remove(order.index(left.len()));
            let before = level(&world.limiter, world.now, token);
            world.cancel(slot);
            let after = level(&world.limiter, world.now, token);
            prop_assert!(after >= before && after - before <= i128::from(costs[slot]) * token);
            given += after - before;
            if carry == Carry::Reset {
                prop_assert_eq!(after, before);
            }
        }
        prop_assert!(unspent + given <= full);
        prop_assert!(given <= costs.iter().map(|cost| i128::from(*cost) * token).sum::<i128>());
    }

    /// Rules 6 and 7: leaving unlimited, after any time and whatever was spent or owed before it,
    /// the bucket is full; if no time has passed, it is as it was.
    #[test]
    fn leaving_unlimited_is_full(
        first in limits(),
        costs in prop::collection::vec(0_u64..9, 0..6),
        passed in any::<u64>(),
        second in limits(),
        carry in carries(),
    ) {
        let (limiter, now) = limiter(first);
        let at = limiter.at(instant(now));
        for cost in costs {
            let _ = at.check_n(cost);
        }
        drop(at.reserve(1));
        at.set_limit(Limit::unlimited());
        prop_assert!(at.check_n(u64::MAX).is_allowed());
        let then = instant(now.saturating_add((passed >> (passed % 64)).max(1)));
        limiter.at(then).set_limit_with(second, carry);
        prop_assert_eq!(limiter.at(then).peek().remaining(), second.capacity());
        prop_assert_eq!(limiter.at(then).peek().reset_after(), Duration::ZERO);
    }

    /// Rules 6 and 7: rate 0 freezes what was there, tokens or debt, for any time, and hands it on
    /// as it was.
    #[test]
    fn rate_zero_freezes_the_level(
        interval in 1_u64..=1_000,
        burst in 1_u64..=8,
        ops in prop::collection::vec(ops(8), 0..12),
        passed in any::<u64>(),
    ) {
        let mut world = LimiterHistory::new(whole_interval(interval, burst));
        for op in ops {
            world.run(op);
        }
        let was = world.limiter.at(instant(world.now)).tokens();
        let level = world.level();
        world.limiter.at(instant(world.now)).set_limit(Limit::deny_all().burst(burst));
        let then = instant(world.now.saturating_add(passed >> (passed % 64)));
        let frozen = world.limiter.at(then).tokens();
        prop_assert!(frozen <= was && frozen > was - 1e-5, "{} of {}", frozen, was);
        let decision = world.limiter.at(then).peek_n(burst);
        prop_assert!(decision.is_allowed() || decision.is_never());
        world.limiter.at(then).set_limit(whole_interval(interval, burst));
        world.now = then.as_unix_nanos();
        let after = world.level();
        prop_assert!(after <= level && after >= level - 1, "{} of {}", after, level);
    }
}

/// 3 of a burst of 4 are reserved, the burst shrinks to 2, of which 1 is left: the rest of the
/// three is no part of the new bucket, and must not come back into it.
#[test]
fn a_cancel_after_the_burst_shrank_gives_back_nothing_that_is_promised() {
    let (limiter, now) = limiter(whole_interval(3, 4));
    let at = |by: u64| limiter.at(instant(now + by));
    let first = at(0).reserve(3).unwrap();
    at(0).set_burst(2);
    let second = at(0).reserve(2).unwrap();
    assert_eq!(second.act_at(), instant(now + 3));
    at(0).cancel(first);
    assert_eq!(
        at(3).peek().remaining(),
        0,
        "beside the 2 that act then, of a burst of 2"
    );
}

/// The same with two of them: what one has given back the other cannot.
#[test]
fn two_cancels_after_the_burst_shrank_give_back_nothing_that_is_promised() {
    let (limiter, now) = limiter(whole_interval(1, 6));
    let at = |by: u64| limiter.at(instant(now + by));
    let (first, second) = (at(0).reserve(2).unwrap(), at(0).reserve(3).unwrap());
    at(0).set_burst(3);
    let third = at(0).reserve(2).unwrap();
    assert_eq!(third.act_at(), instant(now + 1));
    at(0).cancel(first);
    at(0).cancel(second);
    assert!(
        at(1).peek().remaining() <= 1,
        "beside the 2 that act then, of a burst of 3"
    );
}

/// The same where the level shrank in proportion: a slot that was due is not put off by it.
#[test]
fn a_cancel_after_shrinking_in_proportion_gives_back_nothing_that_is_promised() {
    let (limiter, now) = limiter(whole_interval(1, 6));
    let at = |by: u64| limiter.at(instant(now + by));
    let first = at(0).reserve(1).unwrap();
    at(0).set_limit_with(whole_interval(1, 5), Carry::Proportional);
    let second = at(0).reserve(5).unwrap();
    assert_eq!(second.act_at(), instant(now + 1));
    at(0).cancel(first);
    assert_eq!(
        at(1).peek().remaining(),
        0,
        "beside the 5 that act then, of a burst of 5"
    );
}

/// The rate rises and repays a debt before the slot's own time: then there is nothing to give back.
#[test]
fn a_cancel_gives_back_nothing_that_a_faster_rate_has_repaid() {
    let (limiter, now) = limiter(whole_interval(9, 5));
    let at = |by: u64| limiter.at(instant(now + by));
    drop(at(0).reserve(1));
    let slot = at(0).reserve(5).unwrap();
    assert_eq!(slot.act_at(), instant(now + 9));
    at(0).set_limit(whole_interval(2, 3));
    assert!(at(5).check().is_allowed());
    at(5).cancel(slot);
    assert!(
        at(6).peek().remaining() <= 2,
        "beside 1 a nanosecond ago, of a burst of 3 and one every 2 ns"
    );
}

#[test]
fn unlimited_for_no_time_at_all_leaves_tokens_and_debt_as_they_were() {
    for (reserved, left) in [(3, 5.0), (8, 0.0), (10, -2.0)] {
        let (limiter, now) = limiter(whole_interval(10, 8));
        let at = limiter.at(instant(now));
        for _ in 0..reserved {
            drop(at.reserve(1));
        }
        at.set_limit(Limit::unlimited());
        assert!(at.check_n(u64::MAX).is_allowed());
        at.set_limit(whole_interval(100, 8));
        assert_eq!(at.tokens(), left);
    }
}

#[test]
fn setting_the_limit_that_is_in_force_does_nothing() {
    let (limiter, now) = limiter(whole_interval(10, 3));
    let at = limiter.at(instant(now));
    let slot = at.reserve(3).unwrap();
    let before = look(&limiter, now);
    at.set_limit(whole_interval(10, 3));
    at.set_burst(3);
    assert_eq!(
        (look(&limiter, now), limiter.adjustments().changes),
        (before, 0)
    );
    at.cancel(slot);
    assert_eq!(at.peek().remaining(), 3);
}

#[test]
fn shrinking_clips_and_growing_adds_no_tokens() {
    let (limiter, now) = limiter(whole_interval(10, 8));
    let at = limiter.at(instant(now));
    at.set_burst(3);
    assert_eq!(at.peek().remaining(), 3);
    at.set_burst(8);
    assert_eq!(at.peek().remaining(), 3);
    assert_eq!(limiter.at(instant(now + 50)).peek().remaining(), 8);
    assert_eq!(limiter.clock().now(), instant(now));
}
