//! [`DynStore`]: any store, as a trait object.

use super::{
    Ask, DetachError, LimitHandle, LimitKeyStats, LimitOptions, SettleError, Store, Verdict,
};
use crate::clock::Timestamp;
use crate::keyed::TooManyLimitsError;
use crate::limit::Limit;
use core::fmt;
use core::pin::Pin;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Any [`Store`], chosen at run time. Each of its futures is boxed;
/// [`try_decide`](Store::try_decide) allocates nothing.
///
/// ```
/// use ratekeeper::{Limit, MemoryStore, Store, store::DynStore};
///
/// let store = DynStore::new(MemoryStore::new()); // or a store on Redis
/// let login = store.limit("login", Limit::per_minute(5))?;
/// # Ok::<_, ratekeeper::keyed::TooManyLimitsError>(())
/// ```
///
/// This is a handle: clones are the same store.
#[derive(Clone)]
pub struct DynStore(Arc<dyn ErasedStore>);

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl DynStore {
    /// Wraps a store.
    pub fn new(store: impl Store + 'static) -> Self {
        Self(Arc::new(store))
    }
}

/// [`Store`] with boxed futures.
trait ErasedStore: Send + Sync {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError>;
    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError>;
    fn set_limit(&self, handle: &LimitHandle, limit: Limit);
    fn set_concurrency(&self, handle: &LimitHandle, limit: u64);
    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool;
    fn now(&self) -> Timestamp;
    fn is_local(&self) -> bool;
    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep;
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool;
    fn decide_within<'a>(
        &'a self,
        asks: &'a [Ask<'a>],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Verdict>;
    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict>;
    fn settle<'a>(&'a self, verdict: Verdict, actual: &'a [u64]) -> BoxFuture<'a, ()>;
    fn detach(
        &self,
        verdict: Verdict,
        until: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<u8>, DetachError>>;
    fn settle_detached<'a>(
        &'a self,
        receipt: &'a [u8],
        actual: &'a [u64],
    ) -> BoxFuture<'a, Result<(), SettleError>>;
    fn grant<'a>(
        &'a self,
        handle: &'a LimitHandle,
        key: &'a [u8],
        tokens: u64,
    ) -> BoxFuture<'a, ()>;
    fn reset<'a>(&'a self, handle: &'a LimitHandle, key: &'a [u8]) -> BoxFuture<'a, ()>;
    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>>;
}

impl<S: Store> ErasedStore for S {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        Store::limit(self, name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        Store::concurrency(self, name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        Store::set_limit(self, handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        Store::set_concurrency(self, handle, limit);
    }

    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        Store::configure(self, handle, options)
    }

    fn now(&self) -> Timestamp {
        Store::now(self)
    }

    fn is_local(&self) -> bool {
        Store::is_local(self)
    }

    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        Store::sleep_until(self, at)
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        Store::try_decide(self, asks, now, verdict)
    }

    fn decide_within<'a>(
        &'a self,
        asks: &'a [Ask<'a>],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(Store::decide_within(self, asks, within))
    }

    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        Store::try_settle(self, verdict, actual)
    }

    fn settle<'a>(&'a self, verdict: Verdict, actual: &'a [u64]) -> BoxFuture<'a, ()> {
        Box::pin(Store::settle(self, verdict, actual))
    }

    fn detach(
        &self,
        verdict: Verdict,
        until: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<u8>, DetachError>> {
        Box::pin(Store::detach(self, verdict, until))
    }

    fn settle_detached<'a>(
        &'a self,
        receipt: &'a [u8],
        actual: &'a [u64],
    ) -> BoxFuture<'a, Result<(), SettleError>> {
        Box::pin(Store::settle_detached(self, receipt, actual))
    }

    fn grant<'a>(
        &'a self,
        handle: &'a LimitHandle,
        key: &'a [u8],
        tokens: u64,
    ) -> BoxFuture<'a, ()> {
        Box::pin(Store::grant(self, handle, key, tokens))
    }

    fn reset<'a>(&'a self, handle: &'a LimitHandle, key: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(Store::reset(self, handle, key))
    }

    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        Store::key_stats(self, limits)
    }
}

impl Store for DynStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.0.limit(name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.0.concurrency(name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.0.set_limit(handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.0.set_concurrency(handle, limit);
    }

    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        self.0.configure(handle, options)
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn is_local(&self) -> bool {
        self.0.is_local()
    }

    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        self.0.sleep_until(at)
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        self.0.try_decide(asks, now, verdict)
    }

    async fn decide_within(&self, asks: &[Ask<'_>], within: Option<Duration>) -> Verdict {
        self.0.decide_within(asks, within).await
    }

    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        self.0.try_settle(verdict, actual)
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        self.0.settle(verdict, actual).await;
    }

    async fn detach(&self, verdict: Verdict, until: Timestamp) -> Result<Vec<u8>, DetachError> {
        self.0.detach(verdict, until).await
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), SettleError> {
        self.0.settle_detached(receipt, actual).await
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        self.0.grant(handle, key, tokens).await;
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        self.0.reset(handle, key).await;
    }

    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        self.0.key_stats(limits)
    }
}

impl fmt::Debug for DynStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynStore").finish_non_exhaustive()
    }
}
