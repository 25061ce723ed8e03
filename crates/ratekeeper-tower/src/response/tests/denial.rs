//! The complete response of a denial, in each format.

use super::super::denial::ProblemType;
use super::super::{Denial, DenialFormat, Jitter, denial_response};
use super::{engine, lines};
use http::StatusCode;
use prost::Message as _;
use ratekeeper::{Clock as _, Limit};
use ratekeeper_policy::{
    Action, Cost, ListEntry, Match, Policies, Policy, PolicyLimit, PolicyVerdict, Subject,
    policy::DenialStatus, policy::Penalty,
};
use serde_json::{Value, json};
use std::time::Duration;

const GRPC: DenialFormat = DenialFormat::Grpc("application/grpc");

/// `login` allows one request a minute.
fn login() -> Policy {
    Policy::new("login").limit(Limit::per_minute(1))
}

/// The second request, 500 ms after the first.
fn second(policies: Policies) -> PolicyVerdict {
    let (engine, clock) = engine(policies);
    drop(engine.decide_now(&Subject::new()));
    clock.advance(Duration::from_millis(500));
    engine.decide_now(&Subject::new())
}

fn problem(verdict: &PolicyVerdict) -> Value {
    let response = denial_response(DenialFormat::Problem, &Denial::of_verdict(verdict));
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn a_problem_exactly() {
    let verdict = second(Policies::new().policy(login()));
    let response = denial_response(DenialFormat::Problem, &Denial::of_verdict(&verdict));
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        lines(response.headers()),
        [
            "cache-control: no-store",
            "content-type: application/problem+json",
            "retry-after: 60",
            "x-content-type-options: nosniff"
        ]
    );
    assert_eq!(
        str::from_utf8(response.body()).unwrap(),
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
            r#""status":429,"detail":"Rate limit of policy `login` exceeded; try again in 60 seconds.","#,
            r#""violated-policies":["login"],"retry_after_ms":59500}"#,
            "\n"
        )
    );
}

#[test]
fn plain_text_and_html() {
    let verdict = second(Policies::new().policy(Policy::new("a<b>&c").limit(Limit::per_second(1))));
    let denial = Denial::of_verdict(&verdict);
    let plain = denial_response(DenialFormat::Plain, &denial);
    assert_eq!(plain.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(
        &plain.body()[..],
        b"Rate limit of policy `a<b>&c` exceeded; try again in 1 second.\n"
    );
    let html = denial_response(DenialFormat::Html, &denial);
    assert_eq!(html.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(
        str::from_utf8(html.body()).unwrap(),
        "<!doctype html>\n\
         <html lang=\"en\"><head><meta charset=\"utf-8\"><title>429 Too Many Requests</title></head>\n\
         <body><h1>429 Too Many Requests</h1>\
         <p>Rate limit of policy `a&lt;b&gt;&amp;c` exceeded; try again in 1 second.</p></body></html>\n"
    );
    for response in [plain, html] {
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["retry-after"], "1");
    }
}

#[test]
fn every_violated_policy_is_named_and_the_longest_wait_wins() {
    let policies = Policies::new()
        .policy(Policy::new("hourly \"\u{7}").limit(Limit::per_hour(1)))
        .policy(
            Policy::new("watched")
                .limit(Limit::per_hour(1))
                .action(Action::Shadow),
        )
        .policy(
            Policy::new("wide")
                .limit(Limit::per_minute(9))
                .limit(Limit::per_minute(1)),
        );
    let body = problem(&second(policies));
    assert_eq!(
        body["violated-policies"],
        json!(["hourly \"\u{7}", "wide#2"])
    );
    assert_eq!(body["retry_after_ms"], json!(3_599_500));
    assert_eq!(
        body["detail"],
        "Rate limit of policy `hourly \"\u{7}` exceeded; try again in 3600 seconds."
    );
}

#[test]
fn a_denial_for_ever_has_no_retry_after() {
    let verdict = second(Policies::new().policy(login().cost(Cost::Units(2))));
    let response = denial_response(DenialFormat::Problem, &Denial::of_verdict(&verdict));
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!response.headers().contains_key("retry-after"));
    let body = problem(&verdict);
    assert_eq!(
        body["detail"],
        "Policy `login` never allows this request; trying again will not help."
    );
    assert_eq!(body.get("retry_after_ms"), None);
}

#[test]
fn a_concurrency_denial_retries_after_a_second() {
    let (engine, _) =
        engine(Policies::new().policy(Policy::new("busy").limit(PolicyLimit::Concurrent(1))));
    let _held = engine.decide_now(&Subject::new());
    let verdict = engine.decide_now(&Subject::new());
    assert_eq!(Denial::of_verdict(&verdict).seconds(), Some(1));
    let body = problem(&verdict);
    assert_eq!(
        body["detail"],
        "Concurrency limit of policy `busy` reached; try again in 1 second."
    );
    assert_eq!(body["retry_after_ms"], json!(1_000));
}

#[test]
fn a_status_of_503_is_a_problem_of_reduced_capacity() {
    let verdict = second(Policies::new().policy(login().status(DenialStatus::ServiceUnavailable)));
    assert_eq!(
        denial_response(DenialFormat::Problem, &Denial::of_verdict(&verdict)).status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    let body = problem(&verdict);
    assert_eq!(
        body["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(
        (&body["title"], &body["status"]),
        (&json!("Temporary Reduced Capacity"), &json!(503))
    );
}

#[test]
fn bans_and_deny_lists_are_abnormal_usage() {
    let abnormal = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
    let summary = |body: &Value| {
        assert_eq!(
            (&body["type"], &body["status"]),
            (&json!(abnormal), &json!(429))
        );
        (
            body["detail"].as_str().unwrap().to_owned(),
            body["violated-policies"].clone(),
        )
    };

    let (gate_, _) = engine(Policies::new().policy(login()));
    gate_
        .operator()
        .ban(
            "login",
            &Subject::new(),
            Duration::from_secs(90),
            Some("a secret of ours"),
        )
        .unwrap();
    let body = problem(&gate_.decide_now(&Subject::new()));
    assert_eq!(
        summary(&body),
        (
            "This client is temporarily banned; try again in 90 seconds.".into(),
            json!(["login"])
        )
    );

    let minute = Duration::from_secs(60);
    let penalty = Penalty {
        denials: 1,
        within: minute,
        ban: 10 * minute,
    };
    let (gate_, _) = engine(Policies::new().policy(login().key("user").penalty(penalty)));
    let ann = Subject::new().user("ann");
    (0..2).for_each(|_| drop(gate_.decide_now(&ann)));
    let body = problem(&gate_.decide_now(&ann));
    assert_eq!(
        summary(&body),
        (
            "This client is temporarily banned; try again in 600 seconds.".into(),
            json!(["login"])
        )
    );

    let (gate_, clock) = engine(Policies::new().policy(login()));
    let until = clock.now().as_unix_nanos() + 5_000_000_000;
    let listed =
        ListEntry::new(Match::new().path("/x".parse().unwrap())).reason("a secret of ours");
    let for_ever = engine(Policies::new().policy(login()).deny(listed.clone())).0;
    let body = problem(&for_ever.decide_now(&Subject::new().path("/x")));
    assert_eq!(
        summary(&body),
        (
            "This client is not allowed to use this service; trying again will not help.".into(),
            json!([])
        )
    );
    let for_now = Policies::new()
        .policy(login())
        .deny(listed.until(ratekeeper::Timestamp::from_unix_nanos(until)));
    gate_.set_policies(for_now).unwrap();
    let body = problem(&gate_.decide_now(&Subject::new().path("/x")));
    assert_eq!(
        summary(&body),
        (
            "This client is not allowed to use this service; try again in 5 seconds.".into(),
            json!([])
        )
    );
}

#[test]
fn jitter_is_upward_bounded_spread_and_the_same_for_the_same_key() {
    let verdict = second(Policies::new().policy(login()));
    let after = |percent, hash| {
        let denial = Denial {
            jitter: Jitter { percent, hash },
            ..Denial::of_verdict(&verdict)
        };
        let body: Value =
            serde_json::from_slice(denial_response(DenialFormat::Problem, &denial).body()).unwrap();
        // The milliseconds are later by the same amount.
        assert_eq!(
            body["retry_after_ms"].as_u64().unwrap(),
            (denial.seconds().unwrap() * 1_000) - 500
        );
        denial.seconds().unwrap()
    };
    assert_eq!(
        (after(0, u64::MAX), after(10, 0), after(10, u64::MAX)),
        (60, 60, 66)
    );
    let hashes = (0..100_u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let seconds: std::collections::BTreeSet<_> = hashes.map(|hash| after(10, hash)).collect();
    assert_eq!(seconds, (60..=66).collect());
    assert_eq!(after(255, 1 << 63), 60 + 77);
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes, tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

fn unbase64(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = text
        .chars()
        .map(|digit| format!("{:06b}", DIGITS.find(digit).unwrap()))
        .collect();
    bits.as_bytes()
        .chunks_exact(8)
        .map(|byte| u8::from_str_radix(str::from_utf8(byte).unwrap(), 2).unwrap())
        .collect()
}

#[test]
fn grpc_gets_a_status_a_message_and_when_to_try_again() {
    for (status, code) in [
        (DenialStatus::TooManyRequests, 8),
        (DenialStatus::ServiceUnavailable, 14),
    ] {
        let policy = Policy::new("größe 100%")
            .limit(Limit::per_minute(1))
            .status(status);
        let verdict = second(Policies::new().policy(policy));
        let response = denial_response(GRPC, &Denial::of_verdict(&verdict));
        assert_eq!(
            (response.status(), response.body().len()),
            (StatusCode::OK, 0)
        );
        let headers = response.headers();
        assert_eq!(
            (&headers["content-type"], &headers["retry-after"]),
            (&"application/grpc".parse().unwrap(), &60.into())
        );
        assert_eq!(headers["grpc-status"], code.to_string().as_str());
        assert_eq!(
            headers["grpc-message"],
            "Rate limit of policy `gr%C3%B6%C3%9Fe 100%25` exceeded; try again in 60 seconds."
        );
        let details =
            Status::decode(&unbase64(headers["grpc-status-details-bin"].to_str().unwrap())[..])
                .unwrap();
        assert_eq!(details.code, code);
        assert_eq!(
            details.message,
            "Rate limit of policy `größe 100%` exceeded; try again in 60 seconds."
        );
        assert_eq!(details.details.len(), 1);
        assert_eq!(
            details.details[0].type_url,
            "type.googleapis.com/google.rpc.RetryInfo"
        );
        let info = RetryInfo::decode(&details.details[0].value[..]).unwrap();
        assert_eq!(
            info.retry_delay,
            Some(Delay {
                seconds: 59,
                nanos: 500_000_000
            })
        );
    }
}

#[test]
fn a_grpc_denial_for_ever_has_no_retry_info() {
    let verdict = second(Policies::new().policy(login().cost(Cost::Units(2))));
    let headers = denial_response(GRPC, &Denial::of_verdict(&verdict))
        .headers()
        .clone();
    let details =
        Status::decode(&unbase64(headers["grpc-status-details-bin"].to_str().unwrap())[..])
            .unwrap();
    assert!(details.details.is_empty() && !headers.contains_key("retry-after"));
}

#[test]
fn a_denial_may_be_made_by_hand() {
    let denial = Denial {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: ProblemType::ReducedCapacity,
        violated: Vec::new(),
        retry_after: Some(Duration::from_millis(4_001)),
        never: false,
        cause: "The service behind is not well".into(),
        jitter: Jitter::default(),
        shadow: false,
    };
    let body: Value =
        serde_json::from_slice(denial_response(DenialFormat::Problem, &denial).body()).unwrap();
    assert_eq!(
        body["detail"],
        "The service behind is not well; try again in 5 seconds."
    );
    assert_eq!(
        (&body["violated-policies"], &body["retry_after_ms"]),
        (&json!([]), &json!(4_001))
    );
}
