use super::connection::H2UpstreamConn;
use super::*;
use axum::body::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// An upstream that allows `max_streams` streams per connection, and counts its connections.
async fn upstream(max_streams: u32) -> (Upstream, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let open = Arc::new(AtomicUsize::new(0));
    let connections = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let open = Arc::clone(&connections);
            open.fetch_add(1, SeqCst);
            tokio::spawn(async move {
                let mut builder = h2::server::Builder::new();
                let mut connection = builder
                    .max_concurrent_streams(max_streams)
                    .handshake::<_, Bytes>(stream)
                    .await
                    .unwrap();
                while let Some(Ok(_)) = connection.accept().await {}
                open.fetch_sub(1, SeqCst);
            });
        }
    });
    (upstream, open)
}

const CONNECTOR: Connector = Connector {
    tls: None,
    connect_timeout: Duration::from_secs(60),
};

async fn stream(pool: &Http2Pool, upstream: &Upstream) -> StreamPermit {
    pool.stream(&CONNECTOR, upstream, false).await.unwrap().0
}

fn connections(pool: &Http2Pool) -> usize {
    pool.lock().len()
}

#[tokio::test]
async fn connections_are_opened_when_streams_run_out_and_closed_when_idle() {
    let (upstream, open) = upstream(2).await;
    let pool = Http2Pool::default();
    let mut streams = Vec::new();
    for expected in [1, 1, 2, 2, 3] {
        streams.push(stream(&pool, &upstream).await);
        assert_eq!(connections(&pool), expected);
    }
    // A free stream is used before another connection is opened.
    streams.remove(0);
    streams.push(stream(&pool, &upstream).await);
    assert_eq!(connections(&pool), 3);
    // The number of connections is bounded; beyond that streams wait.
    for _ in 0..3 * MAX_CONNECTIONS {
        streams.push(stream(&pool, &upstream).await);
    }
    assert_eq!(connections(&pool), MAX_CONNECTIONS);

    let now = Instant::now();
    pool.clear_expired(now + IDLE_TIMEOUT * 2);
    assert_eq!(connections(&pool), MAX_CONNECTIONS, "they are in use");
    let kept = streams.swap_remove(0);
    drop(streams);
    // Its idle time begins when it is first seen to be idle.
    let idle = now + IDLE_TIMEOUT * 3;
    pool.clear_expired(idle);
    pool.clear_expired(idle + IDLE_TIMEOUT - Duration::from_millis(1));
    assert_eq!(connections(&pool), MAX_CONNECTIONS);
    drop(stream(&pool, &upstream).await);
    pool.clear_expired(idle + IDLE_TIMEOUT);
    assert_eq!(connections(&pool), 1, "the one in use");
    while open.load(SeqCst) > 1 {
        tokio::task::yield_now().await;
    }
    drop(kept);
}

#[tokio::test]
async fn many_requests_at_once_open_no_more_connections_than_they_need() {
    let (upstream, open) = upstream(100).await;
    let pool = Arc::new(Http2Pool::default());
    let upstream = Arc::new(upstream);
    let asked: Vec<JoinHandle<StreamPermit>> = (0..100)
        .map(|_| {
            let (pool, upstream) = (Arc::clone(&pool), Arc::clone(&upstream));
            tokio::spawn(async move { stream(&pool, &upstream).await })
        })
        .collect();
    let mut streams = Vec::new();
    for asked in asked {
        streams.push(asked.await.unwrap());
    }
    assert_eq!((connections(&pool), open.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn an_upstream_without_http2_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream: Upstream = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    tokio::spawn(async move {
        for answer in [
            &b""[..],
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        }
    });
    let pool = Http2Pool::default();
    for _ in 0..2 {
        assert!(pool.stream(&CONNECTOR, &upstream, false).await.is_err());
    }
    assert_eq!(connections(&pool), 0);
}

/// The other end of a connection, frame by frame: returns the times of the pings, and answers the
/// first `answers` of them.
async fn pinged(mut stream: DuplexStream, answers: usize) -> Vec<u64> {
    let started = Instant::now();
    let mut pings = Vec::new();
    stream.read_exact(&mut [0; 24]).await.unwrap();
    stream
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == 6 {
            pings.push(started.elapsed().as_secs());
            if pings.len() <= answers {
                head[4] = 1;
                stream
                    .write_all(&[&head[..], &payload].concat())
                    .await
                    .unwrap();
            }
        }
    }
    pings.push(started.elapsed().as_secs());
    pings
}

async fn pings(answers: usize) -> Vec<u64> {
    let (near, far) = duplex(64 * 1024);
    let far = tokio::spawn(pinged(far, answers));
    let connection = H2UpstreamConn::handshake(near).await.unwrap();
    let stream = connection.stream();
    let pings = far.await.unwrap();
    drop(stream);
    pings
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_ping_closes_the_connection() {
    assert_eq!(
        pings(0).await,
        [20, 40],
        "a ping after 20 seconds, and 20 seconds for its answer"
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_but_live_upstream_is_pinged_rarely() {
    assert_eq!(pings(4).await, [20, 40, 360, 680, 1000, 1020]);
}
