//! Permits of adaptive limits: acquired before anything is charged, waited for in a queue where a
//! policy has one, and released to the waiters.

use super::overload::SharedClock;
use super::reason::Reason;
use super::rules::Registry;
use super::verdict::PolicyVerdict;
use super::verdict_pool::VerdictState;
use super::{Completion, Engine};
use crate::policy::Policy;
use crate::stats::Event;
use ratekeeper::adaptive::{AdaptiveQueue, QueueTicket, RequestOutcome};
use ratekeeper::{Store, Timestamp, adaptive::AdaptivePermit, adaptive::Class};
use std::sync::atomic::{AtomicU64, Ordering};

/// The index of a policy in the rules, and a permit of its adaptive limit.
pub(super) type PolicyPermit = (u32, AdaptivePermit<SharedClock>);

/// A request in the queue of the adaptive policy at `index` of its query.
pub(super) struct QueuedRequest {
    index: usize,
    ticket: QueueTicket<SharedClock>,
}

/// Counters of denials by an adaptive limit, by reason.
#[derive(Default)]
pub(crate) struct RejectionCounters {
    at_capacity: AtomicU64,
    queue_full: AtomicU64,
    waited_too_long: AtomicU64,
}

impl RejectionCounters {
    /// Counts a denial for this reason.
    pub(super) fn add(&self, reason: &Reason) {
        let counter = match reason {
            Reason::AtCapacity => &self.at_capacity,
            Reason::QueueFull => &self.queue_full,
            Reason::WaitedTooLong => &self.waited_too_long,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> RejectionStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [at_capacity, queue_full, waited_too_long] =
            [&self.at_capacity, &self.queue_full, &self.waited_too_long].map(read);
        RejectionStats {
            at_capacity,
            queue_full,
            waited_too_long,
        }
    }
}

/// Denials by an adaptive limit, by reason, over all reloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RejectionStats {
    /// There was no free permit, and they did not wait.
    pub at_capacity: u64,
    /// There was no free permit, and the queue was full.
    pub queue_full: u64,
    /// They waited in the queue until its timeout.
    pub waited_too_long: u64,
}

impl Registry {
    /// The adaptive limit of a policy with its queue: the existing one if its parameters are
    /// unchanged, else a new one that starts at the current limit of the old. Requests in the old
    /// queue are served there, as permits of the old limit are released.
    pub(super) fn adaptive_queue(
        &mut self,
        number: u32,
        policy: &Policy,
    ) -> Option<AdaptiveQueue<SharedClock>> {
        let limit = policy.adaptive?;
        let build = |start: u64| {
            let concurrency = limit
                .builder()
                .start(start)
                .build_with_clock(self.clock.clone());
            AdaptiveQueue::new(concurrency, limit.queue)
        };
        let queue = match self.adaptive_queues.get(&number) {
            Some((known, queue)) if known.same_except_queue(&limit) => {
                let queue = queue.clone();
                self.set_queue_later(&queue, limit.queue);
                queue
            }
            Some((_, queue)) => build(queue.gate().limit()),
            None => build(limit.start),
        };
        self.adaptive_queues.insert(number, (limit, queue.clone()));
        Some(queue)
    }
}

impl VerdictState {
    /// Denies the request for the adaptive limit of a policy, and releases its permits.
    fn reject(&mut self, reason: Reason, number: u32) {
        self.release_permits(None);
        self.reason = reason;
        self.rejecting_policy = number;
    }

    /// Releases the permits to waiters, with the outcome of the request if it is known.
    pub(super) fn release_permits(&mut self, ended: Option<(RequestOutcome, Timestamp)>) {
        if self.permits.is_empty() {
            return;
        }
        let Some(rules) = self.rules.as_deref() else {
            return self.permits.clear();
        };
        for (number, permit) in self.permits.drain(..) {
            match ended {
                Some((outcome, now)) => permit.finish_at(outcome, now),
                None => drop(permit),
            }
            let Some(queue) = rules.policies[number as usize]
                .adaptive_queue
                .as_ref()
                .filter(|queue| !queue.is_empty())
            else {
                continue;
            };
            if let Some((_, now)) = ended {
                queue.gate().clock().set(now);
            }
            queue.serve();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Acquires a permit of each adaptive policy from index `from` on. Without a free permit the
    /// request is denied; or, if it may wait and the policy has a queue, joins the queue and
    /// returns its ticket.
    pub(super) fn acquire_permits(
        &self,
        verdict: &mut PolicyVerdict,
        from: usize,
        may_wait: bool,
    ) -> Option<QueuedRequest> {
        let state = &mut *verdict.state;
        let rules = state.rules.as_deref().expect("a verdict has rules");
        let query = &state.query;
        // Without configured classes every request counts as the most important, so that no
        // capacity is held back from it.
        let class = query
            .class
            .or_else(|| rules.default_class())
            .unwrap_or(Class::CriticalPlus);
        let may_wait = may_wait && !query.no_wait;
        for (index, &(number, enforced)) in query.adaptive_policies.iter().enumerate().skip(from) {
            let rule = &rules.policies[number as usize];
            let Some(queue) = &rule.adaptive_queue else {
                continue;
            };
            let concurrency = queue.gate();
            let can_wait =
                may_wait && enforced && rule.policy.adaptive.is_some_and(|limit| limit.has_queue());
            // A newcomer does not overtake the queue.
            let permit = if can_wait && !queue.is_empty() {
                None
            } else {
                concurrency.try_acquire_as_at(class, None, state.now).ok()
            };
            if let Some(shedder) = &rules.shedder {
                shedder.report(concurrency);
            }
            match permit {
                Some(permit) => state.permits.push((number, permit)),
                None if can_wait => {
                    concurrency.clock().set(state.now);
                    let ticket = queue.join(class, None);
                    if ticket.is_none() {
                        state.reject(Reason::QueueFull, number);
                    }
                    return ticket.map(|ticket| QueuedRequest { index, ticket });
                }
                None if enforced => {
                    state.reject(Reason::AtCapacity, number);
                    return None;
                }
                None => rule.counters.tally.add(Event::ShadowDenied),
            }
        }
        None
    }

    /// Waits in the queues of the adaptive policies, one after the other, until `latest` at most.
    pub(super) async fn wait_in_queue(
        &self,
        verdict: &mut PolicyVerdict,
        first: QueuedRequest,
        latest: Option<Timestamp>,
    ) {
        let store = &self.inner.store;
        let mut next = Some(first);
        while let Some(QueuedRequest { index, ticket }) = next.take() {
            let deadline = verdict.state.query.deadline;
            let until = [deadline, latest]
                .into_iter()
                .flatten()
                .fold(ticket.until(), Ord::min);
            let permit = ticket.wait(store.sleep_until(until)).await;
            let state = &mut *verdict.state;
            let now = store.now();
            let number = state.query.adaptive_policies[index].0;
            // The charge is made at this time, not at that of the arrival.
            state.now = now;
            match permit {
                Some(permit) => {
                    let mut permit = permit.into_inner();
                    permit.restart_at(now);
                    state.permits.push((number, permit));
                    next = self.acquire_permits(verdict, index + 1, true);
                }
                None if deadline.is_some_and(|deadline| deadline <= now) => {
                    state.reject(Reason::TooLate, number);
                }
                None => state.reject(Reason::WaitedTooLong, number),
            }
        }
    }

    /// Releases the permits of a request that has ended, with its outcome.
    pub(super) fn finish(&self, verdict: &mut PolicyVerdict, completion: &Completion) {
        if !verdict.state.permits.is_empty() {
            verdict
                .state
                .release_permits(Some((completion.outcome(), self.inner.store.now())));
        }
    }
}
