//! The state of one host: how many requests its limit still allows, until when, and how many have
//! no response yet.
//!
//! A pure state machine: the time and random numbers are arguments.

use super::rate_limit_headers::{Allowance, ResponseInfo};
use super::{RetryBudget, Throttle};
use ratekeeper::Timestamp;
use std::task::Waker;
use std::time::Duration;

pub(super) struct Host {
    /// How many more requests may be sent. What is not used by `until` stays: a limit does not take
    /// back what remains.
    remaining: u64,
    /// Until then `remaining` is not increased; `None` if no limit is known. When it has passed and
    /// nothing remains, one request is sent and its response awaited.
    until: Option<Timestamp>,
    /// When the last request was sent.
    last_sent: Timestamp,
    /// The number of requests without a response.
    in_flight: u64,
    pub(super) throttle: Option<Throttle>,
    pub(super) budget: RetryBudget,
    /// Requests that wait for the response to another one.
    waiting: Vec<Waker>,
}

/// Whether a request may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendDecision {
    /// Now; it counts as in flight.
    Now,
    /// Not before this time.
    NotBefore(Timestamp),
    /// When a request in flight gets a response, or at this time, because some responses take long.
    AfterResponse(Timestamp),
}

/// How long a response is awaited before another request is sent.
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

    /// Asks to send a request.
    pub(super) fn try_send(&mut self, now: Timestamp) -> SendDecision {
        match self.until {
            None => {}
            Some(_) if self.remaining > 0 => self.remaining -= 1,
            Some(until) if now < until => return SendDecision::NotBefore(until),
            // The limit's state is unknown: one request is sent to find out.
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

    /// The end of the pause in which nothing may be sent; `None` if there is no pause.
    pub(super) fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.until
            .filter(|until| now < *until && self.remaining == 0)
    }

    /// Records the response to a request that was sent at that time.
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
        // Responses may arrive out of order: those to requests sent before `until` do not increase
        // `remaining`, or the same quota would be used twice.
        let known = self.until.filter(|until| sent < *until);
        match (info.allowance, known) {
            // The server may or may not have counted the requests in flight already.
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
            // The host no longer announces a limit.
            (None, None) if !info.denied => self.until = None,
            (None, _) => {}
        }
        std::mem::take(&mut self.waiting)
    }

    /// Records that a request was cancelled or failed: whether the server counted it is unknown.
    pub(super) fn on_failure(&mut self) -> Vec<Waker> {
        self.in_flight = self.in_flight.saturating_sub(1);
        std::mem::take(&mut self.waiting)
    }

    /// Whether a retry is allowed: by the budget and by the throttle.
    pub(super) fn allow_retry(&mut self, now: Timestamp, draw: f64) -> bool {
        self.budget.retry(now)
            && self
                .throttle
                .as_mut()
                .is_none_or(|throttle| throttle.request(now, draw))
    }

    /// Wakes this task with the next response.
    pub(super) fn register_waker(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Whether the state is the default, so that it can be forgotten.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.in_flight == 0 && self.until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests;
