//! `PermitSource`: permits shared by all requests, or by those with the same key.

use crate::body::BodyGuard;
use http::Request;
use http::request::Parts;
use ratekeeper::{
    Clock, Concurrency, Permit, clock::SystemClock, concurrency::BusyError, keyed::KeyPermit,
    keyed::KeyedConcurrency,
};
use std::fmt;
use std::hash::Hash;

/// The source of permits for a [`ConcurrencyLayer`](super::ConcurrencyLayer): a [`Concurrency`], or
/// [`PerKey`].
pub trait PermitSource: Clone + sealed::Sealed {
    /// The permit of a request in flight.
    type Permit: BodyGuard;

    /// Takes a permit for a request, and returns the request.
    fn try_acquire_for<B>(
        &self,
        request: Request<B>,
    ) -> (Request<B>, Result<Self::Permit, BusyError>);
}

mod sealed {
    pub trait Sealed {}
}

impl<C: Clock> sealed::Sealed for Concurrency<C> {}

impl<C: Clock> PermitSource for Concurrency<C> {
    type Permit = Permit<C>;

    fn try_acquire_for<B>(
        &self,
        request: Request<B>,
    ) -> (Request<B>, Result<Permit<C>, BusyError>) {
        (request, self.try_acquire())
    }
}

/// A [`KeyedConcurrency`], and the closure that finds the key of a request.
pub struct PerKey<K, F, C: Clock = SystemClock> {
    pub(super) permits: KeyedConcurrency<K, C>,
    pub(super) key: F,
}

impl<K, F, C: Clock> sealed::Sealed for PerKey<K, F, C> where F: Clone {}

impl<K, F, C> PermitSource for PerKey<K, F, C>
where
    K: Hash,
    F: Fn(&Parts) -> K + Clone,
    C: Clock,
{
    type Permit = KeyPermit<C>;

    fn try_acquire_for<B>(
        &self,
        request: Request<B>,
    ) -> (Request<B>, Result<KeyPermit<C>, BusyError>) {
        let (head, body) = request.into_parts();
        let permit = self.permits.try_acquire(&(self.key)(&head));
        (Request::from_parts(head, body), permit)
    }
}

impl<K, F: Clone, C: Clock> Clone for PerKey<K, F, C> {
    fn clone(&self) -> Self {
        Self {
            permits: self.permits.clone(),
            key: self.key.clone(),
        }
    }
}

impl<K, F, C: Clock> fmt::Debug for PerKey<K, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerKey")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
