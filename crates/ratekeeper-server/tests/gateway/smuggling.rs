//! Request smuggling: ambiguous requests never reach the upstream.

use crate::gateway;
use crate::service::echo;

fn head(lines: &str) -> String {
    format!("POST /first HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n")
}

fn chunked(body: &str) -> String {
    head("Transfer-Encoding: chunked") + body
}

const SECOND: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

/// The statuses of the responses in what a connection sent.
fn statuses(output: &str) -> Vec<&str> {
    let heads = output.split("HTTP/1.1 ").skip(1);
    heads
        .filter_map(|rest| rest.get(..3))
        .filter(|status| status.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

#[test]
fn smuggling_attempts_are_rejected() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    for attempt in [
        head("Content-Length: 0\r\nContent-Length: 44"),
        head("Content-Length: 0, 44"),
        head("Content-Length: +0"),
        head("Content-Length: 0x10"),
        head("Content-Length: "),
        head("Content-Length: 99999999999999999999"),
        head("Content-Length : 0"),
        head("Transfer-Encoding : chunked") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked, identity") + "0\r\n\r\n",
        head("Transfer-Encoding: identity") + "0\r\n\r\n",
        head("Transfer-Encoding: xchunked") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked\r\nTransfer-Encoding: x") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked") + "0\r\n\r\n",
        head("Transfer-Encoding:\u{b}chunked") + "0\r\n\r\n",
        head("X: 1\r\n Content-Length: 44"),
        head("X: 1\r\n\tfolded"),
        head("X: 1\rContent-Length: 44"),
        head("X: 1\0"),
        head("no colon"),
        head(": no name"),
        "POST /first HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "GET /first HTTP/1.1 \r\nHost: x\r\n\r\n".to_owned(),
        "GET  /first HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "GET /first HTTP/1.2\r\nHost: x\r\n\r\n".to_owned(),
        "GET /first\r\n\r\n".to_owned(),
        chunked("zz\r\n"),
        chunked("+0\r\n\r\n"),
        chunked("0x0\r\n\r\n"),
        chunked("0\n\n"),
        chunked("1\r\naX0\r\n\r\n"),
        chunked("1\r\na\n0\r\n\r\n"),
        chunked("1;a\nb\r\n0\r\n\r\n"),
        chunked("fffffffffffffffff\r\n"),
        chunked("0\r\nX : 1\r\n\r\n"),
        chunked("0\r\n folded\r\n\r\n"),
    ] {
        let mut connection = server.connect();
        connection.write(&(attempt.clone() + SECOND));
        let answer = connection.rest();
        assert!(
            matches!(statuses(&answer)[..], ["400" | "501"]),
            "{attempt:?} is answered with {answer:?}"
        );
        let seen: Vec<String> = requests.try_iter().collect();
        assert!(
            seen.is_empty(),
            "{attempt:?} reached the service as {seen:?}"
        );
    }
    // Well-formed pipelined requests are not affected.
    let mut connection = server.connect();
    connection.write(&(chunked("3;x=y\r\nabc\r\n0\r\n\r\n") + SECOND));
    assert!(connection.answer().body.ends_with("abc"));
    assert!(connection.answer().body.starts_with("get /smuggled "));
}

/// What RFC 9112 lets a server read in one way only. The service gets requests that are written
/// anew, with one length; and a second request only if it is outside of the first.
#[test]
fn lenient_framing_reaches_the_service_written_anew() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    let framing = |seen: &str| {
        let lines = seen.split("\r\n");
        let is_framing = |line: &&str| {
            line.starts_with("content-length:") || line.starts_with("transfer-encoding:")
        };
        lines
            .filter(is_framing)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let body_of_second = format!("X: 1\nContent-Length: {}", SECOND.len());
    for (attempt, expected, is_second_read) in [
        // A length beside chunks is ignored, and the connection ends (RFC 9112, 6.3).
        (
            head("Content-Length: 6\r\nTransfer-Encoding: chunked") + "0\r\n\r\n",
            "transfer-encoding: chunked",
            false,
        ),
        (
            head("Transfer-Encoding: chunked\r\nContent-Length: 6") + "0\r\n\r\n",
            "transfer-encoding: chunked",
            false,
        ),
        // The same length twice (RFC 9110, 8.6).
        (
            head("Content-Length: 0\r\nContent-Length: 0"),
            "content-length: 0",
            true,
        ),
        // LF alone ends a line (RFC 9112, 2.2): so this is a length.
        (
            head(&body_of_second),
            &*format!("content-length: {}", SECOND.len()),
            false,
        ),
        (
            "POST /first HTTP/1.1\nHost: x\n\n".to_owned(),
            "content-length: 0",
            true,
        ),
        // Spaces after a chunk size, and headers that may not be trailers.
        (chunked("0 \r\n\r\n"), "transfer-encoding: chunked", true),
        (
            chunked("0\r\nContent-Length: 44\r\nHost: y\r\n\r\n"),
            "transfer-encoding: chunked",
            true,
        ),
    ] {
        let mut connection = server.connect();
        connection.write(&(attempt.clone() + SECOND));
        let first = connection.answer();
        assert_eq!(first.status(), 200, "{attempt:?}");
        assert_eq!(framing(&first.body), [expected], "{attempt:?}");
        if is_second_read {
            let second = connection.answer().body;
            assert!(
                second.starts_with("get /smuggled "),
                "{attempt:?}: {second}"
            );
            assert!(framing(&second).is_empty(), "{attempt:?}: {second}");
        } else if first.header("connection") == Some("close") {
            connection.closed();
        }
        let seen: Vec<String> = requests.try_iter().collect();
        assert_eq!(seen.len(), 1 + usize::from(is_second_read), "{seen:?}");
    }
}

#[test]
fn heads_and_bodies_are_bounded() {
    let (upstream, requests) = echo();
    let server = gateway(
        &[upstream],
        "max_head = 2048\nmax_headers = 20\nmax_body = 10\nhosts = [\"example.com\"]\n",
    );
    let ask = |head: &str| {
        let mut connection = server.connect();
        connection.write(head);
        connection.answer()
    };
    assert_eq!(
        ask(&format!(
            "GET / HTTP/1.1\r\nHost: example.com\r\nX: {}\r\n\r\n",
            "a".repeat(3000)
        ))
        .status(),
        431
    );
    let many: String = (0..30).map(|at| format!("X{at}: 1\r\n")).collect();
    assert_eq!(
        ask(&format!(
            "GET / HTTP/1.1\r\nHost: example.com\r\n{many}\r\n"
        ))
        .status(),
        431
    );
    let post = "POST / HTTP/1.1\r\nHost: example.com\r\n";
    ask(&format!("{post}Content-Length: 11\r\n\r\nhello world")).problem(413, "body_too_large");
    ask(&format!(
        "{post}Transfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n"
    ))
    .problem(413, "body_too_large");
    ask("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").problem(421, "wrong_host");
    ask("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").problem(400, "bad_host");
    assert_eq!(requests.try_iter().count(), 0);
    assert_eq!(
        ask(&format!("{post}Content-Length: 10\r\n\r\nhelloworld")).status(),
        200
    );
}
