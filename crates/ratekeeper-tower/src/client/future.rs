//! `ClientFuture`: waits until a call may be made, makes it, and retries it.

use super::host::SendDecision;
use super::hosts::SharedHost;
use super::layer::{ClientShared, LimitError};
use super::rate_limit_headers::{self, ResponseInfo};
use super::retries::AttemptOutcome;
use super::{ClientError, NoRetries, RetryPolicy};
use crate::deadline::Deadline;
use http::{Request, Response};
use pin_project_lite::pin_project;
use ratekeeper::{Clock, Reservation, Timestamp, clock::Sleep, clock::SystemClock};
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tower_service::Service;

pin_project! {
    /// The response of a [`ClientService`](super::ClientService). Dropping it cancels the call and
    /// releases a slot that was not used.
    #[must_use = "futures do nothing unless polled"]
    pub struct ClientFuture<S, B, C: Clock = SystemClock, R = NoRetries>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: CallState<S::Future>,
        call: OutgoingCall<S, B, C, R>,
    }
}

pin_project! {
    #[project = CallStatePinned]
    enum CallState<F> {
        // It may not be sent yet.
        Waiting {
            sleep: Option<Sleep>,
        },
        // It may be sent as soon as the inner client is ready.
        WaitingForReady,
        Calling {
            #[pin]
            inner: F,
        },
    }
}

struct OutgoingCall<S, B, C: Clock, R> {
    service: S,
    request: Option<Request<B>>,
    /// A clone of the request for a retry.
    retry_request: Option<Request<B>>,
    shared: Arc<ClientShared<C>>,
    retry_policy: R,
    name: Box<str>,
    host: Arc<SharedHost>,
    deadline: Option<Timestamp>,
    /// When it stops waiting.
    wait_deadline: Timestamp,
    /// Not before this time: by its backoff, or by a slot of the local limit.
    not_before: Option<Timestamp>,
    reservation: ReservationGuard<C>,
    /// The next step towards being sent.
    step: SendStep,
    in_flight: Option<InFlightRequest>,
    retries_made: u32,
}

/// The steps towards being sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendStep {
    Throttle,
    Limit,
    Host,
}

/// A reserved slot of the local limit; cancelled if dropped before its time.
struct ReservationGuard<C: Clock>(Option<Reservation<C>>);

impl<C: Clock> Drop for ReservationGuard<C> {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            reservation.cancel();
        }
    }
}

/// A request that was sent and has no response yet. Dropping it reports that its outcome is
/// unknown.
struct InFlightRequest {
    host: Option<Arc<SharedHost>>,
    sent: Timestamp,
}

impl InFlightRequest {
    fn complete(mut self, now: Timestamp, info: &ResponseInfo) {
        if let Some(host) = self.host.take() {
            let wakers = host.lock().on_response(now, self.sent, info);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            let wakers = host.lock().on_failure();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Why a request may not be sent yet.
enum NotReady<E> {
    Until(Timestamp),
    /// Until another request gets a response, which wakes this one, or until that time.
    AfterResponse(Timestamp),
    Fails(ClientError<E>),
}

impl<S, B, C, R> ClientFuture<S, B, C, R>
where
    S: Service<Request<B>>,
    C: Clock,
    R: RetryPolicy<B>,
{
    pub(super) fn new(
        service: S,
        request: Request<B>,
        shared: Arc<ClientShared<C>>,
        retry_policy: R,
    ) -> Self {
        let now = shared.clock.now();
        let name: Box<str> = shared.name_of(&request).into();
        let host = shared.hosts.of(&name, now, || shared.new_host());
        host.lock().budget.request(now);
        let call = OutgoingCall {
            service,
            retry_request: None,
            deadline: request
                .extensions()
                .get::<Deadline>()
                .map(|deadline| deadline.0),
            request: Some(request),
            wait_deadline: now + shared.max_wait,
            shared,
            retry_policy,
            name,
            host,
            not_before: None,
            reservation: ReservationGuard(None),
            step: SendStep::Throttle,
            in_flight: None,
            retries_made: 0,
        };
        Self {
            state: CallState::Waiting { sleep: None },
            call,
        }
    }
}

impl<S, B, C: Clock, R> OutgoingCall<S, B, C, R> {
    /// Takes as many steps towards being sent as possible.
    fn proceed<E>(&mut self, waker: &Waker) -> Result<(), NotReady<E>> {
        let now = self.shared.clock.now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(NotReady::Fails(ClientError::TooLate));
        }
        if let Some(at) = self.not_before.filter(|at| now < *at) {
            return Err(NotReady::Until(at));
        }
        self.not_before = None;
        if self.step == SendStep::Throttle {
            let sent = match &mut self.host.lock().throttle {
                Some(throttle) => throttle.request(now, fastrand::f64()),
                None => true,
            };
            if !sent {
                return Err(NotReady::Fails(ClientError::Throttled));
            }
            self.step = SendStep::Limit;
        }
        if self.step == SendStep::Limit {
            self.reserve_slot(now)?;
        }
        // The slot's time has come: it is used.
        self.reservation.0 = None;
        self.acquire_host(now, waker)
    }

    fn reserve_slot<E>(&mut self, now: Timestamp) -> Result<(), NotReady<E>> {
        let max_wait = self.send_by() - now;
        match self.shared.reserve(&self.name, now, max_wait) {
            Ok(reservation) => {
                let act_at = reservation
                    .as_ref()
                    .map(Reservation::act_at)
                    .filter(|act_at| *act_at > now);
                self.reservation.0 = reservation.filter(|_| act_at.is_some());
                self.step = SendStep::Host;
                self.not_before = act_at;
                act_at.map_or(Ok(()), |act_at| Err(NotReady::Until(act_at)))
            }
            Err(LimitError::RetryAt(at)) => Err(NotReady::Until(at)),
            Err(LimitError::TooLong(after)) => {
                let too_late = self.is_too_late(after.map(|after| now + after));
                Err(NotReady::Fails(if too_late {
                    ClientError::TooLate
                } else {
                    ClientError::Limited { retry_after: after }
                }))
            }
        }
    }

    fn acquire_host<E>(&mut self, now: Timestamp, waker: &Waker) -> Result<(), NotReady<E>> {
        let mut host = self.host.lock();
        match host.try_send(now) {
            SendDecision::Now => {
                drop(host);
                self.in_flight = Some(InFlightRequest {
                    host: Some(Arc::clone(&self.host)),
                    sent: now,
                });
                Ok(())
            }
            SendDecision::NotBefore(until) if until > self.send_by() => {
                drop(host);
                let too_late = self.is_too_late(Some(until));
                let paused = ClientError::Paused {
                    retry_after: until - now,
                };
                Err(NotReady::Fails(if too_late {
                    ClientError::TooLate
                } else {
                    paused
                }))
            }
            SendDecision::NotBefore(until) => {
                drop(host);
                // Spreads the requests after a pause, as far as they may wait.
                let spread = (until - now).mul_f64(self.shared.jitter * fastrand::f64());
                Err(NotReady::Until((until + spread).min(self.send_by())))
            }
            SendDecision::AfterResponse(at) => {
                host.register_waker(waker);
                drop(host);
                let at = at.min(self.send_by());
                Err(if at > now {
                    NotReady::AfterResponse(at)
                } else if self.is_too_late(None) {
                    NotReady::Fails(ClientError::TooLate)
                } else {
                    NotReady::Fails(ClientError::Paused {
                        retry_after: Duration::ZERO,
                    })
                })
            }
        }
    }

    /// Releases what the call holds: the future may live long after it is done.
    fn release(&mut self) {
        self.reservation = ReservationGuard(None);
        self.in_flight = None;
    }

    /// The latest time at which it may be sent.
    fn send_by(&self) -> Timestamp {
        self.deadline.map_or(self.wait_deadline, |deadline| {
            deadline.min(self.wait_deadline)
        })
    }

    /// Whether the deadline, not the maximum wait, rules out that time.
    fn is_too_late(&self, at: Option<Timestamp>) -> bool {
        self.deadline.is_some_and(|deadline| {
            deadline <= self.wait_deadline && at.is_none_or(|at| at >= deadline)
        })
    }

    /// Prepares a retry, if the request is to be retried.
    fn prepare_retry(&mut self, outcome: &AttemptOutcome<'_>) -> bool
    where
        R: RetryPolicy<B>,
    {
        let (Some(retries), Some(retry_request)) =
            (self.retry_policy.retries(), &self.retry_request)
        else {
            return false;
        };
        if !retries.should_retry(retry_request, self.retries_made, outcome) {
            return false;
        }
        let now = self.shared.clock.now();
        let backoff = retries.backoff.delay(self.retries_made, fastrand::f64());
        let next = self
            .host
            .lock()
            .paused_until(now)
            .map_or(now + backoff, |until| until.max(now + backoff));
        let in_time = self.deadline.is_none_or(|deadline| next < deadline)
            && next - now <= self.shared.max_wait.max(backoff);
        if !in_time || !self.host.lock().allow_retry(now, fastrand::f64()) {
            return false;
        }
        self.request = self.retry_request.take();
        self.retries_made += 1;
        self.not_before = Some(now + backoff);
        self.wait_deadline = now + backoff + self.shared.max_wait;
        // The throttle was asked already, in `allow_retry`.
        self.step = SendStep::Limit;
        true
    }
}

impl<S, B, T, C, R> Future for ClientFuture<S, B, C, R>
where
    S: Service<Request<B>, Response = Response<T>>,
    S::Error: Error + 'static,
    C: Clock,
    R: RetryPolicy<B>,
{
    type Output = Result<Response<T>, ClientError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call;
        loop {
            match this.state.as_mut().project() {
                CallStatePinned::Waiting { sleep } => match call.proceed(cx.waker()) {
                    Ok(()) => this.state.set(CallState::WaitingForReady),
                    Err(NotReady::Fails(error)) => {
                        call.release();
                        return Poll::Ready(Err(error));
                    }
                    Err(NotReady::Until(at) | NotReady::AfterResponse(at)) => {
                        let timer = sleep.insert(call.shared.clock.sleep_until(at));
                        if !ready!(Pin::new(timer).poll(cx)) {
                            call.release();
                            return Poll::Ready(Err(ClientError::NoTimer));
                        }
                    }
                },
                CallStatePinned::WaitingForReady => {
                    if let Err(error) = ready!(call.service.poll_ready(cx)) {
                        call.release();
                        return Poll::Ready(Err(ClientError::Inner(error)));
                    }
                    let Some(request) = call.request.take() else {
                        return Poll::Pending;
                    };
                    call.retry_request = call.retry_policy.clone_for_retry(&request);
                    let inner = call.service.call(request);
                    this.state.set(CallState::Calling { inner });
                }
                CallStatePinned::Calling { inner } => {
                    let result = ready!(inner.poll(cx));
                    let in_flight = call.in_flight.take();
                    let again = match &result {
                        Ok(response) => {
                            let now = call.shared.clock.now();
                            let info = rate_limit_headers::read(
                                response.status(),
                                response.headers(),
                                now.since_unix(),
                            );
                            if let Some(in_flight) = in_flight {
                                in_flight.complete(now, &info);
                            }
                            let by_status = AttemptOutcome::Status(response.status());
                            let outcome = if info.denied {
                                AttemptOutcome::Denied
                            } else {
                                by_status
                            };
                            call.prepare_retry(&outcome)
                        }
                        Err(error) => {
                            drop(in_flight);
                            call.prepare_retry(&AttemptOutcome::Failed(error))
                        }
                    };
                    if !again {
                        return Poll::Ready(result.map_err(ClientError::Inner));
                    }
                    this.state.set(CallState::Waiting { sleep: None });
                }
            }
        }
    }
}

impl<S: Service<Request<B>>, B, C: Clock, R> fmt::Debug for ClientFuture<S, B, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFuture").finish_non_exhaustive()
    }
}
