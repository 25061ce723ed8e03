//! Concurrency: checks how many permits were held at once.

use super::{Report, TightestInterval, Violation};

/// A permit, and the time in which it was certainly held: from when its grant was answered until
/// its release was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitInterval {
    /// When the grant was answered.
    pub from: u64,
    /// When the release was sent; the permit is no longer held then.
    pub until: u64,
    /// The number of permits.
    pub cost: u64,
}

/// Checks that never more than `limit` + `allowance` permits were held at once.
pub fn check_permits(
    limit: u64,
    permits: &[PermitInterval],
    allowance: u64,
) -> Result<Report, Violation> {
    let mut steps: Vec<(u64, i128)> = Vec::new();
    for permit in permits.iter().filter(|permit| permit.from < permit.until) {
        steps.push((permit.from, permit.cost.into()));
        steps.push((permit.until, -i128::from(permit.cost)));
    }
    steps.sort_unstable();
    let allowed = u128::from(limit) + u128::from(allowance);
    let mut tightest = TightestInterval::default();
    let mut held = 0;
    let mut moments = steps.chunk_by(|(one, _), (next, _)| one == next).peekable();
    while let Some(moment) = moments.next() {
        held += moment.iter().map(|(_, step)| step).sum::<i128>();
        if let Some(next) = moments.peek() {
            tightest.compare(moment[0].0, next[0].0 - 1, held as u128, allowed);
        }
    }
    let granted = permits.iter().map(|permit| u128::from(permit.cost)).sum();
    tightest.verdict(
        "held",
        &format_args!("a limit of {limit} in flight"),
        granted,
    )
}
