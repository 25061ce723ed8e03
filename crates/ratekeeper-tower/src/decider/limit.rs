//! `LimitDecider`: decides by one limit for each key.

use super::{Decider, DecisionFuture, RateLimitStatus, sealed};
use crate::head::Head;
use crate::key::{Key, ipv4_key, ipv6_key};
use crate::response::{Denial, Dialects, LimitInfo};
use http::HeaderMap;
use ratekeeper::{
    Algorithm, Clock, Decision, Keyed, Limit, Reservation, Timestamp, clock::Sleep,
    clock::SystemClock, decision::ReserveError, keyed::ChargeToken, keyed::HashedKey,
};
use ratekeeper_policy::{
    Action, Completion, Count, address::IPV6_PREFIX, policy::DenialStatus, request::RequestError,
    request::RequestParts, request::check_cookie, request::check_headers, request::check_hosts,
    request::check_path,
};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Decides by one limit for each key; see
/// [`RateLimitLayer::per_ip`](crate::RateLimitLayer::per_ip). A handle: clones share the keys.
#[derive(Clone)]
pub struct LimitDecider<C: Clock = SystemClock> {
    pub(crate) keyed: Keyed<[u8], C>,
    pub(crate) key: Key,
    pub(crate) name: Arc<str>,
    pub(crate) ipv6_prefix: u8,
    pub(crate) count: Count,
    pub(crate) action: Action,
    pub(crate) status: DenialStatus,
    /// Seeds the hash that spreads Retry-After over keys.
    secret: RandomState,
}

/// The decision on a request, with what is needed to refund it.
pub struct PendingDecision<C: Clock> {
    decision: Decision,
    charge: ChargeToken,
    /// Boxed, because few requests wait: the decisions on all others stay small.
    reservation: Option<Box<(Reservation<C>, Duration)>>,
    /// A hash of the key if the request is over the limit: it spreads Retry-After, the same for the
    /// same key.
    retry_hash: u64,
    now: Timestamp,
}

impl<C: Clock> PendingDecision<C> {
    fn is_denied(&self) -> bool {
        self.reservation.is_none() && self.decision.is_denied()
    }
}

impl LimitDecider {
    pub(crate) fn new(key: Key, limit: Limit) -> Self {
        Self::with_keyed(Keyed::with_clock(limit, SystemClock), key)
    }
}

impl<C: Clock> LimitDecider<C> {
    pub(crate) fn with_keyed(keyed: Keyed<[u8], C>, key: Key) -> Self {
        Self {
            keyed,
            key,
            name: "default".into(),
            ipv6_prefix: IPV6_PREFIX,
            count: Count::All,
            action: Action::Enforce,
            status: DenialStatus::default(),
            secret: RandomState::new(),
        }
    }

    /// Decides on a request for a key. `Err` if it is denied, or if it may have to wait.
    #[inline(always)]
    #[allow(
        clippy::result_large_err,
        reason = "inlined into its caller and built in place"
    )]
    fn take(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        cost: u64,
    ) -> Result<PendingDecision<C>, PendingDecision<C>> {
        let now = self.keyed.clock().now();
        let key = key.at(now);
        match self.action {
            Action::Delay { max } => return Err(self.take_or_wait(&key, cost, now, max)),
            // A paced limit bounds its own wait.
            Action::Enforce if self.is_paced() => {
                return Err(self.take_or_wait(&key, cost, now, Duration::MAX));
            }
            _ => {}
        }
        let (decision, charge) = key.take_token(cost);
        if decision.is_denied() {
            return Err(self.denied(&key, decision, now));
        }
        Ok(PendingDecision {
            decision,
            charge,
            reservation: None,
            retry_hash: 0,
            now,
        })
    }

    /// The decision on a request over the limit.
    #[inline(never)]
    fn denied(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        decision: Decision,
        now: Timestamp,
    ) -> PendingDecision<C> {
        let retry_hash = self.secret.hash_one(key.hashed());
        PendingDecision {
            decision,
            charge: ChargeToken::default(),
            reservation: None,
            retry_hash,
            now,
        }
    }

    /// Charges `cost` to a key, now or after a wait.
    #[inline(never)]
    fn take_or_wait(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        cost: u64,
        now: Timestamp,
        max_wait: Duration,
    ) -> PendingDecision<C> {
        let pending = |decision, charge, reservation| PendingDecision {
            decision,
            charge,
            reservation,
            retry_hash: 0,
            now,
        };
        // A request that need not wait is charged, not reserved: a reservation whose time has come
        // cannot be refunded.
        if !self.is_paced()
            && let (decision, charge) = key.take_token(cost)
            && decision.is_allowed()
        {
            return pending(decision, charge, None);
        }
        match key.reserve_within(cost, max_wait) {
            Ok(reservation) => {
                let delay = reservation.delay_from(now);
                pending(
                    key.peek_n(0),
                    ChargeToken::default(),
                    Some(Box::new((reservation, delay))),
                )
            }
            Err(ReserveError::Denied(denied)) => self.denied(key, denied.decision(), now),
            // Windows and logs cannot reserve: they allow or deny.
            Err(_) => match key.take_token(cost) {
                (decision, _) if decision.is_denied() => self.denied(key, decision, now),
                (decision, charge) => pending(decision, charge, None),
            },
        }
    }

    /// Whether a request that completed like this stays counted.
    #[inline(never)]
    fn counts(&self, completion: &Completion) -> bool {
        match (self.count, completion.is_failure()) {
            (Count::All, _) | (_, None) => true,
            (Count::Failures, Some(failed)) => failed,
            (Count::Successes, Some(failed)) => !failed,
        }
    }

    fn is_paced(&self) -> bool {
        self.keyed.algorithm_kind() == Algorithm::Pacing
    }
}

impl<C: Clock> sealed::Sealed for LimitDecider<C> {}

impl<C: Clock> Decider for LimitDecider<C> {
    type PendingDecision = PendingDecision<C>;
    type PrehashedKey = HashedKey;

    fn validate(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError> {
        let RequestParts {
            path,
            authority,
            headers,
        } = head.parts();
        if everything {
            check_path(path)?;
            check_hosts(
                authority,
                headers()
                    .filter(|(name, _)| *name == "host")
                    .map(|(_, value)| value),
            )?;
        }
        if let Some(name) = self.key.cookie_name() {
            check_cookie(name, head.cookies(name))?;
        }
        match self.key.header_name() {
            Some(name) => check_headers(std::iter::once(name.as_str()), headers()),
            None => Ok(()),
        }
    }

    #[inline]
    fn decide(
        &self,
        head: &Head<'_>,
        cost: u64,
        pending: &mut Option<PendingDecision<C>>,
    ) -> Option<DecisionFuture<PendingDecision<C>>> {
        self.key.with_bytes(head, self.ipv6_prefix, |bytes| {
            let (Ok(decision) | Err(decision)) = self.take(&self.keyed.key(bytes), cost);
            *pending = Some(decision);
        });
        None
    }

    #[inline(always)]
    fn prehash(&self, ip: IpAddr) -> Option<HashedKey> {
        (self.key.is_ip() && self.action == Action::Enforce).then(|| match ip {
            IpAddr::V4(ip) => self.keyed.hash(&ipv4_key(ip)[..]),
            IpAddr::V6(ip) => self.keyed.hash(&ipv6_key(ip, self.ipv6_prefix)[..]),
        })
    }

    #[inline(always)]
    fn decide_prehashed(
        &self,
        key: HashedKey,
    ) -> Result<PendingDecision<C>, Option<PendingDecision<C>>> {
        self.take(&self.keyed.hashed(key).ok_or(None)?, 1)
            .map_err(Some)
    }

    fn is_allowed(&self, pending: &PendingDecision<C>) -> bool {
        self.action == Action::Shadow || !pending.is_denied()
    }

    fn delay(&self, pending: &PendingDecision<C>) -> Duration {
        pending
            .reservation
            .as_ref()
            .map_or(Duration::ZERO, |reservation| reservation.1)
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let clock = self.keyed.clock();
        clock.sleep_until(clock.now() + time)
    }

    fn denial<'a>(&'a self, pending: &'a PendingDecision<C>) -> Denial<'a> {
        Denial::of_decision(&self.name, &pending.decision, self.status)
    }

    fn shadow_denial<'a>(&'a self, pending: &'a PendingDecision<C>) -> Option<Denial<'a>> {
        let watched = self.action == Action::Shadow && pending.is_denied();
        watched.then(|| self.denial(pending).in_shadow())
    }

    fn status(&self, pending: &PendingDecision<C>) -> Option<RateLimitStatus> {
        let PendingDecision { decision, .. } = pending;
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: (&*self.name).into(),
            limit: decision.capacity(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: self.shadow_denial(pending).is_some(),
        })
    }

    fn write_headers(
        &self,
        pending: &PendingDecision<C>,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    ) {
        // A shadow limit writes no headers.
        if self.action == Action::Shadow || dialects.is_none() {
            return;
        }
        let (name, now) = ((&*self.name).into(), pending.now.since_unix());
        // The common dialects do not contain the rate.
        if dialects.are_x() {
            if let Some(info) = LimitInfo::of_decision(name, &pending.decision) {
                dialects.write_x(headers, &info, retry_after, now);
            }
            return;
        }
        let limit = self.keyed.limit();
        if let Some(info) = LimitInfo::new(name, Some(&limit), &pending.decision) {
            dialects.write(headers, &info, std::iter::once(info), retry_after, now);
        }
    }

    /// 0 for allowed requests, which have no Retry-After.
    fn key_hash(&self, pending: &PendingDecision<C>) -> u64 {
        pending.retry_hash
    }

    fn holds_permits(&self, _: &PendingDecision<C>) -> bool {
        false
    }

    #[inline]
    fn is_settled(&self, _: &PendingDecision<C>, completion: &Completion) -> bool {
        self.count == Count::All || self.counts(completion)
    }

    fn settle(&self, pending: PendingDecision<C>, completion: Completion) {
        if !self.counts(&completion) {
            self.cancel(pending);
        }
    }

    fn cancel(&self, pending: PendingDecision<C>) {
        match pending.reservation {
            None => self.keyed.settle(pending.charge, 0),
            Some(reservation) => reservation.0.cancel(),
        }
    }
}
