//! The body type of a limited service: one that works for every service, or the service's own type.

use crate::body::{BodyGuard, ResponseBody};
use bytes::Bytes;
use http_body::Body;

/// The body type of responses, where the service's is `R` and may get a guard `G`.
pub trait BodyKind<R, G>: sealed::Sealed {
    /// The type of all response bodies.
    type Body;

    /// The service's body without a guard.
    fn from_inner(body: R) -> Self::Body;

    /// The service's body with a guard that is dropped when the body ends.
    fn with_guard(body: R, guard: G) -> Self::Body;

    /// A complete body of the layer's own.
    fn full(data: Bytes) -> Self::Body;
}

/// Bodies are a [`ResponseBody`], for any service.
#[derive(Clone, Copy, Debug)]
pub struct EitherBody;

impl sealed::Sealed for EitherBody {}

impl<R: Body, G: BodyGuard> BodyKind<R, G> for EitherBody {
    type Body = ResponseBody<R, G>;

    fn from_inner(body: R) -> Self::Body {
        body.into()
    }

    fn with_guard(body: R, guard: G) -> Self::Body {
        ResponseBody::with_guard(body, guard)
    }

    fn full(data: Bytes) -> Self::Body {
        ResponseBody::full(data)
    }
}

/// Bodies are axum's own type, as the service's are: a body is boxed only if it has a guard.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl sealed::Sealed for AxumBody {}

#[cfg(feature = "axum")]
impl<G: BodyGuard + Send + 'static> BodyKind<axum::body::Body, G> for AxumBody {
    type Body = axum::body::Body;

    fn from_inner(body: axum::body::Body) -> Self::Body {
        body
    }

    fn with_guard(body: axum::body::Body, guard: G) -> Self::Body {
        Self::Body::new(ResponseBody::with_guard(body, guard))
    }

    fn full(data: Bytes) -> Self::Body {
        data.into()
    }
}

mod sealed {
    /// Implemented by the types of this module only.
    pub trait Sealed {}
}
