//! Overrides, bans and penalties: they last exactly as long as set, hold for one key only, and
//! survive reloads.

use ratekeeper::{Limit, ManualClock, MemoryStore, Store};
use ratekeeper_policy::{
    Attribute, Engine, EngineOptions, Match, Policies, Policy, PolicyLimit, Reason, Subject,
    engine::Ban, engine::KeySelector, engine::OverrideError, engine::SeenValue,
    engine::SharedOverride, fingerprint::Fingerprint, fingerprint::FingerprintSecret,
    policy::Missing, policy::Penalty, policy::Reserve, policy::ReserveClasses,
};
use std::sync::Barrier;
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

fn count_allowed(engine: &TestEngine, subject: &Subject<'_>, many: u32) -> u32 {
    (0..many)
        .filter(|_| engine.decide_now(subject).is_allowed())
        .count() as u32
}

fn by_user(name: &str, many: u64) -> Policy {
    Policy::new(name).key("user").limit(Limit::per_hour(many))
}

fn user(name: &'static str) -> Subject<'static> {
    Subject::new().user(name)
}

/// A store in memory is ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

const NANO: Duration = Duration::from_nanos(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn an_override_ends_exactly_and_holds_for_one_key_of_one_policy() {
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    engine
        .operator()
        .override_limits(
            "a",
            &user("ann"),
            &[Limit::per_hour(50).into()],
            MINUTE,
            None,
        )
        .unwrap();
    let limits = |name| {
        engine
            .peek_now(&user(name).cost(0))
            .limits()
            .map(|limit| limit.limit().capacity())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (limits("ann"), limits("bob")),
        (vec![50, 100], vec![3, 100])
    );
    assert_eq!(
        (
            count_allowed(&engine, &user("bob"), 9),
            count_allowed(&engine, &user("ann"), 9)
        ),
        (3, 9)
    );
    clock.advance(MINUTE - NANO);
    assert_eq!(
        (limits("ann"), engine.operator().overrides().len()),
        (vec![50, 100], 1)
    );
    clock.advance(NANO);
    assert_eq!(
        (limits("ann"), engine.operator().overrides().len()),
        (vec![3, 100], 0)
    );
    assert_eq!(
        count_allowed(&engine, &user("ann"), 9),
        3,
        "its own limits keep their counts"
    );
}

#[test]
fn a_ban_ends_exactly_and_precedes_an_override() {
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    engine
        .operator()
        .override_limits(
            "a",
            &user("ann"),
            &[Limit::per_hour(50).into()],
            2 * MINUTE,
            None,
        )
        .unwrap();
    engine
        .operator()
        .ban("b", &user("ann"), MINUTE, None)
        .unwrap();
    let verdict = engine.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("b"), Some(MINUTE))
    );
    assert!(engine.decide_now(&user("bob")).is_allowed());
    clock.advance(MINUTE - NANO);
    assert_eq!(engine.decide_now(&user("ann")).retry_after(), Some(NANO));
    clock.advance(NANO);
    assert_eq!(count_allowed(&engine, &user("ann"), 9), 9);
}

#[test]
fn the_longer_of_two_bans_is_reported() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 3))
            .policy(by_user("c", 3)),
    );
    engine
        .operator()
        .ban("a", &user("ann"), MINUTE, None)
        .unwrap();
    engine
        .operator()
        .ban("b", &user("ann"), 9 * MINUTE, None)
        .unwrap();
    engine
        .operator()
        .ban("c", &user("ann"), 2 * MINUTE, None)
        .unwrap();
    let verdict = engine.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("b"), Some(9 * MINUTE))
    );
}

#[tokio::test]
async fn explain_reports_when_a_banned_request_is_allowed() {
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(by_user("a", 1))
            .policy(by_user("b", 3)),
    );
    let ann = user("ann");
    assert_eq!(count_allowed(&engine, &ann, 2), 1);
    engine.operator().ban("b", &ann, MINUTE, None).unwrap();
    let explained = engine.explain(&ann).await;
    assert_eq!(
        (
            explained.verdict().policy(),
            explained.verdict().retry_after()
        ),
        (Some("b"), Some(MINUTE))
    );
    let at = explained.allowed_at().unwrap();
    clock.set(at - NANO);
    assert!(engine.decide_now(&ann).is_denied());
    clock.set(at);
    assert!(engine.decide_now(&ann).is_allowed());
    assert_eq!(
        engine.explain(&ann.clone().cost(9)).await.allowed_at(),
        None,
        "its limits never allow it"
    );
}

#[test]
fn overrides_survive_a_reload() {
    let policies = |many| {
        Policies::new()
            .policy(by_user("new", 100))
            .policy(by_user("a", many))
            .policy(by_user("b", 9))
    };
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 9)),
    );
    engine
        .operator()
        .override_limits(
            "a",
            &user("ann"),
            &[Limit::per_hour(5).into()],
            MINUTE,
            None,
        )
        .unwrap();
    engine
        .operator()
        .ban("b", &user("bob"), MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &user("ann"), 2), 2);
    engine.set_policies(policies(4)).unwrap();
    assert_eq!(
        (
            count_allowed(&engine, &user("ann"), 9),
            count_allowed(&engine, &user("bob"), 9)
        ),
        (3, 0)
    );
    // It is gone with its policy, and back with it.
    engine
        .set_policies(Policies::new().policy(by_user("new", 100)))
        .unwrap();
    assert!(engine.decide_now(&user("bob")).is_allowed());
    engine.set_policies(policies(3)).unwrap();
    assert!(matches!(
        engine.decide_now(&user("bob")).reason(),
        Reason::Ban(Ban::Operator(_))
    ));
    clock.advance(MINUTE);
    assert!(engine.decide_now(&user("bob")).is_allowed());
}

/// The bytes are equal, but `user=acme` is not `tenant=acme`.
#[test]
fn a_policy_with_another_key_has_no_old_bans() {
    let by =
        |name: &str| Policies::new().policy(Policy::new("a").key(name).limit(Limit::per_hour(3)));
    let (engine, _) = new_engine(by("user"));
    engine
        .operator()
        .ban("a", &user("acme"), MINUTE, None)
        .unwrap();
    engine
        .operator()
        .override_limits(
            "a",
            &user("ann"),
            &[Limit::per_hour(50).into()],
            MINUTE,
            None,
        )
        .unwrap();
    engine.set_policies(by("tenant")).unwrap();
    assert!(
        engine
            .decide_now(&Subject::new().tenant("acme"))
            .is_allowed()
    );
    assert_eq!(count_allowed(&engine, &Subject::new().tenant("ann"), 9), 3);
    engine.set_policies(by("user")).unwrap();
    assert!(engine.decide_now(&user("acme")).is_denied());
}

/// Duplicate limits are merged, so that a request is charged once.
#[test]
fn duplicate_replacement_limits_are_charged_once() {
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 3)));
    let five: PolicyLimit = Limit::per_hour(5).into();
    engine
        .operator()
        .override_limits("a", &user("ann"), &[five, five], MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &user("ann"), 9), 5);
    let (own, _) = new_engine(Policies::new().policy(Policy::new("a").limit(five).limit(five)));
    assert_eq!(count_allowed(&own, &Subject::new(), 9), 5);
}

#[tokio::test]
async fn resetting_a_key_resets_replacement_limits() {
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 3)));
    let ann = user("ann");
    engine
        .operator()
        .override_limits("a", &ann, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &ann, 9), 5);
    engine.operator().reset_key("a", &ann).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 9), 3);
    engine
        .operator()
        .override_limits("a", &ann, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(
        count_allowed(&engine, &ann, 9),
        5,
        "replacement limits start full"
    );
}

#[tokio::test]
async fn a_grant_is_for_one_key_and_capped_at_the_burst() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(by_user("a", 5))
            .policy(Policy::new("all").limit(Limit::per_hour(100))),
    );
    let ann = user("ann");
    let bob = user("bob");
    assert_eq!(
        (
            count_allowed(&engine, &ann, 9),
            count_allowed(&engine, &bob, 9)
        ),
        (5, 5)
    );
    engine.operator().grant("a", &ann, 2).await.unwrap();
    assert_eq!(
        (
            count_allowed(&engine, &ann, 9),
            count_allowed(&engine, &bob, 9)
        ),
        (2, 0)
    );
    engine.operator().grant("a", &ann, u64::MAX).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 99), 5);
    engine.operator().grant("a", &user("new"), 7).await.unwrap();
    assert_eq!(count_allowed(&engine, &user("new"), 99), 5);
}

#[tokio::test]
async fn reset_key_lifts_bans_and_penalties_of_one_key() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 1).penalty(penalty)));
    let ann = user("ann");
    let bob = user("bob");
    for caller in [&ann, &bob] {
        assert_eq!(count_allowed(&engine, caller, 3), 1);
        assert!(matches!(
            engine.decide_now(caller).reason(),
            Reason::Ban(Ban::Penalty)
        ));
    }
    engine.operator().ban("a", &ann, MINUTE, None).unwrap();
    engine.operator().reset_key("a", &ann).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 2), 1);
    // The denials are reset too: one is not enough for a ban.
    assert!(matches!(engine.peek_now(&ann).reason(), Reason::Limits));
    assert!(matches!(
        engine.decide_now(&bob).reason(),
        Reason::Ban(Ban::Penalty)
    ));
    assert_eq!(engine.stats().policies().await[0].bans, 2);
}

#[tokio::test]
async fn reset_limits_ends_penalties_and_keeps_overrides() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 1).penalty(penalty)));
    let ann = user("ann");
    let bob = user("bob");
    let eve = user("eve");
    assert_eq!(count_allowed(&engine, &ann, 3), 1);
    assert!(matches!(
        engine.decide_now(&ann).reason(),
        Reason::Ban(Ban::Penalty)
    ));
    engine.operator().reset_limits("a", &ann).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 2), 1);

    engine.operator().ban("a", &bob, MINUTE, None).unwrap();
    engine.operator().reset_limits("a", &bob).await.unwrap();
    assert!(matches!(
        engine.decide_now(&bob).reason(),
        Reason::Ban(Ban::Operator(_))
    ));

    engine
        .operator()
        .override_limits("a", &eve, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &eve, 5), 5);
    engine.operator().reset_limits("a", &eve).await.unwrap();
    assert_eq!(
        count_allowed(&engine, &eve, 5),
        5,
        "the replacement limits are full again and in force"
    );
}

#[tokio::test]
async fn concurrent_denials_make_one_ban() {
    const THREADS: u32 = 6;
    let penalty = Penalty {
        denials: 50,
        within: MINUTE,
        ban: MINUTE,
    };
    for round in 0..20 {
        let (engine, clock) = new_engine(Policies::new().policy(by_user("a", 1).penalty(penalty)));
        let barrier = Barrier::new(THREADS as usize);
        let denied: u32 = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                // Denials before the ban.
                (0..40)
                    .map(|_| engine.decide_now(&user("ann")))
                    .filter(|verdict| {
                        verdict.is_denied() && matches!(verdict.reason(), Reason::Limits)
                    })
                    .count() as u32
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        // A request that was denied while the ban was made was not yet banned.
        assert!(
            (50..50 + THREADS).contains(&denied),
            "{denied} in round {round}"
        );
        assert_eq!(engine.stats().policies().await[0].bans, 1);
        assert_eq!(
            engine
                .peek_now(&user("ann"))
                .retry_after()
                .map(|after| after > MINUTE),
            Some(true)
        );
        clock.advance(MINUTE);
        assert!(matches!(
            engine.peek_now(&user("ann")).reason(),
            Reason::Limits
        ));
    }
}

#[test]
fn penalties_that_last_too_long_are_rejected() {
    let with = |within, ban| {
        Policies::new().policy(by_user("a", 1).penalty(Penalty {
            denials: 2,
            within,
            ban,
        }))
    };
    let year = Duration::from_secs(366 * 86_400);
    let store = || MemoryStore::builder().clock(ManualClock::new()).build();
    for (within, ban) in [
        (MINUTE, Duration::MAX),
        (Duration::MAX, MINUTE),
        (MINUTE, year + NANO),
    ] {
        assert!(
            Engine::new(store(), with(within, ban)).is_err(),
            "{within:?} {ban:?}"
        );
    }
    let (engine, clock) = new_engine(with(year, year));
    assert_eq!(count_allowed(&engine, &user("ann"), 4), 1);
    assert_eq!(engine.peek_now(&user("ann")).retry_after(), Some(year));
    clock.advance(year - NANO);
    assert!(engine.decide_now(&user("ann")).is_denied());
    clock.advance(NANO);
    assert!(engine.decide_now(&user("ann")).is_allowed());
}

/// The override uses the reserve classes in force, not those at the time it was made.
#[test]
fn an_override_uses_the_reserve_classes_in_force() {
    let with = |class| Policies::new().policy(by_user("a", 10).reserves(class));
    let one = ReserveClasses::by("priority").reserve("low", Reserve::Units(5));
    let two = ReserveClasses::by("priority")
        .reserve("high", Reserve::Units(1))
        .reserve("low", Reserve::Units(5));
    let (engine, _) = new_engine(with(one));
    engine
        .operator()
        .override_limits(
            "a",
            &user("ann"),
            &[Limit::per_hour(20).into()],
            MINUTE,
            None,
        )
        .unwrap();
    engine.set_policies(with(two)).unwrap();
    assert_eq!(
        count_allowed(&engine, &user("ann").with("priority", "low"), 99),
        15
    );
    assert_eq!(
        count_allowed(&engine, &user("ann").with("priority", "high"), 99),
        4
    );
}

#[test]
fn the_number_of_overrides_is_bounded() {
    let (engine, clock) = new_engine(
        Policies::new().policy(
            Policy::new("a")
                .matching(Match::new())
                .key("user")
                .limit(Limit::per_hour(1)),
        ),
    );
    let names: Vec<String> = (0..301).map(|n| format!("u{n}")).collect();
    for name in &names {
        engine
            .operator()
            .ban("a", &Subject::new().user(name), MINUTE, None)
            .unwrap();
    }
    assert_eq!(engine.operator().overrides().len(), 301);
    assert_eq!(
        engine
            .operator()
            .ban("a", &Subject::new().user("u1"), 367 * 1_440 * MINUTE, None)
            .unwrap_err(),
        OverrideError::Duration
    );
    clock.advance(MINUTE);
    engine
        .operator()
        .ban("a", &user("x"), MINUTE, None)
        .unwrap();
    assert_eq!(engine.operator().overrides().len(), 1);
}

/// The fingerprint secret of the fleet.
fn fleet_secret() -> FingerprintSecret {
    FingerprintSecret::new(&[7; 32])
}

/// An engine with the secret of the fleet.
fn engine_in_fleet(policies: Policies) -> (TestEngine, ManualClock) {
    let (engine, clock) = new_engine(policies);
    engine
        .operator()
        .share_overrides(fleet_secret(), &[])
        .unwrap();
    (engine, clock)
}

fn shared_override(
    engine: &TestEngine,
    policy: &str,
    who: &Subject<'_>,
    limits: Option<Vec<PolicyLimit>>,
    lasts: Duration,
) -> SharedOverride {
    let key = engine.operator().key_of(policy, who).unwrap();
    SharedOverride {
        name: key.name,
        policy: key.policy,
        by: key.by,
        fingerprint: key.fingerprint,
        limits,
        until: engine.store().now() + lasts,
        reason: Some("because".to_owned()),
        node: Some("web-1".to_owned()),
        words: None,
    }
}

#[test]
fn shared_overrides_hold_until_they_are_withdrawn() {
    let (engine, clock) = engine_in_fleet(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    let limits = Some(vec![Limit::per_hour(7).into(), Limit::per_hour(7).into()]);
    let all = [
        shared_override(&engine, "a", &user("ann"), None, MINUTE),
        shared_override(&engine, "a", &user("bob"), limits, 2 * MINUTE),
    ];
    engine
        .operator()
        .share_overrides(fleet_secret(), &all)
        .unwrap();
    assert_eq!(
        (
            count_allowed(&engine, &user("ann"), 9),
            count_allowed(&engine, &user("bob"), 9),
            count_allowed(&engine, &user("eve"), 9)
        ),
        (0, 7, 3)
    );
    let verdict = engine.decide_now(&user("ann"));
    let Reason::Ban(Ban::Operator(ban)) = verdict.reason() else {
        panic!("{:?}", verdict.reason())
    };
    assert_eq!(
        (ban.reason(), ban.node(), ban.until()),
        (Some("because"), Some("web-1"), all[0].until)
    );
    // It is shown by its fingerprint, as on all nodes.
    assert_eq!(
        (ban.key(), ban.fingerprint()),
        (&*all[0].fingerprint, &*all[0].fingerprint)
    );
    assert_eq!(
        engine
            .operator()
            .key_of("a", &user("ann"))
            .unwrap()
            .fingerprint,
        ban.fingerprint()
    );
    assert_eq!(engine.operator().overrides().len(), 2);
    clock.advance(MINUTE - NANO);
    assert!(engine.decide_now(&user("ann")).is_denied());
    clock.advance(NANO);
    assert_eq!(
        (
            count_allowed(&engine, &user("ann"), 9),
            engine.operator().overrides().len()
        ),
        (3, 1)
    );
    engine
        .operator()
        .share_overrides(fleet_secret(), &[])
        .unwrap();
    assert_eq!(
        (
            count_allowed(&engine, &user("bob"), 9),
            engine.operator().overrides().len()
        ),
        (3, 0)
    );
}

#[test]
fn local_and_shared_overrides_combine() {
    let (engine, _) = engine_in_fleet(Policies::new().policy(by_user("a", 3)));
    engine
        .operator()
        .ban("a", &user("ann"), MINUTE, None)
        .unwrap();
    let shorter = shared_override(&engine, "a", &user("ann"), None, MINUTE / 2);
    engine
        .operator()
        .share_overrides(fleet_secret(), &[shorter])
        .unwrap();
    assert_eq!(
        engine.decide_now(&user("ann")).retry_after(),
        Some(MINUTE),
        "the longer ban"
    );
    let longer = shared_override(&engine, "a", &user("ann"), None, 2 * MINUTE);
    engine
        .operator()
        .share_overrides(fleet_secret(), &[longer])
        .unwrap();
    assert_eq!(
        engine.decide_now(&user("ann")).retry_after(),
        Some(2 * MINUTE)
    );
    assert_eq!(engine.operator().lift("a", &user("ann")), Ok(true));
    assert_eq!(engine.operator().lift("a", &user("ann")), Ok(false));
    assert!(
        engine.decide_now(&user("ann")).is_denied(),
        "the shared ban holds"
    );
    engine
        .operator()
        .share_overrides(fleet_secret(), &[])
        .unwrap();
    assert!(engine.decide_now(&user("ann")).is_allowed());
}

#[test]
fn shared_overrides_of_an_unknown_policy_wait_for_it() {
    let (engine, _) = engine_in_fleet(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 3)),
    );
    let all = [shared_override(&engine, "b", &user("ann"), None, MINUTE)];
    engine
        .set_policies(Policies::new().policy(by_user("a", 3)))
        .unwrap();
    engine
        .operator()
        .share_overrides(fleet_secret(), &all)
        .unwrap();
    assert_eq!(
        (
            count_allowed(&engine, &user("ann"), 1),
            engine.operator().overrides().len()
        ),
        (1, 0)
    );
    // With another key attribute it is another key, even with the same text.
    engine
        .set_policies(Policies::new().policy(Policy::new("b").key("ip").limit(Limit::per_hour(3))))
        .unwrap();
    engine
        .operator()
        .share_overrides(fleet_secret(), &all)
        .unwrap();
    assert_eq!(engine.operator().overrides().len(), 0);
    engine
        .set_policies(Policies::new().policy(by_user("b", 3)))
        .unwrap();
    engine
        .operator()
        .share_overrides(fleet_secret(), &all)
        .unwrap();
    assert!(engine.decide_now(&user("ann")).is_denied());
}

#[test]
fn an_override_is_validated_before_it_is_set() {
    let (engine, _) = engine_in_fleet(Policies::new().policy(by_user("a", 3)));
    let check = |policy: &str, who: &Subject<'_>, limits: Option<&[PolicyLimit]>, lasts| {
        engine
            .operator()
            .check_override(policy, who, limits, lasts)
            .map(|key| key.words)
    };
    assert_eq!(
        check("a", &user("ann"), None, MINUTE),
        Ok("user=ann".to_owned())
    );
    assert_eq!(
        check("c", &user("ann"), None, MINUTE),
        Err(OverrideError::NoPolicy)
    );
    assert_eq!(
        check("a", &Subject::new(), None, MINUTE),
        Err(OverrideError::NoKey("user".into()))
    );
    assert_eq!(
        check("a", &user("ann"), Some(&[]), MINUTE),
        Err(OverrideError::NoLimits)
    );
    assert_eq!(
        check("a", &user("ann"), None, Duration::ZERO),
        Err(OverrideError::Duration)
    );
    assert!(engine.operator().overrides().is_empty());
}

fn fingerprint_of(
    engine: &TestEngine,
    attribute: &str,
    subject: &Subject<'_>,
) -> (Attribute, Fingerprint) {
    let key = engine.operator().key_of("a", subject).unwrap();
    let shown = key
        .fingerprint
        .split(' ')
        .find_map(|part| part.strip_prefix(&format!("{attribute}=")))
        .unwrap()
        .parse();
    (Attribute::named(attribute), shown.unwrap())
}

#[test]
fn a_key_is_banned_lifted_and_overridden_by_its_fingerprint() {
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    let nobody = Subject::new();
    let ann = [fingerprint_of(&engine, "user", &user("ann"))];
    let by_fingerprint = KeySelector::new(&nobody, &ann);
    let ban = engine
        .operator()
        .ban("a", by_fingerprint, MINUTE, None)
        .unwrap();
    let verdict = engine.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("a"), Some(MINUTE))
    );
    assert!(engine.decide_now(&user("bob")).is_allowed());
    // It is the same entry as one set by the value.
    assert_eq!(
        ban.fingerprint(),
        engine
            .operator()
            .key_of("a", &user("ann"))
            .unwrap()
            .fingerprint
    );
    engine
        .operator()
        .ban("a", &user("ann"), 2 * MINUTE, None)
        .unwrap();
    assert_eq!(engine.operator().overrides().len(), 1);
    assert_eq!(
        (
            engine.operator().lift("a", by_fingerprint),
            engine.operator().lift("a", &user("ann"))
        ),
        (Ok(true), Ok(false))
    );
    engine
        .operator()
        .override_limits(
            "a",
            by_fingerprint,
            &[Limit::per_hour(50).into()],
            MINUTE,
            None,
        )
        .unwrap();
    assert_eq!(count_allowed(&engine, &user("ann"), 60), 50);
    assert_eq!(engine.operator().lift("a", &user("ann")), Ok(true));
    engine
        .operator()
        .ban("a", by_fingerprint, MINUTE, None)
        .unwrap();
    clock.advance(MINUTE);
    assert!(
        engine.decide_now(&user("ann")).is_allowed(),
        "it expires like any ban"
    );
}

/// Keys in the lists that were counted by a substitute for a missing attribute can be selected.
#[test]
fn a_fingerprint_of_a_substitute_names_the_key_that_it_was_shown_for() {
    let by = |missing| Policies::new().policy(by_user("a", 3).missing(missing));
    let address = "203.0.113.7".parse().unwrap();
    let (with, without) = (Subject::new().ip(address), Subject::new());
    for (missing, subject, seen) in [
        (Missing::Address, &with, SeenValue::Address(address)),
        (Missing::Address, &without, SeenValue::Missing),
        (Missing::Shared, &with, SeenValue::Missing),
    ] {
        let (engine, _) = new_engine(by(missing));
        assert_eq!(count_allowed(&engine, subject, 9), 3);
        let shown = engine.stats().most_active(1)[0]
            .fingerprint
            .clone()
            .unwrap();
        let fingerprint = shown.strip_prefix("user=").unwrap().parse().unwrap();
        let named = [(Attribute::User, fingerprint)];
        let (nobody, other) = (Subject::new(), user("ann"));
        let key = KeySelector::new(&nobody, &named);
        assert_eq!(
            engine.operator().value_seen(&Attribute::User, fingerprint),
            Some(seen),
            "{missing:?}"
        );
        assert_eq!(now(engine.operator().reset_key("a", key)), Ok(()));
        assert_eq!(count_allowed(&engine, subject, 9), 3);
        assert_eq!(now(engine.operator().grant("a", key, 2)), Ok(()));
        assert_eq!(count_allowed(&engine, subject, 9), 2);
        engine
            .operator()
            .override_limits("a", key, &[Limit::per_hour(5).into()], MINUTE, None)
            .unwrap();
        assert_eq!(count_allowed(&engine, subject, 9), 5);
        engine.operator().ban("a", key, MINUTE, None).unwrap();
        assert_eq!(engine.operator().lift("a", key), Ok(true));
        assert_eq!(now(engine.operator().reset_key("a", key)), Ok(()));
        engine.operator().ban("a", key, MINUTE, None).unwrap();
        assert_eq!(count_allowed(&engine, subject, 9), 0);
        assert_eq!(
            count_allowed(&engine, &other, 9),
            3,
            "nobody else is banned"
        );
        assert_eq!(engine.operator().overrides()[0].fingerprint(), shown);
    }
}

#[test]
fn counters_are_found_by_the_fingerprint_of_a_seen_key() {
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 3)));
    let nobody = Subject::new();
    let ann = [fingerprint_of(&engine, "user", &user("ann"))];
    let by_fingerprint = KeySelector::new(&nobody, &ann);
    // Not yet.
    let not_seen = OverrideError::NotSeen(format!("user={}", ann[0].1));
    assert!(
        !engine
            .operator()
            .key_of("a", by_fingerprint)
            .unwrap()
            .is_seen
    );
    assert_eq!(
        now(engine.operator().grant("a", by_fingerprint, 1)),
        Err(not_seen.clone())
    );
    assert_eq!(
        now(engine.operator().reset_key("a", by_fingerprint)),
        Err(not_seen.clone())
    );
    assert_eq!(engine.operator().value_seen(&ann[0].0, ann[0].1), None);
    assert_eq!(count_allowed(&engine, &user("ann"), 9), 3);
    assert_eq!(now(engine.operator().grant("a", by_fingerprint, 1)), Ok(()));
    assert_eq!(count_allowed(&engine, &user("ann"), 9), 1);
    engine
        .operator()
        .ban("a", by_fingerprint, MINUTE, None)
        .unwrap();
    assert_eq!(
        now(engine.operator().reset_key("a", by_fingerprint)),
        Ok(())
    );
    assert_eq!(
        (
            count_allowed(&engine, &user("ann"), 9),
            engine.operator().overrides().len()
        ),
        (3, 0)
    );
    // Now the value is known.
    let key = engine.operator().key_of("a", by_fingerprint).unwrap();
    assert_eq!((key.words.as_str(), key.is_seen), ("user=ann", true));
    assert_eq!(
        engine.operator().value_seen(&ann[0].0, ann[0].1),
        Some(SeenValue::Value(b"ann".to_vec()))
    );
    // A key that was given by value is known as long as it has an override.
    engine
        .operator()
        .ban("a", &user("eve"), MINUTE, None)
        .unwrap();
    let eve = [fingerprint_of(&engine, "user", &user("eve"))];
    assert_eq!(
        now(engine
            .operator()
            .reset_key("a", KeySelector::new(&nobody, &eve))),
        Ok(())
    );
    assert_eq!(
        engine.operator().value_seen(&eve[0].0, eve[0].1),
        None,
        "its override has ended"
    );
    engine
        .operator()
        .ban("a", &user("eve"), MINUTE, None)
        .unwrap();
    assert_eq!(
        engine.operator().value_seen(&eve[0].0, eve[0].1),
        Some(SeenValue::Value(b"eve".to_vec())),
        "a key in the list of overrides"
    );
    // With another key attribute it is another key.
    engine
        .set_policies(
            Policies::new().policy(Policy::new("a").key("tenant").limit(Limit::per_hour(3))),
        )
        .unwrap();
    assert_eq!(
        (
            engine.stats().most_active(9),
            engine.operator().value_seen(&ann[0].0, ann[0].1)
        ),
        (vec![], None)
    );
}

#[test]
fn a_key_of_several_parts_may_mix_values_and_fingerprints() {
    let both = || {
        Subject::new()
            .ip("203.0.113.7".parse().unwrap())
            .api_key("s3cret")
    };
    let other = Subject::new()
        .ip("203.0.113.8".parse().unwrap())
        .api_key("s3cret");
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("a")
                .key("ip")
                .key("api_key")
                .limit(Limit::per_hour(3)),
        ),
    );
    let api_key = [fingerprint_of(&engine, "api_key", &both())];
    let address = Subject::new().ip("203.0.113.7".parse().unwrap());
    let ban = engine
        .operator()
        .ban("a", KeySelector::new(&address, &api_key), MINUTE, None)
        .unwrap();
    assert_eq!(
        ban.key(),
        format!("ip=203.0.113.7 api_key={}", api_key[0].1)
    );
    assert_eq!(
        (
            count_allowed(&engine, &both(), 1),
            count_allowed(&engine, &other, 1)
        ),
        (0, 1)
    );
    // One part alone is not a key.
    let nobody = Subject::new();
    let lacking = engine
        .operator()
        .lift("a", KeySelector::new(&nobody, &api_key))
        .unwrap_err();
    assert_eq!(lacking, OverrideError::NoKey(Attribute::Ip));
    let address = [fingerprint_of(&engine, "ip", &both()), api_key[0].clone()];
    assert_eq!(
        engine
            .operator()
            .lift("a", KeySelector::new(&nobody, &address)),
        Ok(true)
    );
    assert_eq!(count_allowed(&engine, &both(), 1), 1);
}

#[test]
fn fingerprints_depend_only_on_the_secret() {
    let policies =
        || Policies::new().policy(Policy::new("a").key("api_key").limit(Limit::per_hour(1)));
    let store = || {
        MemoryStore::builder()
            .max_keys(100)
            .clock(ManualClock::new())
            .build()
    };
    let with = |secret: Option<u8>| {
        let mut options = EngineOptions::default();
        options.fingerprints = secret.map(|secret| FingerprintSecret::new(&[secret; 32]));
        let engine = Engine::with_options(store(), policies(), options).unwrap();
        let caller = Subject::new().api_key("s3cret");
        assert_eq!(count_allowed(&engine, &caller, 2), 1);
        let key = engine.operator().key_of("a", &caller).unwrap();
        let explained = now(engine.explain(&caller));
        let standing = explained.traces()[0].outcome.as_ref().unwrap();
        let ban = engine.operator().ban("a", &caller, MINUTE, None).unwrap();
        let denied = engine.stats().most_denied(1).remove(0).fingerprint.unwrap();
        let shown = [
            &*key.words,
            &*standing.key,
            &*standing.fingerprint,
            ban.key(),
            ban.fingerprint(),
            &*engine.stats().most_active(1)[0].key,
            &*denied,
        ];
        for one in shown {
            assert_eq!(one, key.fingerprint);
        }
        assert!(
            key.fingerprint.starts_with("api_key=#"),
            "{}",
            key.fingerprint
        );
        key.fingerprint
    };
    assert_eq!(with(Some(7)), with(Some(7)));
    assert_ne!(with(Some(7)), with(Some(8)));
    assert_ne!(with(None), with(None));
}

#[test]
fn overrides_survive_a_change_of_the_secret() {
    let (engine, _) = new_engine(Policies::new().policy(by_user("a", 3)));
    engine
        .operator()
        .ban("a", &user("ann"), MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &user("bob"), 1), 1);
    let before = engine.operator().overrides()[0].fingerprint().to_owned();
    engine
        .operator()
        .share_overrides(fleet_secret(), &[])
        .unwrap();
    assert!(engine.decide_now(&user("ann")).is_denied());
    let after = engine.operator().overrides()[0].fingerprint().to_owned();
    assert_ne!(before, after);
    assert_eq!(
        after,
        engine
            .operator()
            .key_of("a", &user("ann"))
            .unwrap()
            .fingerprint
    );
    assert_eq!(
        engine.stats().most_active(1)[0].key,
        engine
            .operator()
            .key_of("a", &user("bob"))
            .unwrap()
            .fingerprint
    );
    assert_eq!(engine.operator().lift("a", &user("ann")), Ok(true));
}
