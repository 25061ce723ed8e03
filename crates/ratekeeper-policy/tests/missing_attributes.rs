//! Requests that lack an attribute of the key of a policy.

use ratekeeper::{Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{
    Action, Attribute, Engine, Match, Missing, Policies, Policy, Reason, Subject,
    engine::ByNameError, engine::OverrideError, matching::MismatchReason, policy::Rollout,
};
use ratekeeper_testkit::poll::assert_ready;
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> TestEngine {
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(ManualClock::new())
        .build();
    Engine::new(store, policies).unwrap()
}

/// Two a minute for each user, with a policy for all behind it.
fn per_user(missing: Missing) -> TestEngine {
    new_engine(
        Policies::new()
            .policy(
                Policy::new("user")
                    .key("user")
                    .missing(missing)
                    .limit(Limit::per_minute(2)),
            )
            .policy(Policy::new("all").limit(Limit::per_minute(100))),
    )
}

fn ip(text: &str) -> Subject<'static> {
    Subject::new().ip(text.parse().unwrap())
}

/// How many of five requests are allowed.
fn of_five(engine: &TestEngine, subject: &Subject<'_>) -> u32 {
    (0..5)
        .filter(|_| engine.decide_now(subject).is_allowed())
        .count() as u32
}

#[test]
fn by_default_the_address_is_counted() {
    let engine = per_user(Missing::default());
    assert_eq!(of_five(&engine, &ip("203.0.113.7")), 2);
    assert_eq!(of_five(&engine, &ip("203.0.113.8")), 2);
    // An empty user is absent, and the addresses of one IPv6 prefix are one client.
    assert_eq!(of_five(&engine, &ip("203.0.113.7").user("")), 0);
    assert_eq!(
        (
            of_five(&engine, &ip("2001:db8::1")),
            of_five(&engine, &ip("2001:db8::2"))
        ),
        (2, 0)
    );
    // A user is another key, even with the same text.
    assert_eq!(of_five(&engine, &ip("203.0.113.7").user("203.0.113.7")), 2);
    assert_eq!(
        of_five(&engine, &ip("203.0.113.7").user(&[203, 0, 113, 7])),
        2
    );
    assert_eq!(of_five(&engine, &ip("203.0.113.7").user("ann")), 2);
}

#[test]
fn without_an_address_there_is_one_bucket() {
    let engine = per_user(Missing::Address);
    assert_eq!(
        (
            of_five(&engine, &Subject::new()),
            of_five(&engine, &Subject::new().method("GET"))
        ),
        (2, 0)
    );
    assert_eq!(of_five(&engine, &Subject::new().user("unknown")), 2);
    let by_address =
        new_engine(Policies::new().policy(Policy::new("ip").key("ip").limit(Limit::per_minute(2))));
    assert_eq!(
        (
            of_five(&by_address, &Subject::new()),
            of_five(&by_address, &ip("0.0.0.0"))
        ),
        (2, 2)
    );
}

#[test]
fn a_policy_may_skip_requests_without_the_attribute() {
    let engine = per_user(Missing::Skip);
    assert_eq!(of_five(&engine, &ip("203.0.113.7")), 5);
    let explained = assert_ready(engine.explain(&ip("203.0.113.7")));
    assert!(matches!(
        &explained.traces()[0].outcome,
        Err(MismatchReason::NoKey(Attribute::User))
    ));
}

#[test]
fn a_policy_may_count_requests_without_the_attribute_together() {
    let engine = per_user(Missing::Shared);
    assert_eq!(
        (
            of_five(&engine, &ip("203.0.113.7")),
            of_five(&engine, &ip("203.0.113.8"))
        ),
        (2, 0)
    );
    assert_eq!(of_five(&engine, &Subject::new().user("shared")), 2);
}

#[test]
fn a_policy_may_deny_requests_without_the_attribute() {
    let engine = per_user(Missing::Deny);
    let verdict = engine.decide_now(&ip("203.0.113.7"));
    assert_eq!(
        (
            verdict.is_denied(),
            verdict.is_never(),
            verdict.retry_after()
        ),
        (true, true, None)
    );
    assert_eq!(
        (verdict.policy(), verdict.status(), verdict.reason().name()),
        (Some("user"), 429, "missing_attribute")
    );
    assert!(
        matches!(verdict.reason(), Reason::MissingAttribute { policy, attribute: Attribute::User } if **policy == *"user")
    );
    drop(verdict);
    assert_eq!(assert_ready(engine.stats().policies())[0].counts.denied, 1);
    // The later policies are not charged.
    let verdict = engine.decide_now(&Subject::new().user("ann"));
    assert!(verdict.is_allowed());
    assert_eq!(verdict.limits().nth(1).unwrap().decision().remaining(), 99);
}

#[test]
fn a_shadow_policy_denies_nothing() {
    for policy in [
        Policy::new("user").action(Action::Shadow),
        Policy::new("user").rollout(Rollout::percent(0.0).unwrap()),
    ] {
        let policy = policy
            .key("user")
            .missing(Missing::Deny)
            .limit(Limit::per_minute(2));
        let engine = new_engine(Policies::new().policy(policy));
        assert_eq!(of_five(&engine, &ip("203.0.113.7")), 5);
        let counts = assert_ready(engine.stats().policies())[0].counts;
        assert_eq!((counts.denied, counts.shadow_denied), (0, 5));
        assert!(
            assert_ready(engine.explain(&ip("203.0.113.7"))).traces()[0]
                .outcome
                .as_ref()
                .unwrap()
                .shadow
        );
    }
}

#[test]
fn only_the_part_that_is_missing_is_replaced() {
    let policy = Policy::new("both")
        .key("user")
        .key("method")
        .limit(Limit::per_minute(2));
    let engine = new_engine(Policies::new().policy(policy));
    assert_eq!(of_five(&engine, &ip("203.0.113.7").method("GET")), 2);
    assert_eq!(of_five(&engine, &ip("203.0.113.7").method("POST")), 2);
    assert_eq!(of_five(&engine, &ip("203.0.113.7")), 2);
    assert_eq!(of_five(&engine, &ip("203.0.113.7").method("GET")), 0);
}

#[test]
fn explain_shows_the_substitute() {
    for (missing, key) in [
        (Missing::Address, "ip=203.0.113.7"),
        (Missing::Shared, "shared"),
        (Missing::Deny, "ip=203.0.113.7"),
    ] {
        let engine = per_user(missing);
        let explained = assert_ready(engine.explain(&ip("203.0.113.7")));
        let standing = explained.traces()[0].outcome.as_ref().unwrap();
        assert_eq!(
            (&*standing.key, &standing.missing),
            (key, &Some((Attribute::User, missing)))
        );
        assert_eq!(explained.verdict().is_denied(), missing == Missing::Deny);
        let explained = assert_ready(engine.explain(&ip("203.0.113.7").user("ann")));
        let standing = explained.traces()[0].outcome.as_ref().unwrap();
        assert_eq!((&*standing.key, &standing.missing), ("user=ann", &None));
    }
    let explained = assert_ready(per_user(Missing::Address).explain(&Subject::new()));
    assert_eq!(
        explained.traces()[0].outcome.as_ref().unwrap().key,
        "unknown"
    );
}

#[test]
fn an_operator_selects_a_substituted_key_by_its_address() {
    let engine = per_user(Missing::Address);
    let address = ip("203.0.113.7");
    let ban = engine
        .operator()
        .ban("user", &address, Duration::from_secs(60), None)
        .unwrap();
    assert_eq!(ban.key(), "ip=203.0.113.7");
    assert_eq!(
        (
            of_five(&engine, &address),
            of_five(&engine, &ip("203.0.113.8"))
        ),
        (0, 2)
    );
    assert_eq!(of_five(&engine, &ip("203.0.113.7").user("ann")), 2);
    assert!(engine.operator().lift("user", &address).unwrap());
    assert_eq!(of_five(&engine, &address), 2);
    assert_ready(engine.operator().reset_limits("user", &address)).unwrap();
    assert_eq!(of_five(&engine, &address), 2);
    // The fingerprint of the key is not that of a user.
    let seen = engine
        .stats()
        .most_active(10)
        .into_iter()
        .find(|top| top.policy == "user")
        .unwrap();
    assert!(seen.key.starts_with("user=#"), "{}", seen.key);
    // A shared bucket cannot be selected by leaving the user out.
    for engine in [engine, per_user(Missing::Shared), per_user(Missing::Skip)] {
        let banned = engine
            .operator()
            .ban("user", &Subject::new(), Duration::from_secs(60), None);
        assert!(matches!(banned, Err(OverrideError::NoKey(Attribute::User))));
    }
}

#[test]
fn a_policy_by_its_name_needs_a_value() {
    for missing in Missing::ALL {
        let engine = per_user(missing);
        let decided = assert_ready(engine.decide_by("user", b"", 1, false));
        assert_eq!(decided.unwrap_err(), ByNameError::NotA(Attribute::User));
    }
}

#[test]
fn a_policy_that_applied_to_no_request_is_known() {
    let rare = |path: &str| {
        let when = Match::new().path(path.parse().unwrap());
        Policy::new("rare")
            .matching(when)
            .key("user")
            .limit(Limit::per_minute(2))
    };
    let skips = |missing| {
        Policy::new("user")
            .key("user")
            .missing(missing)
            .limit(Limit::per_minute(2))
    };
    let all = || Policy::new("all").limit(Limit::per_minute(100));
    let policies = |path, missing| {
        Policies::new()
            .policy(rare(path))
            .policy(skips(missing))
            .policy(all())
    };
    let engine = new_engine(policies("/rare", Missing::Skip));
    let unmatched = || {
        assert_ready(engine.stats().policies())
            .iter()
            .map(|policy| policy.unmatched)
            .collect::<Vec<_>>()
    };
    assert_eq!(unmatched(), [Some(0); 3]);
    assert_eq!(of_five(&engine, &ip("203.0.113.7").path("/")), 5);
    assert_eq!(unmatched(), [Some(5), Some(5), None]);
    // Explaining and peeking are not requests.
    let _ = (
        engine.peek_now(&ip("203.0.113.7").path("/rare").user("ann")),
        assert_ready(engine.explain(&Subject::new().path("/rare"))),
    );
    assert_eq!(unmatched(), [Some(5), Some(5), None]);
    // Another policy that denies the request also counts as one that applied.
    engine
        .set_policies(policies("/rare", Missing::Deny))
        .unwrap();
    assert!(engine.decide_now(&ip("203.0.113.7").path("/")).is_denied());
    assert_eq!(unmatched(), [Some(6), None, None]);
    assert!(
        engine
            .decide_now(&ip("203.0.113.7").path("/rare").user("ann"))
            .is_allowed()
    );
    assert_eq!(unmatched(), [None; 3]);
    // A policy with other conditions starts again.
    engine
        .set_policies(policies("/other", Missing::Deny))
        .unwrap();
    assert!(
        engine
            .decide_now(&ip("203.0.113.7").path("/").user("ann"))
            .is_allowed()
    );
    assert_eq!(unmatched(), [Some(1), None, None]);
}

#[test]
fn another_missing_setting_keeps_the_counts() {
    let engine = per_user(Missing::Address);
    assert_eq!(
        (
            of_five(&engine, &ip("203.0.113.7")),
            of_five(&engine, &Subject::new().user("ann"))
        ),
        (2, 2)
    );
    let skipping = Policy::new("user")
        .key("user")
        .missing(Missing::Skip)
        .limit(Limit::per_minute(2));
    engine
        .set_policies(Policies::new().policy(skipping))
        .unwrap();
    assert_eq!(
        (
            of_five(&engine, &ip("203.0.113.7")),
            of_five(&engine, &Subject::new().user("ann"))
        ),
        (5, 0)
    );
}
