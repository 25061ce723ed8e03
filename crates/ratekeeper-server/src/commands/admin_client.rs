//! Client of the admin listener: JSON over HTTP/1.1. Errors are one sentence.

use crate::cli::TlsArgs;
use crate::config::Secret;
use crate::net::stream::{BatchedStream, Stream};
use crate::net::tls;
use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, TlsStream};

/// Maximum size of a response body; thousands of policies fit.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Client of one admin listener.
pub(crate) struct Client {
    url: String,
    authority: String,
    transport: Transport,
    tls: TlsArgs,
    timeout: Duration,
    token: Option<Secret>,
}

/// Transport to the listener.
enum Transport {
    Plain,
    /// TLS; the certificate must be valid for this name.
    Tls(ServerName<'static>),
    Unix(PathBuf),
}

/// A response of the admin listener.
pub(crate) struct AdminResponse {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl AdminResponse {
    /// The `detail` of a problem response.
    pub(crate) fn detail(&self) -> Option<String> {
        let problem: Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem["detail"].as_str()?.to_owned())
    }
}

impl Client {
    /// Creates a client. `url` is such as http://127.0.0.1:9090, https://localhost:9090 or
    /// unix:/run/ratekeeper/admin.sock.
    pub(crate) fn new(url: &str, timeout: Duration) -> Result<Self, String> {
        let url = url.trim_end_matches('/');
        if let Some(path) = url
            .strip_prefix("unix:")
            .filter(|path| path.starts_with('/'))
        {
            return Ok(Self {
                url: url.to_owned(),
                authority: "localhost".to_owned(),
                transport: Transport::Unix(path.into()),
                tls: TlsArgs::default(),
                timeout,
                token: None,
            });
        }
        let invalid = |problem: &str| {
            format!("--url {url}: {problem}; write it as in --url http://127.0.0.1:9090")
        };
        let uri: Uri = url.parse().map_err(|_| invalid("not a URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("must start with http://, https:// or unix:")),
        };
        if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
            return Err(invalid("must not have a path"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("has no host"))?;
        let transport = if is_tls {
            let name = authority.host().trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(name)
                .map_err(|_| invalid("the host is not valid in a certificate"))?;
            Transport::Tls(name)
        } else {
            Transport::Plain
        };
        let port = authority
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 });
        let authority = format!("{}:{port}", authority.host());
        Ok(Self {
            url: url.to_owned(),
            authority,
            transport,
            tls: TlsArgs::default(),
            timeout,
            token: None,
        })
    }

    /// Sets the CA and the client certificate for TLS.
    pub(crate) fn tls(self, tls: &TlsArgs) -> Self {
        Self {
            tls: tls.clone(),
            ..self
        }
    }

    /// Sets the token, which changes require.
    pub(crate) fn token(self, token: Option<Secret>) -> Self {
        Self { token, ..self }
    }

    /// The URL of the listener.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Reads the resource at `path`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let url = &self.url;
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        if response.status != 200 {
            let detail = response
                .detail()
                .map(|detail| format!(": {detail}"))
                .unwrap_or_default();
            return Err(format!("{url}{path} returned {}{detail}", response.status));
        }
        self.parse(path, &response)
    }

    /// Parses the body of a response.
    pub(crate) fn parse<T: DeserializeOwned>(
        &self,
        path: &str,
        response: &AdminResponse,
    ) -> Result<T, String> {
        serde_json::from_slice(&response.body).map_err(|error| {
            format!(
                "unexpected response from {}{path} to ratekeeper {}: {error}",
                self.url,
                env!("CARGO_PKG_VERSION")
            )
        })
    }

    /// Sends a request and returns the response, of any status.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<AdminResponse, String> {
        let timeout = self.timeout;
        let response = tokio::time::timeout(timeout, self.exchange(method, path, body)).await;
        response.map_err(|_| format!("{} did not answer within {timeout:?}", self.url))?
    }

    async fn connect(&self) -> io::Result<Stream> {
        Ok(match &self.transport {
            Transport::Plain => Stream::Plain(TcpStream::connect(&self.authority).await?),
            Transport::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            Transport::Tls(name) => {
                let config = tls::client(
                    self.tls.ca_file.as_deref(),
                    self.tls.client_certificate().as_ref(),
                );
                let connector = TlsConnector::from(Arc::new(config.map_err(io::Error::other)?));
                let stream = BatchedStream::new(TcpStream::connect(&self.authority).await?);
                Stream::Tls(Box::new(TlsStream::Client(
                    connector.connect(name.clone(), stream).await?,
                )))
            }
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<AdminResponse, String> {
        let url = &self.url;
        let stream = self.connect().await.map_err(|error| {
            format!(
                "cannot connect to {url}: {error}; check that ratekeeper runs and --url is right"
            )
        })?;
        let lost = |error: hyper::Error| format!("connection to {url} lost: {error}");
        let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let connection = tokio::spawn(connection);
        let host = HeaderValue::from_str(&self.authority).map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        if let Some(token) = &self.token {
            let invalid = |_| {
                "the token has characters not allowed in a header; use printable ASCII".to_owned()
            };
            let mut bearer =
                HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(invalid)?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let response = send.send_request(request).await.map_err(lost)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(|error| format!("response from {url} incomplete: {error}"))?;
        connection.abort();
        Ok(AdminResponse {
            status: head.status.as_u16(),
            body: body.to_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_an_error_with_an_example() {
        let error = |url: &str| Client::new(url, Duration::ZERO).err().unwrap();
        for (url, problem) in [
            (
                "127.0.0.1:9090",
                "must start with http://, https:// or unix:",
            ),
            ("ftp://a", "must start with http://, https:// or unix:"),
            ("http://a/metrics", "must not have a path"),
            ("http://[", "not a URL"),
        ] {
            assert_eq!(
                error(url),
                format!("--url {url}: {problem}; write it as in --url http://127.0.0.1:9090")
            );
        }
    }

    #[test]
    fn the_port_is_optional() {
        let client = Client::new("http://[::1]/", Duration::ZERO).unwrap();
        assert_eq!(
            (&*client.authority, client.url()),
            ("[::1]:80", "http://[::1]")
        );
    }
}
