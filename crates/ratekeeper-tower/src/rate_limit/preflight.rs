//! The limit for CORS preflight requests, and its statistics.

use crate::decider::LimitDecider;
use crate::head::Head;
use crate::key::Key;
use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use ratekeeper::Limit;
use ratekeeper_policy::request::Preflight;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The name of the limit in responses and logs.
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
    /// The number of allowed preflight requests.
    pub fn allowed(&self) -> u64 {
        self.0.allowed.load(Relaxed)
    }

    /// The number of denied preflight requests.
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

/// How a layer treats preflight requests. Clones share the limit.
#[derive(Clone)]
pub(crate) struct Preflights {
    mode: Preflight,
    /// Created for the first preflight request: most services never see one.
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
        // A new value: a clone of the layer may still have the old limit.
        *self = Self {
            stats: self.stats.clone(),
            ..Self::new(mode)
        };
    }

    /// Whether preflight requests are skipped.
    pub(crate) fn are_exempt(&self) -> bool {
        self.mode == Preflight::Exempt
    }

    /// The limit for preflight requests, if they have their own.
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

/// Whether a request is a CORS preflight request.
pub(crate) fn is_preflight(head: &Head<'_>) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && head.headers.contains_key(ORIGIN)
}
