//! Who decides: one limit for each key, or an engine of policies.

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

/// Where the limits leave the caller: an extension of the request, for handlers, where the layer
/// [says so](crate::RateLimitLayer::extension).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RateLimitStatus {
    /// The policy with the least left.
    pub policy: Box<str>,
    /// How much may come at once.
    pub limit: u64,
    /// How much of it is left.
    pub remaining: u64,
    /// How long until everything is available again if nobody else comes.
    pub reset_after: Duration,
    /// Whether a limit that only watches would have turned the request away.
    pub shadow_denied: bool,
}

/// Decides on requests. Its tickets are what it remembers of one until the request has ended.
pub trait Decider: sealed::Sealed + Clone + Send + Sync + 'static {
    /// What is remembered of a request; it holds the permits that the request took.
    type PendingDecision: Send + Unpin + 'static;

    /// What is the same for all requests of a client.
    type PrehashedKey: Copy + Send + Sync + 'static;

    /// Refuses a request that the service may read differently than this gate does. With
    /// `everything`, path and host are checked even if nothing is decided by them.
    fn validate(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError>;

    /// Decides, and charges if the request passes; or says what does so, where that takes a while.
    /// The pending goes where it stays: it is slow to move.
    fn decide(
        &self,
        head: &Head<'_>,
        cost: u64,
        pending: &mut Option<Self::PendingDecision>,
    ) -> Option<DecisionFuture<Self::PendingDecision>>;

    /// Where a client at this address stands, for all of its requests; none if that does not follow
    /// from its address alone.
    fn prehash(&self, ip: IpAddr) -> Option<Self::PrehashedKey>;

    /// Decides on a request of who stands there, at a cost of 1. An error if it does not pass, or
    /// not in one step: its pending, or nothing if it is yet to be decided on.
    fn decide_prehashed(
        &self,
        key: Self::PrehashedKey,
    ) -> Result<Self::PendingDecision, Option<Self::PendingDecision>>;

    /// Whether the request passes.
    fn is_allowed(&self, pending: &Self::PendingDecision) -> bool;

    /// How long it must wait before it goes on.
    fn delay(&self, pending: &Self::PendingDecision) -> Duration;

    /// Whether it passes without a wait.
    #[inline]
    fn is_allowed_now(&self, pending: &Self::PendingDecision) -> bool {
        self.is_allowed(pending) && self.delay(pending).is_zero()
    }

    /// A timer on the clock that decides.
    fn sleep(&self, time: Duration) -> Sleep;

    /// Why it does not pass.
    fn denial<'a>(&'a self, pending: &'a Self::PendingDecision) -> Denial<'a>;

    /// What a limit that only watches would have turned it away for.
    fn shadow_denial<'a>(&'a self, pending: &'a Self::PendingDecision) -> Option<Denial<'a>>;

    /// Where the limits leave the caller, for the service; none where there is no limit.
    fn status(&self, pending: &Self::PendingDecision) -> Option<RateLimitStatus>;

    /// Writes what the limits say into the headers of a response.
    /// `retry_after` is what the response says in Retry-After, if it does.
    fn write_headers(
        &self,
        pending: &Self::PendingDecision,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    );

    /// Whether somebody is told of each decision.
    fn is_observed(&self) -> bool {
        false
    }

    /// Tells who wants to know that this was decided.
    fn observe(&self, _head: &Head<'_>, _ticket: &Self::PendingDecision) {}

    /// The same for the same key, for what must be so.
    fn key_hash(&self, pending: &Self::PendingDecision) -> u64;

    /// Whether the request took something that it keeps until its response has ended.
    fn holds_permits(&self, pending: &Self::PendingDecision) -> bool;

    /// Whether nothing is left to do for a request that ends so: then neither of the next two is
    /// called, and the pending may be kept for as long as anybody likes.
    fn is_settled(&self, pending: &Self::PendingDecision, completion: &Completion) -> bool;

    /// The request has ended.
    fn settle(&self, pending: Self::PendingDecision, completion: Completion);

    /// Gives back what the request was charged: it never reached the service.
    fn cancel(&self, pending: Self::PendingDecision);
}

/// A pending that a store elsewhere has to be asked for. It is a round trip: its memory does not
/// matter beside that.
pub(crate) type DecisionFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

mod sealed {
    /// The two of them are all there are.
    pub trait Sealed {}
}
