//! What a response says about limits: headers on every one, and the whole of one that is turned
//! away.

mod bad_request;
mod denial;
mod denial_format;
mod dialect;
mod escape;
mod expose_headers;
mod grpc;
mod header_values;
mod limit_info;
#[cfg(test)]
mod tests;

pub(crate) use bad_request::bad_request;
pub use denial::Denial;
pub(crate) use denial::{GRPC_STATUS, Jitter, denial_response};
pub(crate) use denial_format::DenialFormat;
pub use dialect::{Dialect, Dialects};
pub(crate) use expose_headers::expose_headers;
pub use header_values::{retry_after, whole_millis, whole_seconds};
pub(crate) use limit_info::{LimitInfo, PolicyName};

use http::HeaderMap;
use ratekeeper_policy::{PolicyVerdict, engine::LimitStatus};
use std::time::Duration;

/// Writes what a verdict says of its limits. `retry_after` is what the response says in
/// Retry-After; nothing if it passes. Limits that only watch are not told.
pub(crate) fn write_headers(
    dialects: Dialects,
    headers: &mut HeaderMap,
    verdict: &PolicyVerdict,
    retry_after: Option<u64>,
    unix_now: Duration,
) {
    let Some(tightest) = verdict.tightest().and_then(|status| LimitInfo::of(&status)) else {
        return;
    };
    let all = named_limits(verdict).filter(|(_, status)| !status.is_shadow());
    let all = all.filter_map(|(name, status)| {
        Some(LimitInfo {
            name,
            ..LimitInfo::of(&status)?
        })
    });
    dialects.write(headers, &tightest, all, retry_after, unix_now);
}

/// The limits of a verdict, each by a name of its own.
fn named_limits(
    verdict: &PolicyVerdict,
) -> impl Iterator<Item = (PolicyName<'_>, LimitStatus<'_>)> {
    // The limits of one policy stand together.
    verdict.limits().scan(PolicyName::from(""), |last, status| {
        let nth = if last.policy == status.policy() {
            last.nth + 1
        } else {
            1
        };
        *last = PolicyName {
            policy: status.policy(),
            nth,
        };
        Some((*last, status))
    })
}

/// A mark on a response: what it answers never reached the service, so whoever counted the request
/// gives it back.
#[derive(Clone, Copy, Debug)]
pub struct NotReached;

/// A mark on a response: the service has no room for what it answers, whoever asks. A [`ShedLayer`]
/// further out takes it for pressure. Insert it into a response of your own for the same.
#[derive(Clone, Copy, Debug)]
pub struct NoCapacity;
