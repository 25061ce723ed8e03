//! Test helpers: a strict service, a body in chunks.

#![allow(dead_code, reason = "each test binary uses its part")]

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use tower::Service;

pub(crate) type Text = Full<Bytes>;

pub(crate) fn get(path: &str) -> Request<Text> {
    Request::builder().uri(path).body(Text::default()).unwrap()
}

/// A service that is ready for one call only, panics if it is called when not ready, and whose
/// clones are not ready.
#[derive(Default)]
pub(crate) struct OnceReady {
    ready: bool,
    shared: Arc<(AtomicBool, AtomicU64)>,
}

impl OnceReady {
    pub(crate) fn block(&self, blocked: bool) {
        self.shared.0.store(blocked, SeqCst);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.shared.1.load(SeqCst)
    }
}

impl Clone for OnceReady {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            shared: self.shared.clone(),
        }
    }
}

impl Service<Request<Text>> for OnceReady {
    type Response = Response<Text>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Text>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.shared.0.load(SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Text>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        self.shared.1.fetch_add(1, SeqCst);
        ready(Ok(Response::new(Text::from("hello"))))
    }
}

/// A body in chunks that reports its end only when it is polled past the last, unless it knows it.
#[derive(Default)]
pub(crate) struct Pieces {
    pub(crate) frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
    pub(crate) knows_its_end: bool,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.knows_its_end && self.frames.is_empty()
    }
}
