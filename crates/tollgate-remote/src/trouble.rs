//! What can go wrong with a service that is elsewhere, in words for whoever has to mend it.

use crate::wire::Refusal;
use std::fmt;

/// Why the service did not answer, or not with a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Trouble {
    /// It did not answer in time.
    TimedOut,
    /// More callers wait for it than may.
    QueueFull,
    /// It cannot be reached; why.
    Unreachable(String),
    /// It does not take our calls: the status of its answer.
    Refused(u16),
    /// What it answers makes no sense.
    Protocol(String),
    /// It answers, but not with a decision on this request.
    Declined(Refusal),
    /// The request is larger than it takes.
    TooLarge,
    /// It was in trouble a moment ago, and is tried again soon.
    Broken,
}

impl Trouble {
    /// A word for it, to count it by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::QueueFull => "queue_full",
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::Protocol(_) => "protocol",
            Self::Declined(_) => "declined",
            Self::TooLarge => "too_large",
            Self::Broken => "broken",
        }
    }

    /// Whether it will not pass by waiting: what answers is no tollgate, or does not know us.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self, Self::Refused(400..=499) | Self::Protocol(_))
    }

    /// Whether it is about one request, so that the others may go on.
    pub(crate) fn is_of_one_request(&self) -> bool {
        matches!(self, Self::Declined(_) | Self::TooLarge)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("tollgate did not answer in time; see whether it is overloaded or far away"),
            Self::QueueFull => f.write_str("more decisions wait for tollgate than may; it is too slow for the load"),
            Self::Unreachable(why) if why.contains("ertificate") => write!(
                f,
                "the certificate of tollgate is not trusted ({why}); name a PEM file of whoever signed it as ca_file"
            ),
            Self::Unreachable(why) => {
                write!(f, "tollgate cannot be reached ({why}); see that it runs and that the url is right")
            }
            Self::Refused(401 | 403) => f.write_str(
                "tollgate does not take this token; give the client the `store_token` that is in the [server] of tollgate",
            ),
            Self::Refused(404 | 405 | 415) => f.write_str(
                "what answers at the url does not serve /v1/store; point it at the HTTP listener of a tollgate that is no \
                 older than this client",
            ),
            Self::Refused(status) => write!(f, "tollgate answers with the status {status}; its log may say why"),
            Self::Protocol(what) => write!(f, "what answers is not a tollgate that understands us ({what})"),
            Self::Declined(refusal) => write!(f, "tollgate declines: {refusal}"),
            Self::TooLarge => f.write_str("a request is larger than tollgate takes; ask with shorter keys"),
            Self::Broken => f.write_str("tollgate was in trouble a moment ago and is tried again soon"),
        }
    }
}

impl std::error::Error for Trouble {}
