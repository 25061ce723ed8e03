//! LQ1: checks the distance of each start from the one before.

use super::token_bucket::{self, Rate};
use super::{Admission, TightestInterval};

/// The time between two starts must suffice for all calls that started in between and for the first
/// itself. `early` is how far a given start may be off.
pub(super) fn check(
    mut starts: Vec<Admission>,
    rate: Rate,
    early: u64,
    tightest: &mut TightestInterval,
) {
    // Of starts with the same time the most expensive is taken as the last: if any order keeps the
    // distance, that one does.
    starts.sort_unstable_by_key(|start| (start.earliest, start.latest, start.cost));
    if starts.iter().all(|start| start.earliest == start.latest) {
        exact(&starts, rate, early, tightest);
    } else {
        pairs(&starts, rate, early, tightest);
        // Which of several was the last is unknown; it cost no more than the most expensive.
        let dearest = starts.iter().map(|start| start.cost).max().unwrap_or(0);
        let full = u128::from(dearest) * rate.period + u128::from(early) * rate.count;
        token_bucket::check(&starts, rate, full, tightest);
    }
}

/// With `before` the cost of all earlier starts, `before·period − count·time` never rises by more
/// than `count·early`.
fn exact(starts: &[Admission], rate: Rate, early: u64, tightest: &mut TightestInterval) {
    // The lowest so far: its height, its time, and the cost before it.
    let mut lowest: Option<(i128, u64, u128)> = None;
    let mut before = 0;
    for start in starts {
        let time = start.earliest;
        let height = (before * rate.period) as i128 - (rate.count * u128::from(time)) as i128;
        if let Some((_, from, earlier)) = lowest {
            // With the cost of the last on both sides, so that both are what started in the
            // interval.
            let cost = u128::from(start.cost);
            let room = rate.count * (u128::from(time - from) + u128::from(early)) / rate.period;
            tightest.compare(from, time, before - earlier + cost, room + cost);
        }
        if lowest.is_none_or(|(low, ..)| height < low) {
            lowest = Some((height, time, before));
        }
        before += u128::from(start.cost);
    }
}

/// Checks pairs of consecutive starts, in the order that fits better.
fn pairs(starts: &[Admission], rate: Rate, early: u64, tightest: &mut TightestInterval) {
    for pair in starts.windows(2) {
        let room = |first: &Admission, second: &Admission| {
            let apart = second.latest.checked_sub(first.earliest)?;
            let room = rate.count * (u128::from(apart) + u128::from(early)) / rate.period;
            Some((
                room as i128 - i128::from(first.cost),
                room + u128::from(second.cost),
            ))
        };
        let best = room(&pair[0], &pair[1]).max(room(&pair[1], &pair[0]));
        if let Some((_, allowed)) = best {
            let (from, to) = (pair[0].earliest, pair[0].latest.max(pair[1].latest));
            tightest.compare(
                from,
                to,
                u128::from(pair[0].cost) + u128::from(pair[1].cost),
                allowed,
            );
        }
    }
}
