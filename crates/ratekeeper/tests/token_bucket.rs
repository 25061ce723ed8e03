//! The token bucket against an oracle with the whole history: TB1 to TB8 of
//! docs/spec/algorithms.md.

mod common;

use common::traces::{
    Cost, Pace, YEAR, cases, costs, everyday, fine, instant, limiter, limits, longest, moved,
    moves, nanos, of_nanos, paces, rounded, whole_interval,
};
use proptest::prelude::*;
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock, Outcome};
use ratekeeper_testkit::{BucketRule, Event};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Calls in the order they are made, each after time has moved.
fn trace(length: usize) -> impl Strategy<Value = Vec<(Pace, Cost)>> {
    prop::collection::vec((paces(), costs()), 1..length)
}

/// The same with a clock that also goes back.
fn wild_trace(length: usize) -> impl Strategy<Value = Vec<((bool, Pace), Cost)>> {
    prop::collection::vec((moves(), costs()), 1..length)
}

/// Runs a trace and returns what was admitted, and when the last call was.
fn run(
    limiter: &Limiter<ManualClock>,
    birth: u64,
    rule: &BucketRule,
    trace: &[(Pace, Cost)],
) -> (Vec<Event>, u64) {
    let mut now = birth;
    let mut events = Vec::new();
    for (pace, cost) in trace {
        now = now.saturating_add(pace.nanos(rule));
        let cost = cost.of(limiter.burst());
        if limiter.at(instant(now)).check_n(cost).is_allowed() {
            events.push(Event { at: now, cost });
        }
    }
    (events, now)
}

proptest! {
    #![proptest_config(cases(256))]

    /// TB1: for all s ≤ t, A[s, t] ≤ floor(B + r·(t − s)), of the rate that decides and of the one
    /// that was written.
    #[test]
    fn tb1_no_interval_holds_more_than_burst_plus_rate_times_length(limit in limits(), trace in wild_trace(120)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (by, cost) in trace {
            now = moved(now, by, &rule);
            let cost = cost.of(limit.capacity());
            if limiter.at(instant(now)).check_n(cost).is_allowed() {
                events.push(Event { at: now, cost });
            }
        }
        prop_assert_eq!(rule.violation(&events), None);
        prop_assert_eq!(BucketRule::written(&limit).violation(&events), None);
    }

    /// TB2: a call is allowed iff its cost is at most min(B, min over s of (B + r·(t − s) − A[s,
    /// t])).
    #[test]
    fn tb2_a_call_is_allowed_iff_every_past_interval_has_capacity(limit in limits(), trace in trace(60)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (pace, cost) in trace {
            now = now.saturating_add(pace.nanos(&rule));
            let cost = cost.of(limit.capacity());
            let parts = rule.tokens(&events, now);
            let fits = i128::from(cost) * rule.token <= parts;
            let decision = limiter.at(instant(now)).check_n(cost);
            prop_assert_eq!(decision.is_allowed(), fits, "{} at {}: {} of {:?}", cost, now - birth, parts, rule);
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
        }
    }

    /// TB2, P2: every denial has an interval that would then have held too much.
    #[test]
    fn tb2_every_denial_has_a_witness(limit in limits(), trace in trace(60)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (pace, cost) in trace {
            now = now.saturating_add(pace.nanos(&rule));
            let event = Event { at: now, cost: cost.of(limit.capacity()) };
            if limiter.at(instant(now)).check_n(event.cost).is_denied() {
                let mut with = events.clone();
                with.push(event);
                let broken = rule.violation(&with);
                prop_assert!(broken.is_some_and(|broken| broken.to == now), "no witness for {:?}", event);
            } else {
                events.push(event);
            }
        }
    }

    /// TB3: after `retry_after` the same call is allowed, a nanosecond earlier it is not, and it is
    /// never iff the cost is above the burst (or nothing refills).
    #[test]
    fn tb3_retry_after_is_the_first_nanosecond_that_admits(limit in limits(), trace in trace(40), cost in costs()) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let (events, now) = run(&limiter, birth, &rule, &trace);
        let cost = cost.of(limit.capacity());
        let missing = i128::from(cost) * rule.token - rule.tokens(&events, now);
        let decision = limiter.at(instant(now)).check_n(cost);
        let expected = match rule.nanos_for(missing) {
            _ if missing <= 0 => Outcome::Allowed,
            _ if i128::from(cost) > rule.burst => Outcome::Never,
            None => Outcome::Never,
            Some(_) => Outcome::Denied,
        };
        prop_assert_eq!(decision.outcome(), expected);
        if expected != Outcome::Denied {
            prop_assert_eq!(decision.retry_after(), None);
            return Ok(());
        }
        let after = rule.nanos_for(missing).expect("refills");
        prop_assert_eq!(decision.retry_after(), Some(nanos(after)));
        if let Ok(then) = u64::try_from(i128::from(now) + after) {
            prop_assert!(limiter.at(instant(then - 1)).check_n(cost).is_denied());
            prop_assert!(limiter.at(instant(then)).check_n(cost).is_allowed());
        }
    }

    /// TB4: remaining is floor(tokens) after the call, at most B; reset_after is when it is B
    /// again, to the nanosecond.
    #[test]
    fn tb4_remaining_and_reset_after_are_exact(limit in limits(), trace in trace(40)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (pace, cost) in trace {
            now = now.saturating_add(pace.nanos(&rule));
            let cost = cost.of(limit.capacity());
            let decision = limiter.at(instant(now)).check_n(cost);
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
            let parts = rule.tokens(&events, now);
            prop_assert_eq!(decision.capacity(), limit.capacity());
            prop_assert_eq!(decision.remaining(), rule.whole(parts));
            prop_assert!(decision.remaining() <= decision.capacity());
            prop_assert_eq!(limiter.at(instant(now)).peek().remaining(), decision.remaining());
            let Some(reset) = rule.nanos_for(rule.capacity() - parts) else {
                prop_assert_eq!(decision.reset_after(), Duration::MAX);
                continue;
            };
            prop_assert_eq!(decision.reset_after(), nanos(reset));
            let Ok(full) = u64::try_from(i128::from(now) + reset) else { continue };
            let at = |nanos: u64| limiter.at(instant(nanos)).peek().remaining();
            // A peek past the horizon may count from a new origin; it must not change what is
            // reported.
            prop_assert_eq!(at(full), decision.capacity());
            if reset > 0 {
                prop_assert!(at(full - 1) < decision.capacity());
            }
            prop_assert_eq!(at(now), decision.remaining());
        }
    }

    /// TB5: a denial, a peek and a cost of 0 change nothing observable.
    #[test]
    fn tb5_a_denial_leaves_the_state_as_it_was(limit in limits(), trace in wild_trace(60)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let (mut now, mut newest) = (birth, birth);
        for (by, cost) in trace {
            now = moved(now, by, &rule);
            newest = newest.max(now);
            let look = || {
                let told = |nanos: u64| {
                    let at = limiter.at(instant(nanos));
                    (at.tokens(), at.peek(), at.peek_n(limit.capacity()), at.peek_n(0))
                };
                (told(birth), told(now), told(newest), told(newest.saturating_add(1_000_000_007)))
            };
            let cost = cost.of(limit.capacity());
            let before = look();
            let peeked = limiter.at(instant(now)).peek_n(cost);
            prop_assert_eq!(look(), before);
            let decision = limiter.at(instant(now)).check_n(cost);
            prop_assert_eq!(decision.outcome(), peeked.outcome());
            prop_assert_eq!(decision.retry_after(), peeked.retry_after());
            if decision.is_denied() || cost == 0 {
                prop_assert_eq!(decision, peeked);
                prop_assert_eq!(look(), before);
            }
        }
        prop_assert_eq!(limiter.adjustments(), Default::default());
    }

    /// TB6: after idling for B·T from any state, exactly B are allowed at once; a nanosecond less
    /// than it takes and one of them is denied.
    #[test]
    fn tb6_after_idling_for_a_full_bucket_exactly_the_burst_passes(limit in limits(), trace in trace(40)) {
        if limit.fills_in().is_none() {
            return Ok(());
        }
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let (events, now) = run(&limiter, birth, &rule, &trace);
        let fill = rule.nanos_for(rule.capacity()).expect("refills");
        prop_assert_eq!(limit.fills_in(), Some(nanos(fill)));
        let left = rule.nanos_for(rule.capacity() - rule.tokens(&events, now)).expect("refills");
        prop_assert!(left <= fill);
        let Ok(idle) = u64::try_from(i128::from(now) + fill) else { return Ok(()) };
        if left > 0 {
            let early = limiter.at(instant(now + left as u64 - 1)).check_n(limit.capacity());
            prop_assert!(early.is_denied());
        }
        let at = limiter.at(instant(idle));
        prop_assert!(at.check_n(limit.capacity().saturating_add(1)).is_never() || limit.capacity() == u64::MAX);
        if limit.capacity() <= 64 {
            let passed = (0..=limit.capacity()).filter(|_| at.check().is_allowed()).count();
            prop_assert_eq!(passed as u64, limit.capacity());
        } else {
            prop_assert!(at.check_n(limit.capacity()).is_allowed());
        }
        prop_assert!(at.check().is_denied());
    }

    /// A stale instant is judged by everything that came before it in the order of the calls, at
    /// its own time: never looser than the same call at the newest instant seen.
    #[test]
    fn a_stale_instant_is_never_more_permissive_than_the_newest(limit in limits(), trace in wild_trace(60)) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let (mut now, mut newest) = (birth, birth);
        let mut events = Vec::new();
        for (by, cost) in trace {
            now = moved(now, by, &rule).max(birth);
            newest = newest.max(now);
            let cost = cost.of(limit.capacity());
            let (stale, fresh) = (limiter.at(instant(now)).peek_n(cost), limiter.at(instant(newest)).peek_n(cost));
            prop_assert!(fresh.is_allowed() || stale.is_denied());
            prop_assert!(stale.remaining() <= fresh.remaining());
            let decision = limiter.at(instant(now)).check_n(cost);
            prop_assert_eq!(decision.outcome(), stale.outcome());
            let fits = i128::from(cost) * rule.token <= rule.tokens(&events, now);
            prop_assert!(fits || decision.is_denied());
            // If time is years ahead of it, a stale instant may be denied without a check.
            prop_assert!(!fits || decision.is_allowed() || newest - now > YEAR);
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
        }
    }

    /// Instants before the limiter's creation are stale too.
    #[test]
    fn instants_before_creation_are_only_stricter(
        limit in prop_oneof![fine(), everyday(), longest()],
        calls in prop::collection::vec((0..12 * YEAR, any::<bool>(), costs()), 1..60),
    ) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut events = Vec::new();
        for (back, little, cost) in calls {
            let at = birth - if little { back % 100 } else { back };
            let cost = cost.of(limit.capacity());
            let fresh = limiter.at(instant(birth)).peek_n(cost);
            if limiter.at(instant(at)).check_n(cost).is_allowed() {
                prop_assert!(fresh.is_allowed());
                events.push(Event { at, cost });
            }
        }
        prop_assert_eq!(rule.violation(&events), None);
    }

    /// Past the ten-year horizon and up to the last instant there is: forward only, the oracle
    /// still agrees.
    #[test]
    fn time_may_run_to_the_last_possible_instant(
        limit in limits(),
        calls in prop::collection::vec((0_u64..=64, any::<u64>(), costs()), 1..60),
    ) {
        let (limiter, birth) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (shift, by, cost) in calls {
            now = now.saturating_add(by.checked_shr(shift as u32).unwrap_or(0));
            let cost = cost.of(limit.capacity());
            let parts = rule.tokens(&events, now);
            let decision = limiter.at(instant(now)).check_n(cost);
            prop_assert_eq!(decision.is_allowed(), i128::from(cost) * rule.token <= parts);
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
        }
        prop_assert_eq!(rule.violation(&events), None);
    }

    /// Any instant in any order: TB1 holds on the instants the caller gave.
    #[test]
    fn tb1_holds_for_instants_from_all_of_time_in_any_order(
        limit in prop_oneof![2 => limits(), 2 => longest()],
        calls in prop::collection::vec((instants(), costs()), 1..80),
    ) {
        let (limiter, _) = limiter(limit);
        let rule = BucketRule::decided(&limit);
        let mut events = Vec::new();
        for (at, cost) in calls {
            let cost = cost.of(limit.capacity());
            if limiter.at(instant(at)).check_n(cost).is_allowed() {
                events.push(Event { at, cost });
            }
        }
        prop_assert_eq!(rule.violation(&events), None);
    }

    /// P9: no method panics, at any instant.
    #[test]
    fn no_method_panics_at_any_instant(
        limit in limits(),
        other in prop_oneof![6 => limits(), 1 => Just(Limit::unlimited())],
        calls in prop::collection::vec((instants(), costs(), 0_u8..12), 1..80),
    ) {
        let (limiter, _) = limiter(limit);
        let (mut slots, mut charges) = (Vec::new(), Vec::new());
        for (now, cost, verb) in calls {
            let at = limiter.at(instant(now));
            let cost = cost.of(limiter.burst());
            match verb {
                0 | 1 => drop(format!("{:?}", at.check_n(cost))),
                2 => drop(format!("{:?} {}", at.peek_n(cost), at.tokens())),
                3 | 4 => slots.extend(at.reserve(cost)),
                5 => slots.extend(at.reserve_within(cost, Duration::from_nanos(now))),
                6 => charges.extend(at.take(cost)),
                7 => slots.pop().into_iter().for_each(|slot| at.cancel(slot)),
                8 => charges.pop().into_iter().for_each(|charge| at.settle(charge, cost)),
                9 => at.grant(cost),
                10 => at.reset(),
                _ => at.set_limit(if now % 2 == 0 { limit } else { other }),
            }
        }
    }

    /// The plain methods use the clock's current instant, and a clock may stall, jump and go back.
    #[test]
    fn a_clock_may_stall_jump_and_go_back(limit in limits(), trace in wild_trace(60)) {
        let clock = ManualClock::new();
        let birth = clock.now().as_unix_nanos();
        let (plain, viewed) = (Limiter::with_clock(limit, clock.clone()), limiter(limit).0);
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        let mut events = Vec::new();
        for (by, cost) in trace {
            now = moved(now, by, &rule);
            clock.set(instant(now));
            let cost = cost.of(limit.capacity());
            let decision = plain.check_n(cost);
            prop_assert_eq!(decision, viewed.at(instant(now)).check_n(cost));
            prop_assert_eq!(plain.peek_n(cost), viewed.at(instant(now)).peek_n(cost));
            prop_assert_eq!(plain.tokens(), viewed.at(instant(now)).tokens());
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
        }
        prop_assert_eq!(rule.violation(&events), None);
    }

    /// The leaky bucket as a meter is the same machine.
    #[test]
    fn a_leaky_bucket_decides_as_the_token_bucket_does(limit in limits(), trace in trace(60)) {
        let (tokens, birth) = limiter(limit);
        let (level, _) = limiter(limit.algorithm(Algorithm::LeakyBucket));
        let rule = BucketRule::decided(&limit);
        let mut now = birth;
        for (pace, cost) in trace {
            now = now.saturating_add(pace.nanos(&rule));
            let cost = cost.of(limit.capacity());
            prop_assert_eq!(tokens.at(instant(now)).check_n(cost), level.at(instant(now)).check_n(cost));
        }
    }

    /// A bucket that starts with some tokens has those and what time brings, until it is full.
    #[test]
    fn a_bucket_that_starts_with_some_tokens_has_those(limit in limits(), start in 0_u64..300, trace in trace(40)) {
        let (limiter, birth) = limiter(limit);
        let limiter = limiter.starting_with(start);
        let rule = BucketRule::decided(&limit);
        // What is not there at the start was spent then.
        let mut events = vec![Event { at: birth, cost: limit.capacity().saturating_sub(start) }];
        let mut now = birth;
        for (pace, cost) in trace {
            let cost = cost.of(limit.capacity());
            let parts = rule.tokens(&events, now);
            let decision = limiter.at(instant(now)).check_n(cost);
            prop_assert_eq!(decision.is_allowed(), i128::from(cost) * rule.token <= parts);
            if decision.is_allowed() {
                events.push(Event { at: now, cost });
            }
            now = now.saturating_add(pace.nanos(&rule));
        }
    }
}

/// Instants from all of time, concentrated at creation, the horizons and the ends.
fn instants() -> impl Strategy<Value = u64> {
    let birth = ManualClock::new().now().as_unix_nanos();
    let near = move |at: u64| {
        (0_u64..2_000).prop_map(move |more| at.saturating_add(more).saturating_sub(1_000))
    };
    let years = prop_oneof![Just(5_u64), Just(10), Just(20), Just(50), 0_u64..=534];
    prop_oneof![
        3 => near(birth),
        3 => years.prop_flat_map(move |years| near(birth + years * YEAR)),
        1 => near(birth - 5 * YEAR),
        1 => near(birth - 10 * YEAR),
        1 => near(0),
        2 => near(u64::MAX - 500),
        1 => any::<u64>(),
    ]
}

proptest! {
    #![proptest_config(cases(200))]

    /// TB7: a caller that comes every δ and takes all there is, r·δ ≤ B − 1, loses no rate: A[0, t]
    /// ≥ B + r·t − 1 − r·δ.
    #[test]
    fn tb7_no_rate_is_lost_for_periodic_callers(
        limit in prop_oneof![2 => fine(), 2 => everyday(), 1 => rounded(), 1 => longest()],
        burst in 2_u64..40,
        share in 1_u64..=16,
    ) {
        let limit = limit.burst(burst);
        let rule = BucketRule::decided(&limit);
        prop_assume!(limit.capacity() == burst);
        let slowest = (rule.capacity() - rule.token) / rule.per_nano;
        let every = u64::try_from(slowest * i128::from(share) / 16).expect("under 142 years").min(YEAR);
        if every == 0 {
            return Ok(());
        }
        let (limiter, birth) = limiter(limit);
        let mut admitted = 0_i128;
        for arrival in 0..40 {
            let now = birth + arrival * every;
            while limiter.at(instant(now)).check().is_allowed() {
                admitted += 1;
            }
            // Until just before the next arrival.
            let t = i128::from(arrival * every + every - 1);
            let least = rule.capacity() + rule.per_nano * (t - i128::from(every)) - rule.token;
            prop_assert!(admitted * rule.token >= least, "{} at the {}th arrival", admitted, arrival);
        }
    }

    /// P2: a rate that must be rounded is never faster than written, and a token of it costs less
    /// than 17.3 ps more.
    #[test]
    fn a_rounded_token_costs_at_most_17_3_picoseconds_more_and_never_less(limit in rounded()) {
        let (decided, written) = (BucketRule::decided(&limit), BucketRule::written(&limit));
        prop_assert_eq!(limit.capacity(), written.burst as u64);
        // token/per_nano of the one minus that of the other, over a common denominator.
        let more = decided.token * written.per_nano - written.token * decided.per_nano;
        prop_assert!(more >= 0, "faster than written");
        let picos = |tenths: i128| tenths * written.per_nano * decided.per_nano;
        prop_assert!(more * 10_000 < picos(173), "{:?} for {:?}", decided, written);
        // Within 1 part in a million up to 58,000/s.
        if written.per_nano * 1_000_000_000 <= 58_000 * written.token {
            prop_assert!(more * 1_000_000 <= written.token * decided.per_nano);
        }
    }

    /// The same seen from outside: over many bursts a rounded rate admits no more than written, and
    /// no fewer than tokens that cost 17.3 ps more would.
    #[test]
    fn a_rounded_rate_admits_what_it_says_over_time(limit in rounded(), burst in 2_u64..200) {
        let limit = limit.burst(burst);
        let written = BucketRule::written(&limit);
        let (limiter, birth) = limiter(limit);
        // In halves of a bucket, so that none overflows.
        let every = BucketRule::decided(&limit).nanos_for(written.token * (written.burst / 2)).expect("refills");
        let every = u64::try_from(every / BucketRule::decided(&limit).token.max(1)).expect("small").max(1);
        let mut events = Vec::new();
        for arrival in 0..100 {
            let at = instant(birth + arrival * every);
            let cost = limiter.at(at).peek().remaining();
            prop_assert!(limiter.at(at).check_n(cost).is_allowed());
            events.push(Event { at: birth + arrival * every, cost });
        }
        prop_assert_eq!(written.violation(&events), None);
    }
}

/// Ticks: a reduced count of at most 58 is exact.
#[test]
fn rates_that_reduce_to_58_or_less_are_exact() {
    for count in 1..=58 {
        for period in [1, 2, 3, 7, 57, 58, 59, 1_000, 1_000_003, 1_000_000_000] {
            assert_eq!(
                of_nanos(count, period, 10).effective(),
                None,
                "{count} every {period} ns"
            );
            assert_eq!(
                of_nanos(count * 977, period * 977, 10).effective(),
                None,
                "{count} every {period} ns"
            );
        }
    }
}

#[test]
fn more_than_58_a_nanosecond_is_58() {
    for count in [59, 100, 1_000, u64::MAX] {
        let limit = of_nanos(count, 1, 100);
        assert_eq!(
            BucketRule::decided(&limit),
            BucketRule {
                per_nano: 58,
                token: 1,
                burst: 100
            }
        );
        let (limiter, birth) = limiter(limit);
        assert!(limiter.at(instant(birth)).check_n(100).is_allowed());
        assert_eq!(limiter.at(instant(birth + 1)).peek().remaining(), 58);
        assert_eq!(limiter.at(instant(birth + 2)).peek().remaining(), 100);
    }
}

#[test]
fn unlimited_admits_everything_and_counts_nothing() {
    let (limiter, birth) = limiter(Limit::unlimited());
    for at in [0, birth, birth + 1, u64::MAX] {
        for cost in [0, 1, u64::MAX] {
            let decision = limiter.at(instant(at)).check_n(cost);
            assert!(decision.is_allowed() && decision.is_unlimited());
            assert_eq!(
                (decision.remaining(), decision.capacity()),
                (u64::MAX, u64::MAX)
            );
            assert_eq!(
                (decision.retry_after(), decision.reset_after()),
                (None, Duration::ZERO)
            );
        }
    }
}

#[test]
fn an_interval_above_2_to_the_62_nanoseconds_never_elapses() {
    let (limiter, birth) = limiter(of_nanos(1, (1 << 62) + 1, 3));
    assert!(limiter.at(instant(birth)).check_n(3).is_allowed());
    assert!(limiter.at(instant(u64::MAX)).check().is_never());
}

/// A peek past the horizon counts from a new origin. What was spent at the old instants stays spent
/// there.
#[test]
fn a_peek_at_the_far_future_gives_nothing_to_calls_in_the_past() {
    for limit in [
        whole_interval(1_000_000_000, 5),
        whole_interval(YEAR, 10),
        whole_interval(YEAR, 100),
    ] {
        for far in [11, 16, 21, 100, 534] {
            let (limiter, birth) = limiter(limit);
            let then = instant(birth);
            assert!(limiter.at(then).check_n(limit.capacity()).is_allowed());
            assert_eq!(
                limiter.at(instant(birth + far * YEAR)).peek().remaining(),
                limit
                    .capacity()
                    .min(far * YEAR / limit.rate().unwrap().period().as_nanos() as u64)
            );
            assert!(
                limiter.at(then).check().is_denied(),
                "{limit}, after a glance {far} years ahead"
            );
            assert!(limiter.at(instant(birth + far * YEAR)).check().is_allowed());
            assert!(
                limiter.at(then).check().is_denied(),
                "{limit}, after a call {far} years ahead"
            );
        }
    }
}

/// A call that charges nothing has no effect at any instant: a peek, a denial, a cost of 0 beyond
/// the horizon.
#[test]
fn a_peek_beyond_the_horizon_changes_nothing_for_the_present() {
    for years in [1, 5, 6, 11, 500] {
        let (limiter, birth) = limiter(whole_interval(1_000_000_000, 5));
        let far = limiter.at(instant(birth + years * YEAR));
        assert_eq!(far.peek().remaining(), 5);
        assert!(far.check_n(6).is_never());
        assert!(far.check_n(0).is_allowed());
        assert_eq!(
            limiter.at(instant(birth)).peek().remaining(),
            5,
            "after a look {years} years ahead"
        );
        assert!(limiter.at(instant(birth)).check_n(5).is_allowed());
    }
}

/// TB3: never means that no time will allow it; a lifetime is a time.
#[test]
fn a_retry_time_of_a_lifetime_is_reported() {
    let (limiter, birth) = limiter(Limit::per_day(1).burst(50_000));
    assert!(limiter.at(instant(birth)).check_n(40_000).is_allowed());
    let days = limiter
        .at(instant(birth))
        .check_n(50_000)
        .retry_after()
        .expect("after 109 years");
    assert_eq!(days, Duration::from_secs(40_000 * 86_400));
    assert!(
        limiter
            .at(instant(birth) + days)
            .check_n(50_000)
            .is_allowed()
    );
}

/// TB8: a frozen clock, many threads, at least B attempts: exactly B are allowed.
#[test]
fn tb8_threads_on_a_frozen_clock_pass_exactly_the_burst() {
    const THREADS: u64 = 8;
    for (burst, rounds) in [(1_u64, 50), (2, 50), (7, 50), (100, 20), (5_000, 3)] {
        for round in 0..rounds {
            let (limiter, _) = limiter(Limit::per_second(1 + round).burst(burst));
            let passed = AtomicU64::new(0);
            let start = std::sync::Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        start.wait();
                        for _ in 0..burst.div_ceil(THREADS) + 2 {
                            if limiter.check().is_allowed() {
                                passed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            assert_eq!(passed.into_inner(), burst);
        }
    }
}

/// The same with costs: the allowed cost and what remains add up to the burst, and no last denial
/// would still fit.
#[test]
fn tb8_threads_with_costs_leave_exactly_the_rest() {
    for round in 0..40_u64 {
        let burst = 50 + round;
        let (limiter, _) = limiter(Limit::per_minute(7).burst(burst));
        let spent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let (limiter, spent) = (&limiter, &spent);
                scope.spawn(move || {
                    for i in 0..burst {
                        let cost = 1 + (i * 7 + thread * 3 + round) % 5;
                        if limiter.check_n(cost).is_allowed() {
                            spent.fetch_add(cost, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let spent = spent.into_inner();
        assert_eq!(limiter.peek().remaining(), burst - spent);
        // Each thread asked for 1 often enough to have taken the last.
        assert_eq!(spent, burst);
    }
}
