//! One limit for each key: the short way, without policies.

use super::{Gate, RateLimitStatus, sealed};
use crate::answer::{Denial, Dialects, Figures};
use crate::head::Head;
use crate::key::Key;
use http::HeaderMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tollgate::{
    Algorithm, Charge, Clock, Decision, DefaultClock, Instant, Keyed, Limit, Reservation, ReserveError, Sleep,
    SystemClock,
};
use tollgate_policy::{Action, Count, DenialStatus, Ending, IPV6_PREFIX};

/// The same limit for each key; see [`RateLimitLayer::per_ip`](crate::RateLimitLayer::per_ip). A handle: clones share the keys.
#[derive(Clone)]
pub struct OneLimit<C: Clock = DefaultClock> {
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
    allowed: bool,
    decision: Decision,
    held: Held<C>,
    delay: Duration,
    now: Instant,
    /// Of the key, if the request is turned away: who passes is not told when to come back.
    hash: u64,
}

enum Held<C: Clock> {
    Nothing,
    Charge(Charge<C>),
    Slot(Reservation<C>),
}

impl OneLimit {
    pub(crate) fn new(key: Key, limit: Limit) -> Self {
        Self::on(Keyed::with_clock(limit, SystemClock), key)
    }
}

impl<C: Clock> OneLimit<C> {
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

    /// Takes `cost` for a key, or says why not.
    fn take(&self, key: &tollgate::Key<'_, C>, cost: u64, now: Instant) -> Result<(Held<C>, Duration), Decision> {
        let take = || match key.take(cost) {
            Ok(charge) => Ok((Held::Charge(charge), Duration::ZERO)),
            Err(denied) => Err(denied.decision()),
        };
        let paced = self.keyed.limit().judged_by() == Algorithm::Pacing;
        let longest = match self.action {
            Action::Delay { max } => max,
            // A queue knows itself how long one may wait in it.
            Action::Enforce if paced => Duration::MAX,
            _ => return take(),
        };
        // What need not wait is charged, not reserved: a slot whose time has come gives nothing back.
        if !paced && let Ok(taken) = take() {
            return Ok(taken);
        }
        match key.reserve_within(cost, longest) {
            Ok(slot) => {
                let delay = slot.delay_from(now);
                Ok((Held::Slot(slot), delay))
            }
            Err(ReserveError::Denied(denied)) => Err(denied.decision()),
            // Windows and logs cannot be waited for: they say yes or no.
            Err(_) => take(),
        }
    }
}

impl<C: Clock> sealed::Sealed for OneLimit<C> {}

impl<C: Clock> Gate for OneLimit<C> {
    type Ticket = Ticket<C>;

    fn decide(&self, head: &Head<'_>, cost: u64) -> Ticket<C> {
        let (key, now) = (self.key.of(head, self.ipv6_prefix), self.keyed.clock().now());
        let known = self.keyed.key(&key[..]).at(now);
        match self.take(&known, cost, now) {
            Ok((held, delay)) => {
                let decision = known.peek_n(0);
                Ticket { allowed: true, decision, held, delay, now, hash: 0 }
            }
            Err(decision) => {
                let allowed = self.action == Action::Shadow;
                let hash = self.secret.hash_one(&key);
                Ticket { allowed, decision, held: Held::Nothing, delay: Duration::ZERO, now, hash }
            }
        }
    }

    fn is_allowed(&self, ticket: &Ticket<C>) -> bool {
        ticket.allowed
    }

    fn delay(&self, ticket: &Ticket<C>) -> Duration {
        ticket.delay
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let clock = self.keyed.clock();
        clock.sleep_until(clock.now() + time)
    }

    fn denial<'a>(&'a self, ticket: &'a Ticket<C>) -> Denial<'a> {
        Denial::of_decision(&self.name, &ticket.decision, self.status)
    }

    fn shadow<'a>(&'a self, ticket: &'a Ticket<C>) -> Option<Denial<'a>> {
        let watched = self.action == Action::Shadow && matches!(ticket.held, Held::Nothing);
        watched.then(|| self.denial(ticket).in_shadow())
    }

    fn status(&self, ticket: &Ticket<C>) -> Option<RateLimitStatus> {
        let Ticket { decision, .. } = ticket;
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: (&*self.name).into(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: self.shadow(ticket).is_some(),
        })
    }

    fn tell(&self, ticket: &Ticket<C>, dialects: Dialects, headers: &mut HeaderMap, retry_after: Option<u64>) {
        // A limit that only watches is not told.
        if self.action == Action::Shadow {
            return;
        }
        let (name, limit) = ((&*self.name).into(), self.keyed.limit().into());
        if let Some(figures) = Figures::new(name, &limit, &ticket.decision) {
            dialects.write(headers, &figures, std::iter::once(figures), retry_after, ticket.now.since_unix());
        }
    }

    fn key_hash(&self, ticket: &Ticket<C>) -> u64 {
        ticket.hash
    }

    fn keeps(&self, _: &Ticket<C>) -> bool {
        false
    }

    fn settle(&self, ticket: Ticket<C>, ending: Ending) {
        let counts = match (self.count, ending.is_failure()) {
            (Count::All, _) | (_, None) => true,
            (Count::Failures, Some(failed)) => failed,
            (Count::Successes, Some(failed)) => !failed,
        };
        if !counts {
            self.cancel(ticket);
        }
    }

    fn cancel(&self, ticket: Ticket<C>) {
        match ticket.held {
            Held::Nothing => {}
            Held::Charge(charge) => charge.settle(0),
            Held::Slot(slot) => slot.cancel(),
        }
    }
}
