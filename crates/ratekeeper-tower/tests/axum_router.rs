//! A limit around a whole axum router: over a real socket, and its allocations.
#![cfg(feature = "axum")]

use allocation_counter::measure;
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path};
use axum::routing::get;
use http::{Request, Response};
use ratekeeper::{Algorithm, Keyed, Limit, ManualClock, limiter::Carry};
use ratekeeper_testkit::poll::{noop_context, poll_once};
use ratekeeper_tower::{Dialects, Key, RateLimitLayer, decider::LimitDecider, identity::PeerAddr};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower::Service;

fn hourly(many: u64) -> RateLimitLayer<LimitDecider<ManualClock>> {
    RateLimitLayer::keyed(
        Keyed::with_clock(Limit::per_hour(many), ManualClock::new()),
        Key::ip(),
    )
}

/// Responds with the client's address.
fn app() -> Router {
    Router::new().route(
        "/",
        get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()),
    )
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// The whole response to a request on its own connection from that address.
async fn ask(from: [u8; 4], server: SocketAddr, line: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The head of the response to a request with more headers, on a keep-alive connection.
async fn head(stream: &mut TcpStream, path: &str, more: &str) -> String {
    let request = format!("HEAD {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn axum_serve_counts_each_address_and_passes_it_to_handlers() {
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, hourly(2).around(app())).into_future());

    let first = ask([127, 0, 0, 1], at, "GET /").await;
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
    assert!(
        first.contains("x-ratelimit-limit: 2\r\nx-ratelimit-remaining: 1\r\n"),
        "{first}"
    );
    assert!(first.ends_with("\r\n\r\n127.0.0.1"), "{first}");
    // Requests without a route are counted as well.
    let nowhere = ask([127, 0, 0, 1], at, "GET /nowhere").await;
    assert!(
        nowhere.starts_with("HTTP/1.1 404 Not Found\r\n"),
        "{nowhere}"
    );
    assert!(
        nowhere.contains("x-ratelimit-remaining: 0\r\n"),
        "{nowhere}"
    );

    let denied = ask([127, 0, 0, 1], at, "GET /").await;
    assert!(
        denied.starts_with("HTTP/1.1 429 Too Many Requests\r\n"),
        "{denied}"
    );
    assert!(denied.contains("\r\nretry-after: 1800\r\n"), "{denied}");
    let (head, body) = denied.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("content-length: {}", body.len())) && !body.is_empty(),
        "{denied}"
    );
    // The response to HEAD has no body, also where the router is not called.
    let denied = ask([127, 0, 0, 1], at, "HEAD /").await;
    assert!(
        denied.starts_with("HTTP/1.1 429 ") && denied.ends_with("\r\n\r\n"),
        "{denied}"
    );

    let other = ask([127, 0, 0, 2], at, "GET /").await;
    assert!(
        other.starts_with("HTTP/1.1 200 OK\r\n") && other.ends_with("127.0.0.2"),
        "{other}"
    );
}

#[tokio::test]
async fn a_connection_has_the_bucket_of_its_address() {
    let (listener, at) = listen().await;
    let layer = hourly(3);
    tokio::spawn(axum::serve(listener, layer.clone().around(app())).into_future());
    let mut elsewhere = layer.around(Router::new().route("/", get(async || "hello")));
    let remaining = |left: &str| format!("\r\nx-ratelimit-remaining: {left}\r\n");

    let peer = [127, 0, 0, 1];
    assert!(ask(peer, at, "GET /").await.contains(&remaining("2")));
    assert_eq!(
        answer_to(&mut elsewhere, peer).headers()["x-ratelimit-remaining"],
        "1"
    );
    assert!(ask(peer, at, "GET /").await.contains(&remaining("0")));
    assert_eq!(answer_to(&mut elsewhere, peer).status(), 429);
    assert!(
        ask([127, 0, 0, 2], at, "GET /")
            .await
            .contains(&remaining("2"))
    );
}

#[tokio::test]
async fn requests_of_a_connection_share_its_peer_and_no_other_extensions() {
    #[derive(Clone)]
    struct Left;
    // The number of extensions, whether one is of another request, the path parameter, and the
    // client.
    let tell = async |Path(name): Path<String>, mut request: Request<Body>| {
        let extensions = request.extensions_mut();
        let (many, left) = (extensions.len(), extensions.insert(Left).is_some());
        let peer = extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|info| info.0);
        [("x-seen", format!("{many} {left} {name} {peer:?}"))]
    };
    let (listener, at) = listen().await;
    tokio::spawn(
        axum::serve(
            listener,
            hourly(9).around(Router::new().route("/{name}", get(tell))),
        )
        .into_future(),
    );

    let mut stream = TcpSocket::new_v4().unwrap().connect(at).await.unwrap();
    let own = stream.local_addr().unwrap();
    let mut seen = async |path: &str, more: &str| {
        let answer = head(&mut stream, path, more).await;
        let text = answer
            .lines()
            .find_map(|line| line.strip_prefix("x-seen: "))
            .expect("the handler responded")
            .to_owned();
        let (many, text) = text.split_once(' ').unwrap();
        (many.parse::<usize>().unwrap(), text.to_owned())
    };
    let (many, text) = seen("/one", "").await;
    assert_eq!(text, format!("false one Some({own})"));
    assert_eq!(
        seen("/two", "").await,
        (many, format!("false two Some({own})"))
    );
    // Here hyper has left an extension, too.
    let upgrade = "connection: upgrade\r\nupgrade: x\r\n";
    assert_eq!(
        seen("/three", upgrade).await,
        (many + 1, format!("false three Some({own})"))
    );
}

#[tokio::test]
async fn a_connection_follows_a_changed_limit_and_a_reset() {
    let (listener, at) = listen().await;
    let keyed = Keyed::with_clock(Limit::per_hour(1), ManualClock::new());
    let app = RateLimitLayer::keyed(keyed.clone(), Key::ip()).around(app());
    tokio::spawn(axum::serve(listener, app).into_future());

    let mut stream = TcpSocket::new_v4().unwrap().connect(at).await.unwrap();
    let mut status = async || head(&mut stream, "/", "").await[9..12].to_owned();
    assert_eq!(status().await, "200");
    assert_eq!(status().await, "429");
    keyed.set_limit_with(Limit::per_hour(3), Carry::Additive);
    assert_eq!(
        [status().await, status().await, status().await],
        ["200", "200", "429"]
    );
    keyed.set_limit(Limit::per_hour(3).algorithm(Algorithm::FixedWindow));
    keyed.reset();
    assert_eq!(
        [
            status().await,
            status().await,
            status().await,
            status().await
        ],
        ["200", "200", "200", "429"]
    );
}

#[tokio::test]
async fn other_servers_can_serve_it_like_a_router() {
    let (listener, at) = listen().await;
    let app = hourly(1)
        .around(app())
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    for (from, status) in [(1, 200), (1, 429), (2, 200)] {
        let answer = ask([127, 0, 0, from], at, "GET /").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{from}: {answer}"
        );
    }
}

fn answer(service: &mut impl Service<Request<Body>, Response = Response<Body>>) -> Response<Body> {
    answer_to(service, [203, 0, 113, 7])
}

fn answer_to(
    service: &mut impl Service<Request<Body>, Response = Response<Body>>,
    peer: [u8; 4],
) -> Response<Body> {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::new(IpAddr::from(peer), 4711);
    request.extensions_mut().insert(PeerAddr(peer));
    assert!(service.poll_ready(&mut noop_context()).is_ready());
    match poll_once(pin!(service.call(request))) {
        Poll::Ready(Ok(response)) => response,
        _ => panic!("it neither waits nor fails"),
    }
}

#[test]
fn around_a_router_it_allocates_digits_and_nothing_else() {
    const REQUESTS: u64 = 100;
    fn count(mut service: impl Service<Request<Body>, Response = Response<Body>>) -> u64 {
        (0..10).for_each(|_| drop(answer(&mut service)));
        measure(|| (0..REQUESTS).for_each(|_| drop(answer(&mut service)))).count_total
    }
    let hello = || Router::new().route("/", get(async || "Hello, World!"));
    let bare = count(hello().with_state(()));
    // The digits of the reset: the other numbers are small.
    assert_eq!(count(hourly(999).around(hello())), bare + REQUESTS);
    assert_eq!(
        count(hourly(999).headers(Dialects::none()).around(hello())),
        bare
    );
    // The same if an option needs more than the peer.
    assert_eq!(
        count(hourly(999).cost(|_| 0).around(hello())),
        bare + REQUESTS
    );
    // On the router axum boxes a service and a future for it.
    let layered = count(hello().layer(hourly(999).for_axum()).with_state(()));
    assert!(layered >= bare + 3 * REQUESTS, "{layered} {bare}");
}

#[test]
fn responses_are_the_same_as_on_the_router() {
    let hello = || Router::new().route("/", get(async || "Hello, World!"));
    let mut around = hourly(2).around(hello());
    let mut on: Router = hello().layer(hourly(2).for_axum());
    for status in [200, 200, 429] {
        let [a, b] = [answer(&mut around), answer(&mut on)];
        assert_eq!(a.status(), status);
        assert_eq!(a.status(), b.status());
        // A denial around the router has no length until the server writes it.
        let mut headers = [a, b].map(|response| response.headers().clone());
        headers
            .iter_mut()
            .for_each(|headers| drop(headers.remove("content-length")));
        assert_eq!(headers[0], headers[1]);
    }
}
