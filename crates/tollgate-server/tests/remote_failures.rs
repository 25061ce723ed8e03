//! A service that is gone, slow, or something else: nobody hangs, and each limit does as it was told.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use support::Server;
use tollgate::{Ask, Limit, LimitHandle, OnFailure, Source, Store, Verdict};
use tollgate_remote::{ConnectError, RemoteStore, RemoteStoreBuilder};

/// Nothing here takes that long, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn builder(server: &Server) -> RemoteStoreBuilder {
    RemoteStore::builder(format!("http://{}", server.address)).timeout(Duration::from_secs(5))
}

/// The same service once more, where it was.
fn again(at: std::net::SocketAddr) -> Server {
    Server::with_config(&format!("[server]\nhttp = \"{at}\"\n"))
}

async fn decide(store: &RemoteStore, limit: &LimitHandle, key: &str) -> Verdict {
    let start = Instant::now();
    let verdict = store.decide(&[Ask::new(limit, key)]).await;
    assert!(start.elapsed() < PATIENCE, "it hung");
    verdict
}

/// Asks until this one decides.
async fn until(store: &RemoteStore, limit: &LimitHandle, source: Source) {
    let start = Instant::now();
    while decide(store, limit, "whether it is there").await.source() != source {
        assert!(start.elapsed() < PATIENCE, "{:?}", store.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn without_the_service_each_limit_goes_by_its_own_choice_and_then_on() {
    let server = Server::start();
    let address = server.address;
    let store = builder(&server).on_failure(OnFailure::Closed).nodes(2).connect().await.unwrap();
    let rule: Limit = "1000/s burst 10".parse().unwrap();
    let closed = store.limit("closed", rule).unwrap();
    let open = store.limit("open", rule).unwrap();
    store.on_failure(&open, OnFailure::Open);
    let share = store.limit("share", rule).unwrap();
    store.on_failure(&share, OnFailure::LocalShare);
    let unlimited = store.limit("unlimited", Limit::unlimited()).unwrap();
    for limit in [&closed, &open, &share, &unlimited] {
        assert_eq!(decide(&store, limit, "k").await.source(), Source::Remote);
    }
    drop(server);
    until(&store, &closed, Source::Closed).await;
    let verdict = decide(&store, &closed, "k").await;
    assert!(!verdict.is_allowed() && verdict.retry_after().is_some());
    let verdict = decide(&store, &open, "k").await;
    assert!(verdict.is_allowed() && verdict.source() == Source::Open);
    assert!(decide(&store, &unlimited, "k").await.is_allowed());
    // A share is half of the burst, and begins empty.
    let verdict = decide(&store, &share, "k").await;
    assert_eq!((verdict.source(), verdict.statuses().next().unwrap().decision().limit()), (Source::LocalShare, 5));
    // One that lets nobody in decides for all.
    let both = store.decide(&[Ask::new(&open, "k"), Ask::new(&closed, "k")]).await;
    assert!(!both.is_allowed() && both.source() == Source::Closed);
    assert!(!store.is_well() && store.status().counts.fallbacks > 0);

    let _server = again(address);
    until(&store, &closed, Source::Remote).await;
    assert!(store.is_well());
    assert_eq!(decide(&store, &share, "k").await.source(), Source::Remote);
}

#[tokio::test]
async fn a_store_begins_without_the_service_and_finds_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let store = RemoteStore::builder(format!("http://{address}")).timeout(PATIENCE).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(10)).unwrap();
    assert_eq!(decide(&store, &limit, "k").await.source(), Source::LocalShare);
    assert!(store.status().trouble.unwrap().1.to_string().contains("see that it runs"));
    let _server = again(address);
    until(&store, &limit, Source::Remote).await;
}

/// Shares begin empty and fill with time; what they admit is charged where it belongs.
#[tokio::test]
async fn what_was_spent_without_the_service_is_charged_when_it_is_back() {
    let server = Server::start();
    let address = server.address;
    let store = builder(&server).connect().await.unwrap();
    let limit = store.limit("limit", "100/s burst 1000".parse().unwrap()).unwrap();
    drop(server);
    until(&store, &limit, Source::LocalShare).await;
    let (start, mut spent) = (Instant::now(), 0);
    while spent < 20 {
        spent += u64::from(decide(&store, &limit, "k").await.is_allowed());
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let _server = again(address);
    let start = Instant::now();
    while store.status().counts.debited < spent {
        assert!(start.elapsed() < PATIENCE, "{:?}", store.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_service_that_stands_still_holds_nobody_up() {
    let server = Server::start();
    let store = builder(&server).timeout(Duration::from_millis(100)).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(1_000_000)).unwrap();
    until(&store, &limit, Source::Remote).await;
    server.freeze();
    let start = Instant::now();
    let asks: Vec<_> = (0..50)
        .map(|caller| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move { decide(&store, &limit, &caller.to_string()).await.source() })
        })
        .collect();
    for ask in asks {
        assert_eq!(ask.await.unwrap(), Source::LocalShare);
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    until_open(&store, &limit).await;
    server.signal("CONT");
    until(&store, &limit, Source::Remote).await;
}

#[tokio::test]
async fn who_asks_at_the_same_time_shares_a_call() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let server = Server::start();
    let store = builder(&server).timeout(PATIENCE).connections(1).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(30)).unwrap();
    until(&store, &limit, Source::Remote).await;
    let before = store.status().counts.round_trips;
    server.freeze();
    let asked = Arc::new(AtomicU64::new(0));
    let asks: Vec<_> = (0..50)
        .map(|_| {
            let (store, limit, asked) = (store.clone(), limit.clone(), Arc::clone(&asked));
            tokio::spawn(async move {
                // On one thread: it has asked before anybody sees the count.
                asked.fetch_add(1, Ordering::Relaxed);
                decide(&store, &limit, "k").await.is_allowed()
            })
        })
        .collect();
    while asked.load(Ordering::Relaxed) < 50 {
        tokio::task::yield_now().await;
    }
    server.signal("CONT");
    let mut admitted = 0;
    for ask in asks {
        admitted += u64::from(ask.await.unwrap());
    }
    assert_eq!(admitted, 30);
    // One that was under way, one with all the others, and perhaps one that gives up what was dropped meanwhile.
    let calls = store.status().counts.round_trips - before;
    assert!(calls <= 3, "{calls} calls");
}

/// After a few that waited in vain nobody waits.
async fn until_open(store: &RemoteStore, limit: &LimitHandle) {
    let start = Instant::now();
    let broken = || store.status().counts.troubles.iter().find(|(name, _)| *name == "broken").unwrap().1;
    while broken() == 0 {
        assert_eq!(decide(store, limit, "k").await.source(), Source::LocalShare);
        assert!(start.elapsed() < PATIENCE, "{:?}", store.status());
    }
}

/// A caller with less time than the store is served in that.
#[tokio::test]
async fn a_deadline_of_the_caller_is_kept() {
    let server = Server::start();
    let store = builder(&server).timeout(Duration::from_secs(3_600)).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(10)).unwrap();
    server.freeze();
    let start = Instant::now();
    let verdict = store.decide_within(&[Ask::new(&limit, "k")], store.now(), Duration::from_millis(50)).await;
    assert_eq!(verdict.source(), Source::LocalShare);
    assert!(start.elapsed() < PATIENCE);
    // It was the caller's haste: nobody else is told that the service is in trouble.
    assert!(store.is_well());
}

/// Something that answers every request with these bytes.
fn something(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                // A head and a little; what comes after it is not read.
                let _ = stream.read(&mut [0; 4_096]);
                let _ = stream.write_all(&answer);
            });
        }
    });
    format!("http://{address}")
}

fn http(status: &str, media_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const OURS: &str = tollgate_remote::wire::MEDIA_TYPE;

#[tokio::test]
async fn what_is_no_tollgate_is_found_out_at_the_start() {
    for (answer, says) in [
        (http("404 Not Found", "text/html", b"no"), "does not serve /v1/store"),
        (http("200 OK", "text/html", b"hello"), "not a tollgate that understands us"),
        (http("200 OK", OURS, b"\xff\xff"), "not a tollgate that understands us"),
        (http("200 OK", OURS, b"\x02"), "not a tollgate that understands us"),
        (http("401 Unauthorized", OURS, b""), "`store_token`"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec(), "not a tollgate that understands us"),
    ] {
        match RemoteStore::builder(something(answer)).connect().await {
            Err(ConnectError::Unusable(trouble)) => assert!(trouble.to_string().contains(says), "{trouble}"),
            other => panic!("{says}: {other:?}"),
        }
    }
    for url in ["", "tollgate:8080", "redis://127.0.0.1", "http://"] {
        let error = RemoteStore::builder(url).connect().await.unwrap_err();
        assert!(matches!(&error, ConnectError::Url(_)), "{url}: {error}");
    }
}

/// It was a tollgate when the store began, and is not any more.
#[tokio::test]
async fn answers_that_make_no_sense_are_as_good_as_none() {
    let server = Server::start();
    let address = server.address;
    let store = builder(&server).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(10)).unwrap();
    let slots = store.concurrency("slots", 10).unwrap();
    until(&store, &limit, Source::Remote).await;
    drop(server);
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        let told = |words: &[u8]| [&b"\x01\0\x01\0\x01\x01"[..], words].concat();
        let answers = [
            http("200 OK", OURS, b""),
            http("200 OK", OURS, b"\x01"),
            http("200 OK", OURS, b"\x01\0\x02\x63"),
            http("200 OK", OURS, b"\x01\0\0"),
            // A bucket whose tokens are of no size, a kind that is not known, no figures at all.
            http("200 OK", OURS, &told(b"\x80\x02\0\0\0\0")),
            http("200 OK", OURS, &told(b"\x0f\0\0\0\0")),
            http("200 OK", OURS, b"\x01\0\x01\0\x01\0"),
            http("200 OK", OURS, &[0xff; 100_000]),
            http("500 Internal Server Error", "text/plain", b"oh"),
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec(),
            b"\0\0\0\0".to_vec(),
            Vec::new(),
        ];
        for (stream, answer) in listener.incoming().zip(answers.iter().cycle()) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(answer);
        }
    });
    let start = Instant::now();
    let protocol = || store.status().counts.troubles.iter().find(|(name, _)| *name == "protocol").unwrap().1;
    while protocol() < 2 {
        for limit in [&limit, &slots] {
            assert_eq!(decide(&store, limit, "k").await.source(), Source::LocalShare);
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", store.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
