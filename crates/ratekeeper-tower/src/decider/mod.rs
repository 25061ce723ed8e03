//! Deciders: one limit for each key, or an engine of policies.

mod limit;
mod policy;

pub use limit::LimitDecider;
pub use policy::PolicyDecider;

use crate::head::Head;
use crate::response::{Denial, Dialects};
use http::HeaderMap;
use ratekeeper::clock::Sleep;
use ratekeeper_policy::{Completion, request::RequestError};
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

/// The state of the caller's limits: a request extension for handlers, inserted by
/// [`RateLimitLayer::extension`](crate::RateLimitLayer::extension).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RateLimitStatus {
    /// The policy with the least remaining.
    pub policy: Box<str>,
    /// Its capacity: how much may come at once.
    pub limit: u64,
    /// How much of it remains.
    pub remaining: u64,
    /// How long until everything is available again if no other request comes.
    pub reset_after: Duration,
    /// Whether a limit in shadow mode would have denied the request.
    pub shadow_denied: bool,
}

/// Decides on requests, and settles the decisions when the requests have ended.
pub trait Decider: sealed::Sealed + Clone + Send + Sync + 'static {
    /// The decision on a request, kept until the request has ended. It holds the request's permits.
    type PendingDecision: Send + Unpin + 'static;

    /// The hashed key that all requests of a client share.
    type PrehashedKey: Copy + Send + Sync + 'static;

    /// Rejects a request that the service may read differently than this decider does. With
    /// `everything`, path and host are validated even if no decision depends on them.
    fn validate(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError>;

    /// Decides on a request, and charges it if it is allowed. Returns a future if the decision
    /// needs a round trip. The decision is written to `pending`, because it is slow to move.
    fn decide(
        &self,
        head: &Head<'_>,
        cost: u64,
        pending: &mut Option<Self::PendingDecision>,
    ) -> Option<DecisionFuture<Self::PendingDecision>>;

    /// The key of a client at this address, for all of its requests; `None` if the key depends on
    /// more than the address.
    fn prehash(&self, ip: IpAddr) -> Option<Self::PrehashedKey>;

    /// Decides on a request with this key at a cost of 1. `Err` if it is denied or needs the slow
    /// path: with the decision, or with `None` if it is not decided yet.
    fn decide_prehashed(
        &self,
        key: Self::PrehashedKey,
    ) -> Result<Self::PendingDecision, Option<Self::PendingDecision>>;

    /// Whether the request is allowed.
    fn is_allowed(&self, pending: &Self::PendingDecision) -> bool;

    /// How long the request must wait before it goes on.
    fn delay(&self, pending: &Self::PendingDecision) -> Duration;

    /// Whether the request is allowed without a wait.
    #[inline]
    fn is_allowed_now(&self, pending: &Self::PendingDecision) -> bool {
        self.is_allowed(pending) && self.delay(pending).is_zero()
    }

    /// A timer on the clock that the limits use.
    fn sleep(&self, time: Duration) -> Sleep;

    /// Describes why the request is denied.
    fn denial<'a>(&'a self, pending: &'a Self::PendingDecision) -> Denial<'a>;

    /// Describes why a limit in shadow mode would have denied the request.
    fn shadow_denial<'a>(&'a self, pending: &'a Self::PendingDecision) -> Option<Denial<'a>>;

    /// The state of the caller's limits, for the service; `None` if there is no limit.
    fn status(&self, pending: &Self::PendingDecision) -> Option<RateLimitStatus>;

    /// Writes the limits into the headers of a response. `retry_after` is the value of its
    /// Retry-After header, if it has one.
    fn write_headers(
        &self,
        pending: &Self::PendingDecision,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    );

    /// Whether a hook is called for each decision.
    fn is_observed(&self) -> bool {
        false
    }

    /// Calls the hook with the decision.
    fn observe(&self, _head: &Head<'_>, _pending: &Self::PendingDecision) {}

    /// A hash of the key, the same for the same key.
    fn key_hash(&self, pending: &Self::PendingDecision) -> u64;

    /// Whether the request holds permits until its response has ended.
    fn holds_permits(&self, pending: &Self::PendingDecision) -> bool;

    /// Whether a request that completes like this needs no settlement. Then neither `settle` nor
    /// `cancel` is called, and the decision may live for any time.
    fn is_settled(&self, pending: &Self::PendingDecision, completion: &Completion) -> bool;

    /// Settles a request that has ended.
    fn settle(&self, pending: Self::PendingDecision, completion: Completion);

    /// Refunds a request that did not reach the service.
    fn cancel(&self, pending: Self::PendingDecision);
}

/// The future of a decision that needs a round trip to a store. Its allocation does not matter
/// beside that.
pub(crate) type DecisionFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

mod sealed {
    /// Implemented by the two deciders of this crate only.
    pub trait Sealed {}
}
