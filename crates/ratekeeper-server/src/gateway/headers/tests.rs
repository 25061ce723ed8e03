//! Which headers are forwarded, removed and added.

use super::*;

fn map(forwarded: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &'static str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    };
    forwarded.iter().map(pair).collect()
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("connection", "close, X-Private"),
        ("connection", "x-other"),
        ("x-private", "1"),
        ("x-other", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("proxy-authorization", "secret"),
        ("accept", "*/*"),
    ] {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    let client = client("203.0.113.7", false);
    let mut request = headers.clone();
    strip_request(&mut request, false);
    assert_eq!(names(&request), ["accept", "te"], "what policies see");
    let sent = rewriter(&request, &client, &X_FORWARDED_FOR);
    assert_eq!(
        names(&sent),
        [
            "accept",
            "forwarded",
            "te",
            "via",
            "x-forwarded-for",
            "x-forwarded-proto"
        ]
    );
    strip(&mut headers);
    assert_eq!(names(&headers), ["accept"]);
    let mut upgrade = map(&[
        ("connection", "Upgrade, x-private"),
        ("upgrade", "websocket"),
        ("x-private", "1"),
    ]);
    strip_request(&mut upgrade, true);
    assert_eq!(names(&upgrade), ["connection", "upgrade"]);
    strip_request(&mut upgrade, false);
    assert_eq!(names(&upgrade), [""; 0]);
    let sent = rewriter(
        &map(&[("te", "gzip"), ("content-length", "5")]),
        &client,
        &X_FORWARDED_FOR,
    );
    assert!(!sent.contains_key("te") && !sent.contains_key("content-length"));
}

/// The forwarded headers of a request.
fn rewriter(headers: &HeaderMap, client: &Client, trusted_header: &HeaderName) -> HeaderMap {
    let (mut sent, mut lines) = (HeaderMap::new(), Vec::new());
    let rewriter = RequestHeaderRewriter {
        client,
        trusted_header,
        version: Version::HTTP_11,
        upgrade: None,
    };
    rewriter.for_each(headers, |name, value| {
        sent.append(name, HeaderValue::from_bytes(value).unwrap());
        put_header(&mut lines, name, value);
    });
    // The lines are the same, also from the cache.
    for _ in 0..2 {
        let mut head = Vec::new();
        rewriter.write(headers, &mut head);
        // Except for the headers of one connection.
        let head = String::from_utf8(head).unwrap();
        assert_eq!(head.contains("connection: te\r\n"), sent.contains_key("te"));
        assert_eq!(head.replace("connection: te\r\n", "").as_bytes(), lines);
    }
    sent
}

#[test]
fn te_is_listed_in_connection() {
    let client = client("203.0.113.7", false);
    let connection = |te: Option<&'static str>, protocol: Option<&'static str>| {
        let headers: HeaderMap = te
            .map(|te| (TE, HeaderValue::from_static(te)))
            .into_iter()
            .collect();
        let upgrade = protocol.map(HeaderValue::from_static);
        let rewriter = RequestHeaderRewriter {
            client: &client,
            trusted_header: &X_FORWARDED_FOR,
            version: Version::HTTP_11,
            upgrade,
        };
        let mut head = Vec::new();
        rewriter.write(&headers, &mut head);
        let head = String::from_utf8(head).unwrap();
        let lines: Vec<&str> = head
            .lines()
            .filter(|line| ["te:", "con", "upg"].contains(&&line[..3]))
            .collect();
        lines.join("|")
    };
    assert_eq!(connection(None, None), "");
    assert_eq!(connection(Some("gzip"), None), "");
    assert_eq!(
        connection(Some("gzip, trailers"), None),
        "connection: te|te: trailers"
    );
    assert_eq!(
        connection(None, Some("websocket")),
        "connection: upgrade|upgrade: websocket"
    );
    assert_eq!(
        connection(Some("trailers"), Some("websocket")),
        "connection: te, upgrade|upgrade: websocket|te: trailers"
    );
}

fn client(ip: &str, trusted: bool) -> Client {
    Client::new(
        Some(std::net::SocketAddr::new(ip.parse().unwrap(), 4711)),
        trusted,
        false,
        None,
    )
}

#[test]
fn a_client_cannot_set_forwarding_headers() {
    let headers = rewriter(
        &map(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("host", "example.com"),
        ]),
        &client("203.0.113.7", false),
        &X_FORWARDED_FOR,
    );
    let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    assert_eq!(values, ["203.0.113.7"]);
    let values: Vec<_> = headers.get_all("forwarded").iter().collect();
    assert_eq!(values, ["for=203.0.113.7;proto=http;host=example.com"]);
    assert_eq!(headers["x-forwarded-host"], "example.com");
    assert_eq!(headers["x-forwarded-proto"], "http");
}

#[test]
fn other_spellings_and_headers_do_not_help_a_client() {
    let existing = [
        ("x_forwarded_for", "1.2.3.4"),
        ("x-forwarded_proto", "https"),
        ("x-forwarded-port", "1"),
        ("x-real-ip", "1.2.3.4"),
        ("x-forwarded", "kept"),
        ("accept", "*/*"),
    ];
    let mut headers = map(&existing);
    let own = HeaderName::from_static("cf-connecting-ip");
    headers.insert(&own, HeaderValue::from_static("1.2.3.4"));
    let sent = rewriter(&headers, &client("203.0.113.7", false), &own);
    assert_eq!(
        names(&sent),
        [
            "accept",
            "forwarded",
            "via",
            "x-forwarded",
            "x-forwarded-for",
            "x-forwarded-proto"
        ]
    );
    let sent = rewriter(&headers, &client("203.0.113.7", true), &own);
    assert_eq!(
        names(&sent),
        [
            "accept",
            "cf-connecting-ip",
            "forwarded",
            "via",
            "x-forwarded",
            "x-forwarded-for",
            "x-forwarded-port",
            "x-forwarded-proto",
            "x-real-ip"
        ],
        "a trusted proxy spells them with hyphens"
    );
}

#[test]
fn the_gateway_appends_to_headers_of_a_trusted_proxy() {
    let proxy = client("10.0.0.1", true);
    let headers = rewriter(
        &map(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-proto", "https"),
        ]),
        &proxy,
        &X_FORWARDED_FOR,
    );
    let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    assert_eq!(values, ["1.2.3.4", "10.0.0.1"]);
    assert_eq!(headers["x-forwarded-proto"], "https");
    assert!(
        !headers.contains_key("forwarded"),
        "the proxy would be taken for the client"
    );
    let headers = rewriter(
        &map(&[("forwarded", "for=1.2.3.4"), ("host", "[::1]:8080")]),
        &proxy,
        &X_FORWARDED_FOR,
    );
    let values: Vec<_> = headers.get_all("forwarded").iter().collect();
    assert_eq!(
        values,
        ["for=1.2.3.4", "for=10.0.0.1;proto=http;host=\"[::1]:8080\""]
    );
    assert!(!headers.contains_key("x-forwarded-for"));
    let headers = rewriter(
        &HeaderMap::new(),
        &client("2001:db8::7", false),
        &X_FORWARDED_FOR,
    );
    assert_eq!(headers["forwarded"], "for=\"[2001:db8::7]\";proto=http");
}

#[test]
fn upgrades_to_http2_are_removed() {
    let upgrades_to = |protocol| upgrade(&map(&[("connection", "upgrade"), ("upgrade", protocol)]));
    assert_eq!(upgrades_to("websocket").unwrap(), "websocket");
    for http2 in ["h2c", "H2C", "websocket, h2c", "h2"] {
        assert_eq!(upgrades_to(http2), None);
    }
}

#[test]
fn trailers_may_not_frame_the_message_or_name_the_client() {
    let late = [
        "x-forwarded-for",
        "x_real_ip",
        "forwarded",
        "content-length",
        "transfer-encoding",
        "host",
        "trailer",
    ];
    assert!(
        late.iter()
            .all(|name| !may_trail(&HeaderName::from_static(name)))
    );
    assert!(may_trail(&HeaderName::from_static("grpc-status")));
}

#[test]
fn split_cookies_are_joined() {
    let mut headers = map(&[("cookie", "a=b"), ("cookie", "c=d"), ("accept", "*/*")]);
    join_cookies(&mut headers);
    assert_eq!(
        headers.get_all("cookie").iter().collect::<Vec<_>>(),
        ["a=b; c=d"]
    );
}

#[test]
fn only_configured_hosts_are_served() {
    let served = [
        "example.com".parse().unwrap(),
        "*.example.com".parse().unwrap(),
    ];
    let status = |host: &'static str| {
        let judged = validate_host(&mut map(&[("host", host)]), None, Version::HTTP_11, &served);
        judged
            .err()
            .map_or(200, |problem| problem.plain().status().as_u16())
    };
    let statuses = [
        "example.com",
        "a.EXAMPLE.com:81",
        "example.org",
        "example.com.evil.org",
        "[::1]:80",
        "a/b",
        "a@b",
    ];
    assert_eq!(statuses.map(status), [200, 200, 421, 421, 421, 400, 400]);
}
