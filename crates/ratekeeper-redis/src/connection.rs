//! One connection to a server.

use crate::reply::{BoundedReplies, ReplyLimit};
use crate::store_error::StoreError;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, Value};
use rustls::pki_types::ServerName;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

/// The address of a server, and its credentials.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) at: EndpointAddress,
    pub(crate) login: RedisConnectionInfo,
}

#[derive(Clone)]
pub(crate) enum EndpointAddress {
    Tcp {
        host: String,
        port: u16,
        tls: Option<Arc<rustls::ClientConfig>>,
    },
    Unix(PathBuf),
}

/// A TCP, TLS or Unix stream.
type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

impl Endpoint {
    /// Opens a connection.
    pub(crate) async fn connect(&self, timeout: Duration) -> Result<Connection, StoreError> {
        match tokio::time::timeout(timeout, self.open()).await {
            Ok(connected) => connected,
            Err(_) => Err(StoreError::unreachable(&format_args!(
                "no connection within {timeout:?}"
            ))),
        }
    }

    async fn open(&self) -> Result<Connection, StoreError> {
        let limit = Arc::new(ReplyLimit::default());
        let stream = self
            .stream()
            .await
            .map_err(|error| StoreError::unreachable(&error))?;
        let stream = BoundedReplies::new(stream, Arc::clone(&limit));
        // Callers bring their own timeout.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1_024);
        match MultiplexedConnection::new_with_config(&self.login, stream, config).await {
            Ok((client, driver)) => {
                let driver = Arc::new(Driver(tokio::spawn(driver)));
                Ok(Connection {
                    client,
                    limit,
                    _driver: driver,
                })
            }
            Err(error) => Err(connection_error(&limit, &error)),
        }
    }

    async fn stream(&self) -> io::Result<Stream> {
        match &self.at {
            EndpointAddress::Unix(path) => Ok(Box::pin(UnixStream::connect(path).await?)),
            EndpointAddress::Tcp {
                host,
                port,
                tls: None,
            } => Ok(Box::pin(tcp(host, *port).await?)),
            EndpointAddress::Tcp {
                host,
                port,
                tls: Some(tls),
            } => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                Ok(Box::pin(
                    TlsConnector::from(Arc::clone(tls))
                        .connect(name, stream)
                        .await?,
                ))
            }
        }
    }
}

/// Connects to all addresses of a host and returns the first that succeeds.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut connecting: JoinSet<io::Result<TcpStream>> = lookup_host((host, port))
        .await?
        .map(TcpStream::connect)
        .collect();
    let mut failed = None;
    while let Some(connected) = connecting.join_next().await {
        match connected.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))
    }))
}

/// A connection; clones share it. It is closed when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    client: MultiplexedConnection,
    limit: Arc<ReplyLimit>,
    _driver: Arc<Driver>,
}

/// The task that drives a connection's I/O; aborted on drop.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A server's answer: a value or its error.
pub(crate) type Reply = Result<Value, StoreError>;

impl Connection {
    /// Sends a command and returns its reply, which may have up to `max_reply` bytes.
    pub(crate) async fn send(&mut self, command: &Cmd, max_reply: usize) -> Reply {
        self.ask(command, max_reply).await?
    }

    /// As [`send`](Self::send), but distinguishes the server's error from a missing answer.
    pub(crate) async fn ask(
        &mut self,
        command: &Cmd,
        max_reply: usize,
    ) -> Result<Reply, StoreError> {
        self.limit.at_least(max_reply);
        let answer = self.client.send_packed_command(command).await;
        answer
            .map(reply)
            .map_err(|error| connection_error(&self.limit, &error))
    }

    /// Sends several commands as one pipeline.
    pub(crate) async fn ask_all(
        &mut self,
        commands: &Pipeline,
        max_reply: usize,
    ) -> Result<Vec<Reply>, StoreError> {
        self.limit.at_least(max_reply);
        let answers = self
            .client
            .send_packed_commands(commands, 0, commands.len())
            .await;
        let answers = answers.map_err(|error| connection_error(&self.limit, &error))?;
        Ok(answers.into_iter().map(reply).collect())
    }
}

fn reply(answer: Value) -> Reply {
    match answer {
        Value::ServerError(error) => Err(StoreError::of(&error.into())),
        answer => Ok(answer),
    }
}

/// Converts a client error; a reply that was too long is reported as such.
fn connection_error(limit: &ReplyLimit, error: &redis::RedisError) -> StoreError {
    match limit.exceeded() {
        Some(bytes) if error.is_io_error() => {
            StoreError::Protocol(format!("its reply is longer than {bytes} bytes"))
        }
        _ => StoreError::of(error),
    }
}
