//! Places under adaptive limits: taken before anything is charged, waited for where a policy has a
//! queue, and given back to whoever waits.

use super::parts::Parts;
use super::pressure::Told;
use super::reason::Reason;
use super::rules::Registry;
use super::verdict::PolicyVerdict;
use super::{Completion, Engine};
use crate::policy::Policy;
use crate::stats::Event;
use ratekeeper::adaptive::{AdaptiveQueue, QueueTicket, RequestOutcome};
use ratekeeper::{Store, Timestamp, adaptive::AdaptivePermit, adaptive::Class};
use std::sync::atomic::{AtomicU64, Ordering};

/// A place that a request holds, and the policy whose it is, by its place among the rules.
pub(super) type Held = (u32, AdaptivePermit<Told>);

/// A request that waits in line for the nth of its gates.
pub(super) struct InLine {
    nth: usize,
    place: QueueTicket<Told>,
}

/// Whom an adaptive limit turned away, and for what.
#[derive(Default)]
pub(crate) struct Refusals {
    at_capacity: AtomicU64,
    queue_full: AtomicU64,
    waited_too_long: AtomicU64,
}

impl Refusals {
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

    pub(super) fn counts(&self) -> RejectionStats {
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
    pub(super) fn gate(&mut self, number: u32, policy: &Policy) -> Option<AdaptiveQueue<Told>> {
        let limit = policy.adaptive?;
        let build = |start: u64| {
            let gate = limit
                .builder()
                .start(start)
                .build_with_clock(self.clock.clone());
            AdaptiveQueue::new(gate, limit.queue)
        };
        let line = match self.gates.get(&number) {
            Some((known, line)) if known.is_alike(&limit) => {
                let line = line.clone();
                self.set_queue_later(&line, limit.queue);
                line
            }
            Some((_, line)) => build(line.gate().limit()),
            None => build(limit.start),
        };
        self.gates.insert(number, (limit, line.clone()));
        Some(line)
    }
}

impl Parts {
    /// Turns the request away for one of its gates.
    fn refuse(&mut self, reason: Reason, number: u32) {
        self.free(None);
        (self.reason, self.full) = (reason, number);
    }

    /// Gives its places back to whoever waits for them, and says how the request ended, if that
    /// says something.
    pub(super) fn free(&mut self, ended: Option<(RequestOutcome, Timestamp)>) {
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
            let Some(line) = rules.policies[number as usize]
                .gate
                .as_ref()
                .filter(|line| !line.is_empty())
            else {
                continue;
            };
            if let Some((_, now)) = ended {
                line.gate().clock().tell(now);
            }
            line.serve();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Takes a place at each gate from the nth on. Who finds none is turned away; or, if it may
    /// wait and the policy has a queue, says where it waits.
    pub(super) fn take_places(
        &self,
        verdict: &mut PolicyVerdict,
        from: usize,
        may_wait: bool,
    ) -> Option<InLine> {
        let parts = &mut *verdict.parts;
        let (rules, asking) = (
            parts.rules.as_deref().expect("a verdict has rules"),
            &parts.asking,
        );
        // A gate keeps room for the more important, once anything says how important a request is.
        let class = asking
            .class
            .or_else(|| rules.default_class())
            .unwrap_or(Class::CriticalPlus);
        let may_wait = may_wait && !asking.at_once;
        for (nth, &(number, enforced)) in asking.gates.iter().enumerate().skip(from) {
            let ruling = &rules.policies[number as usize];
            let Some(line) = &ruling.gate else { continue };
            let gate = line.gate();
            let waits =
                may_wait && enforced && ruling.policy.adaptive.is_some_and(|limit| limit.queues());
            // Nobody passes those who wait.
            let permit = match waits && !line.is_empty() {
                true => None,
                false => gate.try_acquire_as_at(class, None, parts.now).ok(),
            };
            if let Some(sheds) = &rules.sheds {
                sheds.hear(gate);
            }
            match permit {
                Some(permit) => parts.permits.push((number, permit)),
                None if waits => {
                    gate.clock().tell(parts.now);
                    let place = line.join(class, None);
                    if place.is_none() {
                        parts.refuse(Reason::QueueFull, number);
                    }
                    return place.map(|place| InLine { nth, place });
                }
                None if enforced => {
                    parts.refuse(Reason::AtCapacity, number);
                    return None;
                }
                None => ruling.figures.tally.add(Event::ShadowDenied),
            }
        }
        None
    }

    /// Waits in the lines of its gates, one after the other, until `latest` at most.
    pub(super) async fn wait_in_line(
        &self,
        verdict: &mut PolicyVerdict,
        first: InLine,
        latest: Option<Timestamp>,
    ) {
        let store = &self.inner.store;
        let mut next = Some(first);
        while let Some(InLine { nth, place }) = next.take() {
            let deadline = verdict.parts.asking.deadline;
            let until = [deadline, latest]
                .into_iter()
                .flatten()
                .fold(place.until(), Ord::min);
            let turn = place.wait(store.sleep_until(until)).await;
            let (parts, now) = (&mut *verdict.parts, store.now());
            let number = parts.asking.gates[nth].0;
            // What is charged is charged now.
            parts.now = now;
            match turn {
                Some(permit) => {
                    let mut permit = permit.into_inner();
                    permit.restart_at(now);
                    parts.permits.push((number, permit));
                    next = self.take_places(verdict, nth + 1, true);
                }
                None if deadline.is_some_and(|deadline| deadline <= now) => {
                    parts.refuse(Reason::TooLate, number)
                }
                None => parts.refuse(Reason::WaitedTooLong, number),
            }
        }
    }

    /// A request has ended: what it held is measured and free.
    pub(super) fn finish(&self, verdict: &mut PolicyVerdict, ending: &Completion) {
        if !verdict.parts.permits.is_empty() {
            verdict
                .parts
                .free(Some((ending.outcome(), self.inner.store.now())));
        }
    }
}
