//! Response bodies: the inner service's body with a guard that lives until it ends, or a body of
//! the layer's own.

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A guard that a response body holds until it ends, such as a permit.
pub trait BodyGuard {
    /// Called when the body has reached its end, not when it is dropped early. The guard is dropped
    /// right after.
    fn body_ended(&mut self) {}
}

impl BodyGuard for () {}

impl<C: ratekeeper::Clock> BodyGuard for ratekeeper::Permit<C> {}

impl<C: ratekeeper::Clock> BodyGuard for ratekeeper::keyed::KeyPermit<C> {}

fn release(guard: &mut Option<impl BodyGuard>) {
    if let Some(mut guard) = guard.take() {
        guard.body_ended();
    }
}

pin_project! {
    /// The body of a response that went through a layer: the inner service's, or the layer's own.
    ///
    /// Its guard (a permit, for example) is dropped when the body has ended, has failed, or is
    /// dropped, whichever comes first.
    #[derive(Debug)]
    pub struct ResponseBody<B, G = ()> {
        #[pin]
        kind: Kind<B, G>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindPinned]
    enum Kind<B, G> {
        Inner {
            #[pin]
            body: B,
            guard: Option<G>,
        },
        // `None` after it was read.
        Full {
            data: Option<Bytes>,
        },
    }
}

impl<B: Body, G: BodyGuard> ResponseBody<B, G> {
    /// The service's body with a guard that is dropped when the body ends.
    pub fn with_guard(body: B, guard: G) -> Self {
        let mut guard = Some(guard);
        // A body that is already at its end may never be polled.
        if body.is_end_stream() {
            release(&mut guard);
        }
        Self {
            kind: Kind::Inner { body, guard },
        }
    }
}

impl<B, G> ResponseBody<B, G> {
    /// Whether the body still has its guard: a permit, or a decision that is settled when the body
    /// ends.
    pub fn has_guard(&self) -> bool {
        matches!(&self.kind, Kind::Inner { guard: Some(_), .. })
    }

    /// Takes the guard out of the body. It is no longer dropped with the body.
    pub fn take_guard(&mut self) -> Option<G> {
        match &mut self.kind {
            Kind::Inner { guard, .. } => guard.take(),
            Kind::Full { .. } => None,
        }
    }

    /// A complete body of the layer's own.
    pub fn full(data: impl Into<Bytes>) -> Self {
        Self {
            kind: Kind::Full {
                data: Some(data.into()).filter(|data| !data.is_empty()),
            },
        }
    }
}

impl<B, G> ResponseBody<B, G> {
    /// Takes a layer's own response out of the future that holds it.
    ///
    /// # Panics
    /// Taken only if a future is polled after it is done.
    pub(crate) fn once(response: &mut Option<Response<Bytes>>) -> Response<Self> {
        response
            .take()
            .expect("polled after it was done")
            .map(Self::full)
    }
}

/// The service's body without a guard.
impl<B, G> From<B> for ResponseBody<B, G> {
    fn from(body: B) -> Self {
        Self {
            kind: Kind::Inner { body, guard: None },
        }
    }
}

/// An empty body.
impl<B, G> Default for ResponseBody<B, G> {
    fn default() -> Self {
        Self {
            kind: Kind::Full { data: None },
        }
    }
}

impl<B, G> ResponseBody<B, G>
where
    B: Body,
    B::Data: From<Bytes>,
    G: BodyGuard,
{
    /// Like [`poll_frame`](Body::poll_frame), but the guard stays when the body fails, so that it
    /// can be [taken](Self::take_guard).
    #[expect(clippy::type_complexity, reason = "the type of Body::poll_frame")]
    pub fn poll_frame_keeping_guard(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            KindPinned::Inner { mut body, guard } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // Readers stop at the last frame if `is_end_stream` says so: they may keep the
                // body, but do not poll it again.
                match &frame {
                    None => release(guard),
                    Some(Ok(_)) if body.is_end_stream() => release(guard),
                    Some(_) => {}
                }
                Poll::Ready(frame)
            }
            KindPinned::Full { data } => {
                Poll::Ready(data.take().map(|data| Ok(Frame::data(data.into()))))
            }
        }
    }
}

impl<B, G> Body for ResponseBody<B, G>
where
    B: Body,
    B::Data: From<Bytes>,
    G: BodyGuard,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(self.as_mut().poll_frame_keeping_guard(cx));
        // Readers stop at an error too.
        if let (Some(Err(_)), KindPinned::Inner { guard, .. }) =
            (&frame, self.project().kind.project())
        {
            *guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Full { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Full { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}
