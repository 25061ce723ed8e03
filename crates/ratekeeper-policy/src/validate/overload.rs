//! What is wrong or doubtful with what is said for when there is too much.

use super::{Findings, Item};
use crate::overload::AdaptiveLimit;
use crate::policies::Policies;
use ratekeeper::adaptive::QueueConfig;

/// An adaptive limit whose numbers cannot be.
pub(super) fn check_adaptive(limit: &AdaptiveLimit, error: &mut dyn FnMut(String)) {
    let AdaptiveLimit {
        min, max, start, ..
    } = limit;
    if *min == 0 {
        error("`min` of an adaptive limit must be at least 1, or nothing would ever be measured again".to_owned());
    }
    if min > max {
        error(format!(
            "`min` of an adaptive limit is {min}, which is more than its `max` of {max}; swap them"
        ));
    } else if !(min..=max).contains(&start) {
        error(format!(
            "an adaptive limit must start between its `min` and its `max`; make `start` {min} to {max}, not {start}"
        ));
    }
}

/// A queue that is none.
pub(super) fn check_queue(limit: &AdaptiveLimit, warn: &mut dyn FnMut(String)) {
    let QueueConfig {
        interval, target, ..
    } = limit.queue;
    if limit.has_queue() && target > interval {
        warn(format!(
            "`queue_target` is {target:?} and `queue_interval` {interval:?}, but nobody waits longer when there is more to do; \
             make `queue_target` the shorter of the two"
        ));
    }
}

impl Policies {
    /// Whether it matters how important a request is.
    pub(super) fn uses_classes(&self) -> bool {
        self.shed.is_some() || self.policies.iter().any(|policy| policy.adaptive.is_some())
    }

    pub(super) fn check_shed(&self, findings: &mut Findings) {
        let Some(shed) = &self.shed else { return };
        for (key, share) in [("cpu", shed.cpu), ("memory", shed.memory)] {
            if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
                findings.error(
                    Item::Shed,
                    key,
                    format!("`{key}` must be a share above 0 and up to 1, as 0.9"),
                );
            }
        }
        let has_signal = shed.cpu.is_some()
            || shed.memory.is_some()
            || shed.patience.is_some()
            || self.policies.iter().any(|policy| policy.adaptive.is_some());
        if !has_signal {
            let message = "nothing is ever shed, because nothing says when there is too much; give a policy `adaptive`, or \
                           set `cpu`, `memory` or `patience`";
            findings.warn(Item::Shed, "", message.to_owned());
        }
    }
}
