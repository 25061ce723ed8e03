//! Concurrency: how much was held at once.

use super::{Report, Tightest, Violation};

/// A permit, for the time in which it was certainly held: from when its grant was answered until
/// its release was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When the grant was answered, in µs.
    pub from: u64,
    /// When the release was sent, in µs; no longer held then.
    pub until: u64,
    /// How many permits it was.
    pub cost: u64,
}

/// Never more than `limit` + `allowance` held at once.
pub fn check_holds(limit: u64, holds: &[Hold], allowance: u64) -> Result<Report, Violation> {
    let mut steps: Vec<(u64, i128)> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.from < hold.until) {
        steps.push((hold.from, hold.cost.into()));
        steps.push((hold.until, -i128::from(hold.cost)));
    }
    steps.sort_unstable();
    let allowed = u128::from(limit) + u128::from(allowance);
    let mut tightest = Tightest::default();
    let mut held = 0;
    let mut moments = steps.chunk_by(|(one, _), (next, _)| one == next).peekable();
    while let Some(moment) = moments.next() {
        held += moment.iter().map(|(_, step)| step).sum::<i128>();
        if let Some(next) = moments.peek() {
            tightest.compare(moment[0].0, next[0].0 - 1, held as u128, allowed);
        }
    }
    let granted = holds.iter().map(|hold| hold.cost).sum();
    tightest.verdict(
        "held",
        &format_args!("a limit of {limit} in flight"),
        granted,
    )
}
