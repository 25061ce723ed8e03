//! Compares the limits of all nodes of one prefix: each node sends a digest of its own with its
//! heartbeat.

use sha2::{Digest, Sha256};
use std::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Nodes of the same prefix whose limits differ from this node's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitsMismatch {
    /// The number of these nodes.
    pub nodes: u64,
    /// How long the mismatch has lasted.
    pub lasts: Duration,
    /// Whether this has lasted longer than
    /// [`rollout_grace`](crate::RedisStoreBuilder::rollout_grace), so that it was logged.
    pub is_reported: bool,
}

impl fmt::Display for LimitsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.nodes == 1 {
            "1 other node has"
        } else {
            &*format!("{} other nodes have", self.nodes)
        };
        write!(
            f,
            "{nodes} had other limits than this one for {} s, so together they may allow what the loosest limit allows; run the \
             same configuration on all nodes, or set another `prefix` where it is meant to differ",
            self.lasts.as_secs()
        )
    }
}

/// Compares the limits of this node with those of the others.
pub(crate) struct LimitsCheck {
    /// How long a change of the configuration may take to reach all nodes.
    grace: Duration,
    state: Mutex<LimitsState>,
}

#[derive(Default)]
struct LimitsState {
    /// `None` until the limits are declared; until then nothing is compared.
    digest: Option<String>,
    difference: Option<Difference>,
    /// Whether a difference was logged, and not yet its end.
    is_logged: bool,
}

/// A difference between the limits of this node and of others.
struct Difference {
    since: Instant,
    nodes: u64,
    is_reported: bool,
}

impl Difference {
    fn at(&self, now: Instant) -> LimitsMismatch {
        let lasts = now.saturating_duration_since(self.since);
        LimitsMismatch {
            nodes: self.nodes,
            lasts,
            is_reported: self.is_reported,
        }
    }
}

/// What to log.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Report {
    Differ(LimitsMismatch),
    Agree,
}

impl LimitsCheck {
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            grace,
            state: Mutex::default(),
        }
    }

    /// Sets the limits of this node, in any order.
    pub(crate) fn set_limits(&self, limits: impl IntoIterator<Item = String>) {
        let digest = digest(limits.into_iter().collect());
        let mut state = self.lock();
        if state.digest.as_ref() != Some(&digest) {
            // This node's limits have changed: the others get the grace period again to follow.
            state.digest = Some(digest);
            state.difference = None;
        }
    }

    /// The digest to send with the heartbeat; empty while the limits are not known.
    pub(crate) fn digest(&self) -> String {
        self.lock().digest.clone().unwrap_or_default()
    }

    /// Records that a heartbeat sent with `digest` found `nodes` nodes with another one.
    pub(crate) fn record(&self, digest: &str, nodes: u64, now: Instant) -> Option<Report> {
        let mut state = self.lock();
        if state.digest.as_deref() != Some(digest) {
            return None;
        }
        if nodes == 0 {
            state.difference = None;
            return std::mem::take(&mut state.is_logged).then_some(Report::Agree);
        }
        let known = state.difference.get_or_insert(Difference {
            since: now,
            nodes,
            is_reported: false,
        });
        known.nodes = nodes;
        if known.is_reported || now.saturating_duration_since(known.since) < self.grace {
            return None;
        }
        known.is_reported = true;
        let others = known.at(now);
        state.is_logged = true;
        Some(Report::Differ(others))
    }

    pub(crate) fn other_limits(&self, now: Instant) -> Option<LimitsMismatch> {
        self.lock()
            .difference
            .as_ref()
            .map(|difference| difference.at(now))
    }

    fn lock(&self) -> MutexGuard<'_, LimitsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A digest that does not depend on the order of the limits. A fleet has few different sets of
/// limits, so 64 bits distinguish them.
fn digest(mut limits: Vec<String>) -> String {
    limits.sort_unstable();
    let mut hash = Sha256::new();
    for limit in &limits {
        hash.update((limit.len() as u64).to_be_bytes());
        hash.update(limit);
    }
    hash.finalize()
        .iter()
        .take(8)
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn limits(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn the_order_of_limits_does_not_matter() {
        assert_eq!(digest(limits(&["a", "b"])), digest(limits(&["b", "a"])));
        assert_ne!(digest(limits(&["a", "b"])), digest(limits(&["ab"])));
        assert_ne!(digest(limits(&["a"])), digest(limits(&[])));
        assert_eq!(digest(limits(&["a"])).len(), 16);
    }

    #[test]
    fn a_difference_is_reported_once_after_the_grace_and_again_after_a_change() {
        let check = LimitsCheck::new(GRACE);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(
            check.record("", 1, at(0)),
            None,
            "limits that are not known are not compared"
        );
        assert_eq!(check.other_limits(at(0)), None);
        check.set_limits(limits(&["a"]));
        let own = check.digest();
        // A rolling change: the difference is in the status, and nothing is logged.
        assert_eq!(check.record(&own, 2, at(1)), None);
        assert_eq!(check.record(&own, 1, at(60)), None);
        let other = check.other_limits(at(60)).unwrap();
        assert_eq!(
            (other.nodes, other.lasts.as_secs(), other.is_reported),
            (1, 59, false)
        );
        assert_eq!(check.record(&own, 0, at(60)), None);
        assert_eq!(check.other_limits(at(60)), None);
        // A difference that lasts.
        assert_eq!(check.record(&own, 1, at(100)), None);
        let lasts = GRACE;
        assert_eq!(
            check.record(&own, 3, at(160)),
            Some(Report::Differ(LimitsMismatch {
                nodes: 3,
                lasts,
                is_reported: true
            }))
        );
        for second in 161..300 {
            assert_eq!(check.record(&own, 2, at(second)), None, "it is logged once");
        }
        assert!(check.other_limits(at(300)).unwrap().is_reported);
        // Declaring the same limits again is not a change; declaring others is.
        check.set_limits(limits(&["a"]));
        assert!(check.other_limits(at(300)).unwrap().is_reported);
        check.set_limits(limits(&["b"]));
        assert_eq!(check.other_limits(at(300)), None);
        assert_eq!(
            check.record(&own, 1, at(301)),
            None,
            "an answer to what was sent before"
        );
        let own = check.digest();
        assert_eq!(check.record(&own, 1, at(301)), None);
        assert!(matches!(
            check.record(&own, 1, at(361)),
            Some(Report::Differ(_))
        ));
        assert_eq!(check.record(&own, 0, at(362)), Some(Report::Agree));
        assert_eq!(check.record(&own, 0, at(363)), None);
        // A change of this node's limits that ends the difference is logged.
        assert_eq!(check.record(&own, 1, at(364)), None);
        assert!(matches!(
            check.record(&own, 1, at(424)),
            Some(Report::Differ(_))
        ));
        check.set_limits(limits(&["c"]));
        assert_eq!(
            check.record(&check.digest(), 0, at(425)),
            Some(Report::Agree)
        );
    }
}
