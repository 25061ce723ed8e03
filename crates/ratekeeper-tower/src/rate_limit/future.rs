//! `ResponseFuture` of a rate limited service: the inner service's response with rate limit
//! headers, or a denial.

use super::RateLimitShared;
use super::body_kind::{BodyKind, EitherBody};
use super::delay_stats::WaitGuard;
use super::service::NextStep;
use crate::decider::{Decider, DecisionFuture};
use crate::identity::Client;
use crate::response;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper::clock::Sleep;
use ratekeeper_policy::Completion;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_service::Service;

pin_project! {
    /// The response of a rate limited service.
    pub struct ResponseFuture<S, B, D, F = EitherBody>
    where
        S: Service<Request<B>>,
        D: Decider,
    {
        #[pin]
        state: FutureState<S, B, D, S::Future>,
        // Its decision is moved to `DelayedRequest` during a wait, and is `None` for a denied
        // request.
        request_state: RequestState<D>,
        body_kind: PhantomData<fn() -> F>,
    }
}

pin_project! {
    #[project = FutureStateProjection]
    enum FutureState<S, B, D, F>
    where
        D: Decider,
    {
        /// The inner service was called.
        Running {
            #[pin]
            future: F,
        },
        /// The inner service was not called yet. Boxed, because few requests wait or are denied:
        /// the futures of all others stay small.
        SlowPath {
            slow_path: Option<SlowPath<S, B, D>>,
        },
    }
}

/// A request for which the inner service was not called yet.
enum SlowPath<S, B, D: Decider> {
    Denied(Box<Response<Bytes>>),
    /// It waits, because a limit delays it.
    Delayed(Box<DelayedRequest<S, B, D>>),
    /// Its decision needs a round trip to a store.
    Deciding(Box<UndecidedRequest<S, B, D>>),
}

/// A request that continues when its decision has arrived.
struct UndecidedRequest<S, B, D: Decider> {
    future: DecisionFuture<D::PendingDecision>,
    client: Client,
    service: S,
    request: Request<B>,
}

/// A request that continues when its delay is over.
struct DelayedRequest<S, B, D: Decider> {
    sleep: Sleep,
    service: S,
    request: Request<B>,
    cancel_on_drop: CancelOnDrop<D>,
    /// Counts it as waiting.
    wait_guard: WaitGuard,
}

/// A request's decision; `None` if it was not counted.
pub(super) struct RequestState<D: Decider> {
    pub(super) shared: Arc<RateLimitShared<D>>,
    pub(super) pending: Option<D::PendingDecision>,
}

/// Refunds the decision of a delayed request if its client hangs up during the wait.
struct CancelOnDrop<D: Decider> {
    shared: Arc<RateLimitShared<D>>,
    pending: Option<D::PendingDecision>,
}

impl<D: Decider> Drop for CancelOnDrop<D> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.shared.decider.cancel(pending);
        }
    }
}

/// A guard for the decision on a request that is settled when its response has ended: it releases
/// permits and records what the request cost.
///
/// Boxed, because few requests need it: the bodies of all others stay small.
pub struct Pending<D: Decider>(Option<Box<PendingSettlement<D>>>);

struct PendingSettlement<D: Decider> {
    shared: Arc<RateLimitShared<D>>,
    pending: D::PendingDecision,
    completion: Completion,
}

impl<D: Decider> crate::body::BodyGuard for Pending<D> {
    fn body_ended(&mut self) {
        if let Some(PendingSettlement {
            shared,
            pending,
            completion,
        }) = self.0.take().map(|pending| *pending)
        {
            shared.decider.settle(pending, completion);
        }
    }
}

/// The body was dropped before its end, or failed: its duration is no measure of the service.
impl<D: Decider> Drop for Pending<D> {
    fn drop(&mut self) {
        if let Some(PendingSettlement {
            shared,
            pending,
            completion,
        }) = self.0.take().map(|pending| *pending)
        {
            shared.decider.settle(pending, completion.cut_off());
        }
    }
}

impl<D: Decider> fmt::Debug for Pending<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.0.is_some()).finish()
    }
}

impl<S: Service<Request<B>>, B, D: Decider, F> ResponseFuture<S, B, D, F> {
    #[inline]
    pub(super) fn running(future: S::Future, request_state: RequestState<D>) -> Self {
        Self {
            state: FutureState::Running { future },
            request_state,
            body_kind: PhantomData,
        }
    }

    pub(super) fn denied(response: Box<Response<Bytes>>, request_state: RequestState<D>) -> Self {
        Self::slow_path(SlowPath::Denied(response), request_state)
    }

    pub(super) fn delayed(
        delay: Duration,
        service: S,
        request: Request<B>,
        mut request_state: RequestState<D>,
        wait_guard: WaitGuard,
    ) -> Self {
        Self::slow_path(
            SlowPath::delayed(delay, service, request, &mut request_state, wait_guard),
            request_state,
        )
    }

    pub(super) fn deciding(
        future: DecisionFuture<D::PendingDecision>,
        client: Client,
        service: S,
        request: Request<B>,
        request_state: RequestState<D>,
    ) -> Self {
        Self::slow_path(
            SlowPath::deciding(future, client, service, request),
            request_state,
        )
    }

    fn slow_path(slow_path: SlowPath<S, B, D>, request_state: RequestState<D>) -> Self {
        Self {
            state: FutureState::slow_path(slow_path),
            request_state,
            body_kind: PhantomData,
        }
    }

    /// Whether the inner service was called and the request holds a permit of a concurrency limit
    /// until it is done.
    pub fn holds_permit(&self) -> bool {
        let RequestState { shared, pending } = &self.request_state;
        let is_running = matches!(self.state, FutureState::Running { .. });
        is_running
            && pending
                .as_ref()
                .is_some_and(|pending| shared.decider.holds_permits(pending))
    }
}

impl<S, B, D, F, R> Future for ResponseFuture<S, B, D, F>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    D: Decider,
    F: BodyKind<R, Pending<D>>,
{
    type Output = Result<Response<F::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let FutureStateProjection::Running { future } = this.state.as_mut().project() {
                let mut polled = future.poll(cx);
                if let Poll::Ready(result) = &mut polled
                    && !this.request_state.write_headers(result)
                {
                    return settle_response::<R, D, F, S::Error>(polled, this.request_state);
                }
                return polled.map(|result| result.map(|response| response.map(F::from_inner)));
            }
            if let Some(denied) = ready!(this.state.as_mut().poll_slow_path(cx, this.request_state))
            {
                return Poll::Ready(Ok(denied.map(F::full)));
            }
        }
    }
}

impl<S, B, D: Decider> SlowPath<S, B, D> {
    fn delayed(
        delay: Duration,
        service: S,
        request: Request<B>,
        request_state: &mut RequestState<D>,
        wait_guard: WaitGuard,
    ) -> Self {
        let sleep = request_state.shared.decider.sleep(delay);
        let cancel_on_drop = CancelOnDrop {
            shared: Arc::clone(&request_state.shared),
            pending: request_state.pending.take(),
        };
        Self::Delayed(Box::new(DelayedRequest {
            sleep,
            service,
            request,
            cancel_on_drop,
            wait_guard,
        }))
    }

    fn deciding(
        future: DecisionFuture<D::PendingDecision>,
        client: Client,
        service: S,
        request: Request<B>,
    ) -> Self {
        Self::Deciding(Box::new(UndecidedRequest {
            future,
            client,
            service,
            request,
        }))
    }
}

impl<S: Service<Request<B>>, B, D: Decider> FutureState<S, B, D, S::Future> {
    fn slow_path(slow_path: SlowPath<S, B, D>) -> Self {
        Self::SlowPath {
            slow_path: Some(slow_path),
        }
    }

    /// Polls the slow path: ready with `None` once the inner service is called, or with a denial.
    /// Cold, because few requests wait.
    #[cold]
    #[inline(never)]
    fn poll_slow_path(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        request_state: &mut RequestState<D>,
    ) -> Poll<Option<Box<Response<Bytes>>>> {
        loop {
            let FutureStateProjection::SlowPath { slow_path } = self.as_mut().project() else {
                return Poll::Ready(None);
            };
            let decision = match slow_path {
                Some(SlowPath::Delayed(next)) => {
                    ready!(Pin::new(&mut next.sleep).poll(cx));
                    None
                }
                Some(SlowPath::Deciding(deciding)) => {
                    Some(ready!(deciding.future.as_mut().poll(cx)))
                }
                Some(SlowPath::Denied(_)) | None => None,
            };
            let next = match slow_path.take().expect("polled after it was done") {
                SlowPath::Denied(response) => return Poll::Ready(Some(response)),
                SlowPath::Delayed(next) => {
                    let DelayedRequest {
                        mut service,
                        request,
                        mut cancel_on_drop,
                        wait_guard,
                        ..
                    } = *next;
                    wait_guard.end();
                    request_state.pending = cancel_on_drop.pending.take();
                    FutureState::Running {
                        future: service.call(request),
                    }
                }
                SlowPath::Deciding(deciding) => {
                    let UndecidedRequest {
                        client,
                        mut service,
                        mut request,
                        ..
                    } = *deciding;
                    request_state.pending = decision;
                    match request_state.after_decision(&mut request, client) {
                        NextStep::CallInner => FutureState::Running {
                            future: service.call(request),
                        },
                        NextStep::Deny(response) => return Poll::Ready(Some(response)),
                        NextStep::Delay(delay, wait_guard) => FutureState::slow_path(
                            SlowPath::delayed(delay, service, request, request_state, wait_guard),
                        ),
                        NextStep::AwaitDecision(future, client) => FutureState::slow_path(
                            SlowPath::deciding(future, client, service, request),
                        ),
                    }
                }
            };
            self.set(next);
        }
    }
}

impl<D: Decider> RequestState<D> {
    /// Writes the rate limit headers. Returns whether the request is settled with that; if not, the
    /// caller settles it.
    #[inline]
    fn write_headers<R, E>(&self, result: &mut Result<Response<R>, E>) -> bool {
        let (Some(pending), Ok(response)) = (&self.pending, result) else {
            return self.pending.is_none();
        };
        let RateLimitShared { decider, options } = &*self.shared;
        decider.write_headers(pending, options.dialects, response.headers_mut(), None);
        if options.expose {
            response::expose_headers(response.headers_mut(), options.dialects);
        }
        let reached = response
            .extensions()
            .get::<crate::response::NotReached>()
            .is_none();
        reached && decider.is_settled(pending, &Completion::status(response.status().as_u16()))
    }
}

/// Settles a request now, or when the body of its response has ended.
#[inline(never)]
fn settle_response<R: Body, D: Decider, F: BodyKind<R, Pending<D>>, E>(
    polled: Poll<Result<Response<R>, E>>,
    request_state: &mut RequestState<D>,
) -> Poll<Result<Response<F::Body>, E>> {
    let decider = &request_state.shared.decider;
    // Taken out of the future, which may live long after it is done.
    let Some(pending) = request_state.pending.take() else {
        return polled.map(|result| result.map(|response| response.map(F::from_inner)));
    };
    let response = match ready!(polled) {
        Ok(response) => response,
        Err(error) => {
            decider.settle(pending, Completion::failed());
            return Poll::Ready(Err(error));
        }
    };
    let completion = Completion::status(response.status().as_u16());
    if response
        .extensions()
        .get::<crate::response::NotReached>()
        .is_some()
    {
        decider.cancel(pending);
    } else if decider.holds_permits(&pending) {
        let pending = Pending(Some(Box::new(PendingSettlement {
            shared: Arc::clone(&request_state.shared),
            pending,
            completion,
        })));
        return Poll::Ready(Ok(response.map(|body| F::with_guard(body, pending))));
    } else {
        decider.settle(pending, completion);
    }
    Poll::Ready(Ok(response.map(F::from_inner)))
}

impl<S: Service<Request<B>>, B, D: Decider, F> fmt::Debug for ResponseFuture<S, B, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
