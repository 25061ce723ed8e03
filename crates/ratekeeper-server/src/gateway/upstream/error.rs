//! What can go wrong on the way to an upstream, in words: all of them for the log, few for the
//! client.

use super::H1Error;
use super::timer::TimeoutKind;
use crate::api::{Code, Problem};
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// Its name has no address, or nobody answers there.
    Connect(io::Error),
    /// Not within this time.
    ConnectTimeout(Duration),
    /// TLS: another name, an expired certificate, nobody whom we trust.
    Tls(io::Error),
    /// It broke off.
    Broken(hyper::Error),
    /// The same over a connection of HTTP/2.
    Http2(h2::Error),
    /// It did not process the request, and it cannot be sent again.
    Refused(h2::Error),
    /// The same over a connection of HTTP/1.1.
    Fault(H1Error),
    Late(TimeoutKind),
    /// It answered what was not asked for.
    Strange(&'static str),
}

impl UpstreamError {
    /// What the client is told: where the upstream is stays between us and the log.
    pub(crate) fn problem(&self) -> Problem {
        let what = match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => "cannot be reached; try again later",
            Self::Tls(_) => "has no certificate that is trusted here; its operator must mend that",
            Self::Refused(_) => {
                let detail =
                    "the service behind this gateway did not process the request; send it again";
                return Problem::new(Code::Unavailable, detail);
            }
            Self::Broken(_)
            | Self::Http2(_)
            | Self::Fault(H1Error::Io(_) | H1Error::Closed | H1Error::Body(_)) => {
                "broke off; try again later"
            }
            Self::Strange(_) | Self::Fault(H1Error::Wrong(_)) => "answered what was not asked for",
            Self::Late(overdue) => {
                let (TimeoutKind::Idle(time) | TimeoutKind::Total(time)) = overdue;
                let detail =
                    format!("the service behind this gateway did not answer within {time:?}");
                return Problem::new(Code::SlowUpstream, detail);
            }
        };
        Problem::new(
            Code::BadUpstream,
            format!("the service behind this gateway {what}"),
        )
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::ConnectTimeout(time) => write!(f, "cannot connect within {time:?}"),
            Self::Tls(error) => write!(f, "no TLS: {error}"),
            Self::Broken(error) => {
                write!(f, "broke off: {error}")?;
                error
                    .source()
                    .map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Self::Http2(error) => write!(f, "broke off: {error}"),
            Self::Refused(error) => write!(f, "refused a request unprocessed: {error}"),
            Self::Fault(fault) => fault.fmt(f),
            Self::Late(TimeoutKind::Idle(time)) => write!(f, "silent for {time:?}"),
            Self::Late(TimeoutKind::Total(time)) => write!(f, "not done within {time:?}"),
            Self::Strange(what) => f.write_str(what),
        }
    }
}
