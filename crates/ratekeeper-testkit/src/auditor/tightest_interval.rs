//! [`TightestInterval`]: the interval that is nearest to its bound, or furthest beyond it.

use super::{Report, Violation};
use std::fmt::Display;

#[derive(Clone, Copy, Debug)]
struct MeasuredInterval {
    from_us: u64,
    to_us: u64,
    measured: u128,
    allowed: u128,
}

impl MeasuredInterval {
    fn slack(&self) -> i128 {
        self.allowed as i128 - self.measured as i128
    }
}

#[derive(Debug, Default)]
pub(super) struct TightestInterval(Option<MeasuredInterval>);

impl TightestInterval {
    /// Compares with the interval from `from_us` to `to_us`, both included, in which `measured` was
    /// admitted and `allowed` was allowed.
    pub(super) fn compare(&mut self, from_us: u64, to_us: u64, measured: u128, allowed: u128) {
        let interval = MeasuredInterval {
            from_us,
            to_us,
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

    pub(super) fn verdict(
        self,
        verb: &'static str,
        bound: &dyn Display,
        admitted: u64,
    ) -> Result<Report, Violation> {
        let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        match self.0 {
            Some(MeasuredInterval {
                from_us,
                to_us,
                measured,
                allowed,
            }) if measured > allowed => Err(Violation {
                key: None,
                from_us,
                to_us,
                measured: narrow(measured),
                allowed: narrow(allowed),
                verb,
                bound: bound.to_string(),
            }),
            interval => Ok(Report {
                admitted,
                slack: interval.map(|interval| narrow(interval.allowed - interval.measured)),
            }),
        }
    }
}
