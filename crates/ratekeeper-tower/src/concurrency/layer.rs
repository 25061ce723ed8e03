//! `ConcurrencyLayer`: a fixed concurrency limit.

use super::{ConcurrencyService, PerKey};
use http::StatusCode;
use http::request::Parts;
use ratekeeper::{Clock, Concurrency, keyed::KeyedConcurrency};
use std::hash::Hash;
use tower_layer::Layer;

/// Limits how many requests are in flight at once; more are answered 429 immediately.
///
/// A request is in flight until the body of its response ends or is dropped, or the client hangs
/// up. All services of a layer and its clones share the permits. The 429 has a
/// [`BusyError`](ratekeeper::concurrency::BusyError) extension.
///
/// ```
/// use ratekeeper_tower::ConcurrencyLayer;
///
/// let global = ConcurrencyLayer::new(20);
/// let per_tenant = ConcurrencyLayer::per_key(2, |head| head.headers.get("x-tenant").cloned());
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer<P = Concurrency> {
    permits: P,
    status: StatusCode,
}

impl ConcurrencyLayer {
    /// At most `limit` requests in flight.
    pub fn new(limit: u64) -> Self {
        Self::with_source(Concurrency::new(limit))
    }

    /// Permits from an existing `Concurrency`, to share it or to change its limit later.
    pub fn over<C: Clock>(permits: Concurrency<C>) -> ConcurrencyLayer<Concurrency<C>> {
        ConcurrencyLayer::with_source(permits)
    }

    /// At most `limit` requests in flight for each key. A key may be an `Option`: requests with
    /// `None` share one limit.
    pub fn per_key<K: Hash, F: Fn(&Parts) -> K>(
        limit: u64,
        key: F,
    ) -> ConcurrencyLayer<PerKey<K, F>> {
        Self::over_keyed(KeyedConcurrency::new(limit), key)
    }

    /// Permits from an existing `KeyedConcurrency`, to choose its size, to share it or to change
    /// its limit later.
    pub fn over_keyed<K, F, C>(
        permits: KeyedConcurrency<K, C>,
        key: F,
    ) -> ConcurrencyLayer<PerKey<K, F, C>>
    where
        K: Hash,
        F: Fn(&Parts) -> K,
        C: Clock,
    {
        ConcurrencyLayer::with_source(PerKey { permits, key })
    }
}

impl<P> ConcurrencyLayer<P> {
    fn with_source(permits: P) -> Self {
        Self {
            permits,
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Answers 503 instead of 429: for a limit that protects the service, where no single caller is
    /// at fault.
    #[must_use]
    pub fn unavailable(mut self) -> Self {
        self.status = StatusCode::SERVICE_UNAVAILABLE;
        self
    }
}

impl<S, P: Clone> Layer<S> for ConcurrencyLayer<P> {
    type Service = ConcurrencyService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        ConcurrencyService {
            inner,
            permits: self.permits.clone(),
            status: self.status,
        }
    }
}
