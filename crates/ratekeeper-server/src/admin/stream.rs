//! `GET /admin/stream`: the status once a second, as server-sent events.

use super::Admin;
use super::status::ServerStatus;
use crate::api::{Code, Problem};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use http_body::Frame;
use ratekeeper::Clock;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Concurrent streams, so that the listener stays available for other requests.
const MAX_STREAMS: usize = 32;

/// Time between events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Streams share events up to this age, because reading the status scans the store.
const MAX_EVENT_AGE: Duration = Duration::from_millis(500);

/// A stream is closed if its client does not read for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Permits for streams, and the last event.
pub(super) struct EventStreams {
    permits: Arc<Semaphore>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl Default for EventStreams {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_STREAMS)),
            last: Mutex::default(),
        }
    }
}

pub(super) async fn stream<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
) -> Result<Response, Problem> {
    let Ok(permit) = Arc::clone(&admin.streams.permits).try_acquire_owned() else {
        let detail =
            format!("limit of {MAX_STREAMS} event streams reached; close one or use /admin/status");
        return Err(Problem::new(Code::Unavailable, detail));
    };
    let (sender, events) = mpsc::channel(1);
    tokio::spawn(send_events(admin, sender));
    let mut response = Response::new(Body::new(Events {
        events,
        _permit: permit,
    }));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Sends events until the client disconnects or the server stops.
async fn send_events<C: Clock>(admin: Arc<Admin<C>>, sender: mpsc::Sender<Bytes>) {
    let mut stopped = admin.options.stopped.clone();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = sender.closed() => return,
            _ = ticks.tick() => {}
        }
        let event = admin.streams.event(&admin).await;
        if !matches!(timeout(WRITE_TIMEOUT, sender.send(event)).await, Ok(Ok(()))) {
            return;
        }
    }
}

impl EventStreams {
    /// The current event, shared by streams that ask at about the same time.
    async fn event<C: Clock>(&self, admin: &Admin<C>) -> Bytes {
        let mut last = self.last.lock().await;
        if let Some((at, event)) = &*last
            && at.elapsed() < MAX_EVENT_AGE
        {
            return event.clone();
        }
        let status = ServerStatus::of(admin.app(), admin.started).await;
        // Structs of text and numbers always have a JSON form, which is one line.
        let data = serde_json::to_string(&status).unwrap_or_default();
        let event = Bytes::from(format!("event: status\ndata: {data}\n\n"));
        *last = Some((Instant::now(), event.clone()));
        event
    }
}

/// The response body: one frame for each event.
struct Events {
    events: mpsc::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.events
            .poll_recv(cx)
            .map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
