//! Rate limit headers of each dialect.

use super::super::{Dialect, Dialects, LimitInfo, expose_headers};
use super::{engine, joined, lines, written};
use http::{HeaderMap, HeaderValue};
use ratekeeper::{Algorithm, Limit};
use ratekeeper_policy::{
    Action, Cost, Policies, Policy, PolicyLimit, Subject, policy::Reserve, policy::ReserveClasses,
};
use std::time::Duration;

/// 57 of 100 a minute remain.
fn policies() -> Policies {
    Policies::new().policy(
        Policy::new("default")
            .limit(Limit::per_minute(100))
            .cost(Cost::Units(43)),
    )
}

#[test]
fn every_dialect_as_it_is_written() {
    let (engine, _) = engine(policies());
    let verdict = engine.decide_now(&Subject::new());
    let x = |reset: &str| {
        vec![
            "x-ratelimit-limit: 100".to_owned(),
            "x-ratelimit-remaining: 57".into(),
            format!("x-ratelimit-reset: {reset}"),
        ]
    };
    // All 43 are back after 25.8 seconds.
    assert_eq!(
        lines(&written(Dialects::default(), &verdict, None)),
        x("1640000026")
    );
    assert_eq!(lines(&written(Dialect::XDelta, &verdict, None)), x("26"));
    assert_eq!(
        lines(&written(Dialect::Ietf, &verdict, None)),
        [
            r#"ratelimit-policy: "default";q=100;w=60"#,
            r#"ratelimit: "default";r=57;t=35"#
        ]
    );
    assert_eq!(
        lines(&written(Dialect::Draft07, &verdict, None)),
        [
            "ratelimit-policy: 100;w=60",
            "ratelimit: limit=100, remaining=57, reset=35"
        ]
    );
    assert_eq!(
        lines(&written(Dialect::Draft06, &verdict, None)),
        [
            "ratelimit-limit: 100",
            "ratelimit-remaining: 57",
            "ratelimit-reset: 35"
        ]
    );
    assert!(written(Dialects::none(), &verdict, None).is_empty());
    let all = Dialects::default().and(Dialect::Ietf).and(Dialect::Draft06);
    assert_eq!(written(all, &verdict, None).len(), 8);
}

#[test]
fn reset_is_rounded_up_where_it_falls_not_before() {
    let (engine, _) = engine(
        Policies::new().policy(Policy::new("a").limit(Limit::every(Duration::from_millis(700)))),
    );
    let verdict = engine.decide_now(&Subject::new());
    // 0.2 + 0.7 seconds is within the first second, and 0.7 seconds are rounded up to one.
    assert_eq!(
        joined(
            &written(Dialect::XEpoch, &verdict, None),
            "x-ratelimit-reset"
        ),
        "1640000001"
    );
    assert_eq!(
        joined(
            &written(Dialect::XDelta, &verdict, None),
            "x-ratelimit-reset"
        ),
        "1"
    );
}

#[test]
fn conflicting_dialects_are_not_written_together() {
    let of = |dialects: &[Dialect]| {
        dialects
            .iter()
            .fold(Dialects::none(), |all, one| all.and(*one))
    };
    assert_eq!(
        of(&[Dialect::XEpoch, Dialect::XDelta]),
        Dialect::XDelta.into()
    );
    assert_eq!(
        of(&[Dialect::XDelta, Dialect::XEpoch]),
        Dialect::XEpoch.into()
    );
    assert_eq!(
        of(&[Dialect::Ietf, Dialect::Draft07]),
        Dialect::Draft07.into()
    );
    assert_eq!(of(&[Dialect::Draft07, Dialect::Ietf]), Dialect::Ietf.into());
    assert_eq!(
        format!("{:?}", of(&[Dialect::Draft06, Dialect::XEpoch])),
        "{XEpoch, Draft06}"
    );
}

#[test]
fn the_tightest_limit_is_written_and_ietf_writes_all_enforced() {
    let (engine, _) = engine(
        Policies::new()
            .policy(
                Policy::new("wide")
                    .limit(Limit::per_hour(1_000))
                    .limit(Limit::per_minute(90)),
            )
            .policy(
                Policy::new("watched")
                    .limit(Limit::per_minute(1))
                    .action(Action::Shadow),
            )
            .policy(Policy::new("narrow").limit(Limit::per_second(2).burst(10)))
            .policy(Policy::new("free").limit(Limit::unlimited()))
            .policy(Policy::new("busy").limit(PolicyLimit::Concurrent(20))),
    );
    let verdict = engine.decide_now(&Subject::new());
    let headers = written(Dialects::default().and(Dialect::Ietf), &verdict, None);
    assert_eq!(joined(&headers, "x-ratelimit-limit"), "10");
    assert_eq!(
        joined(&headers, "ratelimit-policy"),
        r#""wide";q=1000;w=3600, "wide#2";q=90;w=60, "narrow";q=10;w=5, "busy";q=20;qu="concurrent-requests""#
    );
    assert_eq!(
        joined(&headers, "ratelimit"),
        r#""wide";r=999;t=3597, "wide#2";r=89;t=60, "narrow";r=9;t=5, "busy";r=19"#
    );
}

#[test]
fn a_concurrency_limit_resets_now_or_at_retry_after() {
    let (engine, _) =
        engine(Policies::new().policy(Policy::new("busy").limit(PolicyLimit::Concurrent(1))));
    let all = Dialects::from(Dialect::XDelta)
        .and(Dialect::Draft07)
        .and(Dialect::Draft06);
    let first = engine.decide_now(&Subject::new());
    let headers = written(all, &first, None);
    assert_eq!(
        [
            "x-ratelimit-reset",
            "ratelimit-reset",
            "ratelimit",
            "ratelimit-policy"
        ]
        .map(|name| joined(&headers, name)),
        ["0", "0", "limit=1, remaining=0, reset=0", ""]
    );
    let headers = written(all, &engine.decide_now(&Subject::new()), Some(1));
    assert_eq!(joined(&headers, "x-ratelimit-reset"), "1");
    assert_eq!(
        joined(&headers, "ratelimit"),
        "limit=1, remaining=0, reset=1"
    );
}

#[test]
fn a_limit_that_never_refills_has_no_reset() {
    let (engine, _) =
        engine(Policies::new().policy(Policy::new("gift").limit(Limit::per_second(0).burst(3))));
    let verdict = engine.decide_now(&Subject::new());
    let all = Dialects::default().and(Dialect::Ietf).and(Dialect::Draft06);
    assert_eq!(
        lines(&written(all, &verdict, None)),
        [
            r#"ratelimit-policy: "gift";q=3"#,
            r#"ratelimit: "gift";r=2"#,
            "x-ratelimit-limit: 3",
            "x-ratelimit-remaining: 2"
        ]
    );
    assert!(written(Dialect::Draft07, &verdict, None).is_empty());
}

#[test]
fn a_limit_that_denies_everything_has_no_times() {
    for limit in [
        Limit::deny_all(),
        Limit::per_minute(0).algorithm(Algorithm::FixedWindow),
    ] {
        let (engine, _) = engine(Policies::new().policy(Policy::new("shut").limit(limit)));
        let headers = written(
            Dialects::default().and(Dialect::Ietf),
            &engine.decide_now(&Subject::new()),
            None,
        );
        assert_eq!(joined(&headers, "ratelimit"), r#""shut";r=0"#);
        assert_eq!(joined(&headers, "x-ratelimit-reset"), "");
    }
}

#[test]
fn names_are_strings_of_structured_fields() {
    let (engine, _) = engine(
        Policies::new()
            .policy(Policy::new(r#"a "b" \c"#).limit(Limit::per_minute(1)))
            .policy(Policy::new("größe\n").limit(Limit::per_minute(1))),
    );
    let headers = written(Dialect::Ietf, &engine.decide_now(&Subject::new()), None);
    assert_eq!(
        joined(&headers, "ratelimit"),
        r#""a \"b\" \\c";r=0;t=60, "gr__e_";r=0;t=60"#
    );
    let list: sfv::List = sfv::Parser::new(&joined(&headers, "ratelimit"))
        .parse()
        .unwrap();
    let sfv::ListEntry::Item(first) = &list[0] else {
        panic!("{list:?}")
    };
    assert_eq!(first.bare_item.as_string().unwrap().as_str(), r#"a "b" \c"#);
}

#[test]
fn a_number_too_large_for_a_structured_field_is_the_largest() {
    let limit = PolicyLimit::Rate(Limit::per_second(u64::MAX / 4).burst(u64::MAX / 4));
    let decision = ratekeeper::Limiter::new(*limit.rate().unwrap()).check();
    let info = LimitInfo::new("big".into(), limit.rate(), &decision).unwrap();
    let mut headers = HeaderMap::new();
    Dialects::from(Dialect::Ietf).write(
        &mut headers,
        &info,
        [info].into_iter(),
        None,
        Duration::ZERO,
    );
    assert_eq!(
        joined(&headers, "ratelimit"),
        r#""big";r=999999999999999;t=1"#
    );
    assert_eq!(
        joined(&headers, "ratelimit-policy"),
        r#""big";q=999999999999999;w=1"#
    );
}

#[test]
fn a_rate_that_is_not_exact_still_has_a_whole_window() {
    let (engine, _) =
        engine(Policies::new().policy(Policy::new("odd").limit(Limit::per_second(59))));
    let headers = written(Dialect::Ietf, &engine.decide_now(&Subject::new()), None);
    assert_eq!(joined(&headers, "ratelimit-policy"), r#""odd";q=59;w=1"#);
}

#[test]
fn a_class_sees_its_own_capacity() {
    let class = ReserveClasses::by("class")
        .reserve("batch", Reserve::Units(50))
        .reserve("none", Reserve::Units(100));
    let policy = Policy::new("api")
        .limit(Limit::per_minute(100))
        .reserves(class);
    let (engine, _) = engine(Policies::new().policy(policy));
    let told_to = |class: &str| {
        lines(&written(
            Dialect::Ietf,
            &engine.decide_now(&Subject::new().with("class", class)),
            None,
        ))
    };
    assert_eq!(
        told_to("batch"),
        [
            r#"ratelimit-policy: "api";q=50;w=30"#,
            r#"ratelimit: "api";r=49;t=30"#
        ]
    );
    assert_eq!(
        told_to("none"),
        [
            r#"ratelimit-policy: "api";q=0;w=1"#,
            r#"ratelimit: "api";r=0"#
        ]
    );
}

#[test]
fn a_queue_of_none_has_the_window_of_its_one() {
    let limit = Limit::per_minute(6).paced_max_queue(0);
    let (engine, _) = engine(Policies::new().policy(Policy::new("paced").limit(limit)));
    let headers = written(Dialect::Ietf, &engine.decide_now(&Subject::new()), None);
    assert_eq!(
        lines(&headers),
        [
            r#"ratelimit-policy: "paced";q=1;w=10"#,
            r#"ratelimit: "paced";r=0;t=10"#
        ]
    );
}

#[test]
fn headers_of_the_service_stay() {
    let (engine, _) = engine(policies());
    let verdict = engine.decide_now(&Subject::new());
    let all = Dialects::default().and(Dialect::Ietf).and(Dialect::Draft06);
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-remaining", HeaderValue::from_static("3"));
    headers.insert("ratelimit-reset", HeaderValue::from_static("9"));
    headers.insert("ratelimit", HeaderValue::from_static(r#""origin";r=3;t=9"#));
    super::super::write_headers(all, &mut headers, &verdict, None, Duration::ZERO);
    assert_eq!(
        joined(&headers, "ratelimit"),
        r#""origin";r=3;t=9, "default";r=57;t=35"#
    );
    assert_eq!(
        joined(&headers, "ratelimit-policy"),
        r#""default";q=100;w=60"#
    );
    assert_eq!(joined(&headers, "x-ratelimit-remaining"), "3");
    assert_eq!(joined(&headers, "ratelimit-reset"), "9");
    assert!(!headers.contains_key("x-ratelimit-limit") && !headers.contains_key("ratelimit-limit"));

    // A second line would give its keys another value.
    let mut headers = HeaderMap::new();
    headers.insert(
        "ratelimit",
        HeaderValue::from_static("limit=5, remaining=3, reset=9"),
    );
    super::super::write_headers(
        Dialect::Draft07.into(),
        &mut headers,
        &verdict,
        None,
        Duration::ZERO,
    );
    assert_eq!(
        lines(&headers),
        ["ratelimit: limit=5, remaining=3, reset=9"]
    );

    // A header that only begins like ours does not conflict.
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-resource", HeaderValue::from_static("core"));
    super::super::write_headers(
        Dialect::XDelta.into(),
        &mut headers,
        &verdict,
        None,
        Duration::ZERO,
    );
    assert_eq!(joined(&headers, "x-ratelimit-resource"), "core");
    assert_eq!(
        (
            joined(&headers, "x-ratelimit-limit"),
            joined(&headers, "x-ratelimit-remaining")
        ),
        ("100".into(), "57".into())
    );
}

#[test]
fn written_headers_are_exposed() {
    let mut headers = HeaderMap::new();
    headers.insert(
        "access-control-expose-headers",
        HeaderValue::from_static("x-request-id"),
    );
    expose_headers(&mut headers, Dialects::default().and(Dialect::Ietf));
    assert_eq!(
        joined(&headers, "access-control-expose-headers"),
        "x-request-id, retry-after, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, ratelimit-policy, ratelimit"
    );
}
