//! What a response says about limits: headers on every one, and the whole of one that is turned
//! away.

mod accept;
mod denied;
mod dialect;
mod escape;
mod expose;
mod figures;
mod grpc;
mod numbers;
mod refused;
#[cfg(test)]
mod tests;

pub(crate) use accept::Asker;
pub use denied::Denial;
pub(crate) use denied::{GRPC_STATUS, Jitter, denied};
pub use dialect::{Dialect, Dialects};
pub(crate) use expose::expose;
pub(crate) use figures::{Figures, PolicyName};
pub use numbers::{retry_after, whole_millis, whole_seconds};
pub(crate) use refused::refused;

use http::HeaderMap;
use ratekeeper_policy::{PolicyVerdict, engine::LimitStatus};
use std::time::Duration;

/// Writes what a verdict says of its limits. `retry_after` is what the response says in
/// Retry-After; nothing if it passes. Limits that only watch are not told.
pub(crate) fn write(
    dialects: Dialects,
    headers: &mut HeaderMap,
    verdict: &PolicyVerdict,
    retry_after: Option<u64>,
    unix_now: Duration,
) {
    let Some(tightest) = verdict.tightest().and_then(|status| Figures::of(&status)) else {
        return;
    };
    let all = named(verdict).filter(|(_, status)| !status.is_shadow());
    let all = all.filter_map(|(name, status)| {
        Some(Figures {
            name,
            ..Figures::of(&status)?
        })
    });
    dialects.write(headers, &tightest, all, retry_after, unix_now);
}

/// The limits of a verdict, each by a name of its own.
fn named(verdict: &PolicyVerdict) -> impl Iterator<Item = (PolicyName<'_>, LimitStatus<'_>)> {
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
