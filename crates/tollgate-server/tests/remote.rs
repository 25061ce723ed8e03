//! The service as the store of other programs: a real server, and clients that are written for any store.

mod support;

use std::time::{Duration, Instant};
use support::{Server, eventually};
use tollgate::{
    Algorithm, Ask, AskOutcome, Limit, LimitHandle, Limiter, ManualClock, MemoryStore, Mode, Source, Store,
};
use tollgate_policy::{Engine, Policies, Policy, Subject};
use tollgate_remote::{ConnectError, RemoteStore, RemoteStoreBuilder, Trouble};

/// Long enough for a busy machine to answer in, so that nothing falls back without a reason.
const LONG: Duration = Duration::from_secs(20);

const TOKEN: &str = "a token of sixteen bytes";

fn with_token() -> Server {
    Server::with_config(&format!("[server]\nhttp = \"127.0.0.1:0\"\nstore_token = \"{TOKEN}\"\n"))
}

fn builder(server: &Server) -> RemoteStoreBuilder {
    RemoteStore::builder(format!("http://{}", server.address)).timeout(LONG)
}

async fn client(server: &Server) -> RemoteStore {
    builder(server).connect().await.unwrap()
}

async fn remaining(store: &impl Store, limit: &LimitHandle, key: &str) -> u64 {
    let verdict = store.decide(&[Ask::new(limit, key).cost(0).mode(Mode::Peek)]).await;
    verdict.statuses().next().unwrap().decision().remaining()
}

/// Asks, and says whether it passed. The service must have decided.
async fn passes(store: &RemoteStore, asks: &[Ask<'_>]) -> bool {
    let verdict = store.decide(asks).await;
    assert_eq!(verdict.source(), Source::Remote, "{:?}", store.status());
    verdict.is_allowed()
}

/// On a key that nobody has used the figures do not depend on when.
#[tokio::test]
async fn figures_come_as_the_service_has_them_to_the_nanosecond() {
    let server = Server::start();
    let store = client(&server).await;
    for (at, text) in [
        "7/s burst 23",
        "3/min leaky_bucket",
        "7/s wait 2s",
        "5/min fixed_window_first_hit",
        "5/min sliding_log",
        "0",
        "unlimited",
        "18446744073709551615/s",
    ]
    .iter()
    .enumerate()
    {
        let rule: Limit = text.parse().unwrap();
        let limit = store.limit(&format!("limit {at}"), rule).unwrap();
        for cost in [0, 1, 3, 1_000_000] {
            let key = format!("cost {cost}");
            let verdict = store.decide(&[Ask::new(&limit, &key).cost(cost)]).await;
            let expected = Limiter::with_clock(rule, ManualClock::new()).check_n(cost);
            assert_eq!(verdict.statuses().next().unwrap().decision(), expected, "{text} {cost}");
        }
    }
}

/// What does not depend on the time: the limits here refill too slowly for a test to see. Which of two binds goes by when
/// each would admit, and so does.
type Shown = (bool, bool, Vec<(AskOutcome, u64, u64)>);

fn shown(verdict: &tollgate::Verdict) -> Shown {
    let status =
        |status: &tollgate::Status| (status.outcome(), status.decision().limit(), status.decision().remaining());
    (verdict.is_allowed(), verdict.is_never(), verdict.statuses().map(status).collect())
}

/// Random asks, some settled, some held for a while, some dropped; now and then a gift, a key made fresh, a limit changed.
async fn work<S: Store>(store: &S) -> Vec<Shown> {
    let slow = |algorithm: &Algorithm| match algorithm {
        // In windows aligned to the epoch: one that does not end today.
        Algorithm::FixedWindow | Algorithm::SlidingWindow => Limit::of(9, Duration::from_secs(3_600 * 24 * 365)),
        _ => Limit::per_day(9),
    };
    let rate = |algorithm: &Algorithm| store.limit(algorithm.name(), slow(algorithm).algorithm(*algorithm)).unwrap();
    let limits: Vec<_> = Algorithm::ALL.iter().map(rate).chain([store.concurrency("slots", 3).unwrap()]).collect();
    let (mut seen, mut held, mut random) = (Vec::new(), Vec::new(), 7_u64);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..1_500 {
        let picks: Vec<_> = (0..1 + next(5)).map(|_| (next(9) as usize, next(60), 1 + next(2), next(12))).collect();
        // All permits are of one key, so that what is dropped goes back before it is asked for.
        let keys: Vec<_> = picks.iter().map(|(limit, key, ..)| format!("{}", key * u64::from(*limit < 8))).collect();
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for ((limit, _, cost, how), key) in picks.iter().zip(&keys) {
            let ask = Ask::new(&limits[*limit], key).cost(*cost);
            let known = asks.iter().any(|known| known.limit.number() == *limit as u64 && known.key == key.as_bytes());
            asks.push(match how {
                _ if known => continue,
                1 => ask.mode(Mode::Shadow),
                2 => ask.mode(Mode::Peek),
                3 if *limit < 2 => ask.reserve(2),
                _ => ask,
            });
        }
        let verdict = store.decide(&asks).await;
        seen.push(shown(&verdict));
        match next(4) {
            0 => store.settle(verdict, &vec![next(2); asks.len()]).await,
            1 => held.push(verdict),
            _ => drop(verdict),
        }
        if held.len() > 4 {
            drop(held.remove(0));
        }
        let (limit, key) = (&limits[next(9) as usize], next(60).to_string());
        match next(40) {
            0 => store.grant(limit, key.as_bytes(), next(4)).await,
            1 => store.reset(limit, key.as_bytes()).await,
            2 => store.set_limit(&limits[0], Limit::per_day(8 + next(3))),
            3 => store.set_concurrency(&limits[8], 2 + next(3)),
            _ => {}
        }
    }
    seen
}

#[tokio::test]
async fn what_runs_on_any_store_learns_the_same_from_the_service() {
    let server = with_token();
    let here = work(&MemoryStore::new()).await;
    let store = builder(&server).token(TOKEN).connect().await.unwrap();
    let there = work(&store).await;
    for (i, (here, there)) in here.iter().zip(&there).enumerate() {
        assert_eq!(here, there, "call {i}");
    }
    let counts = store.status().counts;
    assert_eq!((counts.fallbacks, counts.lost), (0, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_several_clients_are_admitted_what_the_limit_says() {
    let server = Server::start();
    let (mut callers, mut clients) = (tokio::task::JoinSet::new(), Vec::new());
    for _ in 0..3 {
        let store = client(&server).await;
        let everyone = store.limit("everyone", Limit::per_day(100)).unwrap();
        let user = store.limit("user", Limit::per_day(7)).unwrap();
        clients.push(store.clone());
        for caller in 0..20 {
            let (store, everyone, user) = (store.clone(), everyone.clone(), user.clone());
            callers.spawn(async move {
                let (mut passed, key) = (0, format!("user {caller}"));
                for _ in 0..10 {
                    passed += u64::from(passes(&store, &[Ask::new(&everyone, ""), Ask::new(&user, &key)]).await);
                }
                (caller, passed)
            });
        }
    }
    let mut admitted = [0; 20];
    while let Some(caller) = callers.join_next().await {
        let (caller, passed) = caller.unwrap();
        admitted[caller] += passed;
    }
    assert_eq!(admitted.iter().sum::<u64>(), 100, "{admitted:?}");
    assert!(admitted.iter().all(|admitted| *admitted <= 7), "{admitted:?}");
    for store in clients {
        let counts = store.status().counts;
        assert_eq!((counts.decisions, counts.fallbacks), (200, 0), "{counts:?}");
    }
    assert_eq!(server.figure("ratelimit_requests_allowed"), 100.0);
}

#[tokio::test]
async fn what_was_not_used_comes_back_exactly() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let limit = |store: &RemoteStore| store.limit("tokens", Limit::per_day(1_000)).unwrap();
    let (tokens, seen) = (limit(&ours), limit(&theirs));
    let other = ours.limit("calls", Limit::per_day(10)).unwrap();
    let asks = [Ask::new(&tokens, "ann").cost(600), Ask::new(&other, "ann")];
    ours.settle(ours.decide(&asks).await, &[120]).await;
    assert_eq!(remaining(&theirs, &seen, "ann").await, 880);
    assert_eq!(remaining(&ours, &other, "ann").await, 9);
    // More than was thought is charged too.
    ours.settle(ours.decide(&asks).await, &[800, 0]).await;
    assert_eq!(remaining(&theirs, &seen, "ann").await, 80);
    assert_eq!(remaining(&ours, &other, "ann").await, 9);
    // Dropped, it stays.
    drop(ours.decide(&asks[1..]).await);
    assert_eq!(remaining(&ours, &other, "ann").await, 8);
    assert_eq!(ours.status().counts.lost, 0);
}

#[tokio::test]
async fn permits_come_back_when_a_verdict_is_dropped_and_when_its_client_is_gone() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let slots = |store: &RemoteStore| store.concurrency("slots", 2).unwrap();
    let (slots, seen) = (slots(&ours), slots(&theirs));
    let one = ours.decide(&[Ask::new(&slots, "k")]).await;
    let two = theirs.decide(&[Ask::new(&seen, "k")]).await;
    assert!(one.is_allowed() && two.is_allowed());
    assert!(!passes(&ours, &[Ask::new(&slots, "k")]).await);
    // One that is dropped by another client is back when that has said so.
    drop(two);
    let start = Instant::now();
    while !passes(&ours, &[Ask::new(&slots, "k")]).await {
        assert!(start.elapsed() < LONG, "it is not back");
    }
    ours.settle(one, &[]).await;
    let asks = [Ask::new(&slots, "k").cost(2)];
    let start = Instant::now();
    let both = loop {
        let verdict = ours.decide(&asks).await;
        if verdict.is_allowed() {
            break verdict;
        }
        assert!(start.elapsed() < LONG, "they are not back");
    };
    // Held for longer than they live without a word, they are still out: they are renewed.
    let start = Instant::now();
    while start.elapsed() < tollgate_remote::wire::VERDICTS_LIVE + Duration::from_secs(1) {
        assert!(!passes(&theirs, &[Ask::new(&seen, "k")]).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // A client that ends without giving back: nobody renews.
    std::mem::forget(both);
    drop(ours);
    let start = Instant::now();
    while !passes(&theirs, &[Ask::new(&seen, "k").cost(2)]).await {
        assert!(start.elapsed() < 2 * LONG, "they are not back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_change_by_one_client_holds_for_all_and_tokens_stay() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let limit = |store: &RemoteStore| store.limit("limit", Limit::per_day(10)).unwrap();
    let (limit, seen) = (limit(&ours), limit(&theirs));
    assert!(passes(&ours, &[Ask::new(&limit, "k").cost(4)]).await);
    ours.set_limit(&limit, Limit::per_day(20));
    assert_eq!(remaining(&ours, &limit, "k").await, 6);
    // Who has not heard is told by the new one all the same.
    let verdict = theirs.decide(&[Ask::new(&seen, "k")]).await;
    let decision = verdict.statuses().next().unwrap().decision();
    assert_eq!((decision.limit(), decision.remaining()), (20, 5));
    // By another name it is another limit.
    theirs.share_as(&seen, "limit of their own");
    assert_eq!(remaining(&theirs, &seen, "k").await, 10);
}

#[tokio::test]
async fn policies_run_on_it() {
    let server = Server::start();
    let policies = || {
        let login = Policy::new("login").per("ip").limit(Limit::per_day(3).algorithm(Algorithm::SlidingLog));
        Policies::new().policy(login)
    };
    let subject = Subject::new().ip("203.0.113.7".parse().unwrap());
    let ours = Engine::new(client(&server).await, policies()).unwrap();
    let theirs = Engine::new(client(&server).await, policies()).unwrap();
    for engine in [&ours, &theirs, &ours] {
        assert!(engine.decide(&subject).await.is_allowed());
    }
    let verdict = theirs.decide(&subject).await;
    assert_eq!((verdict.status(), verdict.policy(), verdict.source()), (429, Some("login"), Source::Remote));
    assert!(verdict.retry_after().unwrap() > Duration::from_secs(23 * 3_600));
    // What is cancelled anywhere is there again everywhere.
    let other = Subject::new().ip("203.0.113.8".parse().unwrap());
    for _ in 0..5 {
        let verdict = ours.decide_n(&other, 3).await;
        assert!(verdict.is_allowed());
        ours.cancel(verdict).await;
    }
}

#[tokio::test]
async fn a_layer_runs_on_it() {
    use axum::body::Body;
    use axum::http::Request;
    use tower_service::Service;

    let server = Server::start();
    let policies = Policies::new().policy(Policy::new("all").limit(Limit::per_day(2)));
    let engine = Engine::new(client(&server).await, policies).unwrap();
    let layer = tollgate_tower::RateLimitLayer::new(engine);
    let mut app = axum::Router::new().route("/", axum::routing::get(async || "hello")).layer(layer);
    let mut call = async || app.call(Request::new(Body::empty())).await.unwrap();
    for left in ["1", "0"] {
        let response = call().await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-ratelimit-remaining"]),
            (200, &left.parse().unwrap())
        );
    }
    let response = call().await;
    assert_eq!(response.status().as_u16(), 429);
    assert_eq!(response.headers()["x-ratelimit-limit"], "2");
    // Two a day: the next one is there in twelve hours, less what this took.
    let retry: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((43_000..=43_200).contains(&retry), "{retry}");
}

#[tokio::test]
async fn who_has_no_token_does_not_pass_the_door() {
    let server = with_token();
    for store in [builder(&server), builder(&server).token("not the one of the server")] {
        let error = store.connect().await.unwrap_err();
        assert_eq!(error, ConnectError::Unusable(Trouble::Refused(401)));
        assert!(error.to_string().contains("`store_token`"), "{error}");
    }
    let answer = server.request("POST", "/v1/store", "");
    assert!(answer.problem(415, "unknown_media_type").contains("vnd.tollgate.store"));
    let shown = format!("{:?}", builder(&server).token(TOKEN));
    assert!(!shown.contains(TOKEN), "{shown}");

    let store = builder(&server).token(TOKEN).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(10)).unwrap();
    assert!(passes(&store, &[Ask::new(&limit, "k").cost(9)]).await);
    store.grant(&limit, b"k", 3).await;
    assert_eq!(remaining(&store, &limit, "k").await, 4);
    store.reset(&limit, b"k").await;
    assert_eq!(remaining(&store, &limit, "k").await, 10);
    server.signal("TERM");
    let (_, log) = server.ended();
    assert!(!log.contains(TOKEN), "{log}");
}

#[tokio::test]
async fn without_a_token_nobody_grants_or_resets() {
    let server = Server::start();
    let store = client(&server).await;
    let limit = store.limit("limit", Limit::per_day(10)).unwrap();
    assert!(passes(&store, &[Ask::new(&limit, "k").cost(9)]).await);
    store.grant(&limit, b"k", 3).await;
    store.reset(&limit, b"k").await;
    assert_eq!(remaining(&store, &limit, "k").await, 1);
    let counts = store.status().counts;
    assert_eq!((counts.lost, counts.fallbacks), (2, 0));
    assert!(store.is_well());
}

#[tokio::test]
async fn a_limit_of_another_store_never_passes_and_nothing_is_charged() {
    let server = Server::start();
    let (store, other) = (client(&server).await, MemoryStore::new());
    let (ours, foreign) = (store.limit("a", Limit::per_day(2)).unwrap(), other.limit("a", Limit::per_day(2)).unwrap());
    let verdict = store.decide(&[Ask::new(&ours, "k"), Ask::new(&foreign, "k")]).await;
    assert!(verdict.is_never());
    assert_eq!(verdict.statuses().map(|status| status.decision().remaining()).collect::<Vec<_>>(), [2, 0]);
    assert!(store.decide(&[Ask::new(&foreign, "k")]).await.is_never());
    assert!(passes(&store, &[]).await);
    store.reset(&foreign, b"k").await;
    assert_eq!(remaining(&store, &ours, "k").await, 2);
}

/// What a caller that goes away took stays charged, and its permits go back.
#[tokio::test]
async fn a_caller_that_leaves_holds_nothing() {
    let server = Server::start();
    let store = client(&server).await;
    let slots = store.concurrency("slots", 3).unwrap();
    for _ in 0..20 {
        let asks = [Ask::new(&slots, "k").cost(3)];
        let asked = tokio::time::timeout(Duration::ZERO, store.decide(&asks)).await;
        drop(asked);
    }
    let start = Instant::now();
    while !passes(&store, &[Ask::new(&slots, "k").cost(3)]).await {
        assert!(start.elapsed() < LONG, "they are not back");
    }
}

#[test]
fn calls_that_make_no_sense_are_told_so() {
    let server = Server::start();
    let head = |length: usize| {
        format!(
            "POST /v1/store HTTP/1.1\r\nHost: x\r\nContent-Type: {}\r\nContent-Length: {length}\r\n\r\n",
            tollgate_remote::wire::MEDIA_TYPE
        )
    };
    for body in [&b""[..], b"\x02\0", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01\0\x09", b"{}"] {
        let mut connection = server.connect();
        connection.write(&head(body.len()));
        connection.write_bytes(body);
        assert!(connection.answer().problem(400, "unknown_call").contains("version 1"), "{body:?}");
    }
    let mut connection = server.connect();
    connection.write(&head(2 << 20));
    assert!(connection.answer().problem(413, "body_too_large").contains("1048576"));
    eventually("it is well", || server.accepts());
}
