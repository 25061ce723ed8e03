//! Asks: one limit and key each, as passed to a store to decide.

use crate::keyed::limit_version::LimitVersion;
use crate::keyed::registered_limit::{RegisteredLimit, Rule};
use crate::limit::Limit;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A limit that is registered with a store. This is a handle: cheap to clone.
#[derive(Clone)]
pub struct LimitHandle {
    pub(crate) first_version: Arc<LimitVersion>,
}

impl LimitHandle {
    /// Returns the name it was registered with.
    pub fn name(&self) -> &str {
        &self.registered().name
    }

    /// Returns its number in its store, counted from 0 in the order of registration.
    pub fn number(&self) -> u64 {
        self.registered().number
    }

    /// Returns the limit in force; `None` if it limits how many requests may be in flight.
    pub fn limit(&self) -> Option<Limit> {
        self.registered().rule().limit()
    }

    /// Returns how many requests may be in flight; `None` if it is a rate limit.
    pub fn in_flight(&self) -> Option<u64> {
        match self.registered().rule() {
            Rule::InFlight(max) => Some(max),
            Rule::Rate(_) => None,
        }
    }

    fn registered(&self) -> &RegisteredLimit {
        &self.first_version.registered
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle")
            .field("name", &self.name())
            .field("rule", &self.registered().rule())
            .finish()
    }
}

/// Whether an ask decides and whether it is charged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// It decides, and is charged.
    #[default]
    Enforce,
    /// It is judged and, if it and the others are allowed, charged; but it never denies the
    /// request.
    Shadow,
    /// It decides, and nothing is charged.
    Peek,
}

/// One limit that applies to a request, and the key it is charged to.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The limit.
    pub limit: &'a LimitHandle,
    /// The key whose bucket is charged.
    pub key: &'a [u8],
    /// How many units; 1 by default.
    pub cost: u64,
    /// Units held back for other, more important requests: this ask is decided as if the limit were
    /// that much smaller, and may not go into debt.
    pub reserve: u64,
    /// Whether it decides and is charged.
    pub mode: Mode,
    /// How long the caller would wait for the tokens; not at all by default. Windows and logs
    /// cannot be waited for.
    pub max_wait: Option<Duration>,
}

impl<'a> Ask<'a> {
    /// Asks for one unit of `limit` for `key`, enforced.
    pub fn new(limit: &'a LimitHandle, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            limit,
            key: key.as_ref(),
            cost: 1,
            reserve: 0,
            mode: Mode::Enforce,
            max_wait: None,
        }
    }

    /// Sets how many units.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets how many units are held back for other, more important requests.
    #[must_use]
    pub fn reserve(mut self, reserve: u64) -> Self {
        self.reserve = reserve;
        self
    }

    /// Sets whether it decides and is charged.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long the caller would wait.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }
}
