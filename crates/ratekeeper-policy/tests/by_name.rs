//! Decisions by the name of a policy, on a plain key value: they use the same bucket as requests,
//! and no other policy.

use ratekeeper::{Limit, MemoryStore};
use ratekeeper_policy::{Attribute, Engine, Match, Policies, Policy, Subject, engine::ByNameError};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A store in memory is ready at once.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!(),
    }
}

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
    let verdict = block_on(engine.decide_by(policy, value.as_bytes(), 1, peek))?;
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
        block_on(engine.decide_by("login", b"192.0.2.1", 1, false))
            .unwrap()
            .is_denied()
    );
    assert_eq!(
        block_on(engine.reset_by("login", b"192.0.2.1"))
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
        block_on(engine.reset_by("login", b"a")).map(drop),
        Err(ByNameError::NotA(Attribute::Ip))
    );
    assert_eq!(
        block_on(engine.reset_by("nope", b"a")).map(drop),
        Err(ByNameError::NoPolicy)
    );
}
