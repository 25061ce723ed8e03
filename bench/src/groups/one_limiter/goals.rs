//! The performance goals of one limiter.

use super::column::Column;
use super::timings::Timings;
use super::{FAST, GO, OWN_QUANTA, SYSTEM, on, ours};
use crate::report::{Bound, Goal};

/// The bound against governor on the same clock: one thread, and two that do not contend because a
/// denial writes no memory.
const ALONE: Bound = Bound::AtMost(1.05);
/// The bound against governor on the same clock, when two threads write.
const CONTENDED: Bound = Bound::AtMost(0.7);
const FAIR: Bound = Bound::AtLeast(0.35);
/// How many times faster than Go.
const GO_ON_SYSTEM: Bound = Bound::AtLeast(3.0);
const GO_ON_FAST: Bound = Bound::AtLeast(8.0);

pub(super) fn of(measured: &Timings) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |text: String, bound, measured| {
        goals.push(Goal {
            text,
            bound,
            measured,
            because: "not measured",
        });
    };
    let compared = [
        (SYSTEM, on("governor", SYSTEM)),
        (FAST, on("governor", FAST)),
        (FAST, OWN_QUANTA.to_owned()),
    ];
    for column in [
        Column::Allowed,
        Column::Denied,
        Column::WaitAsync,
        Column::Denied2,
        Column::Allowed2,
    ] {
        let bound = if column == Column::Allowed2 {
            CONTENDED
        } else {
            ALONE
        };
        for (clock, governor) in &compared {
            let us = ours(clock);
            add(
                format!("{}: {us} / {governor}", column.name()),
                bound,
                measured.ratio(column, &us, governor),
            );
        }
    }
    for clock in [SYSTEM, FAST] {
        let us = ours(clock);
        let text = format!("{}: {us}, slower thread's share", Column::Allowed2.name());
        add(text, FAIR, measured.share(Column::Allowed2, &us));
    }
    for (clock, bound) in [(SYSTEM, GO_ON_SYSTEM), (FAST, GO_ON_FAST)] {
        let us = ours(clock);
        add(
            format!("times faster than Go's Allow: {us}"),
            bound,
            measured.ratio(Column::Allowed, GO, &us),
        );
    }
    goals
}
