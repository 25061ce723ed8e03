//! The fuzz targets of `ratekeeper`.

use ratekeeper::{Limit, Limiter, ManualClock, Timestamp, limiter::Carry};
use std::time::Duration;

/// Parses any text: a limit that prints and parses to itself, or an error with a position in the
/// text.
pub fn parse(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<Limit>() {
        Ok(limit) => {
            let printed = limit.to_string();
            assert_eq!(
                printed.parse::<Limit>().as_ref(),
                Ok(&limit),
                "{text:?} prints as {printed:?}"
            );
        }
        Err(error) => {
            assert!(error.at() <= text.len());
            assert!(text.is_char_boundary(error.at()));
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Runs any calls at any times on any limit: no panic, at most the capacity on a frozen clock, no
/// change by a denial, and a call after `retry_after` is allowed.
pub fn decide(data: &[u8]) {
    let mut bytes = Bytes(data);
    let limit =
        Limit::of(bytes.number(), Duration::from_nanos(bytes.number())).burst(bytes.number());
    let limiter = Limiter::with_clock(limit, ManualClock::new());
    let mut now = 0;
    let mut at_this_instant: u128 = 0;
    while let Some(verb) = bytes.byte() {
        let (cost, view) = (bytes.number(), limiter.at(Timestamp::from_unix_nanos(now)));
        match verb % 8 {
            0 => {
                now = bytes.number();
                at_this_instant = 0;
            }
            1 => {
                let (slot, later) = (
                    view.reserve_within(cost, Duration::from_nanos(now)),
                    bytes.number(),
                );
                if let Ok(slot) = slot {
                    limiter.at(Timestamp::from_unix_nanos(later)).cancel(slot);
                }
                // Slots take effect at other times than the calls.
                at_this_instant = 0;
            }
            2 => {
                if let Ok(charge) = view.take(cost) {
                    view.settle(charge, bytes.number());
                }
                at_this_instant = 0;
            }
            3 => {
                let carry = [
                    Carry::Keep,
                    Carry::Proportional,
                    Carry::Additive,
                    Carry::Reset,
                ][usize::from(verb >> 6)];
                view.set_limit_with(
                    Limit::of(cost, Duration::from_nanos(bytes.number())).burst(now),
                    carry,
                );
                at_this_instant = 0;
            }
            4 => {
                view.grant(cost);
                at_this_instant = 0;
            }
            _ => {
                let (peeked, tokens) = (view.peek_n(cost), view.tokens());
                let decision = view.check_n(cost);
                assert_eq!(decision.outcome(), peeked.outcome());
                let _ = (
                    decision.remaining(),
                    decision.reset_after(),
                    decision.delay(),
                    decision.capacity(),
                );
                if decision.is_allowed() {
                    at_this_instant += u128::from(cost);
                    assert!(
                        at_this_instant <= u128::from(limiter.burst()) || decision.is_unlimited()
                    );
                } else {
                    assert_eq!(view.tokens(), tokens, "a denial changes nothing");
                }
                if let Some(after) = decision.retry_after() {
                    let then = Timestamp::from_unix_nanos(now) + after;
                    if then > Timestamp::from_unix_nanos(now)
                        && then < Timestamp::from_unix_nanos(u64::MAX)
                    {
                        assert!(limiter.at(then).peek_n(cost).is_allowed(), "{decision:?}");
                    }
                }
            }
        }
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of any size: small ones are as likely as large ones.
    fn number(&mut self) -> u64 {
        let size = usize::from(self.byte().unwrap_or(0)) % 9;
        (0..size).fold(0, |number, _| {
            number << 8 | u64::from(self.byte().unwrap_or(0))
        })
    }
}
