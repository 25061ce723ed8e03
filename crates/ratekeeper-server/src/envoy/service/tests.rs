//! Timeouts of connections and streams. Tokio's clock is paused: it advances to the next timer once
//! all tasks wait.

use super::*;
use crate::config::Config;
use crate::net::stream::Stream;
use crate::net::worker::serve_connection;
use axum::body::Bytes;
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioExecutor;
use ratekeeper::{MemoryStore, clock::SystemClock};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic_health::pb::health_check_response::ServingStatus;

fn app() -> Arc<App<SystemClock>> {
    let store = crate::store::AnyStore::Memory(MemoryStore::builder().max_keys(10).build());
    Arc::new(App::new(&Config::default(), store).unwrap())
}

/// A connection to the services, until it ends; and what tells it to.
fn connect(app: Arc<App<SystemClock>>) -> (UnixStream, JoinHandle<()>, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let (client, server) = UnixStream::pair().unwrap();
    let server_task = tokio::spawn(async move {
        let activity = Arc::new(Activity::default());
        let services = Grpc::new(&app, stopped.clone());
        let connection = connection(
            WriteTimeoutStream::new(Stream::Unix(server)),
            services,
            &activity,
        );
        drop(serve_connection(connection, &activity, stopped).await);
    });
    (client, server_task, stop)
}

type BoxedBody = BoxBody<Bytes, Infallible>;

async fn client(window: u32) -> (SendRequest<BoxedBody>, JoinHandle<()>, watch::Sender<bool>) {
    client_of(app(), window).await
}

async fn client_of(
    app: Arc<App<SystemClock>>,
    window: u32,
) -> (SendRequest<BoxedBody>, JoinHandle<()>, watch::Sender<bool>) {
    let (stream, server_task, stop) = connect(app);
    let mut client = http2::Builder::new(TokioExecutor::new());
    let (send, connection) = client
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    (send, server_task, stop)
}

fn call(path: &str, body: BoxedBody) -> Request<BoxedBody> {
    let request =
        Request::post(format!("http://x{path}")).header("content-type", "application/grpc");
    request.header("te", "trailers").body(body).unwrap()
}

const CHECK: &str = "/grpc.health.v1.Health/Check";

/// An empty message.
fn message() -> BoxedBody {
    Full::new(Bytes::from_static(&[0; 5])).boxed()
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_some_minutes() {
    // The client answers pings, and closes the connection on GOAWAY.
    let (mut send, server_task, _stop) = client(65_535).await;
    assert!(send.send_request(call(CHECK, message())).await.is_ok());
    let start = Instant::now();
    server_task.await.unwrap();
    assert!(
        (300..=601).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert!(send.send_request(call(CHECK, message())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_idle_and_does_not_read_does_not_hold_up_a_stop() {
    let (mut client, server_task, stop) = connect(app());
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    stop.send_replace(true);
    server_task.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_timeout_ends_its_stream() {
    let (mut send, _served, _stop) = client(65_535).await;
    let start = Instant::now();
    let never = StreamBody::new(futures_util::stream::pending::<
        Result<Frame<Bytes>, Infallible>,
    >())
    .boxed();
    let response = send.send_request(call(CHECK, never)).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4", "DEADLINE_EXCEEDED");
    assert_eq!(start.elapsed().as_secs(), 10);
    let response = send.send_request(call(CHECK, message())).await.unwrap();
    assert_eq!(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .trailers()
            .unwrap()["grpc-status"],
        "0"
    );
}

#[tokio::test(start_paused = true)]
async fn a_response_write_timeout_ends_its_stream() {
    let (mut send, _served, _stop) = client(0).await;
    let start = Instant::now();
    let response = send.send_request(call(CHECK, message())).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    assert_eq!(start.elapsed().as_secs(), WRITE_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_stalled_worker_fails_the_health_check() {
    let app = app();
    app.health.register("resp-0");
    let (mut send, _served, _stop) = client_of(Arc::clone(&app), 65_535).await;
    for (silent, status) in [(0, ServingStatus::Serving), (5, ServingStatus::NotServing)] {
        app.health.silence("resp-0", Duration::from_secs(silent));
        let response = send.send_request(call(CHECK, message())).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        // A frame of two bytes, the field and its value.
        assert_eq!(
            body,
            [0, 0, 0, 0, 2, 8, status as u8][..],
            "after {silent} s"
        );
    }
}
