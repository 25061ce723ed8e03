//! HTTP/2 on both sides, without TLS.

use crate::service::{echo, endless};
use crate::{curl, gateway, vias};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn http2_prior_knowledge_works_without_tls() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "");
    let url = format!("http://{}/a?b=c", server.address);
    let text = curl(&[
        "--http2-prior-knowledge",
        "-d",
        "hello",
        "-w",
        " %{http_version} %{http_code}",
        &url,
    ]);
    assert!(
        text.starts_with("post /a?b=c http/1.1\r\n") && text.ends_with("hello 2 200"),
        "{text}"
    );
    assert!(
        text.contains(&format!("host: {}\r\n", server.address))
            && text.contains("via: 2.0 ratekeeper\r\n"),
        "{text}"
    );
}

#[test]
fn a_denied_head_request_gets_no_body() {
    let (upstream, _requests) = echo();
    let limited = "[[policy]]\nname = \"all\"\nlimit = \"1/h\"\n";
    let server = gateway(&[upstream], limited);
    let url = format!("http://{}/", server.address);
    curl(&[&url]);
    let denied = ["--http1.1", "--http2-prior-knowledge"].map(|version| {
        curl(&[
            version,
            "-S",
            "-I",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %header{content-length}",
            &url,
        ])
    });
    assert!(
        denied[1].starts_with("429 ") && !denied[1].ends_with(' '),
        "{denied:?}"
    );
    assert_eq!(denied[0], denied[1]);
}

#[test]
fn many_requests_at_once_on_few_connections() {
    let (upstream, _requests) = echo();
    let inner = gateway(&[upstream], "");
    let outer = gateway(&[inner.address], "http2 = true\n");
    for (server, clients) in [(&inner, "4"), (&outer, "2")] {
        let url = format!("http://{}/", server.address);
        let output = Command::new("h2load")
            .args(["-n", "500", "-c", clients, "-m", "16", &url])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("500 succeeded, 0 failed, 0 errored, 0 timeout"),
            "{text}"
        );
        assert!(text.contains("status codes: 500 2xx"), "{text}");
    }
    assert_eq!(
        vias(&outer.request("GET", "/", "").body),
        ["1.1 ratekeeper", "2.0 ratekeeper"]
    );
}

#[test]
fn wrk_gets_all_its_responses() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "");
    let url = format!("http://{}/", server.address);
    let output = Command::new("wrk")
        .args(["-t1", "-c32", "-d1s", &url])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("Requests/sec")
            && !text.contains("Non-2xx")
            && !text.contains("Socket errors"),
        "{text}"
    );
}

/// Whether the client reads slowly or not at all: an unread response is not waited for, and the
/// connection goes on.
#[tokio::test]
async fn an_unread_response_is_cut_off() {
    for window in [0, 1_000] {
        let (upstream, ended) = endless();
        let server = gateway(&[upstream], "idle_timeout = \"2s\"\n");
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut ask = async |path: &str| {
            let url = format!("http://{}{path}", server.address);
            client
                .send_request(Request::get(url).body(Empty::new()).unwrap())
                .await
                .unwrap()
        };
        let stuck = ask("/").await;
        assert_eq!(stuck.status(), 200);
        let sent = tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(60)))
            .await
            .unwrap();
        assert!(sent.unwrap() < 64 << 20, "{sent:?} bytes went somewhere");
        assert!(
            stuck.into_body().collect().await.is_err(),
            "it never came to its end"
        );
        // The connection still works.
        assert_eq!(ask("/again").await.status(), 200);
    }
}

/// The HTTP/2 preface with empty settings.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// An unfinished head is cut off, whatever else is in flight on the connection.
#[test]
fn an_unfinished_http2_head_is_cut_off() {
    let (upstream, _requests) = echo();
    let server = gateway(
        &[upstream],
        "header_timeout = \"300ms\"\nkeep_alive = \"1h\"\nidle_timeout = \"1h\"\n",
    );
    // HEADERS without the CONTINUATION that must follow; half of an announced frame; a whole POST
    // before it.
    let unfinished = b"\0\0\x01\x01\0\0\0\0\x03\x82";
    let half = b"\0\0\x10\x01\x05\0\0\0\x03\x82\x84";
    let post = b"\0\0\x04\x01\x04\0\0\0\x01\x83\x84\x86\x81\0\0\0\0\0\0\0\0\x01";
    for heads in [&[&unfinished[..]][..], &[half], &[post, unfinished]] {
        let mut connection = server.connect();
        connection.write_bytes(BEGINNING);
        heads.iter().for_each(|head| connection.write_bytes(head));
        let start = Instant::now();
        connection.gone();
        // A client that answers no PING is cut off after 40 s.
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
    }
    // The preface has the same timeout.
    let mut connection = server.connect();
    connection.write_bytes(&BEGINNING[..20]);
    connection.gone();
}

#[tokio::test]
async fn headers_in_http2_are_counted_as_over_http1() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "max_headers = 10\n");
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut ask = async |name: &str, many: usize| {
        let url = format!("http://{}/", server.address);
        let request = (0..many).fold(Request::get(url), |request, number| {
            request.header(name, format!("a{number}=b"))
        });
        client
            .send_request(request.body(Empty::new()).unwrap())
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!([ask("x-a", 10).await, ask("x-a", 11).await], [200, 431]);
    // A cookie may be split, and counts as one header.
    assert_eq!(ask("cookie", 50).await, 200);
}
