//! Tables with few slots: evictions may cause denials, but never allow what a memory of everything
//! would not.

use super::common::flood::slots;
use super::common::traces::{cases, instant, whole_interval};
use proptest::prelude::*;
use ratekeeper::{
    Algorithm, Charge, Clock, Keyed, Limit, ManualClock, Reservation, limiter::Carry,
};
use ratekeeper_testkit::Event;
use ratekeeper_testkit::bounds::{self, AllowedCall};
use ratekeeper_testkit::changing_bucket::{self, Era, PARTS};
use std::collections::BTreeMap;
use std::time::Duration;

fn keyed(limit: Limit, max_keys: usize) -> (Keyed<u64, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Keyed::builder(limit)
            .max_keys(max_keys)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

/// A few keys that come back, and many that evict them.
fn keys() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0_u64..4, 2 => 4_u64..40]
}

/// A limit of each algorithm whose times are whole nanoseconds, so that bounds are exact.
fn limits() -> impl Strategy<Value = Limit> {
    let window = prop_oneof![10_u64..100, Just(60_000_000_000)];
    let algorithm = (prop::sample::select(Algorithm::ALL.to_vec()), any::<bool>());
    (algorithm, 1_u64..=6, window).prop_map(|((algorithm, refundable), count, window)| {
        let limit = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Limit::of(1, Duration::from_nanos(window / 4))
                    .burst(count)
                    .algorithm(algorithm)
            }
            Algorithm::Pacing => {
                Limit::of(1, Duration::from_nanos(window / 4)).paced_max_queue(count)
            }
            _ => Limit::of(count, Duration::from_nanos(window)).algorithm(algorithm),
        };
        if refundable {
            limit.refundable()
        } else {
            limit
        }
    })
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Check {
        key: u64,
        cost: u64,
        back: u64,
    },
    /// This many new keys, one call each.
    Churn(u64),
    Pass(u64),
}

fn ops(stale: bool) -> impl Strategy<Value = Op> {
    let back = if stale {
        prop_oneof![2 => Just(0_u64), 1 => 1_u64..200].boxed()
    } else {
        Just(0_u64).boxed()
    };
    prop_oneof![
        12 => (keys(), 1_u64..4, back).prop_map(|(key, cost, back)| Op::Check { key, cost, back }),
        2 => (1_u64..60).prop_map(Op::Churn),
        4 => prop_oneof![1_u64..16, 1_u64..16, 16_u64..300].prop_map(Op::Pass),
    ]
}

/// Runs checks only; returns what each key was allowed, in the order of its calls, and whether at a
/// stale instant.
fn checked(
    limit: Limit,
    max_keys: usize,
    ops: &[Op],
) -> Result<BTreeMap<u64, Vec<(AllowedCall, bool)>>, TestCaseError> {
    let (keyed, clock) = keyed(limit, max_keys);
    let unit = limit.fills_in().expect("refills").as_nanos() as u64;
    let unit = unit.div_ceil(64).max(1);
    let mut allowed: BTreeMap<u64, Vec<(AllowedCall, bool)>> = BTreeMap::new();
    let mut new = 1_000_000;
    let mut call = |key: u64, cost: u64, at: u64| {
        let decision = keyed.key(&key).at(instant(at)).check_n(cost);
        if decision.is_allowed() {
            let delay = decision.delay().as_nanos() as u64;
            let stale = at < clock.now().as_unix_nanos();
            allowed
                .entry(key)
                .or_default()
                .push((AllowedCall { at, cost, delay }, stale));
        }
    };
    for op in ops {
        let now = clock.now().as_unix_nanos();
        match *op {
            Op::Pass(by) => clock.advance(Duration::from_nanos(by * unit)),
            Op::Check { key, cost, back } => call(key, cost, now - back * unit),
            Op::Churn(keys) => {
                (new..new + keys).for_each(|key| call(key, 1, now));
                new += keys;
            }
        }
    }
    let stats = keyed.stats();
    prop_assert!(stats.keys <= slots(&stats), "{:?}", stats);
    Ok(allowed)
}

proptest! {
    #![proptest_config(cases(300))]

    /// TB1, SL1, FW1, FW2, SC1, SC2, LQ1, LQ3 and the strict counter, for each key over every
    /// interval.
    #[test]
    fn no_key_exceeds_its_bound(
        limit in limits(), max_keys in 1_usize..20, ops in prop::collection::vec(ops(false), 1..150),
    ) {
        for (key, allowed) in checked(limit, max_keys, &ops)? {
            let allowed: Vec<_> = allowed.into_iter().map(|(allowed, _)| allowed).collect();
            prop_assert_eq!(bounds::violation(&limit, &allowed), None, "key {}: {:?}", key, allowed);
            if limit.algorithm_kind() == Algorithm::SlidingWindow {
                prop_assert_eq!(bounds::weighted_violation(&limit, &allowed), None, "key {}: {:?}", key, allowed);
            }
        }
    }

    /// The same with callers' clocks behind: a stale instant may be stricter, never looser. A
    /// window, a log and a refundable bucket judge a stale call at the latest instant in the stored
    /// state (for an evicted key: in the floor). That instant is not visible from outside, so for
    /// them only the calls at the present instant are counted.
    #[test]
    fn no_key_exceeds_its_bound_at_stale_instants(
        limit in limits(), max_keys in 1_usize..20, ops in prop::collection::vec(ops(true), 1..150),
    ) {
        let own_instant = !limit.is_refundable()
            && matches!(limit.algorithm_kind(), Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Pacing);
        for (key, allowed) in checked(limit, max_keys, &ops)? {
            let counts = allowed.into_iter().filter(|(_, stale)| own_instant || !stale);
            let allowed: Vec<_> = counts.map(|(allowed, _)| allowed).collect();
            prop_assert_eq!(bounds::violation(&limit, &allowed), None, "key {}: {:?}", key, allowed);
        }
    }
}

/// A charge that a key was allowed.
#[derive(Clone, Copy, Debug)]
struct Admission {
    event: Event,
    /// Reserved before a change and still to act at that change.
    crossed: bool,
    cancelled: bool,
}

#[derive(Default)]
struct Past {
    allowed: Vec<Admission>,
    charges: Vec<(Charge<ManualClock>, usize)>,
    slots: Vec<(Reservation<ManualClock>, usize)>,
    /// Grants: when, and how much.
    gifts: Vec<(u64, u64)>,
}

impl Past {
    fn allow(&mut self, at: u64, cost: u64) -> usize {
        self.allowed.push(Admission {
            event: Event { at, cost },
            crossed: false,
            cancelled: false,
        });
        self.allowed.len() - 1
    }
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Check(u64),
    Take(u64),
    Reserve(u64),
    Settle(usize, u64),
    Cancel(usize),
    Grant(u64),
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Key(u64, Verb),
    Churn(u64),
    Pass(u64),
    Change(u64, u64, Carry),
}

fn actions(changes: u32) -> impl Strategy<Value = Action> {
    let carry = prop::sample::select(vec![
        Carry::Keep,
        Carry::Keep,
        Carry::Proportional,
        Carry::Additive,
        Carry::Reset,
    ]);
    let verb = prop_oneof![
        4 => (1_u64..5).prop_map(Verb::Check),
        4 => (1_u64..5).prop_map(Verb::Take),
        3 => (1_u64..5).prop_map(Verb::Reserve),
        4 => (0_usize..8, 0_u64..=8).prop_map(|(which, eighths)| Verb::Settle(which, eighths)),
        3 => (0_usize..8).prop_map(Verb::Cancel),
    ];
    let gift = prop_oneof![(1_u64..5).prop_map(Verb::Grant), Just(Verb::Reset)];
    let verb = prop_oneof![20 => verb, 1 => gift];
    let change = (1_u64..=10, 1_u64..=6, carry)
        .prop_map(|(interval, burst, carry)| Action::Change(interval, burst, carry));
    prop_oneof![
        30 => (keys(), verb).prop_map(|(key, verb)| Action::Key(key, verb)),
        4 => (1_u64..40).prop_map(Action::Churn),
        10 => prop_oneof![0_u64..10, 0_u64..10, 10_u64..80].prop_map(Action::Pass),
        changes => change,
    ]
}

/// A table, and the history of its keys.
struct History {
    keyed: Keyed<u64, ManualClock>,
    clock: ManualClock,
    eras: Vec<Era>,
    keys: BTreeMap<u64, Past>,
    new: u64,
}

impl History {
    fn new(interval: u64, burst: u64, max_keys: usize) -> Self {
        let limit = whole_interval(interval, burst);
        let (keyed, clock) = keyed(limit, max_keys);
        let era = Era::new(clock.now().as_unix_nanos(), &limit, 0);
        Self {
            keyed,
            clock,
            eras: vec![era],
            keys: BTreeMap::new(),
            new: 1_000_000,
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_unix_nanos()
    }

    /// Runs an action; returns the key it was applied to.
    fn run(&mut self, action: Action) -> Option<u64> {
        match action {
            Action::Pass(by) => self.clock.advance(Duration::from_nanos(by)),
            Action::Churn(keys) => {
                for key in self.new..self.new + keys {
                    self.call(key, Verb::Check(1));
                }
                self.new += keys;
            }
            Action::Change(interval, burst, carry) => self.change(interval, burst, carry),
            Action::Key(key, verb) => {
                self.call(key, verb);
                return Some(key);
            }
        }
        None
    }

    fn call(&mut self, key: u64, verb: Verb) {
        let (now, burst) = (self.now(), self.keyed.burst());
        let (view, past) = (self.keyed.key(&key), self.keys.entry(key).or_default());
        match verb {
            Verb::Check(cost) => {
                if view.check_n(cost).is_allowed() {
                    past.allow(now, cost);
                }
            }
            Verb::Take(cost) => {
                if let Ok(charge) = view.take(cost) {
                    let index = past.allow(now, cost);
                    past.charges.push((charge, index));
                }
            }
            Verb::Reserve(cost) => {
                if let Ok(slot) = view.reserve(cost) {
                    let index = past.allow(slot.act_at().as_unix_nanos(), cost);
                    past.slots.push((slot, index));
                }
            }
            Verb::Settle(which, eighths) if !past.charges.is_empty() => {
                let (charge, index) = past.charges.swap_remove(which % past.charges.len());
                let cost = &mut past.allowed[index].event.cost;
                *cost = (*cost * eighths).div_ceil(8);
                charge.settle(*cost);
            }
            Verb::Cancel(which) if !past.slots.is_empty() => {
                let (slot, index) = past.slots.swap_remove(which % past.slots.len());
                slot.cancel();
                past.allowed[index].cancelled = past.allowed[index].event.at >= now;
            }
            Verb::Settle(..) | Verb::Cancel(_) => {}
            Verb::Grant(tokens) => {
                view.grant(tokens);
                past.gifts.push((now, tokens));
            }
            Verb::Reset => {
                view.reset();
                // Reservations made before act all the same, beside a full bucket.
                let ahead = past
                    .slots
                    .iter()
                    .map(|(_, index)| past.allowed[*index].event);
                let ahead: u64 = ahead
                    .filter(|event| event.at >= now)
                    .map(|event| event.cost)
                    .sum();
                past.gifts.push((now, burst + ahead));
            }
        }
    }

    fn change(&mut self, interval: u64, burst: u64, carry: Carry) {
        let (limit, now) = (whole_interval(interval, burst), self.now());
        if limit == self.keyed.limit() && carry != Carry::Reset {
            return;
        }
        self.keyed.set_limit_with(limit, carry);
        for past in self.keys.values_mut() {
            for (_, index) in &past.slots {
                let admission = &mut past.allowed[*index];
                admission.crossed |= admission.event.at >= now;
            }
        }
        let old = self.eras.last_mut().expect("an era");
        old.to = now;
        let old_burst = old.limit.map_or(0, |(_, burst)| burst);
        let added = match carry {
            Carry::Reset => burst,
            // A key that was evicted while fresh is new under the new limit.
            _ => burst.saturating_sub(old_burst),
        };
        let added = i128::from(added) * PARTS;
        self.eras.push(Era::new(now, &limit, added));
    }

    /// Returns an interval with more than its bound, what was reserved across changes, and gifts.
    fn broken(&self, past: &Past, on_offer: Option<Event>) -> Option<String> {
        let crossed = past.allowed.iter().filter(|a| a.crossed);
        let crossed: i128 = crossed.map(|a| i128::from(a.event.cost)).sum();
        let acting = past.allowed.iter().filter(|a| !a.cancelled);
        let events: Vec<_> = acting.map(|a| a.event).chain(on_offer).collect();
        // What is granted while slots are reserved comes on top of them, whenever they act. A reset
        // or a grant fills no more than a full bucket, but each of several may.
        let on_top = |t| {
            let gifts = past.gifts.iter().filter(|(at, _)| *at <= t);
            (crossed + gifts.map(|gift| i128::from(gift.1)).sum::<i128>()) * PARTS
        };
        changing_bucket::violation(&self.eras, &events, on_top)
    }

    fn assert_p1(&self, key: u64) -> Result<(), TestCaseError> {
        let Some(past) = self.keys.get(&key) else {
            return Ok(());
        };
        prop_assert_eq!(
            self.broken(past, None),
            None,
            "key {}: {:?} in {:?}",
            key,
            past.allowed,
            self.eras
        );
        for by in [0, 1, 2, 3, 5, 10, 20, 40] {
            let at = self.now() + by;
            let cost = self.keyed.key(&key).at(instant(at)).peek().remaining();
            let broken = self.broken(past, Some(Event { at, cost }));
            prop_assert_eq!(
                broken,
                None,
                "{} on offer to key {} at {}: {:?} in {:?}",
                cost,
                key,
                at,
                past.allowed,
                self.eras
            );
        }
        Ok(())
    }
}

fn run(
    interval: u64,
    burst: u64,
    max_keys: usize,
    actions: &[Action],
) -> Result<(), TestCaseError> {
    let mut world = History::new(interval, burst, max_keys);
    for action in actions {
        if let Some(key) = world.run(*action) {
            world.assert_p1(key)?;
        }
    }
    (0..40).try_for_each(|key| world.assert_p1(key))
}

proptest! {
    #![proptest_config(cases(200))]

    /// P1 on the net cost at act times: take and settle, reserve and cancel, with evictions in
    /// between.
    #[test]
    fn refunds_to_an_evicted_key_keep_p1(
        interval in 1_u64..=10, burst in 1_u64..=6, max_keys in 1_usize..20,
        actions in prop::collection::vec(actions(0), 1..100),
    ) {
        run(interval, burst, max_keys, &actions)?;
    }

    /// The same with live changes: what comes on top is what was reserved and not yet due, and what
    /// the change adds.
    #[test]
    fn live_changes_keep_p1_for_every_key(
        interval in 1_u64..=10, burst in 1_u64..=6, max_keys in 1_usize..20,
        actions in prop::collection::vec(actions(2), 1..100),
    ) {
        run(interval, burst, max_keys, &actions)?;
    }

    /// Windows and logs whose count changes: never more than the largest count in force.
    #[test]
    fn windows_that_change_their_count_keep_the_largest_bound(
        algorithm in prop::sample::select(vec![
            Algorithm::FixedWindow, Algorithm::FixedWindowFirstHit, Algorithm::SlidingWindow,
            Algorithm::SlidingWindowStrict, Algorithm::SlidingLog,
        ]),
        counts in prop::collection::vec(1_u64..=6, 3), max_keys in 1_usize..20,
        ops in prop::collection::vec((ops(false), prop::option::weighted(0.05, 0_usize..3)), 1..150),
    ) {
        let limit = |count: u64| Limit::of(count, Duration::from_secs(60)).algorithm(algorithm);
        let (keyed, clock) = keyed(limit(counts[0]), max_keys);
        let mut allowed: BTreeMap<u64, Vec<AllowedCall>> = BTreeMap::new();
        let mut new = 1_000_000;
        let mut call = |key: u64, cost: u64| {
            if keyed.check_n(&key, cost).is_allowed() {
                allowed.entry(key).or_default().push(AllowedCall { at: clock.now().as_unix_nanos(), cost, delay: 0 });
            }
        };
        for (op, change) in ops {
            match op {
                Op::Pass(by) => clock.advance(Duration::from_secs(by)),
                Op::Check { key, cost, .. } => call(key, cost),
                Op::Churn(keys) => {
                    (new..new + keys).for_each(|key| call(key, 1));
                    new += keys;
                }
            }
            if let Some(which) = change {
                keyed.set_limit(limit(counts[which]));
            }
        }
        let largest = limit(*counts.iter().max().expect("three"));
        for (key, allowed) in allowed {
            prop_assert_eq!(bounds::violation(&largest, &allowed), None, "key {}: {:?}", key, allowed);
        }
    }

    /// Windows and logs: take and settle, with evictions in between.
    #[test]
    fn windows_that_settle_keep_their_bound_on_the_net_cost(
        // A queue returns its starts to `check` only; what a settle shortens there is not a start.
        limit in limits().prop_filter("a queue", |limit| limit.algorithm_kind() != Algorithm::Pacing), max_keys in 1_usize..20,
        ops in prop::collection::vec((ops(false), any::<bool>(), 0_usize..8, 0_u64..4), 1..120),
    ) {
        let (keyed, clock) = keyed(limit, max_keys);
        let unit = limit.fills_in().expect("refills").div_f64(64.0).max(Duration::from_nanos(1));
        let mut allowed: BTreeMap<u64, Vec<AllowedCall>> = BTreeMap::new();
        let mut charges: Vec<(Charge<ManualClock>, u64, usize)> = Vec::new();
        let mut new = 1_000_000;
        for (op, settle, which, actual) in ops {
            match op {
                Op::Pass(by) => clock.advance(unit * by as u32),
                Op::Check { key, cost, .. } => {
                    if let Ok(charge) = keyed.key(&key).take(cost) {
                        let allowed = allowed.entry(key).or_default();
                        charges.push((charge, key, allowed.len()));
                        allowed.push(AllowedCall { at: clock.now().as_unix_nanos(), cost, delay: 0 });
                    }
                }
                Op::Churn(keys) => {
                    (new..new + keys).for_each(|key| assert!(keyed.check(&key).capacity() > 0));
                    new += keys;
                }
            }
            if settle && !charges.is_empty() {
                let (charge, key, index) = charges.swap_remove(which % charges.len());
                let cost = &mut allowed.get_mut(&key).expect("charged")[index].cost;
                *cost = actual.min(*cost);
                charge.settle(*cost);
            }
        }
        for (key, allowed) in allowed {
            prop_assert_eq!(bounds::violation(&limit, &allowed), None, "key {}: {:?}", key, allowed);
        }
    }
}

/// Returns the limit with every algorithm, and its name.
fn every(limit: Limit) -> impl Iterator<Item = (Limit, String)> {
    let all = Algorithm::ALL
        .into_iter()
        .map(move |algorithm| limit.algorithm(algorithm));
    all.chain([limit.refundable()])
        .map(|limit| (limit, limit.to_string()))
}

/// About one slot, and every key uses all of it: an abuser that churns keys gains nothing.
#[test]
fn churning_keys_resets_no_key() {
    for (limit, algorithm) in every(Limit::per_minute(5)) {
        let (keyed, clock) = keyed(limit, 1);
        let spend = || (0..20).filter(|_| keyed.check(&0).is_allowed()).count() as u64;
        assert_eq!(spend(), limit.capacity(), "{algorithm}");
        for key in 1..5_000 {
            let _ = keyed.check(&key);
            assert!(
                keyed.check(&0).is_denied(),
                "{algorithm}: after {key} others"
            );
        }
        assert!(
            keyed.stats().evicted_live > 0,
            "{algorithm}: {:?}",
            keyed.stats()
        );
        assert!(keyed.stats().keys <= slots(&keyed.stats()));
        // What was evicted affects other keys for no longer than it would have affected its own
        // key.
        clock.advance(Duration::from_secs(180));
        assert_eq!(spend(), limit.capacity(), "{algorithm}");
    }
}

/// Keys that are fresh again are evicted without a loss, whichever key comes next.
#[test]
fn fresh_keys_are_evicted_and_no_call_is_denied() {
    for (limit, algorithm) in every(Limit::per_second(5)) {
        let (keyed, clock) = keyed(limit, 100);
        for key in 0..20_000_u64 {
            assert!(
                keyed.check_n(&key, 3).is_allowed(),
                "{algorithm}: key {key}"
            );
            assert_eq!(
                keyed.key(&key).peek().remaining(),
                limit.capacity() - 3,
                "{algorithm}: key {key}"
            );
            clock.advance(Duration::from_secs(3));
        }
        let stats = keyed.stats();
        assert_eq!(stats.evicted_live, 0, "{algorithm}");
        assert!(
            stats.evicted_fresh >= 20_000 - slots(&stats),
            "{algorithm}: {stats:?}"
        );
        assert!(stats.live <= 1, "{algorithm}: {stats:?}");
    }
}

/// A key that was evicted while fresh is fresh at the present, not at an instant when it was not.
/// (A window or log judges the call at the floor's own window: it is counted there.)
#[test]
fn an_evicted_fresh_key_is_not_fresh_at_an_earlier_instant() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Pacing,
    ] {
        let limit = Limit::per_minute(5).algorithm(algorithm);
        let (keyed, clock) = keyed(limit, 1);
        let start = clock.now();
        while keyed.check(&0).is_allowed() {}
        clock.advance(Duration::from_secs(3_600));
        for key in 1..200 {
            let _ = keyed.check(&key);
        }
        let stale = keyed.key(&0).at(start + Duration::from_nanos(1)).check();
        assert!(stale.is_denied(), "{algorithm}: {stale:?}");
    }
}

/// A peek writes nothing, also for keys that are not there.
#[test]
fn a_peek_inserts_no_key() {
    let (keyed, _) = keyed(Limit::per_second(5), 100);
    for key in 0..1_000 {
        assert!(keyed.key(&key).peek().is_allowed());
        let _ = keyed.key(&key).tokens();
        assert!(keyed.check_n(&key, 0).is_allowed());
        assert!(keyed.check_n(&key, 6).is_never());
    }
    let stats = keyed.stats();
    assert_eq!((stats.live, stats.evicted_live), (0, 0), "{stats:?}");
}

/// `max_bytes` holds too, for algorithms whose state does not fit a word as well.
#[test]
fn max_bytes_bounds_the_memory() {
    for (limit, algorithm) in every(Limit::per_minute(50)) {
        let clock = ManualClock::new();
        let keyed = Keyed::<u64, _>::builder(limit)
            .max_bytes(64 * 1_024)
            .clock(clock.clone())
            .build();
        for key in 0..20_000 {
            let _ = keyed.check_n(&key, 1 + key % 7);
            clock.advance(Duration::from_millis(1));
        }
        let stats = keyed.stats();
        assert!(stats.bytes <= 64 * 1_024, "{algorithm}: {stats:?}");
        assert!(stats.keys <= slots(&stats), "{algorithm}: {stats:?}");
    }
}

/// As docs/keys.md says, for a table with everything it may use.
#[test]
fn a_key_takes_at_most_72_bytes() {
    let (keyed, _) = keyed(Limit::per_second(5), 10_000);
    let slack = 2 * 7 * 8; // To begin on a cache line.
    assert_eq!(keyed.stats().bytes, 10_000 * 72 + slack);
}

/// Refunding a charge of an evicted key refunds no other key.
#[test]
fn a_charge_of_an_evicted_key_refunds_nothing_to_others() {
    for (limit, algorithm) in every(Limit::per_minute(5)) {
        let (keyed, _) = keyed(limit, 1);
        let charges: Vec<_> = (0..300)
            .filter_map(|key| keyed.key(&key).take(5).ok())
            .collect();
        let others: Vec<_> = (0..300)
            .map(|key| keyed.key(&key).peek().remaining())
            .collect();
        drop(others);
        charges.into_iter().for_each(|charge| charge.settle(0));
        // Everything was refunded: each may use up to its limit again, none more.
        for key in 0..300 {
            let allowed = (0..20).filter(|_| keyed.check(&key).is_allowed()).count() as u64;
            assert!(
                allowed <= limit.capacity(),
                "{algorithm}: key {key} passed {allowed}"
            );
        }
    }
}
