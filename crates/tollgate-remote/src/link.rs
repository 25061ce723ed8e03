//! One connection to the service: made when it is needed, given up when it is of no use.

use crate::address::Address;
use crate::trouble::Trouble;
use crate::wire;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The largest answer: more than any call of ours has.
const LARGEST_ANSWER: usize = 8 << 20;

/// Where the service is, and how to get there.
pub(crate) struct Server {
    pub(crate) address: Address,
    /// `Bearer …`
    pub(crate) token: Option<HeaderValue>,
    pub(crate) connect_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::tls::Tls>,
}

type Connection = SendRequest<Full<Bytes>>;

impl Server {
    /// A new connection.
    async fn connect(&self) -> Result<Connection, Trouble> {
        match tokio::time::timeout(self.connect_timeout, self.dial()).await {
            Ok(made) => made,
            Err(_) => Err(Trouble::Unreachable(format!("no connection within {:?}", self.connect_timeout))),
        }
    }

    async fn dial(&self) -> Result<Connection, Trouble> {
        let stream = TcpStream::connect((&*self.address.host, self.address.port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return shake_hands(tls.wrap(stream).await.map_err(unreachable)?).await;
        }
        shake_hands(stream).await
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.address.path.clone();
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        headers.insert(HOST, self.address.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(wire::MEDIA_TYPE));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        request
    }
}

async fn shake_hands<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: I) -> Result<Connection, Trouble> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(unreachable)?;
    tokio::spawn(async move {
        // How it ended is told to whoever waits for an answer.
        let _ = connection.await;
    });
    Ok(sender)
}

fn unreachable(error: impl Error) -> Trouble {
    // What lies at the bottom says most: "connection refused", "invalid peer certificate".
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = deeper.to_string();
        cause = deeper.source();
    }
    Trouble::Unreachable(text)
}

/// A connection that is made again when it breaks.
pub(crate) struct Link {
    server: Arc<Server>,
    slot: Arc<Slot>,
}

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
enum State {
    /// There is none, or a call is under way on it.
    #[default]
    None,
    /// Somebody makes one, and goes on doing so if who asked first gives up.
    Connecting,
    /// Why there is none, for those who waited for it.
    Failed(Trouble),
    Connected(Connection),
}

/// A call that failed.
struct Failed {
    trouble: Trouble,
    /// Whether it was certainly not sent.
    unsent: bool,
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, slot: Arc::default() }
    }

    /// Gives up the connection.
    pub(crate) fn cut(&self) {
        let mut state = self.slot.lock();
        if matches!(*state, State::Connected(_)) {
            *state = State::None;
        }
    }

    /// Takes the connection out; whether it has served before.
    async fn connection(&self) -> Result<(Connection, bool), Trouble> {
        let mut has_waited = false;
        loop {
            let changed = self.slot.changed.notified();
            {
                let mut state = self.slot.lock();
                match std::mem::take(&mut *state) {
                    State::Connected(connection) if !connection.is_closed() => return Ok((connection, !has_waited)),
                    State::Failed(trouble) if has_waited => return Err(trouble),
                    State::Connecting => *state = State::Connecting,
                    // Who comes later tries again: what failed then may not fail now.
                    State::None | State::Failed(_) | State::Connected(_) => {
                        *state = State::Connecting;
                        let (server, slot) = (Arc::clone(&self.server), Arc::clone(&self.slot));
                        tokio::spawn(async move {
                            let made = server.connect().await;
                            *slot.lock() = match made {
                                Ok(connection) => State::Connected(connection),
                                Err(trouble) => State::Failed(trouble),
                            };
                            slot.changed.notify_waiters();
                        });
                    }
                }
            }
            changed.await;
            has_waited = true;
        }
    }

    /// Sends a call and waits for the answer. `again`: whether it may be sent a second time where nobody knows whether the
    /// first arrived. Who stops waiting ends the connection.
    pub(crate) async fn call(&self, body: Vec<u8>, again: bool) -> Result<Bytes, Trouble> {
        let body = Bytes::from(body);
        loop {
            let (mut connection, is_old) = self.connection().await?;
            match self.exchange(&mut connection, body.clone()).await {
                Ok(answer) => {
                    *self.slot.lock() = State::Connected(connection);
                    return Ok(answer);
                }
                // The service closes connections that were idle for long. One that has just been made is no such.
                Err(Failed { trouble: Trouble::Unreachable(_), unsent }) if is_old && (unsent || again) => {}
                Err(Failed { trouble, .. }) => return Err(trouble),
            }
        }
    }

    async fn exchange(&self, connection: &mut Connection, body: Bytes) -> Result<Bytes, Failed> {
        let sent = |trouble| Failed { trouble, unsent: false };
        if let Err(error) = connection.ready().await {
            return Err(Failed { trouble: unreachable(error), unsent: true });
        }
        let answer = connection.try_send_request(self.server.request(body)).await;
        let answer = answer.map_err(|mut error| {
            let unsent = error.take_message().is_some();
            let error = error.into_error();
            match error.is_parse() {
                true => sent(Trouble::Protocol(error.to_string())),
                false => Failed { trouble: unreachable(error), unsent },
            }
        })?;
        let (head, body) = answer.into_parts();
        if head.status != StatusCode::OK {
            return Err(sent(Trouble::Refused(head.status.as_u16())));
        }
        let is_ours = head.headers.get(CONTENT_TYPE).is_some_and(|found| found == wire::MEDIA_TYPE);
        if !is_ours {
            return Err(sent(Trouble::Protocol("its answer is of another type".to_owned())));
        }
        match Limited::new(body, LARGEST_ANSWER).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(sent(Trouble::Unreachable(error.to_string()))),
        }
    }
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
