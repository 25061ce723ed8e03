//! The body of a response: the service's own, with something held until it ends, or one of ours.

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What a body holds until it ends.
pub trait Held {
    /// The body has come to its end, and is not merely dropped. It is let go next.
    fn ended(&mut self) {}
}

impl Held for () {}

impl<C: ratekeeper::Clock> Held for ratekeeper::Permit<C> {}

impl<C: ratekeeper::Clock> Held for ratekeeper::keyed::KeyPermit<C> {}

fn end(held: &mut Option<impl Held>) {
    if let Some(mut held) = held.take() {
        held.ended();
    }
}

pin_project! {
    /// The body of a response that went through a layer: the inner service's, or the layer's own.
    ///
    /// What is held, a permit for one, is dropped when the body has ended, has failed, or is
    /// dropped, whichever is first.
    #[derive(Debug)]
    pub struct ResponseBody<B, H = ()> {
        #[pin]
        kind: Kind<B, H>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindPinned]
    enum Kind<B, H> {
        Inner {
            #[pin]
            body: B,
            held: Option<H>,
        },
        // None once it was read.
        Own {
            data: Option<Bytes>,
        },
    }
}

impl<B: Body, H: Held> ResponseBody<B, H> {
    /// The service's body, which holds `held` until it ends.
    pub fn holding(body: B, held: H) -> Self {
        let mut held = Some(held);
        // Nobody may ever poll a body that is at its end already.
        if body.is_end_stream() {
            end(&mut held);
        }
        Self {
            kind: Kind::Inner { body, held },
        }
    }
}

impl<B, H> ResponseBody<B, H> {
    /// Whether something is held until the body ends: a permit, or its last word on what the
    /// request cost.
    pub fn is_holding(&self) -> bool {
        matches!(&self.kind, Kind::Inner { held: Some(_), .. })
    }

    /// Takes what is held: from now on it is the caller's, and not dropped with the body.
    pub fn take_held(&mut self) -> Option<H> {
        match &mut self.kind {
            Kind::Inner { held, .. } => held.take(),
            Kind::Own { .. } => None,
        }
    }

    /// A body of the layer's own.
    pub fn own(data: impl Into<Bytes>) -> Self {
        Self {
            kind: Kind::Own {
                data: Some(data.into()).filter(|data| !data.is_empty()),
            },
        }
    }
}

impl<B, H> ResponseBody<B, H> {
    /// A layer's own response, out of the future that held it.
    ///
    /// # Panics
    /// If it was taken already: a future is not polled after it is done.
    pub(crate) fn once(response: &mut Option<Response<Bytes>>) -> Response<Self> {
        response
            .take()
            .expect("polled after it was done")
            .map(Self::own)
    }
}

/// The service's body, which holds nothing.
impl<B, H> From<B> for ResponseBody<B, H> {
    fn from(body: B) -> Self {
        Self {
            kind: Kind::Inner { body, held: None },
        }
    }
}

/// An empty body.
impl<B, H> Default for ResponseBody<B, H> {
    fn default() -> Self {
        Self {
            kind: Kind::Own { data: None },
        }
    }
}

impl<B, H> Body for ResponseBody<B, H>
where
    B: Body,
    B::Data: From<Bytes>,
    H: Held,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            KindPinned::Inner { mut body, held } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // Readers stop at an error, and where is_end_stream says so: they may hold the
                // body, but poll it no more.
                match &frame {
                    Some(Err(_)) => *held = None,
                    None => end(held),
                    Some(Ok(_)) if body.is_end_stream() => end(held),
                    Some(Ok(_)) => {}
                }
                Poll::Ready(frame)
            }
            KindPinned::Own { data } => {
                Poll::Ready(data.take().map(|data| Ok(Frame::data(data.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Own { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Own { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}
