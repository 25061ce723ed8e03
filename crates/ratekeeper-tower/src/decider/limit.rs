//! One limit for each key, without policies.

use super::{Decider, Later, RateLimitStatus, sealed};
use crate::head::Head;
use crate::key::{Key, of_ipv4, of_ipv6};
use crate::response::{Denial, Dialects, Figures};
use http::HeaderMap;
use ratekeeper::{
    Algorithm, Clock, Decision, Keyed, Limit, Reservation, Timestamp, clock::DefaultClock,
    clock::Sleep, clock::SystemClock, decision::ReserveError, keyed::ChargeToken, keyed::HashedKey,
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

/// The same limit for each key; see [`RateLimitLayer::per_ip`](crate::RateLimitLayer::per_ip). A
/// handle: clones share the keys.
#[derive(Clone)]
pub struct LimitDecider<C: Clock = DefaultClock> {
    pub(crate) keyed: Keyed<[u8], C>,
    pub(crate) key: Key,
    pub(crate) name: Arc<str>,
    pub(crate) ipv6_prefix: u8,
    pub(crate) count: Count,
    pub(crate) action: Action,
    pub(crate) status: DenialStatus,
    /// Who comes back when is spread by this.
    secret: RandomState,
}

/// What is remembered of a request.
pub struct Ticket<C: Clock> {
    decision: Decision,
    taken: ChargeToken,
    /// Few wait for one: it has memory of its own, so that the tickets of all others are small.
    slot: Option<Box<(Reservation<C>, Duration)>>,
    /// By when, of who is over the limit, the client is told to come back: the same for the same
    /// key.
    spread: u64,
    now: Timestamp,
}

impl<C: Clock> Ticket<C> {
    fn is_over(&self) -> bool {
        self.slot.is_none() && self.decision.is_denied()
    }
}

impl LimitDecider {
    pub(crate) fn new(key: Key, limit: Limit) -> Self {
        Self::on(Keyed::with_clock(limit, SystemClock), key)
    }
}

impl<C: Clock> LimitDecider<C> {
    pub(crate) fn on(keyed: Keyed<[u8], C>, key: Key) -> Self {
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

    /// Decides on what a key asks for. An error if it does not pass, or not in one step.
    // What most requests are, in a straight line; a queue is never charged so.
    #[inline(always)]
    #[allow(
        clippy::result_large_err,
        reason = "it is compiled into its caller, and stays where it is made"
    )]
    fn take(&self, key: &ratekeeper::keyed::Key<'_, C>, cost: u64) -> Result<Ticket<C>, Ticket<C>> {
        let now = self.keyed.clock().now();
        let key = key.at(now);
        let at_once = if let Action::Delay { .. } = self.action {
            None
        } else {
            key.try_take_token(cost)
        };
        match at_once {
            Some((decision, taken)) if decision.is_allowed() => Ok(Ticket {
                decision,
                taken,
                slot: None,
                spread: 0,
                now,
            }),
            Some((decision, _)) => Err(self.over(&key, decision, now)),
            None => Err(self.take_anyhow(&key, cost, now)),
        }
    }

    #[inline(never)]
    fn take_anyhow(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        cost: u64,
        now: Timestamp,
    ) -> Ticket<C> {
        let ticket = match self.action {
            Action::Delay { max } => self.take_or_wait(key, cost, now, max),
            // A queue knows itself how long one may wait in it.
            Action::Enforce if self.is_paced() => self.take_or_wait(key, cost, now, Duration::MAX),
            _ => {
                let (decision, taken) = key.take_token(cost);
                Ticket {
                    decision,
                    taken,
                    slot: None,
                    spread: 0,
                    now,
                }
            }
        };
        if ticket.is_over() {
            self.over(key, ticket.decision, now)
        } else {
            ticket
        }
    }

    /// The ticket of who is over the limit.
    #[inline(never)]
    fn over(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        decision: Decision,
        now: Timestamp,
    ) -> Ticket<C> {
        let spread = self.secret.hash_one(key.hashed());
        Ticket {
            decision,
            taken: ChargeToken::default(),
            slot: None,
            spread,
            now,
        }
    }

    /// Takes `cost` for a key, now or after a wait.
    #[inline(never)]
    fn take_or_wait(
        &self,
        key: &ratekeeper::keyed::Key<'_, C>,
        cost: u64,
        now: Timestamp,
        longest: Duration,
    ) -> Ticket<C> {
        let ticket = |decision, taken, slot| Ticket {
            decision,
            taken,
            slot,
            spread: 0,
            now,
        };
        // What need not wait is charged, not reserved: a slot whose time has come gives nothing
        // back.
        if !self.is_paced()
            && let (decision, taken) = key.take_token(cost)
            && decision.is_allowed()
        {
            return ticket(decision, taken, None);
        }
        match key.reserve_within(cost, longest) {
            Ok(slot) => {
                let delay = slot.delay_from(now);
                ticket(
                    key.peek_n(0),
                    ChargeToken::default(),
                    Some(Box::new((slot, delay))),
                )
            }
            Err(ReserveError::Denied(denied)) => {
                ticket(denied.decision(), ChargeToken::default(), None)
            }
            // Windows and logs cannot be waited for: they say yes or no.
            Err(_) => {
                let (decision, taken) = key.take_token(cost);
                ticket(decision, taken, None)
            }
        }
    }

    /// Whether a request that ended so stays counted.
    #[inline(never)]
    fn counts(&self, ending: &Completion) -> bool {
        match (self.count, ending.is_failure()) {
            (Count::All, _) | (_, None) => true,
            (Count::Failures, Some(failed)) => failed,
            (Count::Successes, Some(failed)) => !failed,
        }
    }

    fn is_paced(&self) -> bool {
        self.keyed.limit().algorithm_kind() == Algorithm::Pacing
    }
}

impl<C: Clock> sealed::Sealed for LimitDecider<C> {}

impl<C: Clock> Decider for LimitDecider<C> {
    type Ticket = Ticket<C>;
    type Seat = HashedKey;

    fn check(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError> {
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
        ticket: &mut Option<Ticket<C>>,
    ) -> Option<Later<Ticket<C>>> {
        self.key.with(head, self.ipv6_prefix, |bytes| {
            let (Ok(taken) | Err(taken)) = self.take(&self.keyed.key(bytes), cost);
            *ticket = Some(taken);
        });
        None
    }

    #[inline(always)]
    fn seat(&self, ip: IpAddr) -> Option<HashedKey> {
        (self.key.is_ip() && self.action == Action::Enforce).then(|| match ip {
            IpAddr::V4(ip) => self.keyed.hash(&of_ipv4(ip)[..]),
            IpAddr::V6(ip) => self.keyed.hash(&of_ipv6(ip, self.ipv6_prefix)[..]),
        })
    }

    #[inline(always)]
    fn pass(&self, seat: HashedKey) -> Result<Ticket<C>, Option<Ticket<C>>> {
        self.take(&self.keyed.hashed(seat).ok_or(None)?, 1)
            .map_err(Some)
    }

    fn is_allowed(&self, ticket: &Ticket<C>) -> bool {
        self.action == Action::Shadow || !ticket.is_over()
    }

    fn delay(&self, ticket: &Ticket<C>) -> Duration {
        ticket.slot.as_ref().map_or(Duration::ZERO, |slot| slot.1)
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let clock = self.keyed.clock();
        clock.sleep_until(clock.now() + time)
    }

    fn denial<'a>(&'a self, ticket: &'a Ticket<C>) -> Denial<'a> {
        Denial::of_decision(&self.name, &ticket.decision, self.status)
    }

    fn shadow<'a>(&'a self, ticket: &'a Ticket<C>) -> Option<Denial<'a>> {
        let watched = self.action == Action::Shadow && ticket.is_over();
        watched.then(|| self.denial(ticket).in_shadow())
    }

    fn status(&self, ticket: &Ticket<C>) -> Option<RateLimitStatus> {
        let Ticket { decision, .. } = ticket;
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: (&*self.name).into(),
            limit: decision.capacity(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: self.shadow(ticket).is_some(),
        })
    }

    fn tell(
        &self,
        ticket: &Ticket<C>,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    ) {
        // A limit that only watches is not told.
        if self.action == Action::Shadow || dialects.is_none() {
            return;
        }
        let (name, now) = ((&*self.name).into(), ticket.now.since_unix());
        // What most speak tells nothing of the rate.
        if dialects.are_x() {
            if let Some(figures) = Figures::of_decision(name, &ticket.decision) {
                dialects.write_x(headers, &figures, retry_after, now);
            }
            return;
        }
        let limit = self.keyed.limit();
        if let Some(figures) = Figures::new(name, Some(&limit), &ticket.decision) {
            dialects.write(
                headers,
                &figures,
                std::iter::once(figures),
                retry_after,
                now,
            );
        }
    }

    /// Who passes is not told when to come back.
    fn key_hash(&self, ticket: &Ticket<C>) -> u64 {
        ticket.spread
    }

    fn keeps(&self, _: &Ticket<C>) -> bool {
        false
    }

    #[inline]
    fn is_settled(&self, _: &Ticket<C>, ending: &Completion) -> bool {
        self.count == Count::All || self.counts(ending)
    }

    fn settle(&self, ticket: Ticket<C>, ending: Completion) {
        if !self.counts(&ending) {
            self.cancel(ticket);
        }
    }

    fn cancel(&self, ticket: Ticket<C>) {
        match ticket.slot {
            None => self.keyed.settle(ticket.taken, 0),
            Some(slot) => slot.0.cancel(),
        }
    }
}
