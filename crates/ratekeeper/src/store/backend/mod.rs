//! What an implementation of [`Store`](super::Store) needs and its users do not: a limit as integers
//! for a store that counts elsewhere, and the building of a [`Verdict`].

mod micros_limit;

pub use micros_limit::{MicrosLimit, WindowCounter};

use super::verdict::{AskResult, Receipt, Verdict};
use super::{Mode, Source};
use crate::algorithm::token_bucket::ChargeRecord;
use crate::decision::Decision;
use crate::keyed::table::ChargeOrigin;
use smallvec::SmallVec;
use std::any::Any;
use std::boxed::Box;

/// # For implementations of a store
impl AskResult {
    /// Creates the result of an ask of that mode, with nothing to settle.
    pub fn new(decision: Decision, mode: Mode) -> Self {
        Self {
            decision,
            mode,
            charged: None,
        }
    }

    /// Records what the store needs to find the charge again without memory
    /// of its own, and how much was charged. Another store must not settle it.
    #[inline]
    #[must_use]
    pub fn with_external_charge(mut self, mark: [u64; 2], cost: u64) -> Self {
        let charged = ChargeRecord {
            tat: mark[1],
            ahead: 0,
            refunded: 0,
            given: 0,
        };
        let hash = mark[0];
        let charge_origin = ChargeOrigin::EXTERNAL;
        self.charged = Some(Receipt {
            hash,
            charge_origin,
            cost,
            charged,
            permit: false,
        });
        self
    }

    /// Returns what was recorded by
    /// [`with_external_charge`](Self::with_external_charge).
    pub fn external_charge(&self) -> Option<([u64; 2], u64)> {
        let receipt = self
            .charged
            .filter(|receipt| receipt.charge_origin == ChargeOrigin::EXTERNAL)?;
        Some(([receipt.hash, receipt.charged.tat], receipt.cost))
    }
}

/// # For implementations of a store
impl Verdict {
    /// Creates a verdict of no asks yet.
    #[inline]
    pub fn new(source: Source) -> Self {
        Self {
            results: SmallVec::new(),
            source,
            table: None,
            permits: None,
            extension: None,
        }
    }

    /// Changes who decided.
    pub fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Attaches what the store needs to [`settle`](super::Store::settle).
    /// It is dropped with the verdict, which is when permits are released.
    pub fn set_extension(&mut self, extension: Box<dyn Any + Send + Sync>) {
        self.extension = Some(extension);
    }

    /// Takes back what was attached.
    pub fn take_extension(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        self.extension.take()
    }

    /// Resets it to a verdict of no asks, as from [`new`](Self::new). Permits and the
    /// [extension](Self::set_extension) are released, as if it were dropped, and so is spilled
    /// memory.
    pub fn clear(&mut self, source: Source) {
        self.release_permits();
        self.results.clear();
        if self.results.spilled() {
            self.results = SmallVec::new();
        }
        (self.source, self.table, self.extension) = (source, None, None);
    }

    /// Adds the result of the next ask.
    #[inline]
    pub fn push(&mut self, result: AskResult) {
        self.results.push(result);
    }
}
