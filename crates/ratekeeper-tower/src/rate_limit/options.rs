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

type Ask<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;
type Denied = Arc<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
type Hook = Arc<dyn Fn(&Head<'_>, Option<&Denial<'_>>) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) identity: Identity,
    pub(crate) dialects: Dialects,
    pub(crate) expose: bool,
    pub(crate) skip: Vec<Ask<bool>>,
    pub(crate) cost: Option<Ask<u64>>,
    pub(crate) denied: Option<Denied>,
    pub(crate) hook: Option<Hook>,
    pub(crate) extension: bool,
    pub(crate) jitter: u8,
    /// Whether path and host of every request are checked.
    pub(crate) strict: bool,
    /// Whether denials are responses of HTTP for callers of gRPC, too.
    pub(crate) plain_http: bool,
    pub(crate) preflights: Preflights,
    pub(crate) max_waiting: usize,
    /// Those who wait, at all services of the layer.
    pub(crate) waits: DelayStats,
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
            waits: DelayStats::new(),
        }
    }
}

// A head is handed on as a copy: one that nobody points at need not be in memory.
impl Options {
    /// Whether a request passes unchecked and uncounted, as its owner chose.
    #[inline]
    pub(crate) fn skips(&self, head: &Head<'_>) -> bool {
        !self.skip.is_empty() && self.skips_by_choice(*head)
    }

    #[inline(never)]
    fn skips_by_choice(&self, head: Head<'_>) -> bool {
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
    pub(crate) fn look_beyond_the_peer(&self) -> bool {
        !self.skip.is_empty() || self.cost.is_some() || self.is_watched()
    }

    /// Whether somebody is told of each request that passes.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.extension || self.hook.is_some()
    }
}
