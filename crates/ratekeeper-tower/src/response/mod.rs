//! Responses: rate limit headers on every response, and the complete response of a denial.

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

/// Writes the rate limit headers of a verdict. `retry_after` is the value of the response's
/// Retry-After header, `None` if the request is allowed. Limits in shadow mode are not written.
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

/// The limits of a verdict, each with a unique name.
fn named_limits(
    verdict: &PolicyVerdict,
) -> impl Iterator<Item = (PolicyName<'_>, LimitStatus<'_>)> {
    // The limits of one policy are adjacent.
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

/// Marks a response to a request that never reached the service: a response extension, at which
/// outer layers refund what they counted.
#[derive(Clone, Copy, Debug)]
pub struct NotReached;

/// Marks a response of a service without capacity for any client: a response extension, which an
/// outer [`ShedLayer`](crate::ShedLayer) counts as overload. Insert it into your own responses for
/// the same effect.
#[derive(Clone, Copy, Debug)]
pub struct NoCapacity;
