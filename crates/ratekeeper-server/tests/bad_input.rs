//! Invalid input: every error says what is wrong and how to correct it, and the server survives.

mod support;

use support::Server;

const EXAMPLE: &str = r#"{"key":"user-42","limit":"5/min"}"#;

#[test]
fn every_invalid_request_gets_its_error() {
    let server = Server::start();
    let long_key = format!(r#"{{"key":"{}","limit":"5/min"}}"#, "x".repeat(513));
    let wide_key = format!(r#"{{"key":"{}","limit":"5/min"}}"#, "ü".repeat(257));
    let long_limit = format!(r#"{{"key":"a","limit":"5/min{}"}}"#, " ".repeat(124));
    let long_field = format!(r#"{{"{}":1}}"#, "x".repeat(100));
    let quoted = format!(
        "unknown field `{}…`; known: key, limit, algorithm, cost, peek",
        "x".repeat(64)
    );
    let missing_key = format!("`key` is missing; the minimum is {EXAMPLE}");
    let missing_limit = format!("`limit` is missing; the minimum is {EXAMPLE}");
    let not_an_object = format!("the body is not a JSON object; send one such as {EXAMPLE}");
    let whole = "`cost` must be a whole number from 0 to 18446744073709551615, not";
    let have = "`token_bucket`, `leaky_bucket`, `pacing`, `fixed_window`, `fixed_window_first_hit`, `sliding_window`, \
                `sliding_window_strict`, `sliding_log` or the alias `gcra`";
    let cases: &[(&str, &str, &str)] = &[
        (
            "",
            "invalid_json",
            &format!("the body is empty; send JSON such as {EXAMPLE}"),
        ),
        (
            "{",
            "invalid_json",
            &format!(
                "the body is not JSON: EOF while parsing an object at line 1 column 1; send JSON such as {EXAMPLE}"
            ),
        ),
        (
            "key=a&limit=5",
            "invalid_json",
            &format!(
                "the body is not JSON: expected value at line 1 column 1; send JSON such as {EXAMPLE}"
            ),
        ),
        ("[]", "not_an_object", &not_an_object),
        ("\"key\"", "not_an_object", &not_an_object),
        ("5", "not_an_object", &not_an_object),
        ("null", "not_an_object", &not_an_object),
        ("{}", "missing_field", &missing_key),
        (r#"{"limit":"5/min"}"#, "missing_field", &missing_key),
        (
            r#"{"key":null,"limit":"5/min"}"#,
            "missing_field",
            &missing_key,
        ),
        (r#"{"key":"a"}"#, "missing_field", &missing_limit),
        (
            r#"{"key":"a","limit":"5/min","burst":3}"#,
            "unknown_field",
            "unknown field `burst`; known: key, limit, algorithm, cost, peek",
        ),
        (&long_field, "unknown_field", &quoted),
        (
            r#"{"key":"a","limit":"5/min","key":"b"}"#,
            "duplicate_field",
            "`key` is given twice; send it once",
        ),
        (
            r#"{"key":"a","limit":"5/min","k\u0065y":"b"}"#,
            "duplicate_field",
            "`key` is given twice; send it once",
        ),
        (
            r#"{"key":1,"limit":"5/min"}"#,
            "invalid_field",
            "`key` must be text, not 1",
        ),
        (
            r#"{"key":["a"],"limit":"5/min"}"#,
            "invalid_field",
            "`key` must be text, not a list",
        ),
        (
            r#"{"key":"","limit":"5/min"}"#,
            "invalid_field",
            "`key` is empty; send 1 to 512 bytes",
        ),
        (
            &long_key,
            "invalid_field",
            "`key` has 513 bytes; send at most 512",
        ),
        (
            &wide_key,
            "invalid_field",
            "`key` has 514 bytes; send at most 512",
        ),
        (
            r#"{"key":"a","limit":5}"#,
            "invalid_field",
            "`limit` must be text, not 5",
        ),
        (
            r#"{"key":"a","limit":{}}"#,
            "invalid_field",
            "`limit` must be text, not an object",
        ),
        (
            r#"{"key":"a","limit":"5/min","cost":-1}"#,
            "invalid_field",
            &format!("{whole} -1"),
        ),
        (
            r#"{"key":"a","limit":"5/min","cost":1.5}"#,
            "invalid_field",
            &format!("{whole} 1.5"),
        ),
        (
            r#"{"key":"a","limit":"5/min","cost":"1"}"#,
            "invalid_field",
            &format!("{whole} text"),
        ),
        (
            r#"{"key":"a","limit":"5/min","peek":1}"#,
            "invalid_field",
            "`peek` must be true or false, not 1",
        ),
        (
            r#"{"key":"a","limit":"5/min","algorithm":true}"#,
            "invalid_field",
            "`algorithm` must be text, not true",
        ),
        (
            r#"{"key":"a","limit":"10/fortnight"}"#,
            "invalid_limit",
            "`limit`: `10/fortnight` is not a limit: at character 4, `fortnight` is not a unit of time; write s, min, \
             h, d or w, as in `10/min`",
        ),
        (
            &long_limit,
            "invalid_limit",
            "`limit` has 129 bytes; send one such as `100/min burst 20`",
        ),
        (
            r#"{"key":"a","limit":"5/min","algorithm":"bucket"}"#,
            "unknown_algorithm",
            &format!("unknown algorithm `bucket`; use one of {have}"),
        ),
        (
            r#"{"key":"a","limit":"5/min gcra","algorithm":"leaky_bucket"}"#,
            "algorithm_conflict",
            "`limit` and `algorithm` disagree (token_bucket, leaky_bucket); give one",
        ),
        (
            r#"{"key":"a","limit":"5/min burst 3 leaky_bucket","algorithm":"token_bucket"}"#,
            "algorithm_conflict",
            "`limit` and `algorithm` disagree (leaky_bucket, token_bucket); give one",
        ),
    ];
    for (body, code, detail) in cases {
        assert_eq!(server.throttle(body).problem(400, code), *detail, "{body}");
    }
    let huge = server.throttle(r#"{"key":"a","limit":"5/min","cost":18446744073709551616}"#);
    assert!(huge.problem(400, "invalid_field").starts_with(whole));
    // None of these charged the bucket.
    assert!(
        server
            .throttle(r#"{"key":"a","limit":"5/min"}"#)
            .body
            .contains(r#""remaining":4,"#)
    );
}

#[test]
fn incompatible_options_are_rejected_in_the_limit_and_in_algorithm() {
    let server = Server::start();
    for (body, says) in [
        (
            r#"{"key":"a","limit":"5/min burst 9","algorithm":"sliding_log"}"#,
            "have a burst; leave it out",
        ),
        (
            r#"{"key":"a","limit":"5/min burst 9 sliding_log"}"#,
            "have a burst; leave it out",
        ),
        (
            r#"{"key":"a","limit":"5/min queue 9","algorithm":"fixed_window"}"#,
            "belong to pacing",
        ),
    ] {
        let detail = server.throttle(body).problem(400, "invalid_limit");
        assert!(detail.contains(says), "{detail}");
    }
}

#[test]
fn an_unknown_path_is_404() {
    let server = Server::start();
    let available = "available: POST /v1/check, POST /v1/reserve, POST /v1/settle, POST /v1/cancel, POST /v1/throttle, \
                 POST /json, /auth/nginx, /auth/caddy, /auth/traefik, /auth/envoy, GET /livez, GET /readyz, \
                 GET /openapi.json";
    for (method, path) in [
        ("GET", "/"),
        ("POST", "/v1/throttle/"),
        ("POST", "/v1"),
        ("GET", "/livezz"),
        ("POST", "/v1/store"),
    ] {
        let answer = server.request(method, path, "");
        assert_eq!(
            answer.problem(404, "not_found"),
            format!("no such path: `{path}`; {available}")
        );
    }
    let long = format!("/{}", "x".repeat(5_000));
    let answer = server.request("GET", &long, "");
    assert_eq!(
        answer.problem(404, "not_found"),
        format!("no such path: `{}…`; {available}", &long[..64])
    );
}

#[test]
fn a_wrong_method_is_405_with_allow() {
    let server = Server::start();
    for (method, path, allow) in [
        ("GET", "/v1/throttle", "POST"),
        ("DELETE", "/v1/throttle", "POST"),
        ("POST", "/livez", "GET,HEAD"),
        ("BREW", "/readyz", "GET,HEAD"),
    ] {
        let answer = server.request(method, path, "");
        let detail = format!("method `{method}` not allowed for `{path}`; see Allow");
        assert_eq!(answer.problem(405, "method_not_allowed"), detail);
        assert_eq!(answer.header("allow"), Some(allow));
    }
}

#[test]
fn a_body_of_16_kib_is_read_and_a_larger_one_is_413() {
    let server = Server::start();
    let call = r#"{"key":"a","limit":"5/d"}"#;
    let padded = |size: usize| call.to_owned() + &" ".repeat(size - call.len());
    assert_eq!(server.throttle(&padded(16 * 1024)).status(), 200);
    let detail = "body larger than 16384 bytes; send a smaller one";
    for size in [16 * 1024 + 1, 1024 * 1024] {
        assert_eq!(
            server
                .throttle(&padded(size))
                .problem(413, "body_too_large"),
            detail
        );
    }
    // A body of gigabytes is rejected without reading it.
    let mut connection = server.connect();
    connection.write("POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000000\r\n\r\n");
    assert_eq!(connection.answer().problem(413, "body_too_large"), detail);
    // A body without a content length.
    let mut connection = server.connect();
    connection.write("POST /v1/throttle HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..17 {
        connection.write(&format!("400\r\n{}\r\n", " ".repeat(1024)));
    }
    connection.write("0\r\n\r\n");
    assert_eq!(connection.answer().problem(413, "body_too_large"), detail);
}

#[test]
fn a_head_that_is_too_large_is_431() {
    let server = Server::start();
    let mut connection = server.connect();
    connection.write(&format!(
        "GET /livez HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n",
        "x".repeat(16 * 1024)
    ));
    assert!(connection.head().starts_with("HTTP/1.1 431 "));
    let mut connection = server.connect();
    connection.write(&format!(
        "GET /livez HTTP/1.1\r\nHost: x\r\n{}\r\n",
        "X-Many: x\r\n".repeat(101)
    ));
    assert!(connection.head().starts_with("HTTP/1.1 431 "));
}

/// P9: nothing panics on input.
#[test]
fn random_input_gets_an_error_and_the_server_survives() {
    let server = Server::start();
    let nested = "[".repeat(16_000);
    let nested_value = format!(r#"{{"key":{}"#, "{\"a\":".repeat(2_000));
    for body in [
        nested.as_str(),
        &nested_value,
        "\u{0}",
        r#"{"key":"\ud800","limit":"5/min"}"#,
        r#"{"key":"a","limit":"é/min"}"#,
        r#"{"key":"a","limit":"5/é"}"#,
        r#"{"key":"a","limit":"5/min burst é"}"#,
        r#"{"key":"a","limit":"\u0000"}"#,
        r#"{"key":"a","limit":""}"#,
        r#"{"key":"a","limit":"18446744073709551616/s"}"#,
        r#"{"key":"a","limit":"1/18446744073709551615w"}"#,
        r#"{"key":"a","limit":"1/s burst 18446744073709551615"}"#,
        r#"{"key":"a","limit":"5/min","cost":1e400}"#,
    ] {
        let answer = server.throttle(body);
        assert_eq!(
            (answer.status(), answer.header("content-type")),
            (400, Some("application/problem+json")),
            "{body}"
        );
    }
    // Extreme limits.
    for limit in [
        "18446744073709551615/ns",
        "1/584y",
        "0/w burst 18446744073709551615",
        "1/30000w",
    ] {
        let status = server
            .throttle(&format!(r#"{{"key":"a","limit":"{limit}"}}"#))
            .status();
        assert!([200, 400].contains(&status), "{limit}: {status}");
    }
    for request in [
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\r\n\r\n",
    ] {
        let mut connection = server.connect();
        connection.write(request);
        // Half closed: it is closed or answered, but does not wait for more.
        connection.end();
        let rest = connection.rest();
        assert!(
            rest.is_empty() || rest.starts_with("HTTP/1.1 400 "),
            "{request:?} {rest:?}"
        );
    }
    for (method, target) in [
        ("CONNECT", "x:80"),
        ("OPTIONS", "*"),
        ("GET", "http://x"),
        ("GET", "/%ff%00"),
        ("GET", "//"),
    ] {
        let status = server.request(method, target, "").status();
        assert!([404, 405].contains(&status), "{method} {target}: {status}");
    }
    assert_eq!(server.request("GET", "http://x/livez?y", "").status(), 200);
}

#[test]
fn invalid_utf8_gets_an_error() {
    let server = Server::start();
    let mut connection = server.connect();
    connection.write("POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\n");
    connection.write_bytes(b"{\"key\":\"\xff\xfe\",\"limit\":\"5/d\"}");
    connection.answer().problem(400, "invalid_json");
}
