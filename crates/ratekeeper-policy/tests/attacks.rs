//! Attacks: spellings of requests that try to evade a limit, and sizes that try to exhaust the
//! process.

use ratekeeper::{Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{
    Cost, Engine, ListEntry, Match, Plan, Policies, Policy, PolicyLimit, Subject,
    matching::HostPattern, matching::PathCase, matching::PathPattern, matching::PatternError,
    policy::Reserve, policy::ReserveClasses,
};
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> TestEngine {
    let store = MemoryStore::builder()
        .max_keys(100_000)
        .clock(ManualClock::new())
        .build();
    Engine::new(store, policies).unwrap()
}

fn at(path: &str) -> Match {
    Match::new().path(path.parse().unwrap())
}

/// Whether the policy applies to the request.
fn meets(engine: &TestEngine, subject: &Subject<'_>) -> bool {
    engine.peek_now(subject).limits().next().is_some()
}

#[test]
fn no_spelling_of_a_path_evades_a_limit() {
    let login = new_engine(
        Policies::new().policy(
            Policy::new("login")
                .matching(at("/api/login"))
                .limit(Limit::per_minute(1)),
        ),
    );
    let same: &[&[u8]] = &[
        b"/api/login",
        b"/api/login/",
        b"/api//login",
        b"//api///login//",
        b"api/login",
        b"/api/./login/.",
        b"/api/x/../login",
        b"/../../api/login",
        b"/api/login?user=x",
        b"/api/login#x",
        b"/api/login/?",
        b"/%61pi/%6Cogin",
        b"/api/%6cogin",
        b"/api/%2e/login",
        b"/api/x/%2e%2E/login",
        b"/api/x/.%2e/login",
        b"/api/login/%2e",
        b"/api/login;a=b",
        b"/api%2Flogin",
        b"/api\\login",
        b"/x%2f..%5Capi%2flogin",
        b"/api;x/login;y",
        b"http://example.com/api/login",
    ];
    for path in same {
        assert!(
            meets(&login, &Subject::new().path(path)),
            "{}",
            path.escape_ascii()
        );
    }
    let other: &[&[u8]] = &[
        b"",
        b"/",
        b"/api/login\0",
        b"/api/login%00",
        b"/api/logi%6",
        b"/api/login%",
        b"/api/%252e%252e/login",
        b"/api/login/..",
        b"/api/...",
        b"/api/\xff\xfe",
        b"/API/LOGIN",
    ];
    for path in other {
        assert!(
            !meets(&login, &Subject::new().path(path)),
            "{}",
            path.escape_ascii()
        );
    }
}

#[test]
fn a_path_with_several_readings_is_not_exempt() {
    let limited = || Policy::new("all").limit(Limit::per_minute(1));
    let public = || at("/public/**");
    let gates = [
        new_engine(Policies::new().policy(limited().matching(Match::new().unless(public())))),
        new_engine(
            Policies::new()
                .policy(
                    Policy::new("free")
                        .matching(public())
                        .limit(Limit::unlimited())
                        .stop(),
                )
                .policy(limited()),
        ),
        new_engine(
            Policies::new()
                .policy(limited())
                .allow(ListEntry::new(public())),
        ),
    ];
    for (at, engine) in gates.iter().enumerate() {
        let is_limited = |path: &str| {
            let verdict = engine.peek_now(&Subject::new().path(path));
            verdict.limits().any(|limit| limit.policy() == "all")
        };
        for path in [
            "/public/x",
            "/public/v1.2/x",
            "/public//x",
            "/public/x%2Fy",
            "/public/a\\b",
        ] {
            assert!(!is_limited(path), "{at} {path}");
        }
        for path in [
            "/x",
            "/api/../public/x",
            "/public/../api",
            "/public%2F..%2fapi",
            "/public\\..\\api",
            "/public%2Fx",
        ] {
            assert!(is_limited(path), "{at} {path}");
        }
    }
}

#[test]
fn path_case_is_ignored_if_configured() {
    let policy = || {
        let login = at("/API/login").path("/v1/**".parse().unwrap());
        Policy::new("login")
            .matching(login)
            .key("path")
            .limit(Limit::per_minute(1))
    };
    let spellings = ["/api/login", "/API/LOGIN", "/Api/%4cogin/", "/api%2FLogin"];
    let insensitive = new_engine(
        Policies::new()
            .path_case(PathCase::Insensitive)
            .policy(policy()),
    );
    let passed = spellings.iter().filter(|path| {
        insensitive
            .decide_now(&Subject::new().path(path))
            .is_allowed()
    });
    assert_eq!(passed.count(), 1, "they share a bucket");
    assert!(meets(&insensitive, &Subject::new().path("/V1/x")));
    let sensitive = new_engine(Policies::new().policy(policy()));
    assert!(
        spellings
            .iter()
            .all(|path| !meets(&sensitive, &Subject::new().path(path)))
    );
    let not = Match::new().unless(at("/Public/**"));
    let except = new_engine(
        Policies::new()
            .path_case(PathCase::Insensitive)
            .policy(policy().matching(not)),
    );
    assert!(
        !meets(&except, &Subject::new().path("/pUBLIC/x"))
            && meets(&except, &Subject::new().path("/x"))
    );
}

#[test]
fn a_path_of_any_bytes_and_length_is_one_bucket() {
    let engine = new_engine(
        Policies::new().policy(
            Policy::new("each")
                .matching(at("/a/**"))
                .key("path")
                .limit(Limit::per_minute(1)),
        ),
    );
    let long = "/a".repeat(10_000);
    let dots = format!("/a{}{}", "/x".repeat(10_000), "/..".repeat(10_000));
    let up = format!("{}/a", "/..".repeat(10_000));
    let slashes = "/".repeat(100_000) + "a";
    let escapes = "/a/".to_owned() + &"%ff".repeat(10_000);
    let percents = "/a/".to_owned() + &"%".repeat(10_000);
    let paths = [
        long.as_bytes(),
        dots.as_bytes(),
        escapes.as_bytes(),
        percents.as_bytes(),
        b"/a/\0\xff\xc0\xaf",
    ];
    for path in paths {
        let subject = Subject::new().path(path);
        assert!(engine.decide_now(&subject).is_allowed());
        if path != dots.as_bytes() {
            assert!(engine.decide_now(&subject).is_denied());
        }
    }
    // All three are `/a`.
    for path in [&dots, &up, &slashes] {
        assert!(engine.decide_now(&Subject::new().path(path)).is_denied());
    }
}

#[test]
fn no_spelling_of_a_host_evades_a_limit() {
    let host = |pattern: &str| Match::new().host(pattern.parse().unwrap());
    let one = new_engine(
        Policies::new().policy(
            Policy::new("one")
                .matching(host("api.example.com"))
                .key("host")
                .limit(Limit::per_minute(1)),
        ),
    );
    assert!(
        one.decide_now(&Subject::new().host("api.example.com"))
            .is_allowed()
    );
    for spelling in [
        "API.example.com",
        "api.example.com:443",
        "api.example.com.",
        "Api.Example.Com.:8080",
        "api.example.com:",
    ] {
        let verdict = one.decide_now(&Subject::new().host(spelling));
        assert!(verdict.is_denied(), "{spelling}");
    }
    for other in [
        "xapi.example.com",
        "api.example.com.evil",
        "",
        ".",
        ":",
        "[",
        "[::1",
        "::",
        "\0",
        "api.example.com:80:80",
    ] {
        assert!(!meets(&one, &Subject::new().host(other)), "{other}");
    }
    assert!(!meets(&one, &Subject::new().host(b"\xff\xfe:\xff")));
}

#[test]
fn a_malformed_host_is_not_a_pattern() {
    for text in ["", ".", "*.", "*..", "..", "*", "a b", "a/b", "a:80"] {
        assert_eq!(
            text.parse::<HostPattern>(),
            Err(PatternError::Host),
            "{text}"
        );
    }
    for text in ["a", "a.", "*.a", "*.a.", "[::1]", "ä.example", "*.ä"] {
        text.parse::<HostPattern>().unwrap();
    }
}

#[test]
fn a_repeated_header_hides_nothing() {
    let policies = |when| {
        new_engine(
            Policies::new().policy(
                Policy::new("bot")
                    .matching(when)
                    .limit(Limit::per_minute(1)),
            ),
        )
    };
    let says = policies(Match::new().header_is("x-bot", ["yes"]));
    let twice = vec![("x-bot", "no"), ("X-BOT", "yes")];
    assert!(meets(&says, &Subject::new().headers(&twice)));
    let not = policies(Match::new().unless(Match::new().header_is("x-bot", ["yes"])));
    assert!(!meets(&not, &Subject::new().headers(&twice)));
    let raw: Vec<(&str, &[u8])> = vec![("x-bot", b"\xff\0")];
    assert!(meets(
        &policies(Match::new().header("X-Bot")),
        &Subject::new().headers(&raw)
    ));
}

/// An address is compared as an address, in any spelling, wherever it is used.
#[test]
fn an_address_can_be_matched_as_an_attribute() {
    let only = new_engine(
        Policies::new().policy(
            Policy::new("one")
                .matching(Match::new().attribute("ip", "10.0.0.1"))
                .limit(Limit::per_minute(1)),
        ),
    );
    for (ip, yes) in [
        ("10.0.0.1", true),
        ("::ffff:10.0.0.1", true),
        ("10.0.0.2", false),
    ] {
        assert_eq!(
            meets(&only, &Subject::new().ip(ip.parse().unwrap())),
            yes,
            "{ip}"
        );
    }
    let listed = new_engine(
        Policies::new().deny(ListEntry::new(Match::new().attribute("ip", "2001:DB8::1"))),
    );
    assert!(
        listed
            .decide_now(&Subject::new().ip("2001:db8:0::1".parse().unwrap()))
            .is_denied()
    );
    let route = new_engine(
        Policies::new().policy(
            Policy::new("route")
                .matching(Match::new().attribute("endpoint", "/users/{id}"))
                .limit(Limit::per_minute(1)),
        ),
    );
    assert!(meets(
        &route,
        &Subject::new().endpoint("/users/{id}").path("/users/7")
    ));
    assert!(!meets(&route, &Subject::new().path("/users/7")));
}

/// IPv4 in IPv6 form is IPv4, in a network too.
#[test]
fn a_network_of_mapped_addresses_is_one_of_ipv4() {
    let deny = |network: &str| {
        new_engine(Policies::new().deny(ListEntry::new(Match::new().ip(network.parse().unwrap()))))
    };
    for network in ["::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104", "10.0.0.0/8"] {
        for ip in ["10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"] {
            assert!(
                deny(network)
                    .decide_now(&Subject::new().ip(ip.parse().unwrap()))
                    .is_denied(),
                "{ip} in {network}"
            );
        }
    }
}

#[test]
fn huge_values_are_valid_keys() {
    let engine = new_engine(
        Policies::new().policy(
            Policy::new("each")
                .key("user")
                .key("blob")
                .limit(Limit::per_minute(1)),
        ),
    );
    let a = vec![b'a'; 10_000_000];
    let b = vec![b'b'; 10_000_000];
    for user in [&a, &b] {
        let subject = Subject::new().user(user).with("blob", &a);
        assert!(engine.decide_now(&subject).is_allowed());
        assert!(engine.decide_now(&subject).is_denied());
    }
}

#[test]
fn a_cost_that_overflows_is_never_allowed() {
    let cost = Cost::Attribute {
        attribute: "n".into(),
        default: 2,
    };
    let class = ReserveClasses::by("class")
        .reserve("low", Reserve::Units(u64::MAX))
        .reserve("mid", Reserve::Percent(100.0));
    let engine = new_engine(
        Policies::new().policy(
            Policy::new("all")
                .limit(Limit::per_minute(u64::MAX))
                .limit(Limit::per_minute(10))
                .limit(Limit::unlimited())
                .cost(cost)
                .reserves(class),
        ),
    );
    let huge = [
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999999999999999999",
    ];
    for n in huge {
        for times in [1, 2, u64::MAX] {
            assert!(
                engine
                    .decide_now(&Subject::new().with("n", n).cost(times))
                    .is_never(),
                "{n} × {times}"
            );
        }
    }
    assert!(engine.decide_now(&Subject::new().cost(u64::MAX)).is_never());
    for class in ["low", "mid"] {
        assert!(
            engine
                .decide_now(&Subject::new().with("class", class))
                .is_never()
        );
    }
    for odd in ["", "-1", "+1", "1e3", " 1", "１", "0x10"] {
        let verdict = engine.peek_now(&Subject::new().with("n", odd));
        assert!(verdict.is_allowed(), "{odd}");
    }
    assert!(
        engine
            .decide_now(&Subject::new().with("n", "0").cost(u64::MAX))
            .is_allowed()
    );
}

#[test]
fn ten_thousand_policies_work() {
    const MANY: usize = if cfg!(debug_assertions) {
        3_000
    } else {
        10_000
    };
    let policies = |many: u64| {
        let each = (0..MANY).map(|n| {
            let policy = Policy::new(format!("p{n}"))
                .matching(at(&format!("/s{}/p{n}/*/x/**", n % 7)))
                .limit(Limit::per_minute(many));
            if n % 2 == 0 { policy.stop() } else { policy }
        });
        each.fold(Policies::new(), Policies::policy)
            .policy(Policy::new("all").limit(Limit::per_minute(1_000)))
    };
    let engine = new_engine(policies(5));
    for n in [0, 1, MANY - 1] {
        let path = format!("/s{}/p{n}/any/x/y/z", n % 7);
        let verdict = engine.decide_now(&Subject::new().path(&path));
        assert_eq!(verdict.limits().next().unwrap().policy(), format!("p{n}"));
    }
    engine.set_policies(policies(6)).unwrap();
    engine.set_policies(Policies::new()).unwrap();
}

/// Every policy applies to every request.
#[test]
fn thousands_of_asks_are_charged_all_or_nothing() {
    let limits = (1..=1_000_u64).fold(Policy::new("many"), |policy, n| {
        policy.limit(Limit::per_hour(2_000 - n))
    });
    let one = new_engine(Policies::new().policy(limits.limit(PolicyLimit::Concurrent(1))));
    let held = one.decide_now(&Subject::new());
    assert!(held.is_allowed() && held.limits().count() == 1_001);
    assert!(one.decide_now(&Subject::new()).is_denied());
    drop(held);
    let left: Vec<u64> = one
        .peek_now(&Subject::new().cost(0))
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect();
    assert_eq!((left[0], left[999], left[1_000]), (1_998, 999, 1));

    let each = (0..500).map(|n| {
        Policy::new(format!("p{n}"))
            .key("user")
            .limit(Limit::per_hour(3))
    });
    let engine = new_engine(each.fold(Policies::new(), Policies::policy));
    let ann = Subject::new().user("ann");
    assert_eq!(
        (0..9)
            .filter(|_| engine.decide_now(&ann).is_allowed())
            .count(),
        3
    );
}

#[test]
fn thousands_of_plans_work() {
    let plans = (0..2_000).fold(Policies::new(), |policies, n| {
        policies.plan(Plan::new(format!("plan-{n}")).limit(Limit::per_hour(1 + n % 5)))
    });
    let engine =
        new_engine(plans.policy(Policy::new("api").key("user").plan("plan", Some("plan-0"))));
    let count_allowed = |plan: &str| {
        (0..9)
            .filter(|_| {
                engine
                    .decide_now(&Subject::new().user("ann").plan(plan))
                    .is_allowed()
            })
            .count()
    };
    assert_eq!(
        (
            count_allowed("plan-1999"),
            count_allowed("plan-1"),
            count_allowed("none")
        ),
        (5, 2, 1)
    );
}

/// Patterns that share all prefixes: the work grows with the number of patterns, not with that of
/// their subsets.
#[test]
fn stars_do_not_multiply_the_work() {
    let deep = (0..60).map(|n| {
        let path: String = (0..60)
            .map(|at| if at == n { "/a" } else { "/*" })
            .collect();
        Policy::new(format!("p{n}"))
            .matching(at(&path))
            .limit(Limit::per_minute(9))
    });
    let engine = new_engine(deep.fold(Policies::new(), Policies::policy));
    let path = "/a".repeat(60);
    assert_eq!(
        engine
            .decide_now(&Subject::new().path(&path))
            .limits()
            .count(),
        60
    );
}

#[test]
fn a_pattern_has_a_bounded_number_of_segments() {
    let longest = "/x".repeat(256);
    let engine = new_engine(
        Policies::new().policy(
            Policy::new("long")
                .matching(at(&longest))
                .limit(Limit::per_minute(1)),
        ),
    );
    assert!(meets(&engine, &Subject::new().path(&longest)));
    for many in [257, 100_000] {
        let pattern = "/x".repeat(many);
        assert_eq!(
            pattern.parse::<PathPattern>(),
            Err(PatternError::TooLong),
            "{many}"
        );
        assert!(!meets(&engine, &Subject::new().path(&pattern)));
    }
    assert!(
        ("/".repeat(10_000) + "a").parse::<PathPattern>().is_ok(),
        "slashes are not segments"
    );
}

/// A thread with a small stack can decide.
#[test]
fn a_small_stack_is_enough() {
    let run = || {
        let longest = "/*".repeat(256);
        let engine = new_engine(
            Policies::new().policy(
                Policy::new("long")
                    .matching(at(&longest))
                    .limit(Limit::per_minute(1)),
            ),
        );
        assert!(meets(&engine, &Subject::new().path(&"/x".repeat(256))));
    };
    std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn the_longest_delay_works() {
    let action = ratekeeper_policy::Action::Delay { max: Duration::MAX };
    let engine = new_engine(
        Policies::new().policy(Policy::new("slow").limit(Limit::per_day(1)).action(action)),
    );
    for _ in 0..1_000 {
        let _ = engine.decide_now(&Subject::new()).delay();
    }
}
