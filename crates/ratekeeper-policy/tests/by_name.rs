//! Decisions by the name of a policy, on a plain key value: they use the same bucket as requests,
//! and no other policy.

use ratekeeper::{Limit, MemoryStore};
use ratekeeper_policy::{Attribute, Engine, Match, Policies, Policy, Subject, engine::ByNameError};
use ratekeeper_testkit::poll::assert_ready;

fn new_engine() -> Engine<MemoryStore> {
    let login = Match::new().path("/login".parse().unwrap());
    let policies = Policies::new()
        .policy(
            Policy::new("login")
                .matching(login)
                .key(Attribute::Ip)
                .limit(Limit::per_day(2)),
        )
        .policy(
            Policy::new("tenant")
                .key(Attribute::header("X-Tenant"))
                .limit(Limit::per_day(5)),
        )
        .policy(
            Policy::new("both")
                .key(Attribute::Ip)
                .key(Attribute::User)
                .limit(Limit::per_day(5)),
        )
        .policy(Policy::new("all").limit(Limit::per_day(9)));
    Engine::new(MemoryStore::new(), policies).unwrap()
}

fn remaining(
    engine: &Engine<MemoryStore>,
    policy: &str,
    value: &str,
    peek: bool,
) -> Result<u64, ByNameError> {
    let verdict = assert_ready(engine.decide_by(policy, value.as_bytes(), 1, peek))?;
    assert_eq!(verdict.limits().count(), 1);
    Ok(verdict.tightest().unwrap().decision().remaining())
}

#[test]
fn decisions_by_name_and_requests_share_a_bucket() {
    let engine = new_engine();
    assert_eq!(remaining(&engine, "login", "192.0.2.1", false), Ok(1));
    assert_eq!(remaining(&engine, "login", "192.0.2.1", true), Ok(1));
    let request = Subject::new()
        .ip("192.0.2.1".parse().unwrap())
        .path("/login");
    assert!(engine.decide_now(&request).is_allowed());
    assert!(engine.decide_now(&request).is_denied());
    assert!(
        assert_ready(engine.decide_by("login", b"192.0.2.1", 1, false))
            .unwrap()
            .is_denied()
    );
    assert_eq!(
        assert_ready(engine.operator().reset_by("login", b"192.0.2.1"))
            .unwrap()
            .words,
        "ip=192.0.2.1"
    );
    assert_eq!(remaining(&engine, "login", "192.0.2.1", false), Ok(1));

    assert_eq!(remaining(&engine, "tenant", "acme", false), Ok(4));
    let headers = vec![("x-tenant", "acme")];
    let verdict = engine.decide_now(&Subject::new().headers(&headers));
    assert_eq!(verdict.limits().next().unwrap().decision().remaining(), 3);
    // One request and one call.
    assert_eq!(remaining(&engine, "all", "anybody", true), Ok(7));
}

#[test]
fn invalid_decisions_by_name_return_errors() {
    let engine = new_engine();
    assert_eq!(
        remaining(&engine, "nope", "a", false),
        Err(ByNameError::NoPolicy)
    );
    assert_eq!(
        remaining(&engine, "login", "a", false),
        Err(ByNameError::NotA(Attribute::Ip))
    );
    let both = vec![Attribute::Ip, Attribute::User];
    assert_eq!(
        remaining(&engine, "both", "a", false),
        Err(ByNameError::ManyKeys(both))
    );
    assert_eq!(
        assert_ready(engine.operator().reset_by("login", b"a")).map(drop),
        Err(ByNameError::NotA(Attribute::Ip))
    );
    assert_eq!(
        assert_ready(engine.operator().reset_by("nope", b"a")).map(drop),
        Err(ByNameError::NoPolicy)
    );
}

#[test]
fn a_shown_fingerprint_resets_the_key_or_is_rejected() {
    let engine = new_engine();
    let spent = |value: &str| {
        for _ in 0..2 {
            let _ = remaining(&engine, "login", value, false);
        }
        remaining(&engine, "login", value, true).unwrap()
    };
    assert_eq!(spent("192.0.2.1"), 0);
    let subject = Subject::new().ip("192.0.2.1".parse().unwrap());
    let shown = engine
        .operator()
        .key_of("login", &subject)
        .unwrap()
        .fingerprint;
    let bare = shown.strip_prefix("ip=").unwrap();
    for name in [shown.as_str(), bare] {
        assert_eq!(spent("192.0.2.1"), 0);
        let key = assert_ready(engine.operator().reset_by("login", name.as_bytes())).unwrap();
        assert_eq!(key.words, "ip=192.0.2.1", "{name}");
        assert_eq!(
            remaining(&engine, "login", "192.0.2.1", true),
            Ok(2),
            "{name}"
        );
    }
    let reset =
        |key: &str| assert_ready(engine.operator().reset_by("tenant", key.as_bytes())).map(drop);
    let unseen = "#0123456789abcdef";
    assert_eq!(
        reset(unseen),
        Err(ByNameError::NotSeen(format!("header:x-tenant={unseen}")))
    );
    for cut in ["#0123", "#0123…", "header:x-tenant=#01"] {
        assert!(
            matches!(reset(cut), Err(ByNameError::Fingerprint(..))),
            "{cut}"
        );
    }
    // What merely begins like one is a value.
    assert_eq!(
        (reset("#acme"), reset("other=#0123456789abcdef")),
        (Ok(()), Ok(()))
    );
}
