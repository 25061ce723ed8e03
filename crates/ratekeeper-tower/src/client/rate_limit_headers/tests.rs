//! Reading every dialect, and malformed headers.

use super::{Allowance, ResponseInfo, read};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1_700_000_000);

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    fields
        .iter()
        .map(|(name, text)| (HeaderName::from_static(name), value(text)))
        .collect()
}

fn parse(status: u16, fields: &[(&'static str, &str)]) -> ResponseInfo {
    read(StatusCode::from_u16(status).unwrap(), &headers(fields), NOW)
}

fn allowance(fields: &[(&'static str, &str)]) -> Option<(u64, u64)> {
    parse(200, fields)
        .allowance
        .map(|allowance| (allowance.remaining, allowance.window.as_secs()))
}

fn pause(status: u16, fields: &[(&'static str, &str)]) -> Option<u64> {
    let info = parse(status, fields);
    assert!(
        info.allowance
            .is_none_or(|allowance| allowance.remaining == 0)
    );
    info.allowance.map(|allowance| allowance.window.as_secs())
}

#[test]
fn every_dialect_is_read() {
    assert_eq!(
        allowance(&[
            ("x-ratelimit-remaining", "85"),
            ("x-ratelimit-reset", "1700000060")
        ]),
        Some((85, 60))
    );
    assert_eq!(
        allowance(&[
            ("x-ratelimit-remaining", "85"),
            ("x-ratelimit-reset", "1700000060000")
        ]),
        Some((85, 60))
    );
    assert_eq!(
        allowance(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "35")]),
        Some((0, 35))
    );
    assert_eq!(
        allowance(&[("ratelimit-remaining", "57"), ("ratelimit-reset", "35")]),
        Some((57, 35))
    );
    assert_eq!(
        allowance(&[("ratelimit", "limit=100, remaining=57, reset=35")]),
        Some((57, 35))
    );
    assert_eq!(
        allowance(&[("ratelimit", r#""default";r=57;t=35"#)]),
        Some((57, 35))
    );
    assert_eq!(
        allowance(&[("ratelimit", r#""a, b;c\" d";r=57;t=35"#)]),
        Some((57, 35))
    );
    let several = r#""hour";r=900;t=3000, "second";r=0;t=1, "minute";r=0;t=20"#;
    assert_eq!(allowance(&[("ratelimit", several)]), Some((0, 20)));
    let policy = (
        "ratelimit-policy",
        r#""other";q=1;w=9, "default";q=100;w=60"#,
    );
    assert_eq!(
        allowance(&[policy, ("ratelimit", r#""default";r=3"#)]),
        Some((3, 60)),
        "without t, the window"
    );
    assert_eq!(allowance(&[]), None);
}

#[test]
fn the_most_precise_header_wins() {
    let all = [
        ("ratelimit", r#""default";r=1;t=2"#),
        ("ratelimit-remaining", "3"),
        ("ratelimit-reset", "4"),
        ("x-ratelimit-remaining", "5"),
        ("x-ratelimit-reset", "6"),
        ("retry-after", "7"),
    ];
    assert_eq!(
        allowance(&all),
        Some((1, 2)),
        "of one that passed Retry-After means nothing"
    );
    assert_eq!(pause(429, &all), Some(7));
    assert_eq!(allowance(&all[1..]), Some((3, 4)));
    assert_eq!(allowance(&all[3..]), Some((5, 6)));
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    assert_eq!(pause(429, &[("retry-after", "12")]), Some(12));
    assert_eq!(pause(503, &[("retry-after", "12")]), Some(12));
    assert_eq!(
        pause(200, &[("retry-after", "12"), ("grpc-status", "8")]),
        Some(12)
    );
    assert_eq!(
        pause(200, &[("retry-after", "12"), ("grpc-status", "14")]),
        Some(12)
    );
    // 1,700,000,000 is 2023-11-14 22:13:20; the server's own clock runs a minute ahead.
    let later = ("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT");
    assert_eq!(pause(429, &[later]), Some(30));
    assert_eq!(
        pause(429, &[("date", "Tue, 14 Nov 2023 22:13:45 GMT"), later]),
        Some(5)
    );
    assert_eq!(
        pause(429, &[("retry-after", "Tuesday, 14-Nov-23 22:13:50 GMT")]),
        Some(30)
    );
    assert_eq!(
        pause(429, &[("retry-after", "Tue Nov 14 22:13:50 2023")]),
        Some(30)
    );
    assert_eq!(
        pause(429, &[("retry-after", "Tue, 14 Nov 2000 22:13:50 GMT")]),
        Some(0)
    );
    assert_eq!(
        pause(
            429,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")]
        ),
        Some(9)
    );
    assert_eq!(pause(429, &[]), Some(1), "a 429 without headers");
    assert_eq!(
        pause(503, &[]),
        None,
        "a 503 without headers is not a limit"
    );
    assert_eq!(
        pause(429, &[("retry-after", "99999999999999999999999")]),
        Some(24 * 3_600),
        "a pause is at most a day"
    );
    assert!(parse(503, &[]).denied && parse(429, &[]).denied && !parse(500, &[]).denied);
}

#[test]
fn malformed_headers_are_ignored() {
    for nonsense in ["", "-1", "soon", "1e3", "0x10", "1.2.3", "∞"] {
        assert_eq!(pause(503, &[("retry-after", nonsense)]), None, "{nonsense}");
        assert_eq!(
            allowance(&[
                ("x-ratelimit-remaining", nonsense),
                ("x-ratelimit-reset", "5")
            ]),
            None,
            "{nonsense}"
        );
        assert_eq!(allowance(&[("ratelimit", nonsense)]), None, "{nonsense}");
    }
    assert_eq!(
        allowance(&[("x-ratelimit-remaining", "5")]),
        None,
        "one half of it"
    );
    assert_eq!(
        allowance(&[
            ("x-ratelimit-remaining", "5"),
            ("x-ratelimit-reset", "1600000000")
        ]),
        None,
        "long over"
    );
    assert_eq!(allowance(&[("ratelimit", r#""default";r=5;t=0"#)]), None);
    assert_eq!(pause(429, &[("retry-after", "1.5")]), Some(2), "rounded up");
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_a_panic(
        status in 200_u16..600,
        fields in prop::collection::vec((0_usize..9, prop::collection::vec(any::<u8>(), 0..60)), 0..9),
        now in 0_u64..u64::MAX,
    ) {
        const NAMES: [&str; 9] = ["ratelimit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset",
            "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after", "date", "grpc-status"];
        let mut headers = HeaderMap::new();
        for (name, bytes) in fields {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                headers.append(NAMES[name], value);
            }
        }
        let info = read(StatusCode::from_u16(status).unwrap(), &headers, Duration::from_secs(now));
        prop_assert!(info.allowance.is_none_or(|allowance| allowance.window <= Duration::from_secs(86_400)));
    }

    /// Fields written as in the drafts are read as they were meant.
    #[test]
    fn items_are_read_back(items in prop::collection::vec(("[ -~]{0,12}", 0_u64..1_000_000, 1_u64..86_000), 1..6)) {
        let quoted = |name: &str| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let field: Vec<String> = items.iter().map(|(name, r, t)| format!("{};r={r};t={t}", quoted(name))).collect();
        let expected = items.iter().map(|(_, r, t)| (*r, std::cmp::Reverse(*t))).min().unwrap();
        let read = parse(200, &[("ratelimit", &field.join(", "))]).allowance;
        prop_assert_eq!(read, Some(Allowance { remaining: expected.0, window: Duration::from_secs(expected.1.0) }));
    }
}
