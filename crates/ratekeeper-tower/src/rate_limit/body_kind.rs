//! What the body of a response is: one that holds for every service, or the service's own type.

use crate::body::{BodyGuard, ResponseBody};
use bytes::Bytes;
use http_body::Body;

/// What the body of a response is, where the service's is `R` and something may be guard until it
/// ends.
pub trait BodyKind<R, G>: sealed::Sealed {
    /// The type of all bodies.
    type Body;

    /// The service's body.
    fn from_inner(body: R) -> Self::Body;

    /// The service's body, which holds something until it ends.
    fn with_guard(body: R, guard: G) -> Self::Body;

    /// A body of the layer's own.
    fn full(data: Bytes) -> Self::Body;
}

/// [`ResponseBody`], whatever the service's is.
#[derive(Clone, Copy, Debug)]
pub struct EitherBody;

impl sealed::Sealed for EitherBody {}

impl<R: Body, G: BodyGuard> BodyKind<R, G> for EitherBody {
    type Body = ResponseBody<R, G>;

    #[inline]
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

/// axum's own, which is the service's as well: nothing is put around it but where something is
/// guard.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl sealed::Sealed for AxumBody {}

#[cfg(feature = "axum")]
impl<G: BodyGuard + Send + 'static> BodyKind<axum::body::Body, G> for AxumBody {
    type Body = axum::body::Body;

    #[inline]
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
    /// These are all there are.
    pub trait Sealed {}
}
