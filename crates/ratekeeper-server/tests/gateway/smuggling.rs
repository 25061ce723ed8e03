//! Request smuggling: ambiguous requests never reach the upstream.

use crate::gateway;
use crate::service::echo;

#[test]
fn smuggling_attempts_are_rejected() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    let head = |lines: &str| format!("POST /first HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n");
    let chunked = |body: &str| head("Transfer-Encoding: chunked") + body;
    let second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    for attempt in [
        head("Content-Length: 6\r\nTransfer-Encoding: chunked") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked\r\nContent-Length: 6") + "0\r\n\r\n",
        head("Content-Length: 0\r\nContent-Length: 44"),
        head("Content-Length: 0\r\nContent-Length: 0"),
        head("Content-Length: 0, 44"),
        head("Content-Length: +0"),
        head("Content-Length: 0x10"),
        head("Content-Length : 0"),
        head("Transfer-Encoding : chunked") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked, identity") + "0\r\n\r\n",
        head("Transfer-Encoding: identity") + "0\r\n\r\n",
        head("Transfer-Encoding: xchunked") + "0\r\n\r\n",
        head("Transfer-Encoding: chunked\r\nTransfer-Encoding: x") + "0\r\n\r\n",
        head("Transfer-Encoding:\u{b}chunked") + "0\r\n\r\n",
        head("X: 1\r\n Content-Length: 44"),
        head("X: 1\r\n\tfolded"),
        head("X: 1\nContent-Length: 44"),
        head("X: 1\rContent-Length: 44"),
        head("X: 1\0"),
        head("no colon"),
        head(": no name"),
        "POST /first HTTP/1.1\nHost: x\n\n".to_owned(),
        "POST /first HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "GET /first HTTP/1.1 \r\nHost: x\r\n\r\n".to_owned(),
        "GET  /first HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "GET /first HTTP/1.2\r\nHost: x\r\n\r\n".to_owned(),
        "GET /first\r\n\r\n".to_owned(),
        chunked("zz\r\n"),
        chunked("+0\r\n\r\n"),
        chunked("0x0\r\n\r\n"),
        chunked("0 \r\n\r\n"),
        chunked("0\n\n"),
        chunked("1\r\naX0\r\n\r\n"),
        chunked("1;a\nb\r\n0\r\n\r\n"),
        chunked("fffffffffffffffff\r\n"),
        chunked("0\r\nContent-Length: 44\r\n\r\n"),
        chunked("0\r\nX : 1\r\n\r\n"),
        chunked("0\r\n folded\r\n\r\n"),
    ] {
        let mut connection = server.connect();
        connection.write(&(attempt.clone() + second));
        let answer = connection.rest();
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(
            ["400", "505"].contains(&status),
            "{attempt:?} is answered with {answer:?}"
        );
        assert_eq!(
            answer
                .split("HTTP/1.1 ")
                .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                .count(),
            1,
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
    connection.write(&(chunked("3;x=y\r\nabc\r\n0\r\n\r\n") + second));
    assert!(connection.answer().body.ends_with("abc"));
    assert!(connection.answer().body.starts_with("get /smuggled "));
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
