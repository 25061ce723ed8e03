//! Charge and settle against a model with the whole history: P1 on the net cost, whatever comes in
//! between.

mod common;

use common::traces::{cases, fine, instant, limiter, limits, nanos, whole_interval};
use proptest::prelude::*;
use ratekeeper::{Charge, Clock, Limit, Limiter, ManualClock, Reservation, limiter::Carry};
use ratekeeper_testkit::{BucketRule, Event};
use std::sync::Mutex;

/// An operation. Times are in quarters of a token's time.
#[derive(Clone, Copy, Debug)]
enum Op {
    Check(u64),
    Take(u64),
    Reserve(u64),
    /// One of the charges outstanding, at so many eighths of its cost; the eighths may be above 8.
    Settle(usize, u64),
    /// One of the reservations outstanding.
    Cancel(usize),
    Pass(u64),
}

fn ops(most: u64, eighths: u64) -> impl Strategy<Value = Op> {
    let index = || any::<prop::sample::Index>().prop_map(|index| index.index(64));
    prop_oneof![
        3 => (1..=most).prop_map(Op::Check),
        5 => (1..=most).prop_map(Op::Take),
        2 => (1..=most).prop_map(Op::Reserve),
        4 => (index(), 0..=eighths).prop_map(|(which, eighths)| Op::Settle(which, eighths)),
        2 => index().prop_map(Op::Cancel),
        6 => (0_u64..10).prop_map(Op::Pass),
    ]
}

fn traces(length: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(ops(6, 8), 1..length)
}

/// A token takes whole nanoseconds, four at least.
fn whole() -> impl Strategy<Value = Limit> {
    (1_u64..=5, 1_u64..=6).prop_map(|(quarter, burst)| whole_interval(4 * quarter, burst))
}

/// A limiter and its history.
struct LimiterHistory {
    limiter: Limiter<ManualClock>,
    rule: BucketRule,
    quarter: u64,
    now: u64,
    /// What was charged at once: the net cost is in the event.
    events: Vec<Event>,
    /// Charges that may be settled, with the index of their event.
    charges: Vec<(Charge<ManualClock>, usize)>,
    slots: Vec<(Reservation<ManualClock>, Event)>,
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
            events: Vec::new(),
            charges: Vec::new(),
            slots: Vec::new(),
        }
    }

    fn run(&mut self, op: Op) {
        let at = self.limiter.at(instant(self.now));
        match op {
            Op::Pass(quarters) => self.now += quarters * self.quarter,
            Op::Check(cost) if at.check_n(cost).is_allowed() => {
                self.events.push(Event { at: self.now, cost });
            }
            Op::Check(_) => {}
            Op::Take(cost) => {
                if let Ok(charge) = at.take(cost) {
                    assert_eq!(charge.cost(), cost);
                    self.charges.push((charge, self.events.len()));
                    self.events.push(Event { at: self.now, cost });
                }
            }
            Op::Reserve(cost) => {
                if let Ok(slot) = at.reserve(cost) {
                    let event = Event {
                        at: slot.act_at().as_unix_nanos(),
                        cost,
                    };
                    self.slots.push((slot, event));
                }
            }
            Op::Settle(which, eighths) => {
                if !self.charges.is_empty() {
                    let (charge, event) = self.charges.swap_remove(which % self.charges.len());
                    let cost = &mut self.events[event].cost;
                    let actual = (*cost * eighths).div_ceil(8);
                    at.settle(charge, actual);
                    // What is charged afterwards does not count: it comes on top.
                    *cost = actual.min(*cost);
                }
            }
            Op::Cancel(which) => {
                if !self.slots.is_empty() {
                    let (slot, event) = self.slots.swap_remove(which % self.slots.len());
                    at.cancel(slot);
                    if event.at < self.now {
                        self.events.push(event);
                    }
                }
            }
        }
    }

    /// Everything that was admitted, at its net cost.
    fn net(&self) -> Vec<Event> {
        self.events
            .iter()
            .copied()
            .chain(self.slots.iter().map(|(_, event)| *event))
            .collect()
    }

    /// Asserts P1 in every interval, and that nothing on offer, now or later, would break it.
    fn assert_p1(&self) -> Result<(), TestCaseError> {
        let net = self.net();
        prop_assert_eq!(self.rule.violation(&net), None, "{:?}", net);
        let last = self
            .slots
            .iter()
            .map(|(_, event)| event.at)
            .max()
            .unwrap_or(0)
            .max(self.now);
        let end = last + (self.rule.burst as u64 + 1) * 4 * self.quarter;
        for a in (self.now..=end).step_by(self.quarter as usize) {
            let room = self.rule.whole(self.rule.headroom(&net, a));
            let offered = self.limiter.at(instant(a)).peek().remaining();
            prop_assert!(
                offered <= room,
                "{} offered at {}, room for {} beside {:?}",
                offered,
                a,
                room,
                net
            );
        }
        Ok(())
    }

    fn level(&self) -> i128 {
        let parts = self.limiter.at(instant(self.now)).tokens() * self.rule.token as f64;
        assert!(
            parts.abs() < (1_u64 << 47) as f64 && (parts - parts.round()).abs() < 0.1,
            "{parts} is not whole"
        );
        parts.round() as i128
    }
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
    #![proptest_config(cases(512))]

    /// P1 on the net cost, in any interval, for take, settle down, check, reserve and cancel in any
    /// order.
    #[test]
    fn settling_down_keeps_p1_on_the_net_cost(limit in whole(), ops in traces(40)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            world.assert_p1()?;
        }
    }

    /// The same without reservations, where the time of a token may be any fraction of a
    /// nanosecond.
    #[test]
    fn settling_down_keeps_p1_whatever_the_interval(limit in fine(), ops in traces(60)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            if !matches!(op, Op::Reserve(_)) {
                world.run(op);
                world.assert_p1()?;
            }
        }
    }

    /// With reservations told in whole nanoseconds, to less than one.
    #[test]
    fn settling_down_keeps_p1_to_less_than_a_nanosecond(limit in fine(), ops in traces(60)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            prop_assert_eq!(world.rule.violation_beyond_a_nano(&world.net()), None, "{:?}", world.net());
        }
    }

    /// Upward settles among them take, and give nothing: P1 holds on what was charged when it was
    /// admitted.
    #[test]
    fn settling_up_and_down_keeps_p1_on_what_was_admitted(
        limit in whole(),
        ops in prop::collection::vec(ops(6, 24), 1..40),
    ) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
            world.assert_p1()?;
        }
    }

    /// A settle down gives back between nothing and the difference, never beyond full, and counts
    /// nothing.
    #[test]
    fn a_settle_never_gives_back_more_than_the_difference(limit in prop_oneof![whole(), fine()], ops in traces(40)) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            let before = (world.level(), world.events.clone());
            world.run(op);
            if let Op::Settle(..) = op {
                let given = world.level() - before.0;
                let unused: u64 = before.1.iter().zip(&world.events).map(|(was, is)| was.cost - is.cost).sum();
                prop_assert!((0..=i128::from(unused) * world.rule.token).contains(&given), "{} of {}", given, unused);
                prop_assert!(world.level() <= world.rule.capacity());
            }
        }
        prop_assert_eq!(world.limiter.adjustments(), Default::default());
    }

    /// With no traffic in between, settling is as if only the actual cost had been taken: to the
    /// tick, whenever it comes.
    #[test]
    fn a_settle_with_nothing_in_between_is_as_if_only_the_true_cost_was_taken(
        limit in limits(),
        before in prop::collection::vec((0_u64..6, 0_u64..50), 0..6),
        cost in 1_u64..8,
        eighths in 0_u64..=8,
        passed in prop_oneof![0_u64..100, any::<u64>().prop_map(|by| by >> 12)],
    ) {
        let (limiter, mut now) = limiter(limit);
        let twin = common::traces::limiter(limit).0;
        for (cost, pass) in before {
            for limiter in [&limiter, &twin] {
                let _ = limiter.at(instant(now)).check_n(cost);
            }
            now += pass;
        }
        let Ok(charge) = limiter.at(instant(now)).take(cost) else { return Ok(()) };
        let actual = cost * eighths / 8;
        prop_assert!(twin.at(instant(now)).check_n(actual).is_allowed());
        let later = now + passed;
        limiter.at(instant(later)).settle(charge, actual);
        prop_assert_eq!(look(&limiter, later), look(&twin, later));
    }

    /// Time has repaid nothing and nothing is promised ahead: all that was not used comes back, in
    /// whatever order.
    #[test]
    fn what_was_not_used_comes_back_in_whatever_order_it_is_settled(
        limit in limits(),
        takes in prop::collection::vec((0_u64..6, 0_u64..=8), 1..12),
        order in any::<prop::sample::Index>(),
    ) {
        let (limiter, now) = limiter(limit);
        let at = limiter.at(instant(now));
        let mut held = Vec::new();
        let mut net = 0;
        for (cost, eighths) in takes {
            held.extend(at.take(cost).map(|charge| (charge, cost * eighths / 8)));
        }
        while !held.is_empty() {
            let (charge, actual) = held.remove(order.index(held.len()));
            at.settle(charge, actual);
            net += actual;
        }
        prop_assert_eq!(at.peek().remaining(), limit.capacity() - net);
    }

    /// Up: charged at once as debt, at most B more, and counted.
    #[test]
    fn settling_up_charges_at_most_a_bucket_more_and_counts_it(
        limit in prop_oneof![whole(), fine()],
        ops in traces(20),
        cost in 1_u64..6,
        more in prop_oneof![0_u64..20, any::<u64>()],
    ) {
        let mut world = LimiterHistory::new(limit);
        for op in ops {
            world.run(op);
        }
        let at = world.limiter.at(instant(world.now));
        let Ok(charge) = at.take(cost) else { return Ok(()) };
        let before = world.level();
        at.settle(charge, cost.saturating_add(more));
        let extra = more.min(limit.capacity());
        prop_assert_eq!(world.level(), before - i128::from(extra) * world.rule.token);
        prop_assert_eq!(world.limiter.adjustments().settled_up, extra);
        prop_assert_eq!(world.limiter.adjustments().not_returned, 0);
        // Debt like any other: nothing is allowed until it is gone, then as many as time brings.
        let debt = i128::from(extra) * world.rule.token - before;
        let gone = nanos(world.rule.nanos_for(debt).expect("refills"));
        prop_assert_eq!(at.check_n(0).retry_after().unwrap_or_default(), gone);
    }

    /// A charge from before a live change or a reset gives nothing back, and that is counted.
    #[test]
    fn a_charge_from_before_a_change_gives_nothing_back_and_is_counted(
        limit in whole(),
        takes in prop::collection::vec((1_u64..=2, 0_u64..=8, any::<bool>()), 1..8),
        second in whole(),
        reset in any::<bool>(),
    ) {
        let second = if limit == second { second.burst(7) } else { second };
        let (limiter, now) = limiter(limit);
        let at = limiter.at(instant(now));
        let old: Vec<_> = takes
            .into_iter()
            .filter_map(|(cost, eighths, kept)| at.take(cost).ok().map(|charge| (charge, cost * eighths / 8, kept)))
            .collect();
        if reset {
            at.reset();
        } else {
            at.set_limit_with(second, Carry::Keep);
        }
        let before = look(&limiter, now);
        let mut lost = 0;
        for (charge, actual, kept) in old {
            if kept {
                drop(charge);
            } else {
                lost += charge.cost() - actual;
                at.settle(charge, actual);
            }
            prop_assert_eq!(look(&limiter, now), before.clone());
            prop_assert_eq!(limiter.adjustments().not_returned, lost);
        }
        prop_assert_eq!(limiter.adjustments().settled_up, 0);
    }

    /// Dropping a charge keeps it, and so does settling it at what was charged.
    #[test]
    fn dropping_a_charge_keeps_it(limit in limits(), costs in prop::collection::vec(0_u64..6, 1..12)) {
        let (limiter, now) = limiter(limit);
        let twin = common::traces::limiter(limit).0;
        let at = limiter.at(instant(now));
        for (i, cost) in costs.into_iter().enumerate() {
            let taken = at.take(cost);
            let expected = twin.at(instant(now)).check_n(cost);
            match taken {
                Ok(charge) if i % 2 == 0 => drop(charge),
                Ok(charge) => at.settle(charge, cost),
                Err(denied) => prop_assert_eq!(denied.decision(), expected),
            }
            prop_assert_eq!(look(&limiter, now), look(&twin, now));
        }
        prop_assert_eq!(limiter.adjustments(), Default::default());
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// What is certain: a settle that is late by d gives back at most r·d too much, and at most the
    /// difference.
    #[test]
    fn a_stale_settle_adds_at_most_what_its_staleness_is_worth(
        limit in whole(),
        ops in prop::collection::vec((ops(6, 8), prop_oneof![3 => Just(0), 1 => 1_u64..30]), 1..40),
    ) {
        let mut world = LimiterHistory::new(limit);
        let mut on_top = 0;
        for (op, back) in ops {
            if matches!(op, Op::Cancel(_)) {
                continue;
            }
            let charged = world.events.clone();
            world.now -= back;
            world.run(op);
            world.now += back;
            let unused: u64 = charged.iter().zip(&world.events).map(|(was, is)| was.cost - is.cost).sum();
            on_top += (i128::from(unused) * world.rule.token).min(i128::from(back) * world.rule.per_nano);
            prop_assert_eq!(world.rule.violation_beyond(&world.net(), on_top), None, "{:?}", world.net());
        }
    }
}

/// Of two that run at once the second is done first; then the first.
#[test]
fn the_last_settle_gives_back_its_unused_part() {
    let (limiter, now) = limiter(Limit::per_hour(1_000));
    let at = limiter.at(instant(now));
    let (first, second) = (at.take(500).unwrap(), at.take(500).unwrap());
    at.settle(second, 120);
    assert_eq!(at.peek().remaining(), 380);
    at.settle(first, 120);
    assert_eq!(at.peek().remaining(), 760);
}

/// A clock that another thread moves on between the caller's reading of it and the settle.
#[derive(Clone)]
struct AdvancingClock {
    clock: ManualClock,
    meanwhile: std::sync::Arc<Mutex<Option<Meanwhile>>>,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

impl Clock for AdvancingClock {
    fn now(&self) -> ratekeeper::Timestamp {
        let now = self.clock.now();
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        now
    }
}

/// Runs `give_back` on a thread that is preempted just after it read the clock, for as long as two
/// tokens take; then another takes one. Returns how much is allowed at that later instant in total.
fn passes_after(give_back: impl FnOnce(&Limiter<AdvancingClock>)) -> u64 {
    let clock = AdvancingClock {
        clock: ManualClock::new(),
        meanwhile: Default::default(),
    };
    let limiter = Limiter::with_clock(whole_interval(4, 2), clock.clone());
    let other = (limiter.clone(), clock.clone());
    let passed = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = passed.clone();
    let meanwhile = move || {
        other.1.clock.advance(std::time::Duration::from_nanos(8));
        counted.fetch_add(
            u64::from(other.0.check().is_allowed()),
            std::sync::atomic::Ordering::Relaxed,
        );
    };
    let armed = clock.meanwhile.clone();
    // Armed by the caller's closure once it holds what it will give back.
    ARM.with_borrow_mut(|arm| {
        *arm = Some(Box::new(move || {
            *armed.lock().unwrap() = Some(Box::new(meanwhile));
        }));
    });
    give_back(&limiter);
    while limiter.check().is_allowed() {
        passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    passed.load(std::sync::atomic::Ordering::Relaxed)
}

thread_local! {
    static ARM: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

fn arm() {
    ARM.take().expect("once")();
}

/// P1 for any interleaving (golang/go#71360 is such a race): the clock must be read after the state
/// it is compared with.
#[test]
fn a_settle_whose_thread_slept_after_reading_the_clock_keeps_p1() {
    let passed = passes_after(|limiter| {
        let charge = limiter.take(2).unwrap();
        arm();
        charge.settle(0);
    });
    assert_eq!(passed, 2, "at one instant, of a burst of 2");
}

#[test]
fn a_cancel_whose_thread_slept_after_reading_the_clock_keeps_p1() {
    let passed = passes_after(|limiter| {
        let slot = limiter.reserve(2).unwrap();
        arm();
        slot.cancel();
    });
    assert_eq!(passed, 2, "at one instant, of a burst of 2");
}

/// P1 for any threads: for any takes, settles and checks on a frozen clock, the net cost stays
/// within the burst.
#[test]
fn threads_that_take_and_settle_keep_p1() {
    for round in 0..40_u64 {
        let limit = whole_interval(1_000, 3 + round % 8);
        let (limiter, now) = limiter(limit);
        let net = Mutex::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (limiter, net) = (&limiter, &net);
                scope.spawn(move || {
                    let mut random = round * 31 + thread + 1;
                    let mut held = Vec::new();
                    for _ in 0..60 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let pick = random >> 33;
                        let cost = 1 + pick / 8 % 3;
                        match pick % 8 {
                            0..=2 => held.extend(limiter.take(cost)),
                            3 if limiter.check_n(cost).is_allowed() => *net.lock().unwrap() += cost,
                            4.. => {
                                if let Some(charge) = held.pop() {
                                    let actual = pick / 64 % (charge.cost() + 1);
                                    *net.lock().unwrap() += actual;
                                    charge.settle(actual);
                                }
                            }
                            _ => {}
                        }
                    }
                    *net.lock().unwrap() += held.iter().map(Charge::cost).sum::<u64>();
                });
            }
        });
        let left = limit
            .capacity()
            .checked_sub(net.into_inner().unwrap())
            .expect("P1");
        assert!(limiter.at(instant(now)).peek().remaining() <= left);
    }
}

/// An unlimited charge took nothing and gives nothing back; one from before is not given back under
/// no limit.
#[test]
fn charges_under_no_limit_give_nothing_back() {
    let (limiter, now) = limiter(Limit::unlimited());
    let at = limiter.at(instant(now));
    let free = at.take(5).unwrap();
    at.set_limit(whole_interval(10, 5));
    let before = limiter.at(instant(now + 5)).tokens();
    limiter.at(instant(now + 5)).settle(free, 0);
    assert_eq!(limiter.at(instant(now + 5)).tokens(), before);
    let charge = limiter.at(instant(now + 5)).take(1).unwrap();
    limiter.at(instant(now + 5)).set_limit(Limit::unlimited());
    limiter.at(instant(now + 6)).settle(charge, 0);
    assert_eq!(limiter.adjustments().not_returned, 1);
}
