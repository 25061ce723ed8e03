//! One call: it waits for its turn, is made, and is made again where that may help.

use super::host::Turn;
use super::hosts::Cell;
use super::layer::{Shared, Slot};
use super::retries::Ended;
use super::told::{self, Told};
use super::{ClientError, Once, Repeat};
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
    /// What [`ClientService`](super::ClientService) answers with. Dropping it gives the call up,
    /// and with it a slot that was not used.
    #[must_use = "futures do nothing unless polled"]
    pub struct ClientFuture<S, B, C: Clock = SystemClock, R = Once>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S::Future>,
        call: Call<S, B, C, R>,
    }
}

pin_project! {
    #[project = StatePinned]
    enum State<F> {
        // Its turn has not come.
        Waiting {
            sleep: Option<Sleep>,
        },
        // Its turn has come, and the client inside may not be ready.
        Readying,
        Calling {
            #[pin]
            inner: F,
        },
    }
}

struct Call<S, B, C: Clock, R> {
    service: S,
    request: Option<Request<B>>,
    /// To be tried again with.
    copy: Option<Request<B>>,
    shared: Arc<Shared<C>>,
    repeat: R,
    name: Box<str>,
    host: Arc<Cell>,
    deadline: Option<Timestamp>,
    /// When it gives up waiting.
    patience: Timestamp,
    /// Not before, by its own backoff or a slot of its own limit.
    not_before: Option<Timestamp>,
    slot: Held<C>,
    /// How far it has come on the way to being sent.
    step: Step,
    flight: Option<Flight>,
    retried: u32,
}

/// The steps to being sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Throttle,
    Limit,
    Host,
}

/// A slot of this side's limit. Given up before its time it goes back.
struct Held<C: Clock>(Option<Reservation<C>>);

impl<C: Clock> Drop for Held<C> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.cancel();
        }
    }
}

/// One of ours that the other side has not answered. Dropping it says that nobody will know what
/// became of it.
struct Flight {
    host: Option<Arc<Cell>>,
    sent: Timestamp,
}

impl Flight {
    fn answered(mut self, now: Timestamp, told: &Told) {
        if let Some(host) = self.host.take() {
            let waiting = host.lock().answered(now, self.sent, told);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            let waiting = host.lock().gone();
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// What stands in the way of sending.
enum Blocked<E> {
    Until(Timestamp),
    /// An answer to somebody else, for which it is woken, or that time.
    Answer(Timestamp),
    Fails(ClientError<E>),
}

impl<S, B, C, R> ClientFuture<S, B, C, R>
where
    S: Service<Request<B>>,
    C: Clock,
    R: Repeat<B>,
{
    pub(super) fn new(service: S, request: Request<B>, shared: Arc<Shared<C>>, repeat: R) -> Self {
        let now = shared.clock.now();
        let name: Box<str> = shared.name_of(&request).into();
        let host = shared.hosts.of(&name, now, || shared.new_host());
        host.lock().budget.request(now);
        let call = Call {
            service,
            copy: None,
            deadline: request
                .extensions()
                .get::<Deadline>()
                .map(|deadline| deadline.0),
            request: Some(request),
            patience: now + shared.longest,
            shared,
            repeat,
            name,
            host,
            not_before: None,
            slot: Held(None),
            step: Step::Throttle,
            flight: None,
            retried: 0,
        };
        Self {
            state: State::Waiting { sleep: None },
            call,
        }
    }
}

impl<S, B, C: Clock, R> Call<S, B, C, R> {
    /// Goes as far as it can on the way to being sent.
    fn proceed<E>(&mut self, waker: &Waker) -> Result<(), Blocked<E>> {
        let now = self.shared.clock.now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Blocked::Fails(ClientError::TooLate));
        }
        if let Some(at) = self.not_before.filter(|at| now < *at) {
            return Err(Blocked::Until(at));
        }
        self.not_before = None;
        if self.step == Step::Throttle {
            let sent = match &mut self.host.lock().throttle {
                Some(throttle) => throttle.request(now, fastrand::f64()),
                None => true,
            };
            if !sent {
                return Err(Blocked::Fails(ClientError::Throttled));
            }
            self.step = Step::Limit;
        }
        if self.step == Step::Limit {
            self.pass_limit(now)?;
        }
        // The slot's time has come: it is used.
        self.slot.0 = None;
        self.pass_host(now, waker)
    }

    fn pass_limit<E>(&mut self, now: Timestamp) -> Result<(), Blocked<E>> {
        let longest = self.last_moment() - now;
        match self.shared.slot(&self.name, now, longest) {
            Ok(slot) => {
                let act = slot
                    .as_ref()
                    .map(Reservation::act_at)
                    .filter(|act| *act > now);
                self.slot.0 = slot.filter(|_| act.is_some());
                self.step = Step::Host;
                self.not_before = act;
                act.map_or(Ok(()), |act| Err(Blocked::Until(act)))
            }
            Err(Slot::AskAgain(at)) => Err(Blocked::Until(at)),
            Err(Slot::TooLong(after)) => {
                let too_late = self.is_too_late(after.map(|after| now + after));
                Err(Blocked::Fails(if too_late {
                    ClientError::TooLate
                } else {
                    ClientError::Limited { retry_after: after }
                }))
            }
        }
    }

    fn pass_host<E>(&mut self, now: Timestamp, waker: &Waker) -> Result<(), Blocked<E>> {
        let mut host = self.host.lock();
        match host.ask(now) {
            Turn::Now => {
                drop(host);
                self.flight = Some(Flight {
                    host: Some(Arc::clone(&self.host)),
                    sent: now,
                });
                Ok(())
            }
            Turn::NotBefore(until) if until > self.last_moment() => {
                drop(host);
                let too_late = self.is_too_late(Some(until));
                let paused = ClientError::Paused {
                    retry_after: until - now,
                };
                Err(Blocked::Fails(if too_late {
                    ClientError::TooLate
                } else {
                    paused
                }))
            }
            Turn::NotBefore(until) => {
                drop(host);
                // Each a little later than the other, as far as its patience goes.
                let spread = (until - now).mul_f64(self.shared.jitter * fastrand::f64());
                Err(Blocked::Until((until + spread).min(self.last_moment())))
            }
            Turn::AfterAnswer(at) => {
                host.wake(waker);
                drop(host);
                let at = at.min(self.last_moment());
                Err(match at > now {
                    true => Blocked::Answer(at),
                    false if self.is_too_late(None) => Blocked::Fails(ClientError::TooLate),
                    false => Blocked::Fails(ClientError::Paused {
                        retry_after: Duration::ZERO,
                    }),
                })
            }
        }
    }

    /// Gives back what it holds: the future may be kept long after it is done.
    fn leave(&mut self) {
        self.slot = Held(None);
        self.flight = None;
    }

    /// It does not wait beyond.
    fn last_moment(&self) -> Timestamp {
        self.deadline
            .map_or(self.patience, |deadline| deadline.min(self.patience))
    }

    /// Whether it is the deadline that is in the way of that time.
    fn is_too_late(&self, at: Option<Timestamp>) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= self.patience && at.is_none_or(|at| at >= deadline))
    }

    /// Prepares another try, if there is to be one.
    fn tries_again(&mut self, ended: &Ended<'_>) -> bool
    where
        R: Repeat<B>,
    {
        let (Some(retries), Some(copy)) = (self.repeat.retries(), &self.copy) else {
            return false;
        };
        if !retries.again(copy, self.retried, ended) {
            return false;
        }
        let now = self.shared.clock.now();
        let backoff = retries.backoff.delay(self.retried, fastrand::f64());
        let next = self
            .host
            .lock()
            .paused_until(now)
            .map_or(now + backoff, |until| until.max(now + backoff));
        let in_time = self.deadline.is_none_or(|deadline| next < deadline)
            && next - now <= self.shared.longest.max(backoff);
        if !in_time || !self.host.lock().lets_retry(now, fastrand::f64()) {
            return false;
        }
        self.request = self.copy.take();
        self.retried += 1;
        self.not_before = Some(now + backoff);
        self.patience = now + backoff + self.shared.longest;
        // The throttle was asked: whom it does not let try again keeps the answer that there is.
        self.step = Step::Limit;
        true
    }
}

impl<S, B, T, C, R> Future for ClientFuture<S, B, C, R>
where
    S: Service<Request<B>, Response = Response<T>>,
    S::Error: Error + 'static,
    C: Clock,
    R: Repeat<B>,
{
    type Output = Result<Response<T>, ClientError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call;
        loop {
            match this.state.as_mut().project() {
                StatePinned::Waiting { sleep } => match call.proceed(cx.waker()) {
                    Ok(()) => this.state.set(State::Readying),
                    Err(Blocked::Fails(error)) => {
                        call.leave();
                        return Poll::Ready(Err(error));
                    }
                    Err(Blocked::Until(at) | Blocked::Answer(at)) => {
                        let timer = sleep.insert(call.shared.clock.sleep_until(at));
                        if !ready!(Pin::new(timer).poll(cx)) {
                            call.leave();
                            return Poll::Ready(Err(ClientError::NoTimer));
                        }
                    }
                },
                StatePinned::Readying => {
                    if let Err(error) = ready!(call.service.poll_ready(cx)) {
                        call.leave();
                        return Poll::Ready(Err(ClientError::Inner(error)));
                    }
                    let Some(request) = call.request.take() else {
                        return Poll::Pending;
                    };
                    call.copy = call.repeat.copy(&request);
                    let inner = call.service.call(request);
                    this.state.set(State::Calling { inner });
                }
                StatePinned::Calling { inner } => {
                    let result = ready!(inner.poll(cx));
                    let flight = call.flight.take();
                    let again = match &result {
                        Ok(response) => {
                            let now = call.shared.clock.now();
                            let told =
                                told::read(response.status(), response.headers(), now.since_unix());
                            if let Some(flight) = flight {
                                flight.answered(now, &told);
                            }
                            let by_status = Ended::Status(response.status());
                            let ended = if told.refused {
                                Ended::Refused
                            } else {
                                by_status
                            };
                            call.tries_again(&ended)
                        }
                        Err(error) => {
                            drop(flight);
                            call.tries_again(&Ended::Failed(error))
                        }
                    };
                    if !again {
                        return Poll::Ready(result.map_err(ClientError::Inner));
                    }
                    this.state.set(State::Waiting { sleep: None });
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
