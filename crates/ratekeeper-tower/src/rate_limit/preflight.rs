//! The limit of preflight requests of CORS, and what became of them.

use crate::decider::LimitDecider;
use crate::head::Head;
use crate::key::Key;
use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use ratekeeper::Limit;
use ratekeeper_policy::request::Preflight;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The name of their limit in responses and logs.
const NAME: &str = "preflight";

/// How many preflight requests were allowed and denied by a limit of their own.
///
/// A handle: clones share their counters. Give one to a layer with
/// [`RateLimitLayer::preflight_stats`](crate::RateLimitLayer::preflight_stats).
#[derive(Clone, Debug, Default)]
pub struct PreflightStats(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl PreflightStats {
    /// How many were allowed.
    pub fn allowed(&self) -> u64 {
        self.0.allowed.load(Relaxed)
    }

    /// How many were denied.
    pub fn denied(&self) -> u64 {
        self.0.denied.load(Relaxed)
    }

    pub(super) fn count(&self, is_allowed: bool) {
        let counter = if is_allowed {
            &self.0.allowed
        } else {
            &self.0.denied
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// What a layer does with preflight requests. Clones share the limit.
#[derive(Clone)]
pub(crate) struct Preflights {
    mode: Preflight,
    /// Made when the first one comes: most services never see one.
    limit: Arc<OnceLock<LimitDecider>>,
    pub(crate) stats: PreflightStats,
}

impl Preflights {
    pub(crate) fn new(mode: Preflight) -> Self {
        Self {
            mode,
            limit: Arc::default(),
            stats: PreflightStats::default(),
        }
    }

    pub(crate) fn set_mode(&mut self, mode: Preflight) {
        // A new one: a clone of the layer may have the old limit.
        *self = Self {
            stats: self.stats.clone(),
            ..Self::new(mode)
        };
    }

    /// Whether a preflight request passes without being decided on.
    pub(crate) fn are_exempt(&self) -> bool {
        self.mode == Preflight::Exempt
    }

    /// The limit of their own, if they have one.
    pub(crate) fn limit(&self) -> Option<&LimitDecider> {
        match self.mode {
            Preflight::Limit(limit) => Some(self.limit.get_or_init(|| preflight_limit(limit))),
            _ => None,
        }
    }
}

fn preflight_limit(limit: Limit) -> LimitDecider {
    let mut one = LimitDecider::new(Key::ip(), limit);
    one.name = NAME.into();
    one
}

/// Whether a request is a browser asking whether a script may send one.
#[inline]
pub(crate) fn is_preflight(head: &Head<'_>) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && head.headers.contains_key(ORIGIN)
}
