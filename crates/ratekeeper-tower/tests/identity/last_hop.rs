//! Removing the last hop of a forwarding header, which the nearest proxy wrote.

use http::{HeaderMap, HeaderName, HeaderValue};
use ratekeeper_tower::identity::Forwarding;

/// The lines of one header.
type Lines<'a> = &'a [&'a [u8]];

fn headers(name: &'static str, lines: Lines<'_>) -> HeaderMap {
    let line = |line: &&[u8]| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_bytes(line).unwrap(),
        )
    };
    lines.iter().map(line).collect()
}

#[test]
fn the_last_hop_is_removed_and_the_others_stay() {
    let cases: &[(Lines<'_>, Lines<'_>)] = &[
        (&[b"192.0.2.1"], &[]),
        (&[b"203.0.113.9, 192.0.2.1"], &[b"203.0.113.9"]),
        (&[b"203.0.113.9,192.0.2.1 "], &[b"203.0.113.9"]),
        (&[b"203.0.113.9", b"192.0.2.1"], &[b"203.0.113.9"]),
        (
            &[b"10.0.0.1", b"203.0.113.9 , 192.0.2.1:4711"],
            &[b"10.0.0.1", b"203.0.113.9"],
        ),
        // What a client wrote may be malformed, and is not an address.
        (
            &[b"203.0.113.9", b"\xff, 192.0.2.1"],
            &[b"203.0.113.9", b"\xff"],
        ),
        (&[b", 192.0.2.1"], &[b""]),
        (&[b"\"a, 192.0.2.1"], &[b"\"a"]),
    ];
    for (before, after) in cases {
        let mut headers = headers("x-forwarded-for", before);
        assert_eq!(
            Forwarding::XForwardedFor.take_last(&mut headers),
            Some("192.0.2.1".parse().unwrap()),
            "{before:?}"
        );
        let left: Vec<&[u8]> = headers
            .get_all("x-forwarded-for")
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        assert_eq!(left, *after, "{before:?}");
    }
    let mut headers = headers(
        "forwarded",
        &[b"for=\"203.0.113.9, 10.0.0.1\", for=\"[2001:db8::7]:4711\";by=10.0.0.2"],
    );
    assert_eq!(
        Forwarding::Forwarded.take_last(&mut headers),
        Some("2001:db8::7".parse().unwrap())
    );
    assert_eq!(headers["forwarded"], "for=\"203.0.113.9, 10.0.0.1\"");
}

#[test]
fn without_an_address_in_the_last_hop_nothing_is_removed() {
    let cases: [Lines<'_>; 6] = [
        &[],
        &[b""],
        &[b"unknown"],
        &[b"192.0.2.1,"],
        &[b"192.0.2.1, \xff"],
        &[b"192.0.2.1", b"_hidden"],
    ];
    for lines in cases {
        let mut left = headers("x-forwarded-for", lines);
        assert_eq!(
            Forwarding::XForwardedFor.take_last(&mut left),
            None,
            "{lines:?}"
        );
        assert_eq!(left, headers("x-forwarded-for", lines));
    }
}
