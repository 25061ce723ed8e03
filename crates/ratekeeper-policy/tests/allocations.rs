//! Allocation tests: neither a decision over some of many policies nor building a subject
//! allocates.

use ratekeeper::{Clock, Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{
    Engine, ListEntry, Match, Policies, Policy, PolicyLimit, Subject, policy::Penalty,
};
use std::hint::black_box;
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

/// The number of allocations of `work` on this thread.
fn allocated(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

fn at(path: &str) -> Match {
    Match::new().path(path.parse().unwrap())
}

/// A hundred policies, of which three apply: by path, by prefix, and everywhere.
fn hundred_policies(user_policy: Policy) -> Policies {
    let others = (0..97).map(|n| {
        Policy::new(format!("other-{n}"))
            .matching(at(&format!("/api/other-{n}/**")))
            .key("ip")
            .limit(Limit::per_minute(5))
    });
    let all = [
        user_policy,
        Policy::new("api")
            .matching(at("/api/**"))
            .key("user")
            .key("endpoint")
            .limit(Limit::per_minute(1_000)),
        Policy::new("all").limit(Limit::per_second(1_000_000)),
    ];
    all.into_iter()
        .chain(others)
        .fold(Policies::new(), Policies::policy)
}

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

/// Sends a thousand requests after a warm-up; returns how many were allowed, and their allocations.
fn count_allowed_and_allocations(
    engine: &TestEngine,
    subject: impl Fn() -> Subject<'static>,
) -> (u64, u64) {
    for _ in 0..40 {
        black_box(engine.decide_now(&subject()).is_allowed());
    }
    let mut passed = 0;
    let used = allocated(|| {
        for _ in 0..1_000 {
            let verdict = engine.decide_now(&subject());
            assert!(verdict.limits().count() >= 3 || verdict.is_denied());
            black_box((
                verdict.retry_after(),
                verdict.policy(),
                verdict.status(),
                verdict.delay(),
            ));
            passed += u64::from(verdict.is_allowed());
        }
    });
    (passed, used)
}

fn subject() -> Subject<'static> {
    let ip = std::net::IpAddr::from([203, 0, 113, 7]);
    Subject::new()
        .ip(ip)
        .user("ann")
        .method("GET")
        .path("/api/mine/7?page=2")
        .host("api.example.com:443")
}

fn user_policy() -> Policy {
    Policy::new("mine")
        .matching(at("/api/mine/*").method("GET"))
        .key("ip")
}

#[test]
fn the_counter_counts() {
    assert!(allocated(|| drop(black_box(Box::new(7_u64)))) > 0);
}

#[test]
fn allowed_requests_allocate_nothing() {
    let (engine, _) = new_engine(hundred_policies(
        user_policy().limit(Limit::per_second(1_000_000)),
    ));
    assert_eq!(
        count_allowed_and_allocations(&engine, subject),
        (960, 0),
        "the third policy has 1,000"
    );
}

#[test]
fn denied_requests_allocate_nothing() {
    let (engine, _) = new_engine(hundred_policies(user_policy().limit(Limit::per_hour(10))));
    assert_eq!(count_allowed_and_allocations(&engine, subject), (0, 0));
}

#[test]
fn several_limits_with_permits_allocate_nothing() {
    let policy = user_policy()
        .limit(Limit::per_second(1_000_000))
        .limit(Limit::per_hour(1_000_000))
        .limit(PolicyLimit::Concurrent(5));
    let (engine, _) = new_engine(hundred_policies(policy));
    assert_eq!(count_allowed_and_allocations(&engine, subject), (960, 0));
}

#[test]
fn headers_allocate_nothing() {
    static HEADERS: std::sync::LazyLock<Vec<(&'static str, &'static str)>> =
        std::sync::LazyLock::new(|| {
            vec![
                ("X-Tenant", "acme"),
                ("Accept", "*/*"),
                ("x-flag", "1"),
                ("x-flag", "2"),
            ]
        });
    let policy = Policy::new("mine")
        .matching(
            at("/api/mine/*")
                .header("accept")
                .header_is("x-flag", ["2"])
                .host("*.example.com".parse().unwrap()),
        )
        .key("header:x-tenant");
    let (engine, _) = new_engine(hundred_policies(policy.limit(Limit::per_second(1_000_000))));
    let with_headers = || {
        subject()
            .headers(&*HEADERS)
            .with("region", "eu")
            .with("tier", "a")
    };
    assert_eq!(
        count_allowed_and_allocations(&engine, with_headers),
        (960, 0)
    );
}

#[test]
fn a_penalty_allocates_nothing() {
    // Denied without a ban, then banned.
    let never_enough = Penalty {
        denials: 10_000,
        within: Duration::from_nanos(1),
        ban: Duration::from_secs(60),
    };
    let block_on = Penalty {
        denials: 2,
        within: Duration::from_secs(60),
        ban: Duration::from_secs(60),
    };
    for (limit, penalty) in [
        (1_000_000, block_on),
        (10, block_on),
        (
            10,
            Penalty {
                denials: 1,
                ..block_on
            },
        ),
        (1_000_000, never_enough),
    ] {
        let (engine, _) = new_engine(hundred_policies(
            user_policy().limit(Limit::per_hour(limit)).penalty(penalty),
        ));
        assert_eq!(
            count_allowed_and_allocations(&engine, subject).1,
            0,
            "{penalty:?}"
        );
    }
}

#[test]
fn overrides_allocate_nothing() {
    let (engine, _) = new_engine(hundred_policies(
        user_policy().limit(Limit::per_second(1_000_000)),
    ));
    let other = Subject::new().ip(std::net::IpAddr::from([203, 0, 113, 8]));
    engine
        .operator()
        .ban("mine", &other, Duration::from_secs(60), None)
        .unwrap();
    engine
        .operator()
        .override_limits(
            "mine",
            &other,
            &[Limit::per_minute(1).into()],
            Duration::from_secs(60),
            None,
        )
        .unwrap();
    assert_eq!(count_allowed_and_allocations(&engine, subject), (960, 0));
    engine
        .operator()
        .override_limits(
            "mine",
            &subject(),
            &[Limit::per_hour(5).into()],
            Duration::from_secs(60),
            None,
        )
        .unwrap();
    assert_eq!(count_allowed_and_allocations(&engine, subject), (0, 0));
    engine
        .operator()
        .ban(
            "mine",
            &subject(),
            Duration::from_secs(60),
            Some("scraping"),
        )
        .unwrap();
    assert_eq!(count_allowed_and_allocations(&engine, subject), (0, 0));
}

/// Policies without a path condition: each of them has to be tried.
#[test]
fn a_hundred_policies_without_a_path_allocate_nothing() {
    let by_host = |n: u32| {
        Policy::new(format!("host-{n}"))
            .matching(Match::new().host(format!("h{n}.example").parse().unwrap()))
    };
    let policies = (0..97).fold(Policies::new(), |policies, n| {
        policies.policy(by_host(n).limit(Limit::per_minute(5)))
    });
    let policies = ["ip", "user", "host"]
        .into_iter()
        .fold(policies, |policies, key| {
            policies.policy(
                Policy::new(key)
                    .key(key)
                    .limit(Limit::per_second(1_000_000)),
            )
        });
    let (engine, _) = new_engine(policies);
    assert_eq!(count_allowed_and_allocations(&engine, subject), (1_000, 0));
}

#[test]
fn lists_allocate_nothing() {
    let network = |text: &str| Match::new().ip(text.parse().unwrap());
    let (engine, clock) = new_engine(Policies::new());
    let later = clock.now() + Duration::from_secs(60);
    let policies = hundred_policies(user_policy().limit(Limit::per_second(1_000_000)));
    let policies = policies
        .allow(ListEntry::new(network("10.0.0.0/8")).until(later))
        .deny(ListEntry::new(network("192.0.2.0/24")));
    engine.set_policies(policies.clone()).unwrap();
    assert_eq!(count_allowed_and_allocations(&engine, subject), (960, 0));
    engine
        .set_policies(
            policies
                .clone()
                .deny(ListEntry::new(network("203.0.113.0/24"))),
        )
        .unwrap();
    assert_eq!(count_allowed_and_allocations(&engine, subject), (0, 0));
}

#[test]
fn many_keys_allocate_nothing() {
    let (engine, _) = new_engine(hundred_policies(
        user_policy().limit(Limit::per_second(1_000_000)),
    ));
    let addresses = (0..5_000_u32).map(|n| std::net::IpAddr::from(n.to_be_bytes()));
    // The first verdict of a thread allocates the state that later ones reuse.
    drop(engine.decide_now(&subject()));
    let used = allocated(|| {
        for ip in addresses {
            black_box(engine.decide_now(&subject().ip(ip)).is_allowed());
        }
    });
    assert_eq!(used, 0);
}

#[test]
fn a_subject_allocates_nothing() {
    let headers = vec![("x-tenant", "acme")];
    let used = allocated(|| {
        let subject = subject()
            .api_key("k")
            .plan("pro")
            .tenant("t")
            .endpoint("/api/{id}")
            .headers(&headers);
        black_box(
            subject
                .with("a", "1")
                .with("b", "2")
                .with("c", "3")
                .with("d", "4")
                .with("a", "5"),
        );
    });
    assert_eq!(used, 0);
}

/// Only the first time on a thread: the state is pooled.
#[test]
fn a_settled_request_allocates_nothing() {
    let policy = user_policy()
        .limit(Limit::per_second(1_000_000))
        .count(ratekeeper_policy::Count::Failures);
    let (engine, _) = new_engine(hundred_policies(policy));
    let end = || {
        engine.settle_now(
            engine.decide_now(&subject()),
            ratekeeper_policy::Completion::status(200),
        );
    };
    (0..40).for_each(|_| end());
    assert_eq!(allocated(|| (0..500).for_each(|_| end())), 0);
}
