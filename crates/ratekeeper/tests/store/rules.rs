//! The rules of a store, one by one.

use ratekeeper::{
    Ask, Clock, Limit, ManualClock, MemoryStore, Mode, Store, Verdict, store::AskOutcome,
    store::LimitHandle, store::Source,
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn store() -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().clock(clock.clone()).build(), clock)
}

/// Returns what remains of a limit for a key.
fn left(
    store: &MemoryStore<ManualClock>,
    limit: &LimitHandle,
    key: &str,
    now: ratekeeper::Timestamp,
) -> u64 {
    let verdict = store.decide_now(&[Ask::new(limit, key).mode(Mode::Peek)], now);
    verdict
        .results()
        .next()
        .expect("a status")
        .decision()
        .remaining()
}

fn outcomes(verdict: &Verdict) -> Vec<AskOutcome> {
    verdict.results().map(|status| status.outcome()).collect()
}

#[test]
fn more_keys_than_memory_are_an_error_and_no_panic() {
    let answer = MemoryStore::builder()
        .max_keys(usize::MAX)
        .try_build()
        .map(drop)
        .unwrap_err();
    assert_eq!(
        answer.to_string(),
        "not enough memory for a store of this many keys; lower max_keys"
    );
}

#[test]
fn all_are_charged_or_none_is() {
    let (store, clock) = store();
    let (user, global) = (
        store.limit("user", Limit::per_minute(2)).unwrap(),
        store.limit("global", Limit::per_minute(10)).unwrap(),
    );
    let now = clock.now();
    for _ in 0..2 {
        assert!(
            store
                .decide_now(&[Ask::new(&user, "u1"), Ask::new(&global, "")], now)
                .is_allowed()
        );
    }
    for _ in 0..20 {
        let verdict = store.decide_now(&[Ask::new(&global, ""), Ask::new(&user, "u1")], now);
        assert!(!verdict.is_allowed());
        assert_eq!(
            (verdict.binding(), verdict.retry_after()),
            (Some(1), Some(30 * SECOND))
        );
        assert_eq!(
            outcomes(&verdict),
            [AskOutcome::Allowed, AskOutcome::Denied]
        );
        assert_eq!(verdict.source(), Source::Memory);
    }
    assert_eq!(
        (
            left(&store, &user, "u1", now),
            left(&store, &global, "", now)
        ),
        (0, 8)
    );
    assert_eq!(
        (user.name(), user.limit()),
        ("user", Some(Limit::per_minute(2)))
    );
}

#[test]
fn asks_on_the_same_limit_and_key_are_merged_and_their_costs_add() {
    let (store, clock) = store();
    let (limit, other) = (
        store.limit("a", Limit::per_minute(5)).unwrap(),
        store.limit("b", Limit::per_minute(5)).unwrap(),
    );
    let now = clock.now();
    let ask = |cost| Ask::new(&limit, "k").cost(cost);
    let too_many = store.decide_now(&[ask(3), Ask::new(&other, "k"), ask(3)], now);
    assert!(too_many.is_never(), "6 never fit into 5");
    let verdict = store.decide_now(&[ask(2), Ask::new(&other, "k"), ask(2)], now);
    assert!(verdict.is_allowed());
    let remaining: Vec<_> = verdict
        .results()
        .map(|status| status.decision().remaining())
        .collect();
    assert_eq!(remaining, [1, 4, 1]);
    assert!(!store.decide_now(&[ask(1), ask(1)], now).is_allowed());
    assert!(store.decide_now(&[ask(1), ask(0)], now).is_allowed());
    let huge = store.decide_now(&[ask(u64::MAX), ask(u64::MAX)], now);
    assert!(
        huge.is_never(),
        "costs that add up beyond 64 bits are not small"
    );
    // The same key under another limit, and another key under the same limit, are other buckets.
    assert_eq!(
        (
            left(&store, &other, "k", now),
            left(&store, &limit, "l", now)
        ),
        (4, 5)
    );
}

#[test]
fn a_shadow_ask_denies_nothing_and_is_charged_only_with_the_rest() {
    let (store, clock) = store();
    let (strict, wide) = (
        store.limit("strict", Limit::per_minute(1)).unwrap(),
        store.limit("wide", Limit::per_minute(2)).unwrap(),
    );
    let now = clock.now();
    let asks = [
        Ask::new(&strict, "k").mode(Mode::Shadow),
        Ask::new(&wide, "k"),
    ];
    assert_eq!(
        outcomes(&store.decide_now(&asks, now)),
        [AskOutcome::Allowed, AskOutcome::Allowed]
    );
    assert_eq!(
        (
            left(&store, &strict, "k", now),
            left(&store, &wide, "k", now)
        ),
        (0, 1)
    );
    let verdict = store.decide_now(&asks, now);
    assert!(verdict.is_allowed());
    assert_eq!((verdict.binding(), verdict.retry_after()), (None, None));
    assert_eq!(
        outcomes(&verdict),
        [AskOutcome::ShadowDenied, AskOutcome::Allowed]
    );
    clock.advance(60 * SECOND);
    let now = clock.now();
    assert!(
        store
            .decide_now(&[Ask::new(&wide, "k").cost(2)], now)
            .is_allowed()
    );
    // The rest is denied: what the shadow ask would have allowed is not charged.
    assert!(!store.decide_now(&asks, now).is_allowed());
    assert_eq!(left(&store, &strict, "k", now), 1);
    // A shadow ask that never fits does not make the verdict never.
    let never = store.decide_now(&[Ask::new(&strict, "k").mode(Mode::Shadow).cost(9)], now);
    assert!(never.is_allowed() && !never.is_never());
}

#[test]
fn a_peek_charges_nothing() {
    let (store, clock) = store();
    let limit = store.limit("a", Limit::per_minute(3)).unwrap();
    let now = clock.now();
    for _ in 0..10 {
        let verdict = store.decide_now(&[Ask::new(&limit, "k").mode(Mode::Peek).cost(3)], now);
        assert!(verdict.is_allowed());
        assert_eq!(verdict.results().next().unwrap().decision().remaining(), 3);
    }
    assert!(
        store
            .decide_now(&[Ask::new(&limit, "k").cost(3)], now)
            .is_allowed()
    );
    let denied = store.decide_now(&[Ask::new(&limit, "k").mode(Mode::Peek)], now);
    assert_eq!(
        (denied.is_allowed(), denied.retry_after()),
        (false, Some(20 * SECOND))
    );
}

#[test]
fn a_class_sees_a_smaller_bucket_and_may_not_go_into_debt() {
    let (store, clock) = store();
    let limit = store.limit("a", Limit::per_second(1).burst(10)).unwrap();
    let now = clock.now();
    let low = || Ask::new(&limit, "k").reserve(4);
    let verdict = store.decide_now(&[low().cost(6)], now);
    assert!(verdict.is_allowed());
    let decision = verdict.results().next().unwrap().decision();
    assert_eq!((decision.capacity(), decision.remaining()), (6, 0));
    assert_eq!(decision.reset_after(), 6 * SECOND);
    let denied = store.decide_now(&[low()], now);
    assert_eq!(
        (denied.is_allowed(), denied.retry_after()),
        (false, Some(SECOND))
    );
    assert!(
        store.decide_now(&[low().cost(7)], now).is_never(),
        "7 never fit into 10 - 4"
    );
    // Asks without a reserve may use what is left.
    assert!(
        store
            .decide_now(&[Ask::new(&limit, "k").cost(4)], now)
            .is_allowed()
    );
    // They may go into debt with a maximum wait, a class with a reserve may not.
    let late = store.decide_now(&[low().max_wait(60 * SECOND)], now);
    assert!(!late.is_allowed());
    assert_eq!(late.retry_after(), Some(5 * SECOND));
    let waits = store.decide_now(&[Ask::new(&limit, "k").max_wait(60 * SECOND)], now);
    assert_eq!((waits.is_allowed(), waits.delay()), (true, SECOND));
    // A reserve of everything leaves nothing.
    clock.advance(60 * SECOND);
    assert!(
        store
            .decide_now(&[Ask::new(&limit, "k").reserve(10)], clock.now())
            .is_never()
    );
    assert!(
        store
            .decide_now(&[Ask::new(&limit, "k").reserve(u64::MAX)], clock.now())
            .is_never()
    );
}

#[test]
fn the_wait_is_the_largest_and_each_within_its_own_maximum() {
    let (store, clock) = store();
    let (fast, slow) = (
        store.limit("fast", Limit::per_second(2).burst(1)).unwrap(),
        store.limit("slow", Limit::per_second(1).burst(1)).unwrap(),
    );
    let now = clock.now();
    let asks = |fast_wait: u64, slow_wait: u64| {
        let [fast_wait, slow_wait] = [fast_wait, slow_wait].map(Duration::from_millis);
        let asks = [
            Ask::new(&fast, "k").max_wait(fast_wait),
            Ask::new(&slow, "k").max_wait(slow_wait),
        ];
        store.decide_now(&asks, now)
    };
    let first = asks(500, 1_000);
    assert_eq!((first.is_allowed(), first.delay()), (true, Duration::ZERO));
    assert_eq!(outcomes(&first), [AskOutcome::Allowed, AskOutcome::Allowed]);
    // The slow one would wait too long: none is charged.
    let too_late = asks(500, 999);
    assert_eq!(
        (too_late.is_allowed(), too_late.binding()),
        (false, Some(1))
    );
    assert!(!asks(499, 1_000).is_allowed());
    let second = asks(500, 1_000);
    assert_eq!((second.is_allowed(), second.delay()), (true, SECOND));
    assert_eq!(
        outcomes(&second),
        [AskOutcome::Delayed, AskOutcome::Delayed]
    );
    // Slots are first come, first served: the next is behind.
    assert!(!asks(500, 1_000).is_allowed());
    let third = asks(1_000, 2_000);
    assert_eq!((third.is_allowed(), third.delay()), (true, 2 * SECOND));
    // A check is denied while there is debt.
    assert!(!store.decide_now(&[Ask::new(&fast, "k")], now).is_allowed());
}

#[test]
fn the_binding_limit_is_never_first_else_the_one_that_takes_longest() {
    let (store, clock) = store();
    let minute = store.limit("minute", Limit::per_minute(1)).unwrap();
    let hour = store.limit("hour", Limit::per_hour(1)).unwrap();
    let small = store.limit("small", Limit::per_second(2)).unwrap();
    let now = clock.now();
    assert!(
        store
            .decide_now(&[Ask::new(&minute, "k"), Ask::new(&hour, "k")], now)
            .is_allowed()
    );
    let both = store.decide_now(&[Ask::new(&minute, "k"), Ask::new(&hour, "k")], now);
    assert_eq!(
        (both.binding(), both.retry_after()),
        (Some(1), Some(Duration::from_secs(3_600)))
    );
    let never = store.decide_now(
        &[
            Ask::new(&hour, "k"),
            Ask::new(&small, "k").cost(3),
            Ask::new(&minute, "k"),
        ],
        now,
    );
    assert!(never.is_never());
    assert_eq!((never.binding(), never.retry_after()), (Some(1), None));
    assert_eq!(
        outcomes(&never),
        [AskOutcome::Denied, AskOutcome::Never, AskOutcome::Denied]
    );
    assert_eq!(left(&store, &small, "k", now), 2);
}

#[test]
fn permits_are_released_when_the_verdict_is_dropped_or_settled() {
    let (store, clock) = store();
    let (slots, rate) = (
        store.concurrency("slots", 2).unwrap(),
        store.limit("rate", Limit::per_minute(10)).unwrap(),
    );
    let now = clock.now();
    let call = || store.decide_now(&[Ask::new(&slots, "k"), Ask::new(&rate, "k")], now);
    let (first, second) = (call(), call());
    assert!(first.is_allowed() && second.is_allowed());
    let busy = call();
    assert!(!busy.is_allowed() && !busy.is_never());
    assert_eq!(
        (busy.binding(), busy.retry_after()),
        (Some(0), None),
        "when a permit comes back is not known"
    );
    assert_eq!(
        left(&store, &rate, "k", now),
        8,
        "nothing was charged for it"
    );
    drop(busy);
    assert!(!call().is_allowed(), "a denial holds no permit");
    drop(first);
    let third = call();
    assert!(third.is_allowed());
    store.settle_now(second, &[1, 1], now);
    assert!(call().is_allowed());
    drop(third);
    assert!(
        store
            .decide_now(&[Ask::new(&slots, "k").cost(3)], now)
            .is_never()
    );
    assert!(
        store
            .decide_now(&[Ask::new(&slots, "k").cost(2)], now)
            .is_allowed()
    );
    // A peek takes no permit.
    let looks: Vec<_> = (0..5)
        .map(|_| store.decide_now(&[Ask::new(&slots, "l").mode(Mode::Peek)], now))
        .collect();
    assert!(looks.iter().all(Verdict::is_allowed));
}

#[test]
fn a_reused_verdict_releases_its_permits_first() {
    let (store, clock) = store();
    let slots = store.concurrency("slots", 1).unwrap();
    let mut verdict = Verdict::new(Source::Closed);
    for _ in 0..3 {
        assert!(store.try_decide(&[Ask::new(&slots, "k")], clock.now(), &mut verdict));
        assert_eq!(
            (&outcomes(&verdict)[..], verdict.source()),
            (&[AskOutcome::Allowed][..], Source::Memory)
        );
        assert!(
            store
                .decide_now(&[Ask::new(&slots, "k")], clock.now())
                .is_denied(),
            "it has the only one"
        );
    }
    verdict.clear(Source::Open);
    assert_eq!(
        (
            verdict.results().len(),
            verdict.is_allowed(),
            verdict.source()
        ),
        (0, true, Source::Open)
    );
    assert!(
        store
            .decide_now(&[Ask::new(&slots, "k")], clock.now())
            .is_allowed()
    );
}

#[test]
fn a_settle_refunds_every_ask() {
    let (store, clock) = store();
    let (user, global) = (
        store.limit("user", Limit::per_hour(100)).unwrap(),
        store.limit("global", Limit::per_hour(1_000)).unwrap(),
    );
    let now = clock.now();
    let verdict = store.decide_now(
        &[
            Ask::new(&user, "k").cost(50),
            Ask::new(&global, "").cost(50),
        ],
        now,
    );
    assert_eq!(
        (
            left(&store, &user, "k", now),
            left(&store, &global, "", now)
        ),
        (50, 950)
    );
    store.settle_now(verdict, &[20, 30], now);
    assert_eq!(
        (
            left(&store, &user, "k", now),
            left(&store, &global, "", now)
        ),
        (80, 970)
    );
    // A higher cost is charged at once.
    let verdict = store.decide_now(
        &[
            Ask::new(&user, "k").cost(10),
            Ask::new(&global, "").cost(10),
        ],
        now,
    );
    store.settle_now(verdict, &[30, 10], now);
    assert_eq!(
        (
            left(&store, &user, "k", now),
            left(&store, &global, "", now)
        ),
        (50, 960)
    );
    // A denial has nothing to refund; nor has a peek, or a shadow ask that was not charged.
    let denied = store.decide_now(
        &[
            Ask::new(&user, "k").cost(60),
            Ask::new(&global, "").cost(60),
        ],
        now,
    );
    assert!(!denied.is_allowed());
    store.settle_now(denied, &[0, 0], now);
    let peeked = store.decide_now(&[Ask::new(&user, "k").cost(40).mode(Mode::Peek)], now);
    store.settle_now(peeked, &[0], now);
    let shadow = store.decide_now(&[Ask::new(&user, "k").cost(60).mode(Mode::Shadow)], now);
    store.settle_now(shadow, &[0], now);
    assert_eq!(
        (
            left(&store, &user, "k", now),
            left(&store, &global, "", now)
        ),
        (50, 960)
    );
    // Merged asks are settled for what each took.
    let merged = store.decide_now(
        &[Ask::new(&user, "k").cost(10), Ask::new(&user, "k").cost(20)],
        now,
    );
    assert_eq!(left(&store, &user, "k", now), 20);
    store.settle_now(merged, &[5, 5], now);
    assert_eq!(left(&store, &user, "k", now), 40);
    // With too few costs the rest keeps its charge; too many are ignored.
    let short = store.decide_now(
        &[
            Ask::new(&user, "k").cost(10),
            Ask::new(&global, "").cost(10),
        ],
        now,
    );
    store.settle_now(short, &[0], now);
    assert_eq!(
        (
            left(&store, &user, "k", now),
            left(&store, &global, "", now)
        ),
        (40, 950)
    );
}

#[test]
fn more_asks_than_eight_are_decided_alike() {
    let (store, clock) = store();
    let limits: Vec<_> = (0..30)
        .map(|i| {
            store
                .limit(&format!("limit-{i}"), Limit::per_minute(5))
                .unwrap()
        })
        .collect();
    let last = store.limit("last", Limit::per_minute(1)).unwrap();
    let now = clock.now();
    let asks = || {
        limits
            .iter()
            .map(|limit| Ask::new(limit, "k"))
            .chain([Ask::new(&last, "k")])
            .collect::<Vec<_>>()
    };
    let verdict = store.decide_now(&asks(), now);
    assert!(verdict.is_allowed());
    assert_eq!(verdict.results().count(), 31);
    let denied = store.decide_now(&asks(), now);
    assert_eq!((denied.is_allowed(), denied.binding()), (false, Some(30)));
    assert!(
        limits
            .iter()
            .all(|limit| left(&store, limit, "k", now) == 4)
    );
    store.settle_now(verdict, &[0; 31], now);
    assert!(
        limits
            .iter()
            .all(|limit| left(&store, limit, "k", now) == 5)
    );
    // A call without asks is allowed.
    let nothing = store.decide_now(&[], now);
    assert_eq!(
        (
            nothing.is_allowed(),
            nothing.binding(),
            nothing.results().count()
        ),
        (true, None, 0)
    );
}

#[test]
fn a_limit_can_change_while_it_is_in_use() {
    let (store, clock) = store();
    let limit = store.limit("a", Limit::per_second(1).burst(10)).unwrap();
    assert!(
        store
            .decide_now(&[Ask::new(&limit, "k").cost(6)], clock.now())
            .is_allowed()
    );
    store.set_limit(&limit, Limit::per_second(2).burst(20));
    assert_eq!(limit.limit(), Some(Limit::per_second(2).burst(20)));
    assert_eq!(
        left(&store, &limit, "k", clock.now()),
        4,
        "keep mints nothing"
    );
    clock.advance(SECOND);
    assert_eq!(left(&store, &limit, "k", clock.now()), 6);
}

#[test]
fn an_unlimited_ask_is_allowed_and_deny_all_denies_everything() {
    let (store, clock) = store();
    let (free, none) = (
        store.limit("free", Limit::unlimited()).unwrap(),
        store.limit("none", Limit::deny_all()).unwrap(),
    );
    let now = clock.now();
    assert!(
        store
            .decide_now(&[Ask::new(&free, "k").cost(u64::MAX)], now)
            .is_allowed()
    );
    assert!(
        store
            .decide_now(&[Ask::new(&free, "k"), Ask::new(&none, "k")], now)
            .is_never()
    );
    assert!(
        store
            .decide_now(
                &[
                    Ask::new(&free, "k"),
                    Ask::new(&none, "k").mode(Mode::Shadow)
                ],
                now
            )
            .is_allowed()
    );
}

#[test]
fn keys_are_bytes() {
    let (store, clock) = store();
    let limit = store.limit("a", Limit::per_minute(1)).unwrap();
    let now = clock.now();
    assert!(store.decide_now(&[Ask::new(&limit, "k")], now).is_allowed());
    assert!(
        !store
            .decide_now(&[Ask::new(&limit, b"k")], now)
            .is_allowed()
    );
    assert!(
        !store
            .decide_now(&[Ask::new(&limit, &String::from("k"))], now)
            .is_allowed()
    );
    assert!(store.decide_now(&[Ask::new(&limit, "")], now).is_allowed());
    assert!(
        store
            .decide_now(&[Ask::new(&limit, &vec![0_u8; 100_000])], now)
            .is_allowed()
    );
}
