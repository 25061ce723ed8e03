//! `/auth/…`, requested over a socket in the form of each proxy. The real proxies are in snippets/.

mod support;

use support::{Answer, Server};

const BY_IP: &str = "[server]\nhttp = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"ip\"\nkey = [\"ip\"]\nlimit = \"2/d\"\nmatch = { path = \"/api/**\" }\n\
    [[policy]]\nname = \"posts\"\nkey = [\"ip\"]\nlimit = \"1/d\"\nmatch = { method = \"POST\" }\n";

/// A name and a value.
type Header<'a> = (&'a str, &'a str);

/// Sends a request with these headers.
fn ask(server: &Server, path: &str, headers: &[Header<'_>]) -> Answer {
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    ask_bytes(server, path, &headers)
}

/// The same with any bytes.
fn ask_bytes(server: &Server, path: &str, headers: &[(&str, &[u8])]) -> Answer {
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: ratekeeper\r\n").into_bytes();
    for (name, value) in headers {
        request.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    request.extend_from_slice(b"\r\n");
    let mut connection = server.connect();
    connection.write_bytes(&request);
    connection.answer()
}

/// The headers of Caddy and Traefik.
fn forwarded<'a>(ip: &'a str, uri: &'a str, method: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("X-Forwarded-For", ip),
        ("X-Forwarded-Uri", uri),
        ("X-Forwarded-Method", method),
    ]
}

/// The headers of nginx.
fn original<'a>(ip: &'a str, uri: &'a str, method: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("X-Real-IP", ip),
        ("X-Original-URI", uri),
        ("X-Original-Method", method),
    ]
}

const FORWARDED: [&str; 2] = ["/auth/caddy", "/auth/traefik"];

#[test]
fn caddy_and_traefik_describe_the_request_in_forwarded_headers() {
    for path in FORWARDED {
        let server = Server::with_config(BY_IP);
        let from =
            |ip: &str, uri: &str, method: &str| ask(&server, path, &forwarded(ip, uri, method));
        let first = from("192.0.2.1", "/api/x?y=1", "GET");
        assert_eq!(
            (
                first.status(),
                first.header("x-ratelimit-remaining"),
                &*first.body
            ),
            (200, Some("1"), "")
        );
        assert_eq!(from("192.0.2.1", "/api/z", "GET").status(), 200);
        let third = from("192.0.2.1", "/api/z", "GET");
        assert_eq!(third.status(), 429);
        assert!(
            third.header("retry-after").is_some() && third.header("x-ratelimit-status").is_none(),
            "{third:?}"
        );
        // Another client, another path, another method.
        assert_eq!(from("192.0.2.2", "/api/z", "GET").status(), 200);
        assert_eq!(from("192.0.2.1", "/other", "GET").status(), 200);
        let posts = [(); 2].map(|()| from("192.0.2.1", "/other", "POST").status());
        assert_eq!(posts, [200, 429]);
        // The last hop is what the proxy wrote; entries that a client wrote before it are ignored.
        assert_eq!(
            from("203.0.113.9, 192.0.2.1", "/api/z", "GET").status(),
            429
        );
        let bytes = |before: &[u8]| {
            let hops = [before, b", 192.0.2.1"].concat();
            let headers: [(&str, &[u8]); 4] = [
                ("X-Forwarded-For", b"203.0.113.9"),
                ("X-Forwarded-For", &hops),
                ("X-Forwarded-Uri", b"/api/z"),
                ("X-Forwarded-Method", b"GET"),
            ];
            ask_bytes(&server, path, &headers).status()
        };
        assert_eq!(
            [b"\xff".as_slice(), b"203.0.113.9, \xff", b"", b"for=\""].map(bytes),
            [429; 4]
        );
        // The headers of nginx are ignored.
        let both = [
            &forwarded("192.0.2.1", "/api/z", "GET")[..],
            &original("203.0.113.9", "/free", "PUT"),
        ]
        .concat();
        assert_eq!(ask(&server, path, &both).status(), 429);
        // Caddy appends the query of the client, which is ignored.
        for query in ["?", "?deny=403", "?x=/auth/nginx"] {
            assert_eq!(
                ask(&server, &format!("{path}{query}"), &both).status(),
                429,
                "{query}"
            );
        }
    }
}

#[test]
fn nginx_describes_the_request_in_original_headers_and_gets_403() {
    let server = Server::with_config(BY_IP);
    let headers = original("192.0.2.1", "/api/x", "GET");
    let statuses: Vec<u16> = (0..3)
        .map(|_| ask(&server, "/auth/nginx", &headers).status())
        .collect();
    assert_eq!(statuses, [200, 200, 403]);
    let denied = ask(&server, "/auth/nginx?deny=500", &headers);
    assert_eq!(
        (denied.status(), denied.header("x-ratelimit-status")),
        (403, Some("429"))
    );
    assert!(denied.header("retry-after").is_some());
    // The headers of other proxies, which a client may send through nginx, are ignored.
    let more = [
        ("X-Forwarded-Host", "other"),
        ("Forwarded", "for=203.0.113.9"),
        ("X-Original-URL", "http://other/free"),
    ];
    let both = [
        &headers[..],
        &forwarded("203.0.113.9", "/free", "PUT"),
        &more,
    ]
    .concat();
    assert_eq!(
        ask(&server, "/auth/nginx", &both).header("x-ratelimit-status"),
        Some("429")
    );
}

#[test]
fn envoy_sends_the_request_itself_below_its_prefix() {
    let server = Server::with_config(BY_IP);
    let from = |ip: &str, target: &str| {
        ask(
            &server,
            &format!("/auth/envoy{target}"),
            &[("X-Forwarded-For", ip)],
        )
        .status()
    };
    let paths = ["/api/x?y=/auth", "/api/auth/nginx", "/api/x"];
    assert_eq!(paths.map(|path| from("192.0.2.1", path)), [200, 200, 429]);
    // No path that a client requests selects another proxy: these lack the headers of the others.
    let others = [
        "",
        "/",
        "?deny=403",
        "/?deny=403",
        "/auth/nginx",
        "/nginx",
        "//nginx",
        "/auth/caddy",
        "//auth/traefik",
    ];
    assert_eq!(others.map(|path| from("192.0.2.1", path)), [200; 9]);
    // Nor are dot segments, which are rejected, with a 403 for nginx.
    let headers = [
        &forwarded("192.0.2.1", "/free", "PUT")[..],
        &original("203.0.113.9", "/api/x", "PUT"),
    ]
    .concat();
    for path in [
        "/auth/envoy/../nginx",
        "/auth/envoy/%2e%2e/nginx",
        "/auth/envoy/..%2fnginx",
        "/auth/envoy/..;/nginx",
    ] {
        let statuses = [(); 3].map(|()| ask(&server, path, &headers).status());
        assert_eq!(statuses, [400; 3], "{path}");
    }
    // The headers of other proxies are ignored.
    let headers = [
        &forwarded("192.0.2.1", "/free", "PUT")[..],
        &original("203.0.113.9", "/free", "PUT"),
    ]
    .concat();
    assert_eq!(ask(&server, "/auth/envoy/api/x", &headers).status(), 429);
}

#[test]
fn anything_else_below_auth_is_not_found() {
    let server = Server::start();
    let headers = [
        &forwarded("192.0.2.1", "/", "GET")[..],
        &original("192.0.2.1", "/", "GET"),
    ]
    .concat();
    let paths = [
        "/auth",
        "/auth?deny=403",
        "/auth/",
        "/auth/x",
        "/auth/nginx/",
        "/auth/nginx/x",
        "/auth/Caddy",
        "/auth/caddy/../nginx",
        "/auth/envoyx",
        "/auth/%65nvoy",
        "//auth/nginx",
    ];
    for path in paths {
        let detail = ask(&server, path, &headers).problem(404, "not_found");
        assert!(
            detail.contains("/auth/nginx, /auth/caddy, /auth/traefik, /auth/envoy"),
            "{path}: {detail}"
        );
    }
}

#[test]
fn a_missing_proxy_header_is_an_error_that_says_how_to_set_it() {
    let server = Server::with_config(BY_IP);
    let nginx = original("192.0.2.1", "/", "GET");
    let caddy = forwarded("192.0.2.1", "/", "GET");
    let cases: &[(&str, &[Header<'_>], &str)] = &[
        (
            "/auth/nginx",
            &[],
            "proxy_set_header X-Original-Method $request_method;",
        ),
        (
            "/auth/nginx",
            &nginx[..2],
            "proxy_set_header X-Original-Method $request_method;",
        ),
        (
            "/auth/nginx",
            &[nginx[0], nginx[2]],
            "proxy_set_header X-Original-URI $request_uri;",
        ),
        (
            "/auth/nginx",
            &nginx[1..],
            "proxy_set_header X-Real-IP $remote_addr;",
        ),
        (
            "/auth/nginx",
            &[nginx[0], nginx[0], nginx[1], nginx[2]],
            "x-real-ip, which /auth/nginx needs, appeared twice",
        ),
        (
            "/auth/caddy",
            &caddy[..2],
            "header_up X-Forwarded-Method {method}",
        ),
        (
            "/auth/caddy",
            &[caddy[0], caddy[2]],
            "header_up X-Forwarded-Uri {uri}",
        ),
        ("/auth/traefik", &caddy[1..], "the middleware `forwardAuth`"),
        (
            "/auth/traefik",
            &[
                ("X-Forwarded-For", "192.0.2.1, unknown"),
                caddy[1],
                caddy[2],
            ],
            "does not end with an IP",
        ),
        ("/auth/envoy/x", &[], "use_remote_address: true"),
    ];
    for (path, headers, says) in cases {
        let detail = ask(&server, path, headers).problem(400, "bad_target");
        assert!(detail.contains(says), "{path} {headers:?}: {detail}");
    }
}

#[test]
fn a_malformed_path_is_rejected_with_the_status_for_the_proxy() {
    let server = Server::with_config(BY_IP);
    for target in [b"\xff".as_slice(), b"/a b", b"api/x", b"/a#/b", b""] {
        let described = |names: [&'static str; 3]| {
            [
                (names[0], b"192.0.2.1".as_slice()),
                (names[1], target),
                (names[2], b"GET"),
            ]
        };
        let nginx = described(["X-Real-IP", "X-Original-URI", "X-Original-Method"]);
        let refused = ask_bytes(&server, "/auth/nginx", &nginx);
        assert_eq!(
            (refused.status(), refused.header("x-ratelimit-status")),
            (403, Some("400")),
            "{target:?}"
        );
        let caddy = described(["X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Method"]);
        for path in FORWARDED {
            assert!(
                ask_bytes(&server, path, &caddy)
                    .problem(400, "bad_target")
                    .contains("percent-encode"),
                "{target:?}"
            );
        }
    }
}

#[test]
fn a_status_that_a_proxy_treats_as_a_failure_is_replaced() {
    let config = "[server]\nhttp = \"127.0.0.1:0\"\n\
        [[policy]]\nname = \"all\"\nkey = \"host\"\nlimit = \"1/d\"\nstatus = 503\n";
    for (path, headers, status, meant) in [
        (
            "/auth/nginx",
            original("192.0.2.1", "/", "GET"),
            403,
            Some("503"),
        ),
        ("/auth/caddy", forwarded("192.0.2.1", "/", "GET"), 503, None),
        (
            "/auth/traefik",
            forwarded("192.0.2.1", "/", "GET"),
            503,
            None,
        ),
        (
            "/auth/envoy",
            forwarded("192.0.2.1", "/", "GET"),
            429,
            Some("503"),
        ),
    ] {
        let server = Server::with_config(config);
        assert_eq!(ask(&server, path, &headers).status(), 200, "{path}");
        let denied = ask(&server, path, &headers);
        assert_eq!(
            (denied.status(), denied.header("x-ratelimit-status")),
            (status, meant),
            "{path}"
        );
    }
}
