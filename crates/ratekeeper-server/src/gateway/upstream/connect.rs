//! Opens connections to upstreams, over plain TCP or TLS.

use super::error::UpstreamError;
use crate::config::Upstream;
use crate::net::stream::{BatchedStream, Stream};
use rustls::pki_types::ServerName;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};

/// Opens connections to upstreams within `connect_timeout`.
#[derive(Clone)]
pub(crate) struct Connector {
    /// `None` if no upstream is an `https://` one.
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) connect_timeout: Duration,
}

impl Connector {
    /// Connects to an upstream, with a TLS handshake if its URL is an `https://` one.
    pub(crate) async fn connect(&self, upstream: &Upstream) -> Result<Stream, UpstreamError> {
        match timeout(self.connect_timeout, self.open(upstream)).await {
            Ok(opened) => opened,
            Err(_) => Err(UpstreamError::ConnectTimeout(self.connect_timeout)),
        }
    }

    async fn open(&self, upstream: &Upstream) -> Result<Stream, UpstreamError> {
        let stream = tcp(upstream.host(), upstream.port())
            .await
            .map_err(UpstreamError::Connect)?;
        stream.set_nodelay(true).map_err(UpstreamError::Connect)?;
        let stream = BatchedStream::new(stream);
        let Some(connector) = self.tls.as_ref().filter(|_| upstream.is_tls()) else {
            return Ok(Stream::Batched(stream));
        };
        let name = ServerName::try_from(upstream.host().to_owned());
        let name = name.map_err(|error| UpstreamError::Tls(io::Error::other(error)))?;
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(UpstreamError::Tls)?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }
}

/// Connects to the first address of the host that accepts.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    match host.parse::<IpAddr>() {
        Ok(ip) => TcpStream::connect((ip, port)).await,
        Err(_) => TcpStream::connect((host, port)).await,
    }
}
