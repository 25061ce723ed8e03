//! Errors of an upstream: in full for the log, in a few classes for the client.

use super::H1Error;
use super::timer::TimeoutKind;
use crate::api::{Code, Problem};
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why an upstream gave no response.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// The name cannot be resolved, or no address accepts connections.
    Connect(io::Error),
    /// The connection was not established within this time.
    ConnectTimeout(Duration),
    /// TLS failed: another name, an expired certificate, an untrusted issuer.
    Tls(io::Error),
    /// The connection failed.
    Broken(hyper::Error),
    /// An HTTP/2 connection failed.
    Http2(h2::Error),
    /// It did not process the request, and it cannot be sent again.
    Unprocessed(h2::Error),
    /// An HTTP/1.1 exchange failed.
    Http1(H1Error),
    Timeout(TimeoutKind),
    /// The response does not match the request.
    InvalidResponse(&'static str),
}

impl UpstreamError {
    /// The problem that the client gets. Addresses of upstreams only appear in the log.
    pub(crate) fn problem(&self) -> Problem {
        let (code, detail) = match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => (
                Code::BadUpstream,
                "the upstream cannot be reached; try again later".to_owned(),
            ),
            Self::Tls(_) => (
                Code::BadUpstream,
                "the upstream's TLS certificate is not trusted; ask the operator to fix it"
                    .to_owned(),
            ),
            Self::Unprocessed(_) => (
                Code::Unavailable,
                "the upstream did not process the request; send it again".to_owned(),
            ),
            Self::Broken(_)
            | Self::Http2(_)
            | Self::Http1(H1Error::Io(_) | H1Error::Closed | H1Error::Body(_)) => (
                Code::BadUpstream,
                "the connection to the upstream failed; try again later".to_owned(),
            ),
            Self::InvalidResponse(_) | Self::Http1(H1Error::InvalidResponse(_)) => (
                Code::BadUpstream,
                "the upstream sent an invalid response".to_owned(),
            ),
            Self::Timeout(TimeoutKind::Idle(time) | TimeoutKind::Total(time)) => (
                Code::SlowUpstream,
                format!("the upstream did not answer within {time:?}"),
            ),
        };
        Problem::new(code, detail)
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::ConnectTimeout(time) => write!(f, "cannot connect within {time:?}"),
            Self::Tls(error) => write!(f, "TLS handshake failed: {error}"),
            Self::Broken(error) => {
                write!(f, "connection failed: {error}")?;
                error
                    .source()
                    .map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Self::Http2(error) => write!(f, "connection failed: {error}"),
            Self::Unprocessed(error) => write!(f, "request rejected unprocessed: {error}"),
            Self::Http1(fault) => fault.fmt(f),
            Self::Timeout(TimeoutKind::Idle(time)) => write!(f, "no data for {time:?}"),
            Self::Timeout(TimeoutKind::Total(time)) => write!(f, "not finished within {time:?}"),
            Self::InvalidResponse(phrase) => f.write_str(phrase),
        }
    }
}
