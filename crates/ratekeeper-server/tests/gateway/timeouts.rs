//! Timeouts of the gateway: clients that are slow with a head, a body or in reading; upstreams that
//! are slow with a response.

use crate::gateway;
use crate::service::{echo, endless, head, service};
use crate::support::eventually;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn a_slow_loris_is_cut_off() {
    let (upstream, requests) = echo();
    let server = gateway(
        &[upstream],
        "header_timeout = \"300ms\"\nkeep_alive = \"60s\"\n",
    );
    let mut slow: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for connection in &mut slow {
        connection.write("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    }
    for connection in slow {
        connection.closed();
    }
    // Also after a request that was answered.
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    assert_eq!(connection.answer().status(), 200);
    connection.write("GET /slow HT");
    connection.closed();
    assert!(requests.try_iter().all(|request| !request.contains("slow")));
}

#[test]
fn an_idle_client_connection_is_closed() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "keep_alive = \"200ms\"\n");
    server.connect().closed();
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    assert_eq!(connection.answer().status(), 200);
    connection.closed();
}

#[test]
fn a_silent_service_is_504_and_a_body_that_stops_408() {
    let silent = service(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {}
    });
    let server = gateway(&[silent], "idle_timeout = \"300ms\"\n");
    server.request("GET", "/", "").problem(504, "slow_upstream");
    let mut connection = server.connect();
    connection.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhel");
    connection.answer().problem(408, "body_timeout");
    let server = gateway(&[silent], "total_timeout = \"300ms\"\n");
    server.request("GET", "/", "").problem(504, "slow_upstream");
}

/// More of them than it takes for a breaker to open.
#[test]
fn request_bodies_that_stop_do_not_trip_the_breaker() {
    let (upstream, _requests) = crate::service::echo();
    let server = gateway(&[upstream], "idle_timeout = \"300ms\"\n");
    let mut stalled: Vec<_> = (0..40)
        .map(|_| {
            let mut connection = server.connect();
            connection.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhel");
            connection
        })
        .collect();
    stalled
        .iter_mut()
        .for_each(|connection| drop(connection.answer().problem(408, "body_timeout")));
    assert_eq!(server.request("GET", "/", "").status(), 200);
}

#[test]
fn a_response_that_stops_or_never_ends_is_cut_off() {
    let begins = service(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")
                .unwrap();
        }
    });
    let server = gateway(&[begins], "idle_timeout = \"300ms\"\n");
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    assert!(connection.rest().ends_with("\r\n\r\nhel"));
    let drips = service(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while stream.write_all(b"1\r\na\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let server = gateway(&[drips], "total_timeout = \"400ms\"\n");
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    assert!(!connection.rest().ends_with("0\r\n\r\n"));
}

/// A response that the client does not read is not read from the upstream either, and in the end
/// both connections are closed.
#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let (endless, ended) = endless();
    let server = gateway(&[endless], "idle_timeout = \"500ms\"\n");
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    // Ends although the client does not read; the sent bytes fill the kernel's buffers.
    let sent = ended.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(sent < 64 << 20, "{sent} bytes went somewhere");
    drop(connection);
}

/// More connections wait in the accept queue until one ends.
#[test]
fn connections_are_limited() {
    let (upstream, _requests) = echo();
    // At least one for each worker.
    let server = gateway(&[upstream], "max_connections = 1\n");
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut waiting: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let is_answered = |stream: &TcpStream| stream.peek(&mut [0]).is_ok_and(|read| read > 0);
    eventually("an answer", || waiting.iter().any(is_answered));
    while !waiting.is_empty() {
        assert!(waiting.iter().filter(|stream| is_answered(stream)).count() <= most);
        eventually("the next answer", || waiting.iter().any(is_answered));
        waiting.retain(|stream| !is_answered(stream));
    }
}

/// More connections are closed without a response, and counted; a trusted proxy may have any
/// number.
#[test]
fn connections_per_address_are_limited() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "max_connections_per_address = 5\n");
    let mut open: Vec<_> = (0..5)
        .map(|_| {
            let mut connection = server.connect();
            connection.send("GET", "/", "");
            assert_eq!(connection.answer().status(), 200);
            connection
        })
        .collect();
    for _ in 0..3 {
        server.connect().closed();
    }
    assert_eq!(server.metric("ratekeeper_connections_refused_total"), 3.0);
    let findings = server.admin("GET", "/admin/doctor").body;
    assert!(
        findings.contains("connections_refused") && findings.contains("3 connections were refused"),
        "{findings}"
    );
    // A closed connection frees its slot.
    drop(open.pop());
    eventually("room", || {
        let mut stream = TcpStream::connect(server.address).unwrap();
        // A rejected connection may be closed before this is written.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer.starts_with(b"HTTP/1.1 200 ")
    });
    drop(open);
    server.signal("TERM");
    let (_, log) = server.ended();
    assert_eq!(
        log.matches("max_connections_per_address").count(),
        1,
        "{log}"
    );

    let trusting =
        "max_connections_per_address = 5\n[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let server = gateway(&[upstream], trusting);
    let mut open: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for connection in &mut open {
        connection.send("GET", "/", "");
        assert_eq!(connection.answer().status(), 200);
    }
    assert_eq!(server.metric("ratekeeper_connections_refused_total"), 0.0);
}

/// A byte now and then is too slow, over HTTP/1 and HTTP/2, to upstreams of either.
#[tokio::test]
async fn a_body_that_trickles_is_408() {
    let (upstream, _requests) = echo();
    let inner = gateway(&[upstream], "body_timeout = \"1s\"\n");
    let outer = gateway(&[inner.address], "body_timeout = \"1s\"\nhttp2 = true\n");
    for server in [&inner, &outer] {
        let mut connection = server.connect();
        connection.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
        let mut trickle = connection.writer();
        let trickling = std::thread::spawn(move || {
            // Until the gateway closes the connection.
            while trickle.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        connection.answer().problem(408, "body_timeout");
        drop(connection);
        trickling.join().unwrap();

        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let bytes = futures_util::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Some((
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))),
                (),
            ))
        });
        let request = Request::post(format!("http://{}/", server.address))
            .body(StreamBody::new(Box::pin(bytes)))
            .unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status(), 408);
    }
}
