//! Clients from other projects: hyper in this process, and curl.

use crate::curl;
use crate::shape::{ReceivedResponse, Shape, Upload, content};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use hyper::rt::Executor;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A client, and its protocol to the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Http1,
    Http1Tls,
    Http2,
    Http2Tls,
    CurlHttp10,
    CurlHttp11,
    CurlHttp2,
    CurlHttp2Tls,
}

impl Kind {
    /// The clients in this process.
    pub(crate) const HYPER: [Self; 4] = [Self::Http1, Self::Http1Tls, Self::Http2, Self::Http2Tls];

    pub(crate) const ALL: [Self; 8] = [
        Self::Http1,
        Self::Http1Tls,
        Self::Http2,
        Self::Http2Tls,
        Self::CurlHttp10,
        Self::CurlHttp11,
        Self::CurlHttp2,
        Self::CurlHttp2Tls,
    ];

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Http1Tls | Self::Http2Tls | Self::CurlHttp2Tls)
    }

    pub(crate) fn is_http2(self) -> bool {
        matches!(
            self,
            Self::Http2 | Self::Http2Tls | Self::CurlHttp2 | Self::CurlHttp2Tls
        )
    }

    pub(crate) fn is_curl(self) -> bool {
        matches!(
            self,
            Self::CurlHttp10 | Self::CurlHttp11 | Self::CurlHttp2 | Self::CurlHttp2Tls
        )
    }

    /// Whether it can request this shape.
    pub(crate) fn knows(self, shape: &Shape) -> bool {
        let Some(upload) = shape.upload else {
            return true;
        };
        let expects = shape.headers.iter().any(|(name, _)| *name == "Expect");
        // curl chooses the size of upload chunks itself, and sends no trailers.
        let is_plain = upload.pause_millis == 0 && !upload.has_trailer;
        match self {
            Self::Http1 | Self::Http1Tls => true,
            // h2 ends a connection with more than 16,448 queued frames of one byte. Whether that many
            // wait depends on how fast the upstream reads.
            Self::Http2 | Self::Http2Tls => upload.chunk > 1 || upload.size <= 16_000,
            Self::CurlHttp11 => is_plain,
            // HTTP/1.0 has neither chunks nor 100 Continue.
            Self::CurlHttp10 => is_plain && !upload.is_chunked && !expects,
            // hyper's server sends no 100 Continue over HTTP/2, and curl would wait for it until
            // its timeout. A response before the end of the upload is sometimes a stream error for
            // curl 7.88, with Go's own server as well.
            Self::CurlHttp2 | Self::CurlHttp2Tls => {
                is_plain && !expects && !shape.query.contains("take=none")
            }
        }
    }

    /// Whether it gets informational responses. hyper's server forwards none over HTTP/2, and its
    /// client drops them.
    pub(crate) fn sees_hints(self) -> bool {
        matches!(self, Self::Http1 | Self::Http1Tls | Self::CurlHttp11)
    }

    /// Whether it gets trailers.
    pub(crate) fn sees_trailers(self, shape: &Shape) -> bool {
        !self.is_curl()
            && shape
                .headers
                .iter()
                .any(|(name, _)| *name == "TE" || *name == "Trailer")
    }
}

/// The address of a gateway, and the CA of its certificate.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
    pub(crate) ca: String,
}

/// How a client treats its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientBehavior {
    Good,
    /// Small buffers: of its socket, and the HTTP/2 windows.
    Slow,
    /// Leaving resets everything in flight.
    Resets,
}

/// A client with one connection, which it keeps as long as possible.
pub(crate) struct Client {
    kind: Kind,
    target: Target,
    behavior: ClientBehavior,
    connection: Option<Connection>,
    /// The tasks that drive the connection.
    tasks: Tasks,
}

enum Connection {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Client {
    pub(crate) fn new(kind: Kind, target: &Target) -> Self {
        Self::configure(kind, target, ClientBehavior::Good)
    }

    pub(crate) fn configure(kind: Kind, target: &Target, behavior: ClientBehavior) -> Self {
        Self {
            kind,
            target: target.clone(),
            behavior,
            connection: None,
            tasks: Tasks::default(),
        }
    }

    /// Requests a shape, and receives the whole response.
    pub(crate) async fn exchange(&mut self, shape: &Shape) -> Result<ReceivedResponse, Error> {
        if self.kind.is_curl() {
            let (kind, target, shape) = (self.kind, self.target.clone(), shape.clone());
            return tokio::task::spawn_blocking(move || curl::exchange(kind, &target, &shape))
                .await?;
        }
        let hints = Arc::new(AtomicUsize::new(0));
        let mut request = request(self.kind, shape);
        let seen = Arc::clone(&hints);
        if !self.kind.is_http2() {
            hyper::ext::on_informational(&mut request, move |response| {
                seen.fetch_add(usize::from(response.status() != 100), Ordering::Relaxed);
            });
        }
        let response = self.send(request).await?;
        let mut received = receive(response).await?;
        received.informational = hints.load(Ordering::Relaxed);
        Ok(received)
    }

    /// Sends a request on the connection, or on a new one if that cannot be reused.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Error> {
        let is_ready = match &mut self.connection {
            Some(Connection::Http1(send)) => send.ready().await.is_ok(),
            Some(Connection::Http2(send)) => send.ready().await.is_ok(),
            None => false,
        };
        if !is_ready {
            self.connect().await?;
        }
        let response = match self.connection.as_mut().expect("a connection") {
            Connection::Http1(send) => send.send_request(request).await?,
            Connection::Http2(send) => send.send_request(request).await?,
        };
        if response
            .headers()
            .get("connection")
            .is_some_and(|value| value == "close")
        {
            self.connection = None;
        }
        Ok(response)
    }

    /// Requests several shapes at once on the HTTP/2 connection.
    pub(crate) async fn at_once(
        &mut self,
        shapes: &[Shape],
    ) -> Result<Vec<JoinHandle<Result<ReceivedResponse, Error>>>, Error> {
        if self.connection.is_none() {
            self.connect().await?;
        }
        let Some(Connection::Http2(send)) = &self.connection else {
            return Err("no HTTP/2".into());
        };
        let exchange = |shape| {
            let (mut send, request) = (send.clone(), request(self.kind, shape));
            tokio::spawn(async move { receive(send.send_request(request).await?).await })
        };
        Ok(shapes.iter().map(exchange).collect())
    }

    async fn connect(&mut self) -> Result<(), Error> {
        self.disconnect();
        self.connection = Some(connect(self.kind, &self.target, self.behavior, &self.tasks).await?);
        Ok(())
    }

    /// Ends the connection, with everything in flight. hyper alone would first send the rest of an
    /// upload.
    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
        self.tasks.abort();
    }
}

/// The tasks of a connection.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    fn abort(&self) {
        self.0.lock().unwrap().abort_all();
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.lock().unwrap().spawn(task);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.disconnect();
    }
}

async fn connect(
    kind: Kind,
    target: &Target,
    behavior: ClientBehavior,
    tasks: &Tasks,
) -> Result<Connection, Error> {
    let address = if kind.is_tls() {
        target.tls
    } else {
        target.plain
    };
    let socket = TcpSocket::new_v4()?;
    match behavior {
        ClientBehavior::Good => {}
        ClientBehavior::Slow => socket.set_recv_buffer_size(65_536)?,
        ClientBehavior::Resets => socket.set_zero_linger()?,
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    if !kind.is_tls() {
        return handshake(kind, behavior, tasks, stream).await;
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&target.ca)?)?;
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![if kind.is_http2() {
        b"h2".to_vec()
    } else {
        b"http/1.1".to_vec()
    }];
    let connector = TlsConnector::from(Arc::new(config));
    handshake(
        kind,
        behavior,
        tasks,
        connector
            .connect(ServerName::try_from("localhost")?, stream)
            .await?,
    )
    .await
}

async fn handshake(
    kind: Kind,
    behavior: ClientBehavior,
    tasks: &Tasks,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, Error> {
    let io = TokioIo::new(stream);
    if !kind.is_http2() {
        let (send, connection) = http1::Builder::new()
            .max_headers(1_000)
            .handshake(io)
            .await?;
        tasks.execute(connection.map(drop));
        return Ok(Connection::Http1(send));
    }
    let mut builder = http2::Builder::new(tasks.clone());
    builder.max_header_list_size(1 << 20);
    match behavior {
        ClientBehavior::Slow => builder.initial_stream_window_size(5_000),
        // The settings of reqwest: with the defaults, h2 ends a connection with many small unread
        // frames.
        _ => builder
            .initial_stream_window_size(2 << 20)
            .initial_connection_window_size(5 << 20),
    };
    let (send, connection) = builder.handshake(io).await?;
    tasks.execute(connection.map(drop));
    Ok(Connection::Http2(send))
}

/// The request of a shape.
pub(crate) fn request(kind: Kind, shape: &Shape) -> Request<Body> {
    let body = shape
        .upload
        .map_or_else(|| Empty::new().boxed_unsync(), upload_body);
    let mut request = Request::new(body);
    *request.method_mut() = shape.method.parse().expect("a method");
    *request.uri_mut() = if kind.is_http2() {
        format!("http://localhost{}", shape.path())
    } else {
        shape.path()
    }
    .parse()
    .expect("a path");
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    for (name, value) in &shape.headers {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    if shape.headers.iter().any(|(name, _)| *name == "TE") && !kind.is_http2() {
        headers.insert("connection", HeaderValue::from_static("TE"));
    }
    if let Some(upload) = shape.upload.filter(|upload| !upload.is_chunked) {
        headers.insert(CONTENT_LENGTH, upload.size.into());
    }
    request
}

fn upload_body(upload: Upload) -> Body {
    let bytes = Bytes::from(content(upload.size));
    let frames = futures_util::stream::unfold(Some(0), move |offset| {
        let bytes = bytes.clone();
        async move {
            let offset = offset?;
            if offset < bytes.len() {
                if offset > 0 && upload.pause_millis > 0 {
                    tokio::time::sleep(Duration::from_millis(upload.pause_millis)).await;
                }
                let end = bytes.len().min(offset + upload.chunk);
                return Some((Ok(Frame::data(bytes.slice(offset..end))), Some(end)));
            }
            let trailers =
                HeaderMap::from_iter([("x-sum".parse().ok()?, HeaderValue::from_static("sum"))]);
            upload
                .has_trailer
                .then(|| (Ok(Frame::trailers(trailers)), None))
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Receives the whole response.
pub(crate) async fn receive(response: Response<Incoming>) -> Result<ReceivedResponse, Error> {
    let text = |headers: &HeaderMap| -> Vec<(String, String)> {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect()
    };
    let mut received = ReceivedResponse {
        status: response.status().as_u16(),
        headers: text(response.headers()),
        ..ReceivedResponse::default()
    };
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            format!("after {} bytes of the body: {error:?}", received.body.len())
        })?;
        match frame.into_data() {
            Ok(data) => received.body.extend_from_slice(&data),
            Err(frame) => received.trailers = frame.trailers_ref().map(text).unwrap_or_default(),
        }
    }
    Ok(received)
}
