//! Upstreams that speak HTTP/2, from other projects: Go's net/http, grpc-go and nginx.

use crate::gateway;
use crate::limits::denied_of_five_clients;
use crate::support::{Server, directory, eventually};
use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response};
use futures_util::future::join_all;
use futures_util::stream;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ratekeeper_testkit::tools;
use std::collections::HashSet;
use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The program of tests/clients/go-http2, or `None` where scripts/clients could not build it.
fn go() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/go-http2");
    tools::file(&path, "scripts/clients makes it, with go")
}

/// A running upstream; killed when dropped.
struct Service {
    child: Child,
    at: SocketAddr,
}

impl Service {
    fn go(arguments: &[&str]) -> Option<Self> {
        let mut child = Command::new(go()?)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Some(Self {
            child,
            at: line.trim().parse().unwrap(),
        })
    }

    /// nginx as an HTTP/2 server, with these directives.
    fn nginx(directives: &str) -> Self {
        let at = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off;\n\
             client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n\
             server {{ listen {at} http2; {directives} location / {{ return 200 \"nginx\"; }} }} }}\n"
        );
        let prefix = directory(&[("nginx.conf", &text)]);
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(&prefix)
            .args(["-c", "nginx.conf"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        eventually("nginx listening", || TcpStream::connect(at).is_ok());
        Self { child, at }
    }

    /// A gateway in front of it, with more lines under `[gateway]`.
    fn behind(&self, more: &str) -> Server {
        gateway(&[self.at], &format!("http2 = true\n{more}"))
    }

    /// How many of its requests failed, by the count of the gateway.
    fn failed(&self, server: &Server) -> f64 {
        server.metric(&format!(
            "ratekeeper_upstream_requests_total{{upstream=\"http://{}\",outcome=\"failed\"}}",
            self.at
        ))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client's HTTP/2 connection, with this window for each stream.
async fn client<B>(server: &Server, window: impl Into<Option<u32>>) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake::<_, B>(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

fn get(server: &Server, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{}{path}", server.address))
        .body(Empty::new())
        .unwrap()
}

/// The status, the body and the trailers; errors as text.
async fn receive(
    answer: Result<Response<Incoming>, hyper::Error>,
) -> Result<(u16, String, HeaderMap), String> {
    let answer = answer.map_err(|error| format!("{error:?}"))?;
    let status = answer.status().as_u16();
    let body = tokio::time::timeout(LONG, answer.into_body().collect())
        .await
        .map_err(|late| late.to_string())?;
    let body = body.map_err(|error| format!("{error:?}"))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    Ok((
        status,
        String::from_utf8(body.to_bytes().to_vec()).unwrap(),
        trailers,
    ))
}

async fn ask(
    client: &mut SendRequest<Empty<Bytes>>,
    server: &Server,
    path: &str,
) -> Result<(u16, String), String> {
    let answer = tokio::time::timeout(LONG, client.send_request(get(server, path))).await;
    let (status, body, _) = receive(answer.map_err(|late| late.to_string())?).await?;
    Ok((status, body))
}

#[test]
fn successes_of_http2_upstreams_are_refunded_before_the_client_has_its_response() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server =
        upstream.behind("[[policy]]\nname = \"failures\"\ncount = \"failures\"\nlimit = \"5/h\"\n");
    assert_eq!(denied_of_five_clients(&server), 0);
}

/// Each chunk is a separate frame.
#[tokio::test]
async fn small_chunks_of_many_responses_end_no_connection() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    let mut client = client(&server, None).await;
    let before = ask(&mut client, &server, "/").await.unwrap();
    let attempts: Vec<_> = (0..80)
        .map(|number| {
            let (mut client, path) = (
                client.clone(),
                if number % 10 == 0 {
                    "/pieces?n=5000&size=10"
                } else {
                    "/"
                },
            );
            let server = &server;
            async move {
                ask(&mut client, server, path)
                    .await
                    .map(|(status, body)| (status, body.len() >= 9))
            }
        })
        .collect();
    assert_eq!(join_all(attempts).await, vec![Ok((200, true)); 80]);
    for path in ["/pieces?n=20000&size=1", "/pieces?n=5000&size=10"] {
        assert_eq!(
            ask(&mut client, &server, path).await.unwrap().1.len() % 10_000,
            0,
            "{path}"
        );
    }
    assert_eq!(
        ask(&mut client, &server, "/").await.unwrap(),
        before,
        "over the same connection"
    );
}

/// None of the responses is read, and other clients are not affected, neither by frames nor by
/// bytes.
#[tokio::test]
async fn a_client_that_does_not_read_does_not_slow_down_others() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    let mut stuck = Vec::new();
    // On all workers.
    for _ in 0..8 {
        let mut client = client(&server, 1_000).await;
        for path in [
            "/bytes?n=200000",
            "/bytes?n=200000",
            "/pieces?n=20000&size=1",
            "/pieces?n=5000&size=10",
        ] {
            stuck.push(client.send_request(get(&server, path)).await.unwrap());
        }
    }
    for _ in 0..8 {
        let mut client = client(&server, None).await;
        let (status, body) = ask(&mut client, &server, "/bytes?n=200000").await.unwrap();
        assert_eq!((status, body.len()), (200, 200_000));
    }
    // The slow clients get everything once they read on.
    for answer in stuck {
        assert!(receive(Ok(answer)).await.unwrap().1.len() >= 20_000);
    }
}

#[tokio::test]
async fn a_burst_of_small_frames_does_not_end_its_connection() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    type Burst = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;
    let mut client = client::<Burst>(&server, None).await;
    for many in [300, 600, 5_000] {
        let frames: Vec<_> = (0..many)
            .map(|_| Ok(Frame::data(Bytes::from_static(b"x"))))
            .collect();
        let request = Request::post(format!("http://{}/echo", server.address));
        let request = request.body(StreamBody::new(stream::iter(frames))).unwrap();
        let (status, body, _) = receive(client.send_request(request).await).await.unwrap();
        assert_eq!((status, body.len()), (200, many));
    }
}

/// nginx closes a connection after a number of requests; it has not processed the later ones.
#[test]
fn unprocessed_requests_are_retried() {
    let file = crate::support::config_file(&"x".repeat(3_000));
    for (directives, requests) in [("", 12_000), ("keepalive_requests 20;", 1_000)] {
        let upstream = Service::nginx(directives);
        let server = upstream.behind("");
        let url = format!("http://{}/", server.address);
        for data in [None, Some(&file)] {
            let mut command = Command::new("h2load");
            command.args(["-n", &requests.to_string(), "-c", "4", "-m", "16"]);
            if let Some(file) = data {
                command.arg("-d").arg(file);
            }
            let output = command.arg(&url).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                text.contains(&format!("status codes: {requests} 2xx")),
                "{directives} {data:?}: {text}"
            );
        }
        assert_eq!(upstream.failed(&server), 0.0);
    }
}

#[tokio::test]
async fn connections_that_keep_ending_lose_no_request() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    type Short = http_body_util::Full<Bytes>;
    let client = client::<Short>(&server, None).await;
    let attempts = (0..600).map(|number| {
        let mut client = client.clone();
        // Every tenth ends its connection; every second has a body.
        let path = if number % 10 == 0 { "/goaway" } else { "/echo" };
        let body = Bytes::from(vec![b'x'; if number % 2 == 0 { 0 } else { 2_000 }]);
        let request = Request::post(format!("http://{}{path}", server.address))
            .body(Short::new(body))
            .unwrap();
        async move {
            receive(client.send_request(request).await)
                .await
                .map(|(status, ..)| status)
        }
    });
    assert_eq!(join_all(attempts).await, vec![Ok(200); 600]);
    assert_eq!(upstream.failed(&server), 0.0);
}

/// The requests wait for one another: they are answered only if all of them are in flight at once.
#[tokio::test]
async fn when_the_streams_of_a_connection_are_used_up_another_is_opened() {
    let Some(upstream) = Service::go(&["serve", "-max-streams", "5"]) else {
        return;
    };
    let server = upstream.behind("");
    let mut client = client(&server, None).await;
    // So that the number of streams is known.
    ask(&mut client, &server, "/").await.unwrap();
    let attempts = (0..40).map(|_| {
        let (mut client, server) = (client.clone(), &server);
        async move { ask(&mut client, server, "/meet?n=40").await }
    });
    let answers: Result<Vec<_>, _> = join_all(attempts).await.into_iter().collect();
    let over: HashSet<String> = answers
        .unwrap()
        .into_iter()
        .map(|(_, address)| address)
        .collect();
    assert_eq!(over.len(), 8, "eight connections with five streams each");
    // Requests beyond that wait for a stream.
    let attempts = (0..200).map(|_| {
        let (mut client, server) = (client.clone(), &server);
        async move {
            ask(&mut client, server, "/")
                .await
                .map(|(status, _)| status)
        }
    });
    assert_eq!(join_all(attempts).await, vec![Ok(200); 200]);
    assert_eq!(upstream.failed(&server), 0.0);
}

/// More of them than it takes for a breaker to open.
#[test]
fn request_bodies_that_stop_do_not_trip_the_breaker_of_an_http2_upstream() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("idle_timeout = \"300ms\"\n");
    let mut stalled: Vec<_> = (0..40)
        .map(|_| {
            let mut connection = server.connect();
            connection.write("POST /goaway HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhel");
            connection
        })
        .collect();
    stalled
        .iter_mut()
        .for_each(|connection| drop(connection.answer().problem(408, "body_timeout")));
    assert_eq!(server.request("GET", "/", "").status(), 200);
    assert_eq!(upstream.failed(&server), 0.0);
}

#[tokio::test]
async fn a_reset_stream_does_not_disturb_its_connection() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    let mut client = client(&server, None).await;
    let before = ask(&mut client, &server, "/").await.unwrap();
    assert_eq!(ask(&mut client, &server, "/abort").await.unwrap().0, 502);
    assert_eq!(
        ask(&mut client, &server, "/").await.unwrap(),
        before,
        "over the same connection"
    );
}

#[test]
fn responses_may_have_large_heads() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    for headers in [1, 20, 120, 200] {
        let answer = server.request("GET", &format!("/headers?n={headers}"), "");
        assert_eq!(answer.status(), 200, "{headers}");
        assert_eq!(
            answer
                .header(&format!("x-large-{}", headers - 1))
                .map(str::len),
            Some(1_000)
        );
    }
    // Above the bound of 256 KiB, and not the connection's fault.
    server
        .request("GET", "/headers?n=300", "")
        .problem(502, "bad_upstream");
    assert_eq!(server.request("GET", "/headers?n=1", "").status(), 200);
}

#[test]
fn informational_http2_responses_reach_http1_clients() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    let mut connection = server.connect();
    connection.send("GET", "/early", "");
    for first in ["HTTP/1.1 103 ", "HTTP/1.1 102 "] {
        let head = connection.head();
        assert!(
            head.starts_with(first) && head.contains("link: </style.css>; rel=preload\r\n"),
            "{head}"
        );
    }
    let answer = connection.answer();
    assert_eq!((answer.status(), answer.body.as_str()), (200, "late"));
    // An HTTP/1.0 client would not understand them.
    let mut connection = server.connect();
    connection.write("GET /early HTTP/1.0\r\nHost: x\r\n\r\n");
    assert!(connection.head().starts_with("HTTP/1.0 200 "));
}

#[tokio::test]
async fn trailers_and_te_are_forwarded_both_ways() {
    let Some(upstream) = Service::go(&["serve"]) else {
        return;
    };
    let server = upstream.behind("");
    type Trailed = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;
    let mut client = client::<Trailed>(&server, None).await;
    let trailers = |value: &'static str| {
        let name = |name| axum::http::HeaderName::from_static(name);
        let value = axum::http::HeaderValue::from_static(value);
        HeaderMap::from_iter([
            (name("x-note"), value.clone()),
            (name("x-forwarded-for"), value),
        ])
    };
    let frames = vec![
        Ok(Frame::data(Bytes::from_static(b"hello"))),
        Ok(Frame::trailers(trailers("noted"))),
    ];
    let request = Request::post(format!("http://{}/echo", server.address))
        .header("te", "trailers")
        .header("trailer", "x-note, x-forwarded-for")
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap();
    let (status, body, trailers) = receive(client.send_request(request).await).await.unwrap();
    assert_eq!((status, body.as_str()), (200, "hello"));
    // Trailers do not name the client.
    assert_eq!(trailers.get("x-sum").unwrap(), "5 trailers noted");
}

/// Even while the upstream keeps ending its connections.
#[test]
fn all_kinds_of_grpc_calls_are_forwarded() {
    for arguments in [&["grpc-serve"][..], &["grpc-serve", "-max-age", "50ms"]] {
        let Some(upstream) = Service::go(arguments) else {
            return;
        };
        let server = upstream.behind("");
        let output = Command::new(go().unwrap())
            .args(["grpc", &server.address.to_string(), "200"])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "ok\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(upstream.failed(&server), 0.0);
    }
}

/// An upstream that reads `reads` bytes of each request's body and rejects the request, `times`
/// times, then answers with the length of the body.
async fn rejecting(reads: usize, times: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let attempts = Arc::clone(&counted);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let rejected = attempts.fetch_add(1, SeqCst) < times;
                    tokio::spawn(async move {
                        let (mut body, mut read) = (request.into_body(), 0);
                        while !rejected || read < reads {
                            let Some(Ok(data)) = body.data().await else {
                                break;
                            };
                            read += data.len();
                            body.flow_control().release_capacity(data.len()).unwrap();
                        }
                        if rejected {
                            respond.send_reset(h2::Reason::REFUSED_STREAM);
                        } else {
                            let mut answer =
                                respond.send_response(Response::new(()), false).unwrap();
                            answer
                                .send_data(Bytes::from(read.to_string()), true)
                                .unwrap();
                        }
                    });
                }
            });
        }
    });
    (at, attempts)
}

#[tokio::test]
async fn a_request_rejected_within_its_body_is_replayed_from_the_start() {
    let (at, attempts) = rejecting(20_000, 3).await;
    let server = gateway(&[at], "http2 = true\n");
    let body = "x".repeat(50_000);
    let answer = tokio::task::spawn_blocking(move || (server.request("POST", "/", &body), server))
        .await
        .unwrap()
        .0;
    assert_eq!(
        (answer.status(), answer.body.as_str(), attempts.load(SeqCst)),
        (200, "50000", 4)
    );
}

/// A request that is rejected permanently gets a 503, is refunded, and does not trip the breaker.
#[tokio::test]
async fn repeated_rejections_are_503_and_refunded() {
    // With that much of its body sent it cannot be replayed.
    for (reads, body, times) in [(0, 0, 11), (100_000, 150_000, 1)] {
        let (at, attempts) = rejecting(reads, usize::MAX).await;
        let server = gateway(
            &[at],
            "http2 = true\n[[policy]]\nname = \"all\"\nlimit = \"2/d\"\n",
        );
        let body = "x".repeat(body);
        tokio::task::spawn_blocking(move || {
            for _ in 0..30 {
                let answer = server.request("POST", "/", &body);
                answer.problem(503, "unavailable");
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
            let failed = format!(
                "ratekeeper_upstream_requests_total{{upstream=\"http://{at}\",outcome=\"failed\"}}"
            );
            assert_eq!(server.metric(&failed), 0.0);
        })
        .await
        .unwrap();
        assert_eq!(attempts.load(SeqCst), 30 * times);
    }
}
