//! The options that all rate limit layers have, whatever their decider.

use crate::head::Head;
use crate::identity::Identity;
use crate::rate_limit::DelayStats;
use crate::rate_limit::preflight::Preflights;
use crate::response::{Denial, Dialects};
use bytes::Bytes;
use http::Response;
use ratekeeper_policy::request::Preflight;
use std::sync::Arc;

type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;
type DeniedFn = Arc<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
type VerdictHook = Arc<dyn Fn(&Head<'_>, Option<&Denial<'_>>) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) identity: Identity,
    pub(crate) dialects: Dialects,
    pub(crate) expose: bool,
    pub(crate) skip: Vec<HeadFn<bool>>,
    pub(crate) cost: Option<HeadFn<u64>>,
    pub(crate) denied: Option<DeniedFn>,
    pub(crate) hook: Option<VerdictHook>,
    pub(crate) extension: bool,
    pub(crate) jitter: u8,
    /// Whether path and host of every request are validated.
    pub(crate) strict: bool,
    /// Whether denials of gRPC calls are plain HTTP responses.
    pub(crate) plain_http: bool,
    pub(crate) preflights: Preflights,
    pub(crate) max_waiting: usize,
    /// Statistics of delayed requests, for all services of the layer.
    pub(crate) delay_stats: DelayStats,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            identity: Identity::direct(),
            dialects: Dialects::default(),
            expose: false,
            skip: Vec::new(),
            cost: None,
            denied: None,
            hook: None,
            extension: false,
            jitter: 0,
            strict: false,
            plain_http: false,
            preflights: Preflights::new(Preflight::default()),
            max_waiting: 1_024,
            delay_stats: DelayStats::new(),
        }
    }
}

// A head is passed as a copy: one without references to it need not be in memory.
impl Options {
    /// Whether a request is skipped: neither validated nor counted.
    pub(crate) fn skips(&self, head: &Head<'_>) -> bool {
        !self.skip.is_empty() && self.skips_slow(*head)
    }

    fn skips_slow(&self, head: Head<'_>) -> bool {
        self.skip.iter().any(|skip| skip(&head))
    }

    pub(crate) fn cost(&self, head: &Head<'_>) -> u64 {
        self.cost.as_ref().map_or(1, |cost| {
            let head = *head;
            cost(&head)
        })
    }

    /// Whether deciding needs more of a request than its peer, or a hook is called for it.
    pub(crate) fn needs_request_head(&self) -> bool {
        !self.skip.is_empty() || self.cost.is_some() || self.has_observer()
    }

    /// Whether allowed requests get an extension or call a hook.
    pub(crate) fn has_observer(&self) -> bool {
        self.extension || self.hook.is_some()
    }
}
