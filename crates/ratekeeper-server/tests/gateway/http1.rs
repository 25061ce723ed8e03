//! HTTP/1 clients: informational responses, trailers, old versions, unwanted bodies, pipelining.

use crate::gateway;
use crate::service::{echo, head, service};
use std::io::{BufReader, Write};
use std::net::SocketAddr;

/// An upstream that answers each request with these bytes.
fn answers(answer: &'static str) -> SocketAddr {
    service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            stream.write_all(answer.as_bytes()).unwrap();
        }
    })
}

const NONE: &str = "[[policy]]\nname = \"none\"\nlimit = \"0\"\n";

#[test]
fn early_hints_reach_clients_that_support_them() {
    let server = gateway(
        &[answers(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 5\r\n\r\n\
             HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )],
        "",
    );
    let mut connection = server.connect();
    for _ in 0..2 {
        connection.send("GET", "/", "");
        assert_eq!(
            connection.head(),
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n"
        );
        assert_eq!(
            connection.head(),
            "HTTP/1.1 103 Early Hints\r\nlink: </b.css>\r\n\r\n"
        );
        assert_eq!(connection.answer().status(), 200);
    }
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.0\r\nHost: x\r\n\r\n");
    assert!(connection.head().starts_with("HTTP/1.0 200 OK\r\n"));
}

/// Trailers that the head of the response announces, as RFC 9110 recommends.
#[test]
fn announced_response_trailers_reach_clients_that_accept_them() {
    for (announcement, expected) in [("Trailer: x-sum\r\n", "x-sum: 7\r\n"), ("", "")] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\n{announcement}Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nHost: evil\r\n\r\n"
        );
        let server = gateway(&[answers(answer.leak())], "");
        let output = |te: &str| {
            let mut connection = server.connect();
            connection.write(&format!(
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{te}\r\n"
            ));
            connection.rest()
        };
        let welcome = output("TE: trailers\r\n");
        assert!(
            welcome.ends_with(&format!("\r\n\r\n2\r\nok\r\n0\r\n{expected}\r\n")),
            "{welcome}"
        );
        let other = output("");
        assert!(other.ends_with("\r\n\r\n2\r\nok\r\n0\r\n\r\n"), "{other}");
    }
}

#[test]
fn an_upstream_is_asked_for_trailers_by_te_and_connection() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "");
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
    let seen = connection.answer().body;
    assert!(
        seen.contains("te: trailers\r\n") && seen.contains("connection: te\r\n"),
        "{seen}"
    );
}

/// The framing of the body, and so the start of the next request, is uncertain.
#[test]
fn a_rejected_transfer_encoding_ends_the_connection() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    let mut connection = server.connect();
    let rejected_request =
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n";
    connection.write(&format!(
        "{rejected_request}GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
    ));
    let answer = connection.answer();
    assert_eq!(
        (answer.status(), answer.header("connection")),
        (501, Some("close"))
    );
    connection.closed();
    assert_eq!(requests.try_iter().count(), 0);
}

#[test]
fn an_http10_client_gets_bodies_without_chunks() {
    let server = gateway(
        &[answers(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        )],
        "",
    );
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let output = connection.rest();
    assert!(
        output.starts_with("HTTP/1.0 200 OK\r\n") && output.ends_with("\r\n\r\nhello"),
        "{output}"
    );
    assert!(
        output.contains("connection: close\r\n") && !output.contains("transfer-encoding"),
        "{output}"
    );

    let server = gateway(
        &[answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")],
        "",
    );
    let mut connection = server.connect();
    for _ in 0..2 {
        connection.write("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let answer = connection.answer();
        assert_eq!(
            (answer.header("connection"), &*answer.body),
            (Some("keep-alive"), "hello")
        );
    }
    connection.write("GET / HTTP/1.0\r\n\r\n");
    assert!(connection.rest().ends_with("hello"));
}

/// The available part of a body is discarded, so that the next request is found after it.
#[test]
fn a_denied_request_with_a_small_body_keeps_its_connection() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], NONE);
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.send("POST", "/", "a small body");
        let answer = connection.answer();
        assert_eq!((answer.status(), answer.header("connection")), (429, None));
    }
    connection.write(
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    );
    assert_eq!(connection.answer().status(), 429);
    assert_eq!(requests.try_iter().count(), 0);
}

/// The client writes everything before it reads: unless the body is discarded its response would be
/// lost.
#[test]
fn a_denied_client_that_is_sending_a_large_body_gets_its_response() {
    const MUCH: usize = 8 << 20;
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], NONE);
    for _ in 0..3 {
        let mut connection = server.connect();
        connection.write(&format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {MUCH}\r\n\r\n"
        ));
        connection.write_bytes(&vec![b'x'; MUCH]);
        let answer = connection.answer();
        assert_eq!(
            (answer.status(), answer.header("connection")),
            (429, Some("close"))
        );
        connection.closed();
    }
}

/// It is unknown whether the client will send its body: the next bytes may be that, or another
/// request.
#[test]
fn a_denied_expect_continue_request_closes_the_connection() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], NONE);
    let mut connection = server.connect();
    connection
        .write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let answer = connection.answer();
    assert_eq!(
        (answer.status(), answer.header("connection")),
        (429, Some("close"))
    );
}

#[test]
fn pipelined_requests_get_responses_in_order() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    let mut connection = server.connect();
    let one = |at: usize| match at % 3 {
        0 => format!("GET /{at} HTTP/1.1\r\nHost: x\r\n\r\n"),
        1 => format!("\r\nPOST /{at} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"),
        _ => format!(
            "POST /{at} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
        ),
    };
    // More than is read at once, split anywhere.
    let all: String = (0..300).map(one).collect();
    for piece in all.as_bytes().chunks(1_000) {
        connection.write_bytes(piece);
    }
    for at in 0..300 {
        let answer = connection.answer();
        let method = if at % 3 == 0 { "get" } else { "post" };
        assert!(
            answer.body.starts_with(&format!("{method} /{at} ")),
            "{at}: {}",
            answer.body
        );
        assert_eq!(answer.body.ends_with("body"), at % 3 != 0);
    }
    assert_eq!(requests.try_iter().count(), 300);
}

#[test]
fn malformed_requests_get_a_reason() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "max_head = 2048\n");
    let ask = |text: &str| {
        let mut connection = server.connect();
        connection.write(text);
        connection.answer()
    };
    let why = ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 4\r\n\r\n");
    assert_eq!(
        why.problem(400, "bad_request"),
        "malformed HTTP/1.1 request: invalid content-length parsed"
    );
    for malformed in ["hello\r\n\r\n", "GET / HTTP/3.0\r\n\r\n"] {
        let why = ask(malformed).problem(400, "bad_request");
        assert!(
            why.starts_with("malformed HTTP/1.1 request: invalid "),
            "{why}"
        );
    }
    // Also after a request that was answered.
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\nHost: x\r\n\r\nhello\r\n\r\n");
    assert_eq!(connection.answer().status(), 200);
    let rejected = connection.answer();
    assert_eq!(rejected.header("connection"), Some("close"));
    rejected.problem(400, "bad_request");
    connection.closed();
    ask(&format!(
        "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(3_000)
    ))
    .problem(431, "head_too_large");
}
