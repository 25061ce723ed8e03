//! Statistics of policies, over reloads too.

use ratekeeper::{Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{Engine, Policies, Policy, Subject};

fn by_user(limits: &[Limit]) -> Policies {
    Policies::new().policy(
        limits
            .iter()
            .fold(Policy::new("a").key("user"), |policy, limit| {
                policy.limit(*limit)
            }),
    )
}

#[tokio::test]
async fn evicted_keys_stay_counted_when_limits_change() {
    let store = MemoryStore::builder()
        .max_keys(8)
        .clock(ManualClock::new())
        .build();
    let engine = Engine::new(store, by_user(&[Limit::per_hour(5), Limit::per_day(50)])).unwrap();
    for user in 0..1_000 {
        drop(engine.decide_now(&Subject::new().user(&user.to_string())));
    }
    let before = engine.stats().policies().await[0].keys.unwrap();
    assert!(before.evicted_live > 0, "{before:?}");
    let others = [
        by_user(&[Limit::per_hour(5)]),
        by_user(&[Limit::per_hour(9)]),
    ];
    let other_key =
        Policies::new().policy(Policy::new("a").key("tenant").limit(Limit::per_hour(5)));
    for policies in others.into_iter().chain([other_key]) {
        engine.set_policies(policies).unwrap();
        let after = engine.stats().policies().await[0].keys.unwrap();
        assert!(
            after.evicted_live >= before.evicted_live,
            "{before:?} {after:?}"
        );
        assert!(
            after.evicted_fresh >= before.evicted_fresh,
            "{before:?} {after:?}"
        );
    }
}

#[tokio::test]
async fn a_key_with_many_limits_counts_once() {
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(ManualClock::new())
        .build();
    let engine = Engine::new(store, by_user(&[Limit::per_hour(5), Limit::per_day(50)])).unwrap();
    for user in ["ann", "bob", "ann"] {
        drop(engine.decide_now(&Subject::new().user(user)));
    }
    assert_eq!(engine.stats().policies().await[0].keys.unwrap().live, 2);
}
