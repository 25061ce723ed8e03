//! [`TightestInterval`]: the interval that is nearest to its bound, or furthest beyond it.

use super::{Report, Violation};
use std::fmt::Display;

#[derive(Clone, Copy, Debug)]
struct MeasuredInterval {
    from: u64,
    to: u64,
    measured: u128,
    allowed: u128,
}

impl MeasuredInterval {
    fn slack(&self) -> i128 {
        self.allowed as i128 - self.measured as i128
    }
}

#[derive(Debug, Default)]
pub(crate) struct TightestInterval(Option<MeasuredInterval>);

impl TightestInterval {
    /// Compares with the interval from `from` to `to`, both included, in which `measured` was
    /// admitted and `allowed` was allowed.
    pub(crate) fn compare(&mut self, from: u64, to: u64, measured: u128, allowed: u128) {
        let interval = MeasuredInterval {
            from,
            to,
            measured,
            allowed,
        };
        if self
            .0
            .is_none_or(|tightest| interval.slack() < tightest.slack())
        {
            self.0 = Some(interval);
        }
    }

    /// The smallest slack so far, negative if the bound is broken.
    pub(super) fn slack(&self) -> Option<i128> {
        self.0.map(|interval| interval.slack())
    }

    pub(crate) fn verdict(
        self,
        verb: &'static str,
        bound: &dyn Display,
        admitted: u128,
    ) -> Result<Report, Violation> {
        let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        match self.0 {
            Some(MeasuredInterval {
                from,
                to,
                measured,
                allowed,
            }) if measured > allowed => Err(Violation {
                key: None,
                from,
                to,
                measured: narrow(measured),
                allowed: narrow(allowed),
                verb,
                bound: bound.to_string(),
            }),
            interval => Ok(Report {
                admitted: narrow(admitted),
                slack: interval.map(|interval| narrow(interval.allowed - interval.measured)),
            }),
        }
    }
}
