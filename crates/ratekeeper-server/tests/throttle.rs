//! `POST /v1/throttle` as a client sees it.

mod support;

use serde_json::{Value, json};
use std::io::Write;
use support::Server;

#[test]
fn a_bucket_of_five_allows_five_and_returns_retry_after() {
    let server = Server::start();
    let call =
        r#"{"key":"user-42","limit":"5/d","algorithm":"token_bucket","cost":1,"peek":false}"#;
    let first = server.throttle(call);
    assert_eq!(
        (first.status(), first.header("content-type")),
        (200, Some("application/json"))
    );
    assert_eq!(
        (first.header("retry-after"), first.header("cache-control")),
        (None, None)
    );
    assert_eq!(
        first.json(),
        json!({"allowed": true, "limit": 5, "remaining": 4, "used": 1, "delay_ms": 0,
               "retry_after_ms": null, "reset_after_ms": 17_280_000, "never": false})
    );
    for remaining in (0..4).rev() {
        let answer = server.throttle(call);
        assert_eq!(
            (answer.status(), &answer.json()["remaining"]),
            (200, &json!(remaining))
        );
    }

    let denied = server.throttle(call);
    assert_eq!(
        (denied.status(), denied.header("cache-control")),
        (429, Some("no-store"))
    );
    let body = denied.json();
    let figures = ["allowed", "limit", "remaining", "used", "delay_ms", "never"]
        .map(|name| body[name].clone());
    assert_eq!(
        figures,
        [
            json!(false),
            json!(5),
            json!(0),
            json!(5),
            json!(0),
            json!(false)
        ]
    );
    let (retry, reset) = (
        body["retry_after_ms"].as_u64().unwrap(),
        body["reset_after_ms"].as_u64().unwrap(),
    );
    // The test itself takes some of the time, if not half an hour.
    assert!((15_000_000..=17_280_000).contains(&retry), "{body}");
    assert!((84_000_000..=86_400_000).contains(&reset), "{body}");
    assert_eq!(
        denied.header("retry-after").unwrap().parse(),
        Ok(retry.div_ceil(1000))
    );
}

#[test]
fn a_peek_charges_nothing() {
    let server = Server::start();
    let peek = r#"{"key":"a","limit":"2/d","cost":2,"peek":true}"#;
    for _ in 0..3 {
        let answer = server.throttle(peek);
        assert_eq!(
            (answer.status(), &answer.json()["remaining"]),
            (200, &json!(2))
        );
    }
    assert_eq!(
        server.throttle(r#"{"key":"a","limit":"2/d"}"#).json()["remaining"],
        json!(1)
    );
    let answer = server.throttle(peek);
    assert_eq!(
        (answer.status(), &answer.json()["remaining"]),
        (429, &json!(1))
    );
    assert!(answer.header("retry-after").is_some());
}

#[test]
fn a_cost_is_charged_and_one_above_the_capacity_is_never_allowed() {
    let server = Server::start();
    assert_eq!(
        server
            .throttle(r#"{"key":"a","limit":"10/d","cost":7}"#)
            .json()["used"],
        json!(7)
    );
    let denied = server.throttle(r#"{"key":"a","limit":"10/d","cost":4}"#);
    assert_eq!(
        (denied.status(), &denied.json()["remaining"]),
        (429, &json!(3))
    );
    let nothing = server.throttle(r#"{"key":"a","limit":"10/d","cost":0}"#);
    assert_eq!(
        (nothing.status(), &nothing.json()["used"]),
        (200, &json!(7))
    );
    for cost in ["11", "18446744073709551615"] {
        let never = server.throttle(&format!(r#"{{"key":"a","limit":"10/d","cost":{cost}}}"#));
        assert_eq!((never.status(), never.header("retry-after")), (429, None));
        assert_eq!(never.header("cache-control"), Some("no-store"));
        let body = never.json();
        assert_eq!(
            (&body["never"], &body["retry_after_ms"]),
            (&json!(true), &Value::Null)
        );
        assert_eq!(
            (&body["allowed"], &body["remaining"]),
            (&json!(false), &json!(3))
        );
    }
}

#[test]
fn the_bucket_is_the_key_the_algorithm_and_the_limit_in_any_spelling() {
    let server = Server::start();
    let remaining = |body: &str| server.throttle(body).json()["remaining"].as_u64().unwrap();
    assert_eq!(remaining(r#"{"key":"a","limit":"7/d"}"#), 6);
    assert_eq!(remaining(r#"{"key":"a","limit":"7/24h"}"#), 5);
    assert_eq!(
        remaining(r#"{"limit":" 7 / day burst 7 ","key":"a","algorithm":"gcra"}"#),
        4
    );
    assert_eq!(
        remaining(r#"{"key":"a","limit":"7/d gcra","algorithm":"token_bucket"}"#),
        3
    );
    assert_eq!(
        remaining(r#"{"key":"a","limit":"7/d","algorithm":null,"cost":null,"peek":null}"#),
        2
    );
    assert_eq!(remaining(r#"{"key":"b","limit":"7/d"}"#), 6);
    assert_eq!(remaining(r#"{"key":"a","limit":"8/d"}"#), 7);
    assert_eq!(
        remaining(r#"{"key":"a","limit":"7/d","algorithm":"leaky_bucket"}"#),
        6
    );
    assert_eq!(remaining(r#"{"key":"a","limit":"7/d leaky_bucket"}"#), 5);
}

#[test]
fn a_key_is_any_text_of_up_to_512_bytes() {
    let server = Server::start();
    for key in [
        "x".repeat(512),
        "ü".repeat(256),
        "\\u0000\\n\\ud83d\\ude80 ".to_owned(),
    ] {
        let body = format!(r#"{{"key":"{key}","limit":"2/d"}}"#);
        assert_eq!(server.throttle(&body).json()["remaining"], json!(1));
        assert_eq!(server.throttle(&body).json()["remaining"], json!(0));
    }
}

#[test]
fn unlimited_has_no_numbers_and_zero_allows_nothing() {
    let server = Server::start();
    let unlimited =
        server.throttle(r#"{"key":"a","limit":"unlimited","cost":18446744073709551615}"#);
    assert_eq!(unlimited.status(), 200);
    assert_eq!(
        unlimited.json(),
        json!({"allowed": true, "limit": null, "remaining": null, "used": 0, "delay_ms": 0,
               "retry_after_ms": null, "reset_after_ms": 0, "never": false})
    );
    let nothing = server.throttle(r#"{"key":"a","limit":"0"}"#);
    assert_eq!(
        (nothing.status(), nothing.header("retry-after")),
        (429, None)
    );
    assert_eq!(
        nothing.json(),
        json!({"allowed": false, "limit": 0, "remaining": 0, "used": 0, "delay_ms": 0,
               "retry_after_ms": null, "reset_after_ms": 0, "never": true})
    );
    let once = server.throttle(r#"{"key":"a","limit":"0 burst 2"}"#);
    assert_eq!(
        (once.status(), &once.json()["reset_after_ms"]),
        (200, &Value::Null)
    );
}

/// The kernel spreads connections over the workers; all of them decide on the same buckets.
#[test]
fn many_connections_share_one_bucket() {
    let server = Server::start();
    let admitted: usize = std::thread::scope(|scope| {
        let call = || server.throttle(r#"{"key":"a","limit":"20/d"}"#).status() == 200;
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(move || (0..10).filter(|_| call()).count()))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(admitted, 20);
}

#[test]
fn a_connection_serves_one_request_after_another() {
    let server = Server::start();
    let mut connection = server.connect();
    for remaining in (0..3).rev() {
        connection.send("POST", "/v1/throttle", r#"{"key":"a","limit":"3/d"}"#);
        assert_eq!(connection.answer().json()["remaining"], json!(remaining));
    }
    connection.send("GET", "/livez", "");
    assert_eq!(connection.answer().body, "ok\n");
}

#[test]
fn livez_and_readyz_are_ok() {
    let server = Server::start();
    for path in ["/livez", "/readyz"] {
        let answer = server.request("GET", path, "");
        assert_eq!((answer.status(), answer.body.as_str()), (200, "ok\n"));
    }
}

#[test]
fn every_algorithm_is_accepted() {
    let server = Server::start();
    for name in [
        "token_bucket",
        "gcra",
        "leaky_bucket",
        "fixed_window",
        "fixed_window_first_hit",
        "sliding_window",
        "sliding_window_strict",
        "sliding_log",
    ] {
        let body = format!(r#"{{"key":"{name}","limit":"2/w","algorithm":"{name}"}}"#);
        let statuses = [(); 3].map(|()| server.throttle(&body).status());
        assert_eq!(statuses, [200, 200, 429], "{name}");
    }
}

#[test]
fn a_paced_call_returns_its_delay() {
    let server = Server::start();
    let call = || server.throttle(r#"{"key":"a","limit":"1/h queue 1"}"#);
    assert!(
        call()
            .body
            .contains(r#""allowed":true,"limit":2,"remaining":1,"used":1,"delay_ms":0,"#)
    );
    let second = call();
    assert_eq!(second.status(), 200);
    // An hour, less the time between the two calls.
    assert!(
        second.body.contains(r#""delay_ms":3599"#) || second.body.contains(r#""delay_ms":3600000"#),
        "{}",
        second.body
    );
    assert_eq!(call().status(), 429);
}

/// More limits than four generations of 65,536, none of which refills: limits in use stay, and new
/// ones are accepted.
#[test]
fn any_number_of_limits_is_accepted() {
    const BATCH: usize = 512;
    const LIMITS: usize = 4 * 65_536 + 2 * BATCH;
    let server = Server::start();
    let used = r#"{"key":"a","limit":"5/30d"}"#;
    assert!((0..5).all(|_| server.throttle(used).status() == 200));
    let mut connection = server.connect();
    for batch in 0..LIMITS / BATCH {
        let requests: String = (0..BATCH)
            .map(|n| {
                let burst = 1 + batch * BATCH + n;
                let body = format!(r#"{{"key":"stranger","limit":"0/s burst {burst}"}}"#);
                let length = body.len();
                format!(
                    "POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                     Content-Length: {length}\r\n\r\n{body}"
                )
            })
            .collect();
        let mut writer = connection.writer();
        let writing = std::thread::spawn(move || writer.write_all(requests.as_bytes()));
        for n in 0..BATCH {
            let answer = connection.answer();
            assert_eq!(answer.status(), 200, "{n} of batch {batch}: {answer:?}");
        }
        writing.join().unwrap().unwrap();
        assert_eq!(server.throttle(used).status(), 429, "after batch {batch}");
    }
    let evicted = server.metric("ratekeeper_throttle_limits_evicted_total");
    assert_eq!(evicted, 65_536.0);
}
