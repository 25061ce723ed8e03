//! Asks the admin listener of a ratekeeper: JSON over HTTP/1.1. Whatever goes wrong is one
//! sentence.

use crate::cli::TlsArgs;
use crate::net::stream::{BatchedStream, Stream};
use crate::net::tls;
use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ratekeeper_policy::config::Secret;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, TlsStream};

/// The longest answer that is read: thousands of policies fit.
const LONGEST: usize = 16 << 20;

/// Where to ask, and how long to wait for an answer.
pub(crate) struct Client {
    url: String,
    authority: String,
    way: Transport,
    tls: TlsArgs,
    within: Duration,
    token: Option<Secret>,
}

/// How to get there.
enum Transport {
    Plain,
    /// As whom the certificate must be.
    Tls(ServerName<'static>),
    Unix(PathBuf),
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Answer {
    /// What is wrong, where that is what it says.
    pub(crate) fn detail(&self) -> Option<String> {
        let problem: Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem["detail"].as_str()?.to_owned())
    }
}

impl Client {
    /// `url`: such as http://127.0.0.1:9090, https://localhost:9090 or
    /// unix:/run/ratekeeper/admin.sock.
    pub(crate) fn new(url: &str, within: Duration) -> Result<Self, String> {
        let url = url.trim_end_matches('/');
        if let Some(path) = url
            .strip_prefix("unix:")
            .filter(|path| path.starts_with('/'))
        {
            let (way, authority) = (Transport::Unix(path.into()), "localhost".to_owned());
            return Ok(Self {
                url: url.to_owned(),
                authority,
                way,
                tls: TlsArgs::default(),
                within,
                token: None,
            });
        }
        let wrong =
            |why: &str| format!("--url {url} {why}; write it as in --url http://127.0.0.1:9090");
        let uri: Uri = url.parse().map_err(|_| wrong("is no address"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("begins with neither http:// nor https:// nor unix:/")),
        };
        if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
            return Err(wrong("has a path, which is chosen here"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        let way = match is_tls {
            false => Transport::Plain,
            true => {
                let name = authority.host().trim_matches(['[', ']']).to_owned();
                Transport::Tls(
                    ServerName::try_from(name)
                        .map_err(|_| wrong("names no host that a certificate can have"))?,
                )
            }
        };
        let port = authority
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 });
        let authority = format!("{}:{port}", authority.host());
        Ok(Self {
            url: url.to_owned(),
            authority,
            way,
            tls: TlsArgs::default(),
            within,
            token: None,
        })
    }

    /// With whom to believe, and what to show, where TLS is spoken.
    pub(crate) fn tls(self, tls: &TlsArgs) -> Self {
        Self {
            tls: tls.clone(),
            ..self
        }
    }

    /// With what operators must have who change something.
    pub(crate) fn token(self, token: Option<Secret>) -> Self {
        Self { token, ..self }
    }

    /// As it was given.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What is at `path`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let url = &self.url;
        let answer = self.ask(Method::GET, path, Bytes::new()).await?;
        if answer.status != 200 {
            let detail = answer
                .detail()
                .map(|detail| format!(": {detail}"))
                .unwrap_or_default();
            return Err(format!("{url}{path} answers {}{detail}", answer.status));
        }
        self.read(path, &answer)
    }

    /// An answer as what it is meant to be.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        answer: &Answer,
    ) -> Result<T, String> {
        serde_json::from_slice(&answer.body).map_err(|error| {
            format!(
                "{}{path} answers something else than this ratekeeper ({}) understands: {error}",
                self.url,
                env!("CARGO_PKG_VERSION")
            )
        })
    }

    /// What is answered, whatever it is.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let (url, within) = (&self.url, self.within);
        let answer = tokio::time::timeout(within, self.answer(method, path, body)).await;
        answer.map_err(|_| format!("{url} has not answered within {within:?}"))?
    }

    async fn connect(&self) -> io::Result<Stream> {
        Ok(match &self.way {
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

    async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let url = &self.url;
        let stream = self.connect().await.map_err(|error| {
            format!(
                "nobody is reached at {url}: {error}; see that ratekeeper runs, and where its admin listener is (--url)"
            )
        })?;
        let broken = |error: hyper::Error| format!("the connection to {url} broke: {error}");
        let (mut send, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
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
            let wrong = |_| {
                "the token has letters that no header can have; use one of plain letters".to_owned()
            };
            let mut bearer =
                HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(wrong)?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let answer = send.send_request(request).await.map_err(broken)?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST)
            .collect()
            .await
            .map_err(|error| format!("the answer of {url} broke off: {error}"))?;
        connection.abort();
        Ok(Answer {
            status: head.status.as_u16(),
            body: body.to_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_said_and_how_to_write_one() {
        let wrong = |url: &str| Client::new(url, Duration::ZERO).err().unwrap();
        for (url, why) in [
            (
                "127.0.0.1:9090",
                "begins with neither http:// nor https:// nor unix:/",
            ),
            (
                "ftp://a",
                "begins with neither http:// nor https:// nor unix:/",
            ),
            ("http://a/metrics", "has a path, which is chosen here"),
            ("http://[", "is no address"),
        ] {
            assert_eq!(
                wrong(url),
                format!("--url {url} {why}; write it as in --url http://127.0.0.1:9090")
            );
        }
    }

    #[test]
    fn a_port_need_not_be_named() {
        let client = Client::new("http://[::1]/", Duration::ZERO).unwrap();
        assert_eq!(
            (&*client.authority, client.url()),
            ("[::1]:80", "http://[::1]")
        );
    }
}
