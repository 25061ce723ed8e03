//! The open connections of one worker, up to a maximum. At the maximum, a new connection replaces
//! the one that has been idle for longest.
//!
//! A connection is idle while no request of it is in flight, even if it has sent half of a head or
//! nothing at all.

use crate::gateway::StreamProgress;
use axum::http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

/// The open connections of a worker.
pub(crate) struct Connections {
    max_connections: usize,
    free: Arc<Semaphore>,
    open: Mutex<Open>,
    order: Arc<IdleOrder>,
}

/// The open connections, by number.
#[derive(Default)]
struct Open {
    last_id: u64,
    by_id: HashMap<u64, Arc<Activity>>,
}

/// The order in which the connections of a worker became idle: a counter, so that no request has to
/// read a clock.
#[derive(Default)]
struct IdleOrder {
    last: AtomicU64,
    became_idle: Notify,
}

impl Connections {
    pub(crate) fn new(max_connections: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(max_connections));
        Arc::new(Self {
            max_connections,
            free,
            open: Mutex::default(),
            order: Arc::default(),
        })
    }

    /// Admits a connection. At the maximum, the connection that has been idle for longest is
    /// closed; if none is idle, this waits for one.
    pub(crate) async fn admit(self: &Arc<Self>) -> Slot {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return self.open(permit);
            }
            self.close_longest_idle();
            tokio::select! {
                // The semaphore is never closed.
                Ok(permit) = Arc::clone(&self.free).acquire_owned() => return self.open(permit),
                () = self.order.became_idle.notified() => {}
            }
        }
    }

    fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Slot {
        let activity = Arc::new(Activity::new(Arc::clone(&self.order)));
        let mut open = self.lock();
        open.last_id += 1;
        let id = open.last_id;
        open.by_id.insert(id, Arc::clone(&activity));
        Slot {
            id,
            activity,
            connections: Arc::clone(self),
            _permit: permit,
        }
    }

    fn close_longest_idle(&self) {
        let open = self.lock();
        // One at a time is enough.
        if open
            .by_id
            .values()
            .any(|activity| activity.is_closing.load(Relaxed))
        {
            return;
        }
        let idle = open.by_id.values().filter(|activity| activity.is_idle());
        if let Some(longest) = idle.min_by_key(|activity| activity.idle_since.load(Relaxed)) {
            longest.close();
        }
    }

    /// Ready when no connection is open.
    pub(crate) async fn closed(&self) {
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.free.acquire_many(all).await;
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point in the order in which connections become idle.
#[derive(Clone, Copy)]
pub(crate) struct IdleMark(u64);

/// The slot of a connection, until it is dropped.
pub(crate) struct Slot {
    id: u64,
    activity: Arc<Activity>,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.lock().by_id.remove(&self.id);
    }
}

/// Whether a connection has requests in flight, and when the last one ended.
#[derive(Default)]
pub(crate) struct Activity {
    in_flight: AtomicUsize,
    idle_since: AtomicU64,
    order: Arc<IdleOrder>,
    is_closing: AtomicBool,
    close: Notify,
}

impl Activity {
    fn new(order: Arc<IdleOrder>) -> Self {
        let idle_since = AtomicU64::new(order.last.fetch_add(1, Relaxed) + 1);
        Self {
            idle_since,
            order,
            ..Self::default()
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Relaxed) == 0
    }

    /// Whether no request of the connection has been in flight since `mark`.
    pub(crate) fn is_idle_since(&self, mark: IdleMark) -> bool {
        self.is_idle() && self.idle_since.load(Relaxed) <= mark.0
    }

    /// The current point, for [`is_idle_since`](Self::is_idle_since).
    pub(crate) fn mark(&self) -> IdleMark {
        IdleMark(self.order.last.load(Relaxed))
    }

    fn close(&self) {
        self.is_closing.store(true, Relaxed);
        self.close.notify_one();
    }

    /// Ready when the connection is to be closed.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

/// A request in flight, until this is dropped.
struct InFlight(Arc<Activity>);

impl InFlight {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.in_flight.fetch_add(1, Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Activity {
            in_flight,
            idle_since,
            order,
            ..
        } = &*self.0;
        idle_since.store(order.last.fetch_add(1, Relaxed) + 1, Relaxed);
        if in_flight.fetch_sub(1, Relaxed) == 1 {
            order.became_idle.notify_one();
        }
    }
}

/// The service of one connection. Counts each request as in flight until the end of the response
/// body.
#[derive(Clone)]
pub(crate) struct CountInFlight<S> {
    service: S,
    activity: Arc<Activity>,
}

impl<S> CountInFlight<S> {
    pub(crate) fn new(service: S, activity: &Arc<Activity>) -> Self {
        Self {
            service,
            activity: Arc::clone(activity),
        }
    }
}

impl<S, R, B> Service<Request<R>> for CountInFlight<S>
where
    S: Service<Request<R>, Response = Response<B>>,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = CountedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        CountedFuture {
            in_flight: Some(InFlight::new(&self.activity)),
            future: self.service.call(request),
        }
    }
}

pin_project! {
    pub(crate) struct CountedFuture<F> {
        in_flight: Option<InFlight>,
        #[pin]
        future: F,
    }
}

impl<F, B, E> Future for CountedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<CountedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Poll::Ready(response) = this.future.poll(cx) else {
            StreamProgress::Waiting.record();
            return Poll::Pending;
        };
        let response = response?;
        let in_flight = this.in_flight.take();
        Poll::Ready(Ok(response.map(|body| CountedBody {
            body,
            _in_flight: in_flight,
        })))
    }
}

pin_project! {
    /// The body of a response. The request ends with it.
    pub(crate) struct CountedBody<B> {
        #[pin]
        body: B,
        _in_flight: Option<InFlight>,
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = self.project().body.poll_frame(cx);
        if polled.is_ready() {
            StreamProgress::Moved
        } else {
            StreamProgress::Waiting
        }
        .record();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Duration, timeout};

    async fn is_closed(slot: &Slot) -> bool {
        timeout(Duration::from_secs(1), slot.activity.closed())
            .await
            .is_ok()
    }

    /// Tokio's clock is paused: it advances to the next timer when every task waits.
    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_replaced() {
        let connections = Connections::new(3);
        let (first, second, third) = (
            connections.admit().await,
            connections.admit().await,
            connections.admit().await,
        );
        // The first connection has just had a response, and the second waits for one.
        drop(InFlight::new(&first.activity));
        let _asked = InFlight::new(&second.activity);
        let more = {
            let connections = Arc::clone(&connections);
            tokio::spawn(async move { connections.admit().await })
        };
        assert!(is_closed(&third).await);
        assert!(!is_closed(&first).await && !is_closed(&second).await);
        drop(third);
        let more = more.await.unwrap();
        drop(InFlight::new(&more.activity));
        let another = {
            let connections = Arc::clone(&connections);
            tokio::spawn(async move { connections.admit().await })
        };
        assert!(is_closed(&first).await && !is_closed(&more).await);
        drop(first);
        another.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_waits_until_one_is_idle() {
        let connections = Connections::new(1);
        let slot = connections.admit().await;
        let asked = InFlight::new(&slot.activity);
        let more = {
            let connections = Arc::clone(&connections);
            tokio::spawn(async move { connections.admit().await })
        };
        assert!(!is_closed(&slot).await);
        drop(asked);
        assert!(is_closed(&slot).await);
        drop(slot);
        more.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connections_idle_after_the_mark_were_not_idle_since() {
        let connections = Connections::new(10);
        let (idle, answered, asking) = (
            connections.admit().await,
            connections.admit().await,
            connections.admit().await,
        );
        let _asked = InFlight::new(&asking.activity);
        let before = idle.activity.mark();
        drop(InFlight::new(&answered.activity));
        let since =
            |mark| [&idle, &answered, &asking].map(|slot| slot.activity.is_idle_since(mark));
        assert_eq!(since(before), [true, false, false]);
        assert_eq!(since(idle.activity.mark()), [true, true, false]);
        assert!(
            timeout(Duration::from_secs(1), connections.closed())
                .await
                .is_err()
        );
        drop((idle, answered, asking));
        connections.closed().await;
    }

    #[tokio::test]
    async fn a_request_is_in_flight_until_the_end_of_its_response() {
        let activity = Arc::new(Activity::default());
        let mut counted = CountInFlight::new(axum::Router::new(), &activity);
        assert!(activity.is_idle());
        let future = counted.call(Request::new(axum::body::Body::empty()));
        assert!(!activity.is_idle());
        let response = future.await.unwrap();
        assert!(!activity.is_idle());
        drop(response);
        assert!(activity.is_idle());
    }
}
