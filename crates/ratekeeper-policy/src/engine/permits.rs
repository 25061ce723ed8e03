//! Places under adaptive limits: taken before anything is charged, waited for where a policy has a
//! queue, and given back to whoever waits.

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

/// A place that a request holds, and the policy whose it is, by its place among the rules.
pub(super) type PolicyPermit = (u32, AdaptivePermit<SharedClock>);

/// A request that waits in line for the nth of its gates.
pub(super) struct QueuedRequest {
    index: usize,
    ticket: QueueTicket<SharedClock>,
}

/// Whom an adaptive limit turned away, and for what.
#[derive(Default)]
pub(crate) struct RejectionCounters {
    at_capacity: AtomicU64,
    queue_full: AtomicU64,
    waited_too_long: AtomicU64,
}

impl RejectionCounters {
    /// Counts a request that was turned away for this.
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

/// How many requests an adaptive limit turned away, over all reloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RejectionStats {
    /// They found no place, and did not wait.
    pub at_capacity: u64,
    /// They found no place, and as many waiting as may.
    pub queue_full: u64,
    /// They waited in line for as long as they might.
    pub waited_too_long: u64,
}

impl Registry {
    /// The gate of a policy and the line in front of it: the same as before if it is to be the
    /// same, else one that begins where that was. Whoever waits in another line is served there, by
    /// those who hold places behind it.
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
    /// Turns the request away for one of its gates.
    fn reject(&mut self, reason: Reason, number: u32) {
        self.release_permits(None);
        (self.reason, self.rejecting_policy) = (reason, number);
    }

    /// Gives its places back to whoever waits for them, and says how the request ended, if that
    /// says something.
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
                queue.gate().clock().tell(now);
            }
            queue.serve();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Takes a place at each gate from the nth on. Who finds none is turned away; or, if it may
    /// wait and the policy has a queue, says where it waits.
    pub(super) fn acquire_permits(
        &self,
        verdict: &mut PolicyVerdict,
        from: usize,
        may_wait: bool,
    ) -> Option<QueuedRequest> {
        let state = &mut *verdict.state;
        let (rules, query) = (
            state.rules.as_deref().expect("a verdict has rules"),
            &state.query,
        );
        // A gate keeps room for the more important, once anything says how important a request is.
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
            // Nobody passes those who wait.
            let permit = match can_wait && !queue.is_empty() {
                true => None,
                false => concurrency.try_acquire_as_at(class, None, state.now).ok(),
            };
            if let Some(shedder) = &rules.shedder {
                shedder.report(concurrency);
            }
            match permit {
                Some(permit) => state.permits.push((number, permit)),
                None if can_wait => {
                    concurrency.clock().tell(state.now);
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

    /// Waits in the lines of its gates, one after the other, until `latest` at most.
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
            let (state, now) = (&mut *verdict.state, store.now());
            let number = state.query.adaptive_policies[index].0;
            // What is charged is charged now.
            state.now = now;
            match permit {
                Some(permit) => {
                    let mut permit = permit.into_inner();
                    permit.restart_at(now);
                    state.permits.push((number, permit));
                    next = self.acquire_permits(verdict, index + 1, true);
                }
                None if deadline.is_some_and(|deadline| deadline <= now) => {
                    state.reject(Reason::TooLate, number)
                }
                None => state.reject(Reason::WaitedTooLong, number),
            }
        }
    }

    /// A request has ended: what it held is measured and free.
    pub(super) fn finish(&self, verdict: &mut PolicyVerdict, completion: &Completion) {
        if !verdict.state.permits.is_empty() {
            verdict
                .state
                .release_permits(Some((completion.outcome(), self.inner.store.now())));
        }
    }
}
