//! What an operator or a penalty does to one key: exactly as long as it lasts, to nobody else, over
//! reloads too.

use ratekeeper::{Limit, ManualClock, MemoryStore, Store};
use ratekeeper_policy::{
    Attribute, Engine, EngineOptions, Match, Policies, Policy, PolicyLimit, Reason, Subject,
    engine::Ban, engine::KeySelector, engine::OverrideError, engine::SeenValue,
    engine::SharedOverride, fingerprint::Fingerprint, fingerprint::FingerprintSecret,
    policy::Missing, policy::Penalty, policy::Reserve, policy::ReserveClasses,
};
use std::sync::Barrier;
use std::time::Duration;

type Gate = Engine<MemoryStore<ManualClock>>;

fn gate(policies: Policies) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

fn passes(gate: &Gate, subject: &Subject<'_>, many: u32) -> u32 {
    (0..many)
        .filter(|_| gate.decide_now(subject).is_allowed())
        .count() as u32
}

fn by_user(name: &str, many: u64) -> Policy {
    Policy::new(name).key("user").limit(Limit::per_hour(many))
}

fn user(name: &'static str) -> Subject<'static> {
    Subject::new().user(name)
}

/// On a store in memory nothing has to be waited for.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

const NANO: Duration = Duration::from_nanos(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn an_override_ends_exactly_and_is_of_one_key_and_one_policy() {
    let (gate, clock) = gate(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    gate.override_limits(
        "a",
        &user("ann"),
        &[Limit::per_hour(50).into()],
        MINUTE,
        None,
    )
    .unwrap();
    let limits = |name| {
        gate.peek_now(&user(name), 0)
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
            passes(&gate, &user("bob"), 9),
            passes(&gate, &user("ann"), 9)
        ),
        (3, 9)
    );
    clock.advance(MINUTE - NANO);
    assert_eq!((limits("ann"), gate.overrides().len()), (vec![50, 100], 1));
    clock.advance(NANO);
    assert_eq!((limits("ann"), gate.overrides().len()), (vec![3, 100], 0));
    assert_eq!(
        passes(&gate, &user("ann"), 9),
        3,
        "what was left of its own is there again"
    );
}

#[test]
fn a_ban_ends_exactly_and_goes_before_an_override() {
    let (gate, clock) = gate(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    gate.override_limits(
        "a",
        &user("ann"),
        &[Limit::per_hour(50).into()],
        2 * MINUTE,
        None,
    )
    .unwrap();
    gate.ban("b", &user("ann"), MINUTE, None).unwrap();
    let verdict = gate.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("b"), Some(MINUTE))
    );
    assert!(gate.decide_now(&user("bob")).is_allowed());
    clock.advance(MINUTE - NANO);
    assert_eq!(gate.decide_now(&user("ann")).retry_after(), Some(NANO));
    clock.advance(NANO);
    assert_eq!(passes(&gate, &user("ann"), 9), 9);
}

#[test]
fn of_two_bans_the_longer_is_told() {
    let (gate, _) = gate(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 3))
            .policy(by_user("c", 3)),
    );
    gate.ban("a", &user("ann"), MINUTE, None).unwrap();
    gate.ban("b", &user("ann"), 9 * MINUTE, None).unwrap();
    gate.ban("c", &user("ann"), 2 * MINUTE, None).unwrap();
    let verdict = gate.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("b"), Some(9 * MINUTE))
    );
}

#[tokio::test]
async fn what_is_explained_of_a_ban_is_when_the_request_passes() {
    let (gate, clock) = gate(
        Policies::new()
            .policy(by_user("a", 1))
            .policy(by_user("b", 3)),
    );
    let ann = user("ann");
    assert_eq!(passes(&gate, &ann, 2), 1);
    gate.ban("b", &ann, MINUTE, None).unwrap();
    let explained = gate.explain(&ann, 1).await;
    assert_eq!(
        (
            explained.verdict().policy(),
            explained.verdict().retry_after()
        ),
        (Some("b"), Some(MINUTE))
    );
    let at = explained.allowed_at().unwrap();
    clock.set(at - NANO);
    assert!(gate.decide_now(&ann).is_denied());
    clock.set(at);
    assert!(gate.decide_now(&ann).is_allowed());
    assert_eq!(
        gate.explain(&ann, 9).await.allowed_at(),
        None,
        "its limits never admit it"
    );
}

#[test]
fn they_survive_a_reload() {
    let policies = |many| {
        Policies::new()
            .policy(by_user("new", 100))
            .policy(by_user("a", many))
            .policy(by_user("b", 9))
    };
    let (gate, clock) = gate(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 9)),
    );
    gate.override_limits(
        "a",
        &user("ann"),
        &[Limit::per_hour(5).into()],
        MINUTE,
        None,
    )
    .unwrap();
    gate.ban("b", &user("bob"), MINUTE, None).unwrap();
    assert_eq!(passes(&gate, &user("ann"), 2), 2);
    gate.set_policies(policies(4)).unwrap();
    assert_eq!(
        (
            passes(&gate, &user("ann"), 9),
            passes(&gate, &user("bob"), 9)
        ),
        (3, 0)
    );
    // Gone with its policy, and back with it.
    gate.set_policies(Policies::new().policy(by_user("new", 100)))
        .unwrap();
    assert!(gate.decide_now(&user("bob")).is_allowed());
    gate.set_policies(policies(3)).unwrap();
    assert!(matches!(
        gate.decide_now(&user("bob")).reason(),
        Reason::Ban(Ban::Operator(_))
    ));
    clock.advance(MINUTE);
    assert!(gate.decide_now(&user("bob")).is_allowed());
}

/// The bytes are the same, the key is not: `user=acme` is not `tenant=acme`.
#[test]
fn a_policy_that_counts_by_something_else_has_no_bans_of_before() {
    let by =
        |name: &str| Policies::new().policy(Policy::new("a").key(name).limit(Limit::per_hour(3)));
    let (gate, _) = gate(by("user"));
    gate.ban("a", &user("acme"), MINUTE, None).unwrap();
    gate.override_limits(
        "a",
        &user("ann"),
        &[Limit::per_hour(50).into()],
        MINUTE,
        None,
    )
    .unwrap();
    gate.set_policies(by("tenant")).unwrap();
    assert!(gate.decide_now(&Subject::new().tenant("acme")).is_allowed());
    assert_eq!(passes(&gate, &Subject::new().tenant("ann"), 9), 3);
    gate.set_policies(by("user")).unwrap();
    assert!(gate.decide_now(&user("acme")).is_denied());
}

/// Two that are the same are one: nobody pays twice.
#[test]
fn limits_that_stand_in_twice_are_charged_once() {
    let (gate, _) = gate(Policies::new().policy(by_user("a", 3)));
    let five: PolicyLimit = Limit::per_hour(5).into();
    gate.override_limits("a", &user("ann"), &[five, five], MINUTE, None)
        .unwrap();
    assert_eq!(passes(&gate, &user("ann"), 9), 5);
    let (own, _) = self::gate(Policies::new().policy(Policy::new("a").limit(five).limit(five)));
    assert_eq!(passes(&own, &Subject::new(), 9), 5);
}

#[tokio::test]
async fn freeing_a_key_frees_what_stood_in_as_well() {
    let (gate, _) = gate(Policies::new().policy(by_user("a", 3)));
    let ann = user("ann");
    gate.override_limits("a", &ann, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(passes(&gate, &ann, 9), 5);
    gate.reset_key("a", &ann).await.unwrap();
    assert_eq!(passes(&gate, &ann, 9), 3);
    gate.override_limits("a", &ann, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(passes(&gate, &ann, 9), 5, "limits that stand in start full");
}

#[tokio::test]
async fn a_grant_is_of_one_key_and_never_above_the_burst() {
    let (gate, _) = gate(
        Policies::new()
            .policy(by_user("a", 5))
            .policy(Policy::new("all").limit(Limit::per_hour(100))),
    );
    let (ann, bob) = (user("ann"), user("bob"));
    assert_eq!((passes(&gate, &ann, 9), passes(&gate, &bob, 9)), (5, 5));
    gate.grant("a", &ann, 2).await.unwrap();
    assert_eq!((passes(&gate, &ann, 9), passes(&gate, &bob, 9)), (2, 0));
    gate.grant("a", &ann, u64::MAX).await.unwrap();
    assert_eq!(passes(&gate, &ann, 99), 5);
    gate.grant("a", &user("new"), 7).await.unwrap();
    assert_eq!(passes(&gate, &user("new"), 99), 5);
}

#[tokio::test]
async fn free_lifts_bans_and_penalties_of_one_key() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (gate, _) = gate(Policies::new().policy(by_user("a", 1).penalty(penalty)));
    let (ann, bob) = (user("ann"), user("bob"));
    for caller in [&ann, &bob] {
        assert_eq!(passes(&gate, caller, 3), 1);
        assert!(matches!(
            gate.decide_now(caller).reason(),
            Reason::Ban(Ban::Penalty)
        ));
    }
    gate.ban("a", &ann, MINUTE, None).unwrap();
    gate.reset_key("a", &ann).await.unwrap();
    assert_eq!(passes(&gate, &ann, 2), 1);
    // The denials are forgotten too: one is not enough for a ban.
    assert!(matches!(gate.peek_now(&ann, 1).reason(), Reason::Limits));
    assert!(matches!(
        gate.decide_now(&bob).reason(),
        Reason::Ban(Ban::Penalty)
    ));
    assert_eq!(gate.policy_stats().await[0].bans, 2);
}

#[tokio::test]
async fn resetting_limits_ends_penalties_and_leaves_what_an_operator_said() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (gate, _) = gate(Policies::new().policy(by_user("a", 1).penalty(penalty)));
    let (ann, bob, eve) = (user("ann"), user("bob"), user("eve"));
    assert_eq!(passes(&gate, &ann, 3), 1);
    assert!(matches!(
        gate.decide_now(&ann).reason(),
        Reason::Ban(Ban::Penalty)
    ));
    gate.reset_limits("a", &ann).await.unwrap();
    assert_eq!(passes(&gate, &ann, 2), 1);

    gate.ban("a", &bob, MINUTE, None).unwrap();
    gate.reset_limits("a", &bob).await.unwrap();
    assert!(matches!(
        gate.decide_now(&bob).reason(),
        Reason::Ban(Ban::Operator(_))
    ));

    gate.override_limits("a", &eve, &[Limit::per_hour(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(passes(&gate, &eve, 5), 5);
    gate.reset_limits("a", &eve).await.unwrap();
    assert_eq!(
        passes(&gate, &eve, 5),
        5,
        "the limits that stand in are full again, and still stand in"
    );
}

#[tokio::test]
async fn threads_that_are_turned_away_together_bring_one_ban() {
    const THREADS: u32 = 6;
    let penalty = Penalty {
        denials: 50,
        within: MINUTE,
        ban: MINUTE,
    };
    for round in 0..20 {
        let (gate, clock) = gate(Policies::new().policy(by_user("a", 1).penalty(penalty)));
        let barrier = Barrier::new(THREADS as usize);
        let denied: u32 = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                // Denials before the ban.
                (0..40)
                    .map(|_| gate.decide_now(&user("ann")))
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
        // Whoever was being turned away while the ban came was not yet banned.
        assert!(
            (50..50 + THREADS).contains(&denied),
            "{denied} in round {round}"
        );
        assert_eq!(gate.policy_stats().await[0].bans, 1);
        assert_eq!(
            gate.peek_now(&user("ann"), 1)
                .retry_after()
                .map(|after| after > MINUTE),
            Some(true)
        );
        clock.advance(MINUTE);
        assert!(matches!(
            gate.peek_now(&user("ann"), 1).reason(),
            Reason::Limits
        ));
    }
}

#[test]
fn penalties_that_would_last_for_ever_are_refused() {
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
    let (gate, clock) = gate(with(year, year));
    assert_eq!(passes(&gate, &user("ann"), 4), 1);
    assert_eq!(gate.peek_now(&user("ann"), 1).retry_after(), Some(year));
    clock.advance(year - NANO);
    assert!(gate.decide_now(&user("ann")).is_denied());
    clock.advance(NANO);
    assert!(gate.decide_now(&user("ann")).is_allowed());
}

/// Classes of a later load are not those that the override was made with.
#[test]
fn an_override_goes_by_the_classes_in_force() {
    let with = |class| Policies::new().policy(by_user("a", 10).reserves(class));
    let one = ReserveClasses::by("priority").reserve("low", Reserve::Units(5));
    let two = ReserveClasses::by("priority")
        .reserve("high", Reserve::Units(1))
        .reserve("low", Reserve::Units(5));
    let (gate, _) = gate(with(one));
    gate.override_limits(
        "a",
        &user("ann"),
        &[Limit::per_hour(20).into()],
        MINUTE,
        None,
    )
    .unwrap();
    gate.set_policies(with(two)).unwrap();
    assert_eq!(passes(&gate, &user("ann").with("priority", "low"), 99), 15);
    assert_eq!(passes(&gate, &user("ann").with("priority", "high"), 99), 4);
}

#[test]
fn as_many_as_are_kept_and_no_more() {
    let (gate, clock) = gate(
        Policies::new().policy(
            Policy::new("a")
                .matching(Match::new())
                .key("user")
                .limit(Limit::per_hour(1)),
        ),
    );
    let names: Vec<String> = (0..301).map(|n| format!("u{n}")).collect();
    for name in &names {
        gate.ban("a", &Subject::new().user(name), MINUTE, None)
            .unwrap();
    }
    assert_eq!(gate.overrides().len(), 301);
    assert_eq!(
        gate.ban("a", &Subject::new().user("u1"), 367 * 1_440 * MINUTE, None)
            .unwrap_err(),
        OverrideError::Duration
    );
    clock.advance(MINUTE);
    gate.ban("a", &user("x"), MINUTE, None).unwrap();
    assert_eq!(gate.overrides().len(), 1);
}

/// The secret of a fleet.
fn shared() -> FingerprintSecret {
    FingerprintSecret::new(&[7; 32])
}

/// Goes by the secret of the fleet.
fn in_fleet(policies: Policies) -> (Gate, ManualClock) {
    let (gate, clock) = gate(policies);
    gate.share_overrides(shared(), &[]).unwrap();
    (gate, clock)
}

fn said(
    gate: &Gate,
    policy: &str,
    who: &Subject<'_>,
    limits: Option<Vec<PolicyLimit>>,
    lasts: Duration,
) -> SharedOverride {
    let key = gate.key_of(policy, who).unwrap();
    SharedOverride {
        name: key.name,
        policy: key.policy,
        by: key.by,
        fingerprint: key.fingerprint,
        limits,
        until: gate.store().now() + lasts,
        reason: Some("because".to_owned()),
        node: Some("web-1".to_owned()),
        words: None,
    }
}

#[test]
fn what_other_nodes_say_holds_as_long_as_they_say_it() {
    let (gate, clock) = in_fleet(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    let limits = Some(vec![Limit::per_hour(7).into(), Limit::per_hour(7).into()]);
    let all = [
        said(&gate, "a", &user("ann"), None, MINUTE),
        said(&gate, "a", &user("bob"), limits, 2 * MINUTE),
    ];
    gate.share_overrides(shared(), &all).unwrap();
    assert_eq!(
        (
            passes(&gate, &user("ann"), 9),
            passes(&gate, &user("bob"), 9),
            passes(&gate, &user("eve"), 9)
        ),
        (0, 7, 3)
    );
    let verdict = gate.decide_now(&user("ann"));
    let Reason::Ban(Ban::Operator(ban)) = verdict.reason() else {
        panic!("{:?}", verdict.reason())
    };
    assert_eq!(
        (ban.reason(), ban.node(), ban.until()),
        (Some("because"), Some("web-1"), all[0].until)
    );
    // It is shown as all nodes show it, which does not tell whose it is.
    assert_eq!(
        (ban.key(), ban.fingerprint()),
        (&*all[0].fingerprint, &*all[0].fingerprint)
    );
    assert_eq!(
        gate.key_of("a", &user("ann")).unwrap().fingerprint,
        ban.fingerprint()
    );
    assert_eq!(gate.overrides().len(), 2);
    clock.advance(MINUTE - NANO);
    assert!(gate.decide_now(&user("ann")).is_denied());
    clock.advance(NANO);
    assert_eq!(
        (passes(&gate, &user("ann"), 9), gate.overrides().len()),
        (3, 1)
    );
    gate.share_overrides(shared(), &[]).unwrap();
    assert_eq!(
        (passes(&gate, &user("bob"), 9), gate.overrides().len()),
        (3, 0)
    );
}

#[test]
fn what_is_said_here_and_elsewhere_goes_together() {
    let (gate, _) = in_fleet(Policies::new().policy(by_user("a", 3)));
    gate.ban("a", &user("ann"), MINUTE, None).unwrap();
    let shorter = said(&gate, "a", &user("ann"), None, MINUTE / 2);
    gate.share_overrides(shared(), &[shorter]).unwrap();
    assert_eq!(
        gate.decide_now(&user("ann")).retry_after(),
        Some(MINUTE),
        "the longer one"
    );
    let longer = said(&gate, "a", &user("ann"), None, 2 * MINUTE);
    gate.share_overrides(shared(), &[longer]).unwrap();
    assert_eq!(
        gate.decide_now(&user("ann")).retry_after(),
        Some(2 * MINUTE)
    );
    assert_eq!(gate.lift("a", &user("ann")), Ok(true));
    assert_eq!(gate.lift("a", &user("ann")), Ok(false));
    assert!(
        gate.decide_now(&user("ann")).is_denied(),
        "the others still say so"
    );
    gate.share_overrides(shared(), &[]).unwrap();
    assert!(gate.decide_now(&user("ann")).is_allowed());
}

#[test]
fn what_is_said_of_a_policy_that_is_not_here_waits_for_it() {
    let (gate, _) = in_fleet(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 3)),
    );
    let all = [said(&gate, "b", &user("ann"), None, MINUTE)];
    gate.set_policies(Policies::new().policy(by_user("a", 3)))
        .unwrap();
    gate.share_overrides(shared(), &all).unwrap();
    assert_eq!(
        (passes(&gate, &user("ann"), 1), gate.overrides().len()),
        (1, 0)
    );
    // By something else it is another key, whatever its name.
    gate.set_policies(Policies::new().policy(Policy::new("b").key("ip").limit(Limit::per_hour(3))))
        .unwrap();
    gate.share_overrides(shared(), &all).unwrap();
    assert_eq!(gate.overrides().len(), 0);
    gate.set_policies(Policies::new().policy(by_user("b", 3)))
        .unwrap();
    gate.share_overrides(shared(), &all).unwrap();
    assert!(gate.decide_now(&user("ann")).is_denied());
}

#[test]
fn what_could_not_be_said_is_known_before_it_is() {
    let (gate, _) = in_fleet(Policies::new().policy(by_user("a", 3)));
    let check = |policy: &str, who: &Subject<'_>, limits: Option<&[PolicyLimit]>, lasts| {
        gate.check_override(policy, who, limits, lasts)
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
    assert!(gate.overrides().is_empty());
}

fn fingerprint_of(gate: &Gate, attribute: &str, subject: &Subject<'_>) -> (Attribute, Fingerprint) {
    let key = gate.key_of("a", subject).unwrap();
    let shown = key
        .fingerprint
        .split(' ')
        .find_map(|part| part.strip_prefix(&format!("{attribute}=")))
        .unwrap()
        .parse();
    (Attribute::named(attribute), shown.unwrap())
}

#[test]
fn a_key_is_banned_lifted_and_given_limits_by_its_fingerprint() {
    let (gate, clock) = gate(
        Policies::new()
            .policy(by_user("a", 3))
            .policy(by_user("b", 100)),
    );
    let nobody = Subject::new();
    let ann = [fingerprint_of(&gate, "user", &user("ann"))];
    let by_fingerprint = KeySelector::new(&nobody, &ann);
    let ban = gate.ban("a", by_fingerprint, MINUTE, None).unwrap();
    let verdict = gate.decide_now(&user("ann"));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("a"), Some(MINUTE))
    );
    assert!(gate.decide_now(&user("bob")).is_allowed());
    // It is the same entry as one by the value.
    assert_eq!(
        ban.fingerprint(),
        gate.key_of("a", &user("ann")).unwrap().fingerprint
    );
    gate.ban("a", &user("ann"), 2 * MINUTE, None).unwrap();
    assert_eq!(gate.overrides().len(), 1);
    assert_eq!(
        (gate.lift("a", by_fingerprint), gate.lift("a", &user("ann"))),
        (Ok(true), Ok(false))
    );
    gate.override_limits(
        "a",
        by_fingerprint,
        &[Limit::per_hour(50).into()],
        MINUTE,
        None,
    )
    .unwrap();
    assert_eq!(passes(&gate, &user("ann"), 60), 50);
    assert_eq!(gate.lift("a", &user("ann")), Ok(true));
    gate.ban("a", by_fingerprint, MINUTE, None).unwrap();
    clock.advance(MINUTE);
    assert!(
        gate.decide_now(&user("ann")).is_allowed(),
        "it ends as any ban"
    );
}

/// What the lists show of keys counted by something else in place of a missing attribute can be
/// acted on.
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
        let (gate, _) = gate(by(missing));
        assert_eq!(passes(&gate, subject, 9), 3);
        let shown = gate.most_active(1)[0].fingerprint.clone().unwrap();
        let fingerprint = shown.strip_prefix("user=").unwrap().parse().unwrap();
        let named = [(Attribute::User, fingerprint)];
        let (nobody, other) = (Subject::new(), user("ann"));
        let key = KeySelector::new(&nobody, &named);
        assert_eq!(
            gate.value_seen(&Attribute::User, fingerprint),
            Some(seen),
            "{missing:?}"
        );
        assert_eq!(now(gate.reset_key("a", key)), Ok(()));
        assert_eq!(passes(&gate, subject, 9), 3);
        assert_eq!(now(gate.grant("a", key, 2)), Ok(()));
        assert_eq!(passes(&gate, subject, 9), 2);
        gate.override_limits("a", key, &[Limit::per_hour(5).into()], MINUTE, None)
            .unwrap();
        assert_eq!(passes(&gate, subject, 9), 5);
        gate.ban("a", key, MINUTE, None).unwrap();
        assert_eq!(gate.lift("a", key), Ok(true));
        assert_eq!(now(gate.reset_key("a", key)), Ok(()));
        gate.ban("a", key, MINUTE, None).unwrap();
        assert_eq!(passes(&gate, subject, 9), 0);
        assert_eq!(passes(&gate, &other, 9), 3, "nobody else is banned");
        assert_eq!(gate.overrides()[0].fingerprint(), shown);
    }
}

#[test]
fn counters_are_found_by_a_fingerprint_where_the_key_was_seen() {
    let (gate, _) = gate(Policies::new().policy(by_user("a", 3)));
    let nobody = Subject::new();
    let ann = [fingerprint_of(&gate, "user", &user("ann"))];
    let by_fingerprint = KeySelector::new(&nobody, &ann);
    // Not yet.
    let not_seen = OverrideError::NotSeen(format!("user={}", ann[0].1));
    assert!(!gate.key_of("a", by_fingerprint).unwrap().is_seen);
    assert_eq!(
        now(gate.grant("a", by_fingerprint, 1)),
        Err(not_seen.clone())
    );
    assert_eq!(
        now(gate.reset_key("a", by_fingerprint)),
        Err(not_seen.clone())
    );
    assert_eq!(gate.value_seen(&ann[0].0, ann[0].1), None);
    assert_eq!(passes(&gate, &user("ann"), 9), 3);
    assert_eq!(now(gate.grant("a", by_fingerprint, 1)), Ok(()));
    assert_eq!(passes(&gate, &user("ann"), 9), 1);
    gate.ban("a", by_fingerprint, MINUTE, None).unwrap();
    assert_eq!(now(gate.reset_key("a", by_fingerprint)), Ok(()));
    assert_eq!(
        (passes(&gate, &user("ann"), 9), gate.overrides().len()),
        (3, 0)
    );
    // It is known by its value now.
    let key = gate.key_of("a", by_fingerprint).unwrap();
    assert_eq!((key.words.as_str(), key.is_seen), ("user=ann", true));
    assert_eq!(
        gate.value_seen(&ann[0].0, ann[0].1),
        Some(SeenValue::Value(b"ann".to_vec()))
    );
    // Whoever was named by a value is known as long as something is said of it.
    gate.ban("a", &user("eve"), MINUTE, None).unwrap();
    let eve = [fingerprint_of(&gate, "user", &user("eve"))];
    assert_eq!(
        now(gate.reset_key("a", KeySelector::new(&nobody, &eve))),
        Ok(())
    );
    assert_eq!(
        gate.value_seen(&eve[0].0, eve[0].1),
        None,
        "what was said of it has ended"
    );
    gate.ban("a", &user("eve"), MINUTE, None).unwrap();
    assert_eq!(
        gate.value_seen(&eve[0].0, eve[0].1),
        Some(SeenValue::Value(b"eve".to_vec())),
        "a key in the list of overrides"
    );
    // By something else it is another key.
    gate.set_policies(
        Policies::new().policy(Policy::new("a").key("tenant").limit(Limit::per_hour(3))),
    )
    .unwrap();
    assert_eq!(
        (gate.most_active(9), gate.value_seen(&ann[0].0, ann[0].1)),
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
    let (gate, _) = gate(
        Policies::new().policy(
            Policy::new("a")
                .key("ip")
                .key("api_key")
                .limit(Limit::per_hour(3)),
        ),
    );
    let api_key = [fingerprint_of(&gate, "api_key", &both())];
    let address = Subject::new().ip("203.0.113.7".parse().unwrap());
    let ban = gate
        .ban("a", KeySelector::new(&address, &api_key), MINUTE, None)
        .unwrap();
    assert_eq!(
        ban.key(),
        format!("ip=203.0.113.7 api_key={}", api_key[0].1)
    );
    assert_eq!(
        (passes(&gate, &both(), 1), passes(&gate, &other, 1)),
        (0, 1)
    );
    // One part alone is no key.
    let nobody = Subject::new();
    let lacking = gate
        .lift("a", KeySelector::new(&nobody, &api_key))
        .unwrap_err();
    assert_eq!(lacking, OverrideError::NoKey(Attribute::Ip));
    let address = [fingerprint_of(&gate, "ip", &both()), api_key[0].clone()];
    assert_eq!(
        gate.lift("a", KeySelector::new(&nobody, &address)),
        Ok(true)
    );
    assert_eq!(passes(&gate, &both(), 1), 1);
}

#[test]
fn fingerprints_are_the_same_everywhere_and_with_the_same_secret_elsewhere() {
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
        let gate = Engine::with_options(store(), policies(), options).unwrap();
        let caller = Subject::new().api_key("s3cret");
        assert_eq!(passes(&gate, &caller, 2), 1);
        let key = gate.key_of("a", &caller).unwrap();
        let explained = now(gate.explain(&caller, 1));
        let standing = explained.tried()[0].outcome.as_ref().unwrap();
        let ban = gate.ban("a", &caller, MINUTE, None).unwrap();
        let denied = gate.most_denied(1).remove(0).fingerprint.unwrap();
        let shown = [
            &*key.words,
            &*standing.key,
            &*standing.fingerprint,
            ban.key(),
            ban.fingerprint(),
            &*gate.most_active(1)[0].key,
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
fn what_was_said_before_the_fleet_agreed_on_a_secret_still_holds() {
    let (gate, _) = gate(Policies::new().policy(by_user("a", 3)));
    gate.ban("a", &user("ann"), MINUTE, None).unwrap();
    assert_eq!(passes(&gate, &user("bob"), 1), 1);
    let before = gate.overrides()[0].fingerprint().to_owned();
    gate.share_overrides(shared(), &[]).unwrap();
    assert!(gate.decide_now(&user("ann")).is_denied());
    let after = gate.overrides()[0].fingerprint().to_owned();
    assert_ne!(before, after);
    assert_eq!(after, gate.key_of("a", &user("ann")).unwrap().fingerprint);
    assert_eq!(
        gate.most_active(1)[0].key,
        gate.key_of("a", &user("bob")).unwrap().fingerprint
    );
    assert_eq!(gate.lift("a", &user("ann")), Ok(true));
}
