//! Upstream responses in every form that HTTP/1 has, and in some invalid ones: curl gets the same
//! through the gateway as directly.

use crate::service::{body, head, service};
use crate::{curl, gateway};
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

/// An upstream that answers each request with these bytes, a few at a time, and then closes unless
/// the response has an end of its own.
fn answers(answer: &'static [u8], at_once: usize) -> SocketAddr {
    service(move |mut stream| {
        // Otherwise the kernel merges small writes.
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            for piece in answer.chunks(at_once) {
                if stream.write_all(piece).is_err() {
                    return;
                }
            }
            let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
            if !text.contains("content-length")
                && !text.contains("chunked")
                && !text.contains(" 204 ")
            {
                return;
            }
        }
    })
}

const FORMAT: &str = "\n%{http_code} %header{x-seen} %{errormsg}";

#[test]
fn curl_sees_the_same_through_the_gateway() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Seen: a\r\n\r\nhello"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 5,5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 404 Gone\r\nX-Seen: b\r\n\r\nuntil the end",
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nX-Seen: c\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nok",
    ] {
        for at_once in [1, 7, answer.len()] {
            let upstream = answers(answer, at_once);
            let server = gateway(&[upstream], "");
            let direct = curl(&["-w", FORMAT, &format!("http://{upstream}/")]);
            for _ in 0..3 {
                let through = curl(&["-w", FORMAT, &format!("http://{}/", server.address)]);
                assert_eq!(through, direct, "{}", String::from_utf8_lossy(answer));
            }
            let (of_head, args) = ("%{http_code} %{size_download}", ["-I", "-o", "/dev/null", "-w"]);
            if answer.ends_with(b"\r\n\r\n") && !answer.windows(2).any(|pair| pair == b"0\r") {
                let urls = [upstream, server.address].map(|at| format!("http://{at}/"));
                let output = urls.map(|url| curl(&[&args[..], &[of_head, &url]].concat()));
                assert_eq!(output[0], output[1], "{}", String::from_utf8_lossy(answer));
            }
        }
    }
}

#[test]
fn an_invalid_response_is_502_and_logged() {
    for (answer, why) in [
        (&b"SSH-2.0-OpenSSH_9\r\n"[..], "response is not HTTP/1"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
            "two different Content-Length values",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
            "an invalid Content-Length",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "a Transfer-Encoding other than chunked",
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.0 response is chunked",
        ),
        (
            b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\nContent-Length: 0\r\n\r\n",
            "response is not HTTP/1",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-",
            "closed the connection before the end",
        ),
        (b"", "closed the connection before the end"),
    ] {
        let server = gateway(&[answers(answer, 4_096)], "");
        server.request("GET", "/", "").problem(502, "bad_upstream");
        server.signal("TERM");
        let (_, log) = server.ended();
        assert!(
            log.contains(why),
            "{log} for {}",
            String::from_utf8_lossy(answer)
        );
    }
}

#[test]
fn a_response_may_have_hundreds_of_headers() {
    let head = |many: usize| {
        let cookies: String = (0..many)
            .map(|at| format!("Set-Cookie: c{at}={at}\r\n"))
            .collect();
        format!("HTTP/1.1 200 OK\r\n{cookies}Content-Length: 2\r\n\r\nok")
    };
    for (many, status) in [(500, 200), (999, 200), (1_000, 502)] {
        let answer: &'static [u8] = head(many).leak().as_bytes();
        let server = gateway(&[answers(answer, answer.len())], "");
        let mut connection = server.connect();
        connection.send("GET", "/", "");
        let head = connection.head();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{many}: {head}"
        );
        let cookies = head
            .lines()
            .filter(|line| line.starts_with("set-cookie: "))
            .count();
        assert_eq!(cookies, if status == 200 { many } else { 0 });
    }
}

/// Even if all of it comes at once.
#[test]
fn a_response_head_above_the_bound_is_rejected() {
    for (bytes, status) in [(400 * 1024, 200), (400 * 1024 + 1, 502)] {
        let (start, end) = (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Large: ",
            "\r\n\r\n",
        );
        let filler = "x".repeat(bytes - start.len() - end.len());
        let answer: &'static [u8] = format!("{start}{filler}{end}ok").leak().as_bytes();
        let server = gateway(&[answers(answer, answer.len())], "");
        let response = server.request("GET", "/", "");
        assert_eq!(response.status(), status, "{bytes}");
        let large = response.header("x-large").map_or(0, str::len);
        assert_eq!(large, if status == 200 { filler.len() } else { 0 });
    }
}

#[test]
fn a_cut_off_response_is_cut_off_for_the_client() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\nhello"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\nx\r\n",
    ] {
        let upstream = service(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if head(&mut reader).is_some() {
                let _ = stream.write_all(answer);
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        let server = gateway(&[upstream], "");
        let output = curl(&["-w", "%{exitcode}", &format!("http://{}/", server.address)]);
        // Fewer bytes than announced, no last chunk, or not even a head: in any case the client
        // sees an incomplete response.
        assert!(["hello18", "hello56", "52"].contains(&&*output), "{output}");
    }
}

/// The same while the client does not read: the error is stored until it does.
#[test]
fn a_response_cut_off_while_the_client_does_not_read_is_incomplete() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
    ] {
        let (sender, stuck) = channel();
        let upstream = service(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if head(&mut reader).is_none() {
                return;
            }
            stream.write_all(answer.as_bytes()).unwrap();
            // Until all buffers up to the client are full.
            stream
                .set_write_timeout(Some(std::time::Duration::from_millis(500)))
                .unwrap();
            while stream.write_all(&[b'x'; 10_000]).is_ok() {}
            // A reset.
            socket2::SockRef::from(&stream)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
            drop((stream, reader));
            sender.send(()).unwrap();
        });
        let server = gateway(&[upstream], "idle_timeout = \"10min\"\n");
        let mut client = server.connect();
        client.send("GET", "/", "");
        stuck
            .recv_timeout(std::time::Duration::from_secs(60))
            .unwrap();
        let rest = client.rest();
        let (head, body) = rest.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 ")
                && body.len() > 100_000
                && !body.ends_with("0\r\n\r\n")
        );
    }
}

/// The upstream answers before it has read the body, and closes, as many do with bodies that are
/// too large.
#[test]
fn an_early_response_reaches_a_client_that_is_still_sending() {
    let upstream = service(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if head(&mut reader).is_some() {
            let _ = stream.write_all(
                b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
            );
            // Reading the rest avoids a reset before the response arrives.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        }
    });
    let server = gateway(&[upstream], "");
    let file = crate::support::config_file(&"x".repeat(3_000_000));
    let data = format!("@{}", file.display());
    let output = curl(&[
        "-H",
        "Expect:",
        "--data-binary",
        &data,
        "-w",
        "%{http_code}",
        &format!("http://{}/", server.address),
    ]);
    assert_eq!(output, "no413");
}

/// With and without a request body, on new and reused connections: the upstream need not go on.
#[test]
fn a_client_that_disconnects_cancels_its_request() {
    let (sender, events) = channel();
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut reader) {
            let Some(_) = body(&mut reader, &head) else {
                return;
            };
            if head.starts_with("get /at-once ") {
                stream
                    .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                    .unwrap();
            } else {
                sender.send("asked").unwrap();
            }
        }
        let _ = sender.send("ended");
    });
    let server = gateway(&[upstream], "idle_timeout = \"10min\"\n");
    let next = || {
        events
            .recv_timeout(std::time::Duration::from_secs(60))
            .unwrap()
    };
    for (method, body, used) in [
        ("GET", "", false),
        ("POST", "hello", false),
        ("GET", "", true),
        ("POST", "hello", true),
    ] {
        let mut client = server.connect();
        if used {
            client.send("GET", "/at-once", "");
            assert_eq!(client.answer().status(), 204);
        }
        // Some clients offer an upgrade with each request; the upstream does not accept it.
        let offer = "Connection: Upgrade\r\nUpgrade: h2c";
        client.write(&format!(
            "{method} / HTTP/1.1\r\nHost: x\r\n{offer}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(next(), "asked");
        drop(client);
        assert_eq!(next(), "ended");
    }
}

/// Unusual, but complete requests are answered.
#[test]
fn a_client_that_closes_its_side_after_two_requests_gets_both_responses() {
    let (upstream, _requests) = crate::service::echo();
    let server = gateway(&[upstream], "");
    let mut client = server.connect();
    client.write("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
    client.end();
    let output = client.rest();
    assert!(
        output.contains("get /1 ") && output.contains("get /2 "),
        "{output}"
    );
}

/// Serves one request per connection and closes it silently, so that the gateway notices only with
/// the next request.
fn closing_upstream(sender: impl Fn(String) + Send + Clone + 'static) -> SocketAddr {
    service(move |stream: TcpStream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(head) = head(&mut reader) else {
            return;
        };
        let Some(body) = body(&mut reader, &head) else {
            return;
        };
        sender(body);
        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    })
}

/// The keep-alive of Node.js ends after five seconds, possibly at the very moment of the next
/// request.
#[test]
fn a_pooled_connection_that_was_closed_loses_no_response() {
    let server = gateway(&[closing_upstream(|_| {})], "");
    for _ in 0..200 {
        assert_eq!(server.request("GET", "/", "").status(), 200);
    }
}

/// Some requests crash an upstream: such a request ends two connections, not all pooled ones.
#[test]
fn a_request_that_crashes_the_upstream_is_retried_once() {
    let deaths = Arc::new(AtomicUsize::new(0));
    let (counter, barrier) = (Arc::clone(&deaths), Arc::new(Barrier::new(8)));
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut reader) {
            if head.starts_with("get /deadly") {
                counter.fetch_add(1, Relaxed);
                return;
            }
            // All of them are in flight at once, each over its own connection.
            barrier.wait();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .unwrap();
        }
    });
    let server = gateway(&[upstream], "");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(server.request("GET", "/", "").status(), 200));
        }
    });
    server
        .request("GET", "/deadly", "")
        .problem(502, "bad_upstream");
    // Once if the worker that got it had no pooled connection.
    assert!((1..=2).contains(&deaths.load(Relaxed)), "{deaths:?}");
}

/// The same with an unsafe request: the upstream sees it once, or not at all and the client gets an
/// error.
#[test]
fn unsafe_requests_are_not_retried() {
    let seen = Arc::new(AtomicUsize::new(0));
    let (sender, bodies) = channel();
    let counter = Arc::clone(&seen);
    let server = gateway(
        &[closing_upstream(move |body| {
            counter.fetch_add(1, Relaxed);
            let _ = sender.send(body);
        })],
        "breaker = false\n",
    );
    let answered = (0..200)
        .filter(|at| server.request("POST", "/", &at.to_string()).status() == 200)
        .count();
    let mut bodies: Vec<String> = bodies.try_iter().collect();
    let all = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), all, "one was sent twice");
    assert!(answered <= seen.load(Relaxed) && answered > 0);
}
