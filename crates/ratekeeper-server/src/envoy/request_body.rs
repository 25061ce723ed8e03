//! Body of a gRPC request, with a timeout.

use crate::gateway::{BodyRate, BodyTimer};
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;

pub(super) struct RequestBody {
    body: Incoming,
    timer: BodyTimer,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, rate: BodyRate) -> Self {
        Self {
            body,
            timer: BodyTimer::new(rate),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(Ok(frame)) = &frame {
                    this.timer
                        .received(frame.data_ref().map_or(0, |data| data.len() as u64));
                }
                Poll::Ready(
                    frame.map(|frame| frame.map_err(|error| Status::from_error(error.into()))),
                )
            }
            Poll::Pending => this
                .timer
                .poll(cx)
                .map(|()| Some(Err(Status::deadline_exceeded("request body timeout")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
