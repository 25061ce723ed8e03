//! What is known of one other side: how much it still lets through, until when, and what of ours it
//! has not answered yet.
//!
//! Pure: time comes in as an argument, and so does chance.

use super::rate_limit_headers::{Allowance, ResponseInfo};
use super::{RetryBudget, Throttle};
use ratekeeper::Timestamp;
use std::task::Waker;
use std::time::Duration;

pub(super) struct Host {
    /// So many more may be sent. What is not spent by the time stays: no limit takes back what it
    /// has left.
    remaining: u64,
    /// Until then nothing is added to it; none if nothing is known. When it has passed and nothing
    /// is left, one goes ahead and its answer is waited for.
    until: Option<Timestamp>,
    /// When the last one was sent.
    last_sent: Timestamp,
    /// Sent, and not answered.
    in_flight: u64,
    pub(super) throttle: Option<Throttle>,
    pub(super) budget: RetryBudget,
    /// Those who wait for an answer to somebody else.
    waiting: Vec<Waker>,
}

/// Whether one may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendDecision {
    /// Now; it is in flight.
    Now,
    /// Not before.
    NotBefore(Timestamp),
    /// When one that is in flight is answered, or at that time: some answers are long in coming.
    AfterResponse(Timestamp),
}

/// For so long an answer is waited for before another goes ahead.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

impl Host {
    pub(super) fn new(throttle: Option<Throttle>, budget: RetryBudget) -> Self {
        Self {
            remaining: 0,
            until: None,
            last_sent: Timestamp::UNIX_EPOCH,
            in_flight: 0,
            throttle,
            budget,
            waiting: Vec::new(),
        }
    }

    /// Asks to send one.
    pub(super) fn try_send(&mut self, now: Timestamp) -> SendDecision {
        match self.until {
            None => {}
            Some(_) if self.remaining > 0 => self.remaining -= 1,
            Some(until) if now < until => return SendDecision::NotBefore(until),
            // What comes next is not known: one goes ahead and finds out.
            Some(until) => {
                let wait_deadline = until.max(self.last_sent) + RESPONSE_TIMEOUT;
                if self.in_flight > 0 && now < wait_deadline {
                    return SendDecision::AfterResponse(wait_deadline);
                }
            }
        }
        self.last_sent = now;
        self.in_flight += 1;
        SendDecision::Now
    }

    /// Until when nothing is to be sent.
    pub(super) fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.until
            .filter(|until| now < *until && self.remaining == 0)
    }

    /// One that was sent at that time came back with this.
    pub(super) fn on_response(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        info: &ResponseInfo,
    ) -> Vec<Waker> {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let (Some(throttle), false) = (&mut self.throttle, info.denied) {
            throttle.accepted(now);
        }
        // Answers overtake one another: of those that were sent before the time was over nothing is
        // added, or the same would be spent twice.
        let known = self.until.filter(|until| sent < *until);
        match (info.allowance, known) {
            // What is in flight may have been counted there already, or not yet.
            (Some(Allowance { remaining, window }), None) => {
                self.remaining = remaining.saturating_sub(self.in_flight);
                self.until = Some(now + window);
            }
            (Some(Allowance { remaining, window }), Some(until)) => {
                self.remaining = self.remaining.min(remaining.saturating_sub(self.in_flight));
                self.until = Some(if remaining == 0 {
                    until.max(now + window)
                } else {
                    until
                });
            }
            // It has nothing more to say.
            (None, None) if !info.denied => self.until = None,
            (None, _) => {}
        }
        std::mem::take(&mut self.waiting)
    }

    /// One that was sent was given up, or failed: nobody knows what became of it.
    pub(super) fn on_failure(&mut self) -> Vec<Waker> {
        self.in_flight = self.in_flight.saturating_sub(1);
        std::mem::take(&mut self.waiting)
    }

    /// Whether one may be tried again: the budget has one, and the throttle lets it through.
    pub(super) fn allow_retry(&mut self, now: Timestamp, draw: f64) -> bool {
        self.budget.retry(now)
            && self
                .throttle
                .as_mut()
                .is_none_or(|throttle| throttle.request(now, draw))
    }

    /// Wakes this one with the next answer.
    pub(super) fn register_waker(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Whether there is nothing here to remember.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.in_flight == 0 && self.until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests;
