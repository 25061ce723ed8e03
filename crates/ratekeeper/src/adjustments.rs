//! [`Adjustments`]: what came on top of a limit's promise.

/// Counters of units that came on top of a limiter's promise, or that a caller gave back too late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Adjustments {
    /// Tokens granted by an operator.
    pub granted: u64,
    /// Units charged afterwards by settles whose actual cost exceeded the charge.
    pub settled_up: u64,
    /// Units that a settle did not bring back because, since they were charged, the limit was
    /// changed or reset, or the key was evicted.
    pub not_returned: u64,
    /// Live changes of the limit so far, including resets.
    pub changes: u64,
}
