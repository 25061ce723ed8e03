//! Validation of adaptive limits and load shedding.

use super::Findings;
use crate::overload::AdaptiveLimit;
use crate::policies::Policies;
use ratekeeper::adaptive::QueueConfig;

/// Checks the numbers of an adaptive limit, and its queue.
pub(super) fn check_adaptive(limit: &AdaptiveLimit, findings: &mut Findings) {
    let AdaptiveLimit {
        min, max, start, ..
    } = limit;
    if *min == 0 {
        let message = "`min` of an adaptive limit must be at least 1, or nothing could be measured \
                       at the minimum; raise it";
        findings.error("adaptive", message);
    }
    if min > max {
        let message = format!(
            "`min` of an adaptive limit is {min}, which is more than its `max` of {max}; swap them"
        );
        findings.error("adaptive", message);
    } else if !(min..=max).contains(&start) {
        let message = format!(
            "`start` of an adaptive limit must be between its `min` and `max`; set it from {min} \
             to {max}, not {start}"
        );
        findings.error("adaptive", message);
    }
    let QueueConfig {
        interval, target, ..
    } = limit.queue;
    if limit.has_queue() && target > interval {
        let message = format!(
            "`queue_target` is {target:?} and `queue_interval` {interval:?}, but waits must get \
             shorter under load, not longer; make `queue_target` the shorter of the two"
        );
        findings.warn("adaptive", message);
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
                let message = format!("`{key}` must be a share above 0 and at most 1, such as 0.9");
                findings.error(key, message);
            }
        }
        let has_signal = shed.cpu.is_some()
            || shed.memory.is_some()
            || shed.patience.is_some()
            || self.policies.iter().any(|policy| policy.adaptive.is_some());
        if !has_signal {
            let message = "[shed] has no effect without a measure of overload; give a policy \
                           `adaptive`, or set `cpu`, `memory` or `patience`";
            findings.warn("", message);
        }
    }
}
