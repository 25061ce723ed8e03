//! Abandoned requests: the work that a client leaves at an upstream by hanging up counts towards
//! concurrency limits.

use crate::gateway;
use crate::service::{head, service};
use crate::support::{Server, eventually};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// An upstream that works on each request until it is released, whether or not its client is still
/// connected.
struct Slow {
    at: SocketAddr,
    work: Arc<Work>,
}

struct Work {
    started: AtomicUsize,
    running: AtomicUsize,
    max_running: AtomicUsize,
    released: watch::Sender<bool>,
}

impl Work {
    /// Ready when the work on a request is done, which goes on by itself.
    fn begin(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        self.started.fetch_add(1, SeqCst);
        self.max_running
            .fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        let (work, mut released) = (Arc::clone(self), self.released.subscribe());
        let done = tokio::spawn(async move {
            let _ = released.wait_for(|released| *released).await;
            work.running.fetch_sub(1, SeqCst);
        });
        async { drop(done.await) }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
        let done = self.begin();
        if request.uri().path() == "/head-first" {
            let rest = stream::once(async {
                done.await;
                Ok(Frame::data(Bytes::from_static(b"done")))
            });
            return Ok(Response::new(BodyExt::boxed_unsync(StreamBody::new(rest))));
        }
        done.await;
        Ok(Response::new(
            Full::new(Bytes::from_static(b"done")).boxed_unsync(),
        ))
    }
}

impl Slow {
    async fn start(http2: bool) -> Self {
        let count = || AtomicUsize::new(0);
        let (started, running, max_running) = (count(), count(), count());
        let work = Arc::new(Work {
            started,
            running,
            max_running,
            released: watch::Sender::new(false),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, shared) = (listener.local_addr().unwrap(), Arc::clone(&work));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let work = Arc::clone(&shared);
                let service = service_fn(move |request| Arc::clone(&work).answer(request));
                let io = TokioIo::new(stream);
                tokio::spawn(async move {
                    if http2 {
                        drop(
                            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                                .serve_connection(io, service)
                                .await,
                        );
                    } else {
                        drop(
                            hyper::server::conn::http1::Builder::new()
                                .serve_connection(io, service)
                                .await,
                        );
                    }
                });
            }
        });
        Self { at, work }
    }

    fn started(&self) -> usize {
        self.work.started.load(SeqCst)
    }
}

/// A gateway in front of it that allows two requests at once.
fn two_at_once(upstream: &Slow, http2: bool, more: &str) -> Server {
    let policy = "[[policy]]\nname = \"two\"\nlimit = \"2 concurrent\"\n";
    gateway(
        &[upstream.at],
        &format!("http2 = {http2}\nidle_timeout = \"1h\"\n{more}{policy}"),
    )
}

/// How many requests the policy has decided on.
fn decided(server: &Server) -> usize {
    let page = server.admin("GET", "/metrics").body;
    let lines = page
        .lines()
        .filter(|line| line.starts_with("ratekeeper_decisions_total{policy=\"two\""));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize)
        .sum()
}

/// Sends a request over HTTP/1 and hangs up once it is decided on.
fn hang_up(server: &Server, request: &str) {
    let before = decided(server);
    let mut client = server.connect();
    client.write(request);
    eventually("a decision", || decided(server) > before);
}

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

type Http2 = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

async fn http2_client(server: &Server) -> Http2 {
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client
}

/// Sends a request over HTTP/2 and resets it once it is decided on.
async fn reset(server: &Server, client: &mut Http2, path: &str) {
    let before = decided(server);
    let url = format!("http://{}{path}", server.address);
    client.ready().await.unwrap();
    let answer = tokio::spawn(client.send_request(Request::get(url).body(Empty::new()).unwrap()));
    eventually("a decision", || decided(server) > before);
    answer.abort();
}

fn passes(server: &Server) -> bool {
    server.request("GET", "/", "").status() == 200
}

/// Twenty clients hang up, and an upstream that does not notice goes on: no more than two requests
/// run at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_do_not_exceed_the_concurrency_limit() {
    for (http2_client_side, http2_upstream) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let what =
            format!("client in HTTP/2: {http2_client_side}, upstream in HTTP/2: {http2_upstream}");
        let upstream = Slow::start(http2_upstream).await;
        let server = two_at_once(&upstream, http2_upstream, "abandoned_timeout = \"1h\"\n");
        let mut client = http2_client(&server).await;
        for _ in 0..20 {
            if http2_client_side {
                reset(&server, &mut client, "/").await;
            } else {
                hang_up(&server, GET);
            }
        }
        assert_eq!(
            (upstream.started(), upstream.work.max_running.load(SeqCst)),
            (2, 2),
            "{what}"
        );
        assert_eq!(server.request("GET", "/", "").status(), 429, "{what}");
        // The upstream ends the abandoned requests, and others are served.
        upstream.work.released.send_replace(true);
        eventually("released permits", || passes(&server));
        assert!(upstream.work.max_running.load(SeqCst) <= 2, "{what}");
    }
}

/// The head of a response is not its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_within_a_response_hold_their_permits() {
    for http2 in [false, true] {
        let upstream = Slow::start(http2).await;
        let server = two_at_once(&upstream, http2, "abandoned_timeout = \"1h\"\n");
        let mut client = http2_client(&server).await;
        for _ in 0..5 {
            let mut connection = server.connect();
            connection.write("GET /head-first HTTP/1.1\r\nHost: x\r\n\r\n");
            connection.head();
            drop(connection);
            let url = format!("http://{}/head-first", server.address);
            client.ready().await.unwrap();
            drop(
                client
                    .send_request(Request::get(url).body(Empty::new()).unwrap())
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(
            (upstream.started(), upstream.work.max_running.load(SeqCst)),
            (2, 2),
            "{http2}"
        );
        upstream.work.released.send_replace(true);
        eventually("released permits", || passes(&server));
    }
}

/// The part of a request that the upstream has may be enough to work on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_within_a_request_body_hold_their_permits() {
    for http2 in [false, true] {
        let upstream = Slow::start(http2).await;
        let server = two_at_once(&upstream, http2, "abandoned_timeout = \"1h\"\n");
        for number in 1..=10 {
            let before = decided(&server);
            let mut client = server.connect();
            client.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf");
            eventually("a decision", || decided(&server) > before);
            eventually("the request at the upstream", || {
                upstream.started() >= number.min(2)
            });
        }
        assert_eq!(upstream.started(), 2, "{http2}");
        assert_eq!(server.request("GET", "/", "").status(), 429);
        assert_eq!(upstream.work.max_running.load(SeqCst), 2);
    }
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Departure {
    Close,
    TcpReset,
    StreamReset,
}

/// The upstream may go on after the head of its response, whatever happens to the request body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_an_answered_upload_hold_their_permits() {
    for http2_upstream in [false, true] {
        for departure in [
            Departure::Close,
            Departure::TcpReset,
            Departure::StreamReset,
        ] {
            let what = format!("{departure:?}, upstream in HTTP/2: {http2_upstream}");
            let upstream = Slow::start(http2_upstream).await;
            let server = two_at_once(&upstream, http2_upstream, "abandoned_timeout = \"1h\"\n");
            for _ in 0..10 {
                match departure {
                    Departure::StreamReset => reset_upload(&server).await,
                    _ => leave_upload(&server, matches!(departure, Departure::TcpReset)),
                }
                // Enough for the gateway to notice.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(
                (upstream.started(), upstream.work.max_running.load(SeqCst)),
                (2, 2),
                "{what}"
            );
            assert_eq!(server.request("GET", "/", "").status(), 429, "{what}");
        }
    }
}

/// An HTTP/2 upstream gets a reset, and sends nothing when it has stopped.
#[test]
fn the_permit_of_an_answered_upload_is_released_after_the_timeout() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for http2 in [false, true] {
        let upstream = runtime.block_on(Slow::start(http2));
        let server = two_at_once(&upstream, http2, "abandoned_timeout = \"2s\"\n");
        leave_upload(&server, false);
        leave_upload(&server, false);
        let left = Instant::now();
        if http2 {
            // Otherwise the upstream may end its responses before the gateway resets them.
            let active = format!(
                "ratekeeper_upstream_requests_active{{upstream=\"http://{}\"}}",
                upstream.at
            );
            eventually("the end of the streams", || server.metric(&active) == 0.0);
        }
        upstream.work.released.send_replace(true);
        eventually("released permits", || passes(&server));
        assert!(!http2 || left.elapsed() >= Duration::from_millis(1_500));
    }
}

/// Uploads a part of a body over HTTP/1, and leaves after the head of the response.
fn leave_upload(server: &Server, with_reset: bool) {
    let mut client = server.connect();
    client.write("POST /head-first HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf");
    client.head();
    if with_reset {
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(&client.writer())
            .set_linger(linger)
            .unwrap();
    }
}

/// The same over HTTP/2, whose stream is reset.
async fn reset_upload(server: &Server) {
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let url = format!("http://{}/head-first", server.address);
    let request = Request::post(url).body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    // The stream of a denied request may have ended already.
    let _ = body.send_data(Bytes::from_static(b"half"), false);
    let response = response.await;
    body.send_reset(h2::Reason::CANCEL);
    drop((client, response, body));
    // Ends once all its streams have.
    let _ = connection.await;
}

/// An upstream that never answers, and a receiver of the times at which its connections end.
fn silent_upstream() -> (
    SocketAddr,
    std::sync::mpsc::Receiver<()>,
    std::sync::mpsc::Receiver<()>,
) {
    let ((started, begins), (sender, ended)) = (channel(), channel());
    let at = service(move |stream| {
        let mut reader = BufReader::new(stream);
        if head(&mut reader).is_some() {
            let _ = started.send(());
            while head(&mut reader).is_some() {}
            let _ = sender.send(());
        }
    });
    (at, begins, ended)
}

const ONE: &str = "[[policy]]\nname = \"two\"\nlimit = \"1 concurrent\"\n";
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn after_the_timeout_the_connection_is_closed_and_the_permit_released() {
    for (timeout, is_kept) in [("2s", true), ("0s", false)] {
        let (upstream, begins, ended) = silent_upstream();
        let server = gateway(
            &[upstream],
            &format!("abandoned_timeout = \"{timeout}\"\n{ONE}"),
        );
        let mut client = server.connect();
        client.write(GET);
        begins.recv_timeout(TIMEOUT).unwrap();
        let left = Instant::now();
        drop(client);
        ended.recv_timeout(TIMEOUT).unwrap();
        assert!(
            !is_kept || left.elapsed() >= Duration::from_millis(1_900),
            "{:?}",
            left.elapsed()
        );
        eventually("the permit given back", || {
            let mut next = server.connect();
            next.write(GET);
            begins.recv_timeout(Duration::from_millis(200)).is_ok()
        });
    }
}

#[test]
fn without_a_permit_a_request_ends_with_its_client() {
    let (upstream, begins, ended) = silent_upstream();
    let policy = "[[policy]]\nname = \"two\"\nlimit = \"100/min\"\n";
    let server = gateway(
        &[upstream],
        &format!("abandoned_timeout = \"1h\"\n{policy}"),
    );
    let mut client = server.connect();
    client.write(GET);
    begins.recv_timeout(TIMEOUT).unwrap();
    drop(client);
    ended.recv_timeout(TIMEOUT).unwrap();
}

#[test]
fn a_stop_does_not_wait_for_abandoned_requests() {
    let (upstream, begins, ended) = silent_upstream();
    let stop = "drain_delay = \"1ms\"\ndrain_timeout = \"1h\"\n";
    let server = gateway(
        &[upstream],
        &format!("abandoned_timeout = \"1h\"\n{stop}{ONE}"),
    );
    let mut client = server.connect();
    client.write(GET);
    begins.recv_timeout(TIMEOUT).unwrap();
    drop(client);
    assert_eq!(server.request("GET", "/", "").status(), 429);
    server.signal("TERM");
    ended.recv_timeout(TIMEOUT).unwrap();
    let (status, log) = server.ended();
    assert!(status.success() && !log.contains("cut off"), "{log}");
}

/// An HTTP/2 connection cannot pile up requests by resetting them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_abandoned_requests_of_a_connection_are_limited() {
    let upstream = Slow::start(true).await;
    let policy = "[[policy]]\nname = \"two\"\nlimit = \"1000 concurrent\"\n";
    let more = "http2 = true\nidle_timeout = \"1h\"\nabandoned_timeout = \"1h\"\n";
    let server = gateway(&[upstream.at], &format!("{more}{policy}"));
    let mut client = http2_client(&server).await;
    let url = format!("http://{}/", server.address);
    let mut ask =
        || tokio::spawn(client.send_request(Request::get(&url).body(Empty::new()).unwrap()));
    let mut left = Vec::new();
    for _ in 0..128 {
        left.push(ask());
    }
    eventually("the requests at the upstream", || upstream.started() == 128);
    left.iter().for_each(|answer| answer.abort());
    // Until the gateway has noticed all resets, another request may still be served.
    let started = Instant::now();
    loop {
        assert!(
            started.elapsed() < TIMEOUT && upstream.started() < 200,
            "{} started",
            upstream.started()
        );
        let mut answer = ask();
        match tokio::time::timeout(Duration::from_millis(500), &mut answer).await {
            Ok(rejected) => {
                assert_eq!(rejected.unwrap().unwrap().status(), 503);
                break;
            }
            Err(_) => answer.abort(),
        }
    }
    upstream.work.released.send_replace(true);
    while ask().await.unwrap().unwrap().status() != 200 {
        assert!(started.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
