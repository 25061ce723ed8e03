//! What the body of a response is: one that holds for every service, or the service's own type.

use crate::body::{Held, ResponseBody};
use bytes::Bytes;
use http_body::Body;

/// What the body of a response is, where the service's is `R` and something may be held until it
/// ends.
pub trait BodyKind<R, H>: sealed::Sealed {
    /// The type of all bodies.
    type Body;

    /// The service's body.
    fn plain(body: R) -> Self::Body;

    /// The service's body, which holds something until it ends.
    fn holding(body: R, held: H) -> Self::Body;

    /// A body of the layer's own.
    fn own(data: Bytes) -> Self::Body;
}

/// [`ResponseBody`], whatever the service's is.
#[derive(Clone, Copy, Debug)]
pub struct EitherBody;

impl sealed::Sealed for EitherBody {}

impl<R: Body, H: Held> BodyKind<R, H> for EitherBody {
    type Body = ResponseBody<R, H>;

    #[inline]
    fn plain(body: R) -> Self::Body {
        body.into()
    }

    fn holding(body: R, held: H) -> Self::Body {
        ResponseBody::holding(body, held)
    }

    fn own(data: Bytes) -> Self::Body {
        ResponseBody::own(data)
    }
}

/// axum's own, which is the service's as well: nothing is put around it but where something is
/// held.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl sealed::Sealed for AxumBody {}

#[cfg(feature = "axum")]
impl<H: Held + Send + 'static> BodyKind<axum::body::Body, H> for AxumBody {
    type Body = axum::body::Body;

    #[inline]
    fn plain(body: axum::body::Body) -> Self::Body {
        body
    }

    fn holding(body: axum::body::Body, held: H) -> Self::Body {
        Self::Body::new(ResponseBody::holding(body, held))
    }

    fn own(data: Bytes) -> Self::Body {
        data.into()
    }
}

mod sealed {
    /// These are all there are.
    pub trait Sealed {}
}
