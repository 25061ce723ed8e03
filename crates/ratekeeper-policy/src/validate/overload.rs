//! Validation of adaptive limits and load shedding.

use super::{Findings, Item};
use crate::overload::AdaptiveLimit;
use crate::policies::Policies;
use ratekeeper::adaptive::QueueConfig;

/// Checks the numbers of an adaptive limit.
pub(super) fn check_adaptive(limit: &AdaptiveLimit, error: &mut dyn FnMut(String)) {
    let AdaptiveLimit {
        min, max, start, ..
    } = limit;
    if *min == 0 {
        error("`min` of an adaptive limit must be at least 1, or nothing could be measured at the minimum; raise it".to_owned());
    }
    if min > max {
        error(format!(
            "`min` of an adaptive limit is {min}, which is more than its `max` of {max}; swap them"
        ));
    } else if !(min..=max).contains(&start) {
        error(format!(
            "`start` of an adaptive limit must be between its `min` and `max`; set it from {min} to {max}, not {start}"
        ));
    }
}

/// Checks the queue of an adaptive limit.
pub(super) fn check_queue(limit: &AdaptiveLimit, warn: &mut dyn FnMut(String)) {
    let QueueConfig {
        interval, target, ..
    } = limit.queue;
    if limit.has_queue() && target > interval {
        warn(format!(
            "`queue_target` is {target:?} and `queue_interval` {interval:?}, but waits must get shorter under load, not longer; make `queue_target` the shorter of the two"
        ));
    }
}

impl Policies {
    /// Whether the importance of requests has any effect.
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
                    format!("`{key}` must be a share above 0 and at most 1, such as 0.9"),
                );
            }
        }
        let has_signal = shed.cpu.is_some()
            || shed.memory.is_some()
            || shed.patience.is_some()
            || self.policies.iter().any(|policy| policy.adaptive.is_some());
        if !has_signal {
            let message = "[shed] has no effect without a measure of overload; give a policy `adaptive`, or set `cpu`, `memory` or `patience`";
            findings.warn(Item::Shed, "", message.to_owned());
        }
    }
}
