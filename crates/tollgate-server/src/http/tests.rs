//! The whole of HTTP on a connection in memory, a small table and two clocks that stand still.

use super::router;
use crate::buckets::Buckets;
use crate::worker::connection;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tollgate::{ManualClock, MemoryStore};

/// A server that tells `most` limits apart; every call is a connection of its own.
struct Server {
    app: axum::Router,
    clock: ManualClock,
}

impl Server {
    fn new(most: usize) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        Self { app: router(Arc::new(Buckets::new(store, most))), clock }
    }

    fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let connection = connection(theirs, self.app.clone());
        tokio::spawn(async { drop(connection.await) });
        ours
    }

    /// Status line and headers, and the body.
    async fn throttle(&self, body: Value) -> (String, Value) {
        let body = body.to_string();
        let mut stream = self.connect();
        let length = body.len();
        let request = format!(
            "POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_all(&mut stream).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), serde_json::from_str(body).unwrap())
    }
}

async fn read_all(stream: &mut DuplexStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_figures_are_exact_and_milliseconds_are_rounded_up() {
    let server = Server::new(10);
    let call = || server.throttle(json!({"key": "a", "limit": "3/s"}));
    let third = |n: u64| (n * 1000).div_ceil(3);
    for used in 1..=3 {
        let (head, body) = call().await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert_eq!(
            body,
            json!({"allowed": true, "limit": 3, "remaining": 3 - used, "used": used, "delay_ms": 0,
                   "retry_after_ms": null, "reset_after_ms": third(used), "never": false})
        );
    }
    let (head, body) = call().await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
    assert!(head.contains("\r\nretry-after: 1\r\n") && head.contains("\r\ncache-control: no-store"), "{head}");
    assert_eq!(
        body,
        json!({"allowed": false, "limit": 3, "remaining": 0, "used": 3, "delay_ms": 0,
               "retry_after_ms": 334, "reset_after_ms": 1000, "never": false})
    );
    server.clock.advance(Duration::from_nanos(333_333_333));
    assert_eq!(call().await.1["retry_after_ms"], json!(1));
    server.clock.advance(Duration::from_nanos(1));
    assert_eq!(call().await.1["allowed"], json!(true));
}

#[tokio::test]
async fn retry_after_is_whole_seconds_rounded_up() {
    let server = Server::new(10);
    let call = || server.throttle(json!({"key": "a", "limit": "1/min"}));
    call().await;
    for (advance, seconds) in [(0, 60), (1, 60), (58_998, 2), (1, 1), (999, 1)] {
        server.clock.advance(Duration::from_millis(advance));
        let (head, _) = call().await;
        assert!(head.contains(&format!("\r\nretry-after: {seconds}\r\n")), "{advance} {head}");
    }
}

#[tokio::test]
async fn one_limit_too_many_is_503_and_says_so() {
    let server = Server::new(1);
    assert!(server.throttle(json!({"key": "a", "limit": "2/min"})).await.0.starts_with("http/1.1 200 "));
    let (head, body) = server.throttle(json!({"key": "a", "limit": "3/min"})).await;
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    assert!(head.contains("\r\ncontent-type: application/problem+json\r\n"), "{head}");
    assert_eq!((&body["code"], &body["status"]), (&json!("too_many_limits"), &json!(503)));
    assert!(server.throttle(json!({"key": "b", "limit": "2/min"})).await.0.starts_with("http/1.1 200 "));
}

/// Tokio's clock stands still in these, and goes to the next timer once everybody waits.
#[tokio::test(start_paused = true)]
async fn a_client_that_dribbles_its_head_is_cut_off() {
    let mut stream = Server::new(1).connect();
    stream.write_all(b"POST /v1/throttle HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let mut stream = Server::new(1).connect();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(read_all(&mut stream).await.ends_with("\r\n\r\nok\n"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_sends_its_body_is_told_and_cut_off() {
    let mut stream = Server::new(1).connect();
    stream.write_all(b"POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{").await.unwrap();
    let start = tokio::time::Instant::now();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains(r#""code":"body_timeout""#), "{answer}");
    assert_eq!(start.elapsed().as_secs(), 10);
}
