//! `GET /admin/stream`: how things stand, once a second, as server-sent events.

use super::Admin;
use super::status::Status;
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

/// How many may listen at once: the listener serves others too.
const MOST: usize = 32;

const EVERY: Duration = Duration::from_secs(1);

/// What is this young is told to another listener as it is: all of the store is looked at for it.
const YOUNG: Duration = Duration::from_millis(500);

/// Who does not read for so long does not listen.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct EventStreams {
    room: Arc<Semaphore>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl Default for EventStreams {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MOST)),
            last: Mutex::default(),
        }
    }
}

pub(super) async fn stream<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
) -> Result<Response, Problem> {
    let Ok(place) = Arc::clone(&admin.listeners.room).try_acquire_owned() else {
        let detail = format!(
            "{MOST} listen already, as many as are served; close one, or ask for /admin/status"
        );
        return Err(Problem::new(Code::Unavailable, detail));
    };
    let (sender, events) = mpsc::channel(1);
    tokio::spawn(tell(admin, sender));
    let mut response = Response::new(Body::new(Events {
        events,
        _place: place,
    }));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Until nobody listens any more, or everything stops.
async fn tell<C: Clock>(admin: Arc<Admin<C>>, sender: mpsc::Sender<Bytes>) {
    let mut stopped = admin.options.stopped.clone();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = sender.closed() => return,
            _ = ticks.tick() => {}
        }
        let event = admin.listeners.event(&admin).await;
        if !matches!(timeout(PATIENCE, sender.send(event)).await, Ok(Ok(()))) {
            return;
        }
    }
}

impl EventStreams {
    /// The event of now; several who ask at once get the same.
    async fn event<C: Clock>(&self, admin: &Admin<C>) -> Bytes {
        let mut last = self.last.lock().await;
        if let Some((at, event)) = &*last
            && at.elapsed() < YOUNG
        {
            return event.clone();
        }
        let status = Status::of(admin.app(), admin.started).await;
        // Structs of text and numbers always have a JSON form, which is one line.
        let data = serde_json::to_string(&status).unwrap_or_default();
        let event = Bytes::from(format!("event: status\ndata: {data}\n\n"));
        *last = Some((Instant::now(), event.clone()));
        event
    }
}

/// The body: events until there are no more.
struct Events {
    events: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
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
