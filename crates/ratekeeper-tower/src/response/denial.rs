//! `Denial` and the response to a denied request.

use super::denial_format::DenialFormat;
use super::escape::{Html, Json};
use super::header_values::{retry_after, whole_millis};
use super::limit_info::PolicyName;
use super::{grpc, named_limits};
use crate::response::NotReached;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use ratekeeper::Decision;
use ratekeeper_policy::{PolicyVerdict, Reason, policy::DenialStatus};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Retry-After where the time is unknown, such as when a permit or a store becomes available.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// After a shedder has raised what it sheds, it does not lower it for this long.
const SHED_WAIT: Duration = Duration::from_secs(5);

const DEADLINE_PASSED: &str = "The deadline of this request passed before it was processed";

/// Problem types: why a request is denied, by the RateLimit draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProblemType {
    QuotaExceeded,
    ReducedCapacity,
    AbnormalUsage,
    /// The deadline of the request has passed; the draft has no type for that.
    DeadlinePassed,
}

impl ProblemType {
    /// The type of a denial with this status that is not for abnormal usage.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Self::ReducedCapacity,
            _ => Self::QuotaExceeded,
        }
    }

    const fn type_uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::AbnormalUsage => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
            Self::DeadlinePassed => "about:blank",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::ReducedCapacity => "Temporary Reduced Capacity",
            Self::AbnormalUsage => "Abnormal Usage Detected",
            Self::DeadlinePassed => "Gateway Timeout",
        }
    }
}

/// Adds up to this many percent to Retry-After, the same for the same key, so that clients denied
/// together do not all come back at once. None by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Jitter {
    pub(crate) percent: u8,
    /// The hash of the key.
    pub(crate) hash: u64,
}

impl Jitter {
    /// The whole seconds to add to `after`, so that the sum is still rounded up.
    fn extra_seconds(self, after: u64) -> u64 {
        let max = u128::from(after) * u128::from(self.percent) / 100;
        // The hash as a fraction of 1, scaled to 0..=max.
        let share = (u128::from(self.hash >> 32) * (max + 1)) >> 32;
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// The description of a denial, of which its response is made.
#[derive(Clone, Debug)]
pub struct Denial<'a> {
    pub(crate) status: StatusCode,
    pub(crate) kind: ProblemType,
    /// The names of the limits that denied it.
    pub(crate) violated: Vec<PolicyName<'a>>,
    /// How long until it may be allowed, if that is known.
    pub(crate) retry_after: Option<Duration>,
    /// Whether retrying will not help.
    pub(crate) never: bool,
    /// The cause for people to read, without a full stop: the message goes on with when to try
    /// again.
    pub(crate) cause: Cow<'a, str>,
    pub(crate) jitter: Jitter,
    /// Whether the limits are in shadow mode, so that the request was allowed.
    pub(crate) shadow: bool,
}

/// # Reading it
impl Denial<'_> {
    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The policies that denied the request.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.violated.iter().map(|name| name.policy)
    }

    /// How long until the request may be allowed, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether retrying will not help.
    pub fn is_never(&self) -> bool {
        self.never
    }

    /// Whether the limits are in shadow mode: the request was allowed.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// One sentence for people to read.
    pub fn message(&self) -> String {
        self.detail()
    }
}

impl<'a> Denial<'a> {
    /// A denial by a limit without policies.
    pub(crate) fn of_decision(name: &'a str, decision: &Decision, status: DenialStatus) -> Self {
        let cause = if decision.is_never() {
            format!("Policy `{name}` never allows this request")
        } else {
            format!("Rate limit of policy `{name}` exceeded")
        };
        let (status, kind) = match status {
            DenialStatus::TooManyRequests => {
                (StatusCode::TOO_MANY_REQUESTS, ProblemType::QuotaExceeded)
            }
            DenialStatus::ServiceUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                ProblemType::ReducedCapacity,
            ),
        };
        Self {
            status,
            kind,
            violated: vec![name.into()],
            retry_after: decision.retry_after(),
            never: decision.is_never(),
            cause: cause.into(),
            jitter: Jitter::default(),
            shadow: false,
        }
    }

    /// A denial because too many requests are delayed already.
    pub(crate) fn too_many_waiting(after: Duration) -> Self {
        Self::without_policy(
            StatusCode::SERVICE_UNAVAILABLE,
            Some(after),
            "Too many delayed requests are waiting",
        )
    }

    /// A denial because too many requests are in flight.
    pub(crate) fn too_many_in_flight(status: StatusCode) -> Self {
        Self::without_policy(status, None, "Too many requests are in flight")
    }

    /// A denial because the circuit breaker is open.
    pub(crate) fn circuit_open(after: Duration) -> Self {
        let cause = "The service is failing and its circuit breaker is open";
        Self::without_policy(StatusCode::SERVICE_UNAVAILABLE, Some(after), cause)
    }

    /// A denial by load shedding.
    pub(crate) fn shed() -> Self {
        let cause = "The service is overloaded and this request was shed";
        Self::without_policy(StatusCode::SERVICE_UNAVAILABLE, Some(SHED_WAIT), cause)
    }

    /// A denial because the request waited in a queue for as long as it may.
    pub(crate) fn queue_timeout() -> Self {
        Self::without_policy(
            StatusCode::SERVICE_UNAVAILABLE,
            None,
            "This request waited too long in the queue",
        )
    }

    /// A denial because the deadline has passed.
    pub(crate) fn deadline_passed() -> Self {
        let denial = Self::without_policy(StatusCode::GATEWAY_TIMEOUT, None, DEADLINE_PASSED);
        Self {
            kind: ProblemType::DeadlinePassed,
            never: true,
            ..denial
        }
    }

    /// A denial that is not by a policy.
    fn without_policy(
        status: StatusCode,
        retry_after: Option<Duration>,
        cause: &'static str,
    ) -> Self {
        let (kind, jitter) = (ProblemType::of_status(status), Jitter::default());
        Self {
            status,
            kind,
            violated: Vec::new(),
            retry_after,
            never: false,
            cause: cause.into(),
            jitter,
            shadow: false,
        }
    }

    /// Marks a denial as one of limits in shadow mode.
    pub(crate) fn in_shadow(self) -> Self {
        Self {
            shadow: true,
            ..self
        }
    }

    /// The denial by limits in shadow mode, of an allowed request; `None` if they would have
    /// allowed it too.
    pub(crate) fn of_shadow_limits(verdict: &'a PolicyVerdict) -> Option<Self> {
        let shadow_limits = || {
            named_limits(verdict)
                .filter(|(_, status)| status.is_shadow() && status.decision().is_denied())
        };
        let violated: Vec<_> = shadow_limits().map(|(name, _)| name).collect();
        let never = shadow_limits().any(|(_, status)| status.decision().is_never());
        let retry_after = shadow_limits()
            .filter_map(|(_, status)| status.decision().retry_after())
            .max();
        let cause = format!(
            "Rate limit of policy `{}` exceeded",
            violated.first()?.policy
        );
        Some(Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: ProblemType::QuotaExceeded,
            violated,
            retry_after: retry_after.filter(|_| !never),
            never,
            cause: cause.into(),
            jitter: Jitter::default(),
            shadow: true,
        })
    }

    /// The denial of a verdict. An operator's note on a ban or in the deny list is not disclosed.
    pub(crate) fn of_verdict(verdict: &'a PolicyVerdict) -> Self {
        if let Reason::Shed(_) = verdict.reason() {
            // Clients shed together come back one by one: spread by time, because they may share
            // one key.
            const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
            let hash = verdict.decided_at().as_unix_nanos().wrapping_mul(GOLDEN);
            return Self {
                jitter: Jitter { percent: 100, hash },
                ..Self::shed()
            };
        }
        if let Reason::TooLate = verdict.reason() {
            return Self::deadline_passed();
        }
        let status =
            StatusCode::from_u16(verdict.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let mut violated: Vec<_> = named_limits(verdict)
            .filter(|(_, status)| !status.is_shadow() && status.decision().is_denied())
            .map(|(name, _)| name)
            .collect();
        if violated.is_empty() {
            // The policy of a ban.
            violated.extend(verdict.policy().map(PolicyName::from));
        }
        let policy = verdict.policy().unwrap_or_default();
        let cause = match verdict.reason() {
            Reason::Ban(_) => "This client is temporarily banned".into(),
            Reason::DenyList { .. } => "This client is not allowed to use this service".into(),
            Reason::Closed => "The rate limit store is unavailable".into(),
            Reason::AtCapacity => {
                format!("Adaptive concurrency limit of policy `{policy}` reached").into()
            }
            Reason::QueueFull => format!("The queue of policy `{policy}` is full").into(),
            Reason::WaitedTooLong => {
                format!("This request waited too long in the queue of policy `{policy}`").into()
            }
            Reason::MissingAttribute { attribute, .. } => {
                format!("This request has no {attribute}, which policy `{policy}` requires").into()
            }
            _ if verdict.is_never() => {
                format!("Policy `{policy}` never allows this request").into()
            }
            _ if verdict.retry_after().is_none() => {
                format!("Concurrency limit of policy `{policy}` reached").into()
            }
            _ => format!("Rate limit of policy `{policy}` exceeded").into(),
        };
        let kind = match verdict.reason() {
            Reason::Ban(_) | Reason::DenyList { .. } => ProblemType::AbnormalUsage,
            _ => ProblemType::of_status(status),
        };
        let (retry_after, never) = (verdict.retry_after(), verdict.is_never());
        Self {
            status,
            kind,
            violated,
            retry_after,
            never,
            cause,
            jitter: Jitter::default(),
            shadow: false,
        }
    }

    /// The value of Retry-After; `None` if retrying will not help.
    pub(crate) fn seconds(&self) -> Option<u64> {
        self.wait().map(retry_after)
    }

    /// The same before rounding; never zero.
    fn wait(&self) -> Option<Duration> {
        if self.never {
            return None;
        }
        let wait = self
            .retry_after
            .filter(|wait| !wait.is_zero())
            .unwrap_or(UNKNOWN_WAIT);
        Some(wait.saturating_add(Duration::from_secs(
            self.jitter.extra_seconds(retry_after(wait)),
        )))
    }

    /// One sentence for people to read.
    fn detail(&self) -> String {
        let cause = &self.cause;
        match self.seconds() {
            None if self.kind == ProblemType::DeadlinePassed => format!("{cause}."),
            None => format!("{cause}; trying again will not help."),
            Some(1) => format!("{cause}; try again in 1 second."),
            Some(after) => format!("{cause}; try again in {after} seconds."),
        }
    }

    fn problem(&self, detail: &str) -> String {
        let mut body = format!(
            r#"{{"type":"{}","title":"{}","status":{},"detail":{},"violated-policies":["#,
            self.kind.type_uri(),
            self.kind.title(),
            self.status.as_u16(),
            Json(detail),
        );
        for (at, name) in self.violated.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(body, "{}{}", if at > 0 { "," } else { "" }, Json(name));
        }
        body.push(']');
        if let Some(wait) = self.wait() {
            let _ = write!(body, r#","retry_after_ms":{}"#, whole_millis(wait));
        }
        // So that a terminal's prompt starts on its own line.
        body.push_str("}\n");
        body
    }

    fn html(&self, detail: &str) -> String {
        let (status, detail) = (self.status, Html(detail));
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{status}</title></head>\n\
             <body><h1>{status}</h1><p>{detail}</p></body></html>\n"
        )
    }
}

/// The response to a denied request, in the format that the client can read. Outer layers refund
/// what they counted.
pub(crate) fn denial_response(format: DenialFormat, denial: &Denial<'_>) -> Response<Bytes> {
    let detail = denial.detail();
    let (content_type, body) = match format {
        DenialFormat::Problem => ("application/problem+json", denial.problem(&detail)),
        DenialFormat::Plain => ("text/plain; charset=utf-8", format!("{detail}\n")),
        DenialFormat::Html => ("text/html; charset=utf-8", denial.html(&detail)),
        // A response without a body: its headers are the trailers.
        DenialFormat::Grpc(content_type) => (content_type, String::new()),
    };
    let mut response = Response::new(Bytes::from(body));
    response.extensions_mut().insert(NotReached);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(after) = denial.seconds() {
        headers.insert(RETRY_AFTER, after.into());
    }
    if !matches!(format, DenialFormat::Grpc(_)) {
        *response.status_mut() = denial.status;
        return response;
    }
    let code = match denial.status {
        StatusCode::SERVICE_UNAVAILABLE => grpc::UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT => grpc::DEADLINE_EXCEEDED,
        _ => grpc::RESOURCE_EXHAUSTED,
    };
    headers.insert(GRPC_STATUS, u16::from(code).into());
    let details = [
        (GRPC_MESSAGE, grpc::message(&detail)),
        (GRPC_DETAILS, grpc::details(code, &detail, denial.wait())),
    ];
    for (name, value) in details {
        // Both are printable.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    response
}
