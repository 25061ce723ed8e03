//! What can be chosen for a layer, whoever decides.

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
    /// Whether path and host of every request are checked.
    pub(crate) strict: bool,
    /// Whether denials are responses of HTTP for callers of gRPC, too.
    pub(crate) plain_http: bool,
    pub(crate) preflights: Preflights,
    pub(crate) max_waiting: usize,
    /// Those who wait, at all services of the layer.
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

// A head is handed on as a copy: one that nobody points at need not be in memory.
impl Options {
    /// Whether a request passes unchecked and uncounted, as its owner chose.
    #[inline]
    pub(crate) fn skips(&self, head: &Head<'_>) -> bool {
        !self.skip.is_empty() && self.skips_slow(*head)
    }

    #[inline(never)]
    fn skips_slow(&self, head: Head<'_>) -> bool {
        self.skip.iter().any(|skip| skip(&head))
    }

    #[inline]
    pub(crate) fn cost(&self, head: &Head<'_>) -> u64 {
        self.cost.as_ref().map_or(1, |cost| {
            let head = *head;
            cost(&head)
        })
    }

    /// Whether more is asked about a request than who sent it, or somebody is told of it.
    #[inline]
    pub(crate) fn needs_request_head(&self) -> bool {
        !self.skip.is_empty() || self.cost.is_some() || self.has_observer()
    }

    /// Whether somebody is told of each request that passes.
    #[inline]
    pub(crate) fn has_observer(&self) -> bool {
        self.extension || self.hook.is_some()
    }
}
