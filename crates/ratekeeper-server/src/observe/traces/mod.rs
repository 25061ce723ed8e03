//! Spans of requests for a collector of OpenTelemetry: one for each request of the gateway or of
//! the HTTP API that is sampled.
//!
//! Without `[traces]` there is no tracer, and a request costs nothing for it. No span has a key, an
//! address or a path in it.

mod context;
mod export;
mod wire;

pub(crate) use context::TRACEPARENT;
pub(crate) use export::ExporterThread;

use crate::gateway::{Connector, RequestRecord};
use crate::net::tls::connector_to;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use context::ParentContext;
use export::Collector;
use ratekeeper::store::AskOutcome;
use ratekeeper_policy::PolicyVerdict;
use ratekeeper_policy::config::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{Sender, channel};

/// So many spans wait to be sent; more are dropped.
const MOST_WAITING: usize = 4_096;

/// How long a connection to the collector may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A handle: clones are of the same.
#[derive(Clone)]
pub(crate) struct Tracer {
    shared: Arc<Shared>,
    ended: Sender<EndedSpan>,
    /// The share of requests that are traced, of those whose caller does not say.
    share: f64,
}

struct Shared {
    resource: Resource,
    sent: AtomicU64,
    lost: AtomicU64,
}

/// What is the same for all spans.
struct Resource {
    store: &'static str,
}

/// A span on its way to the collector.
struct EndedSpan {
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    begun: SystemTime,
    took: Duration,
    method: &'static str,
    /// Of the API, as the service calls it.
    route: Option<String>,
    status: u16,
    decided: DecisionAttributes,
}

/// What was decided on a request.
#[derive(Clone, Default)]
pub(crate) struct DecisionAttributes {
    pub(crate) outcome: Option<&'static str>,
    pub(crate) source: Option<&'static str>,
    /// Those that turned it away, or would have.
    pub(crate) policies: Vec<String>,
    pub(crate) upstream: Option<String>,
}

impl DecisionAttributes {
    pub(crate) fn of(verdict: &PolicyVerdict) -> Self {
        let is_denied = |outcome| {
            matches!(
                outcome,
                AskOutcome::Denied | AskOutcome::Never | AskOutcome::ShadowDenied
            )
        };
        let denied = verdict.limits().filter(|limit| is_denied(limit.outcome()));
        let mut policies: Vec<String> = denied.map(|limit| limit.policy().to_owned()).collect();
        policies.dedup();
        let outcome = match (verdict.is_allowed(), policies.is_empty()) {
            (false, _) => "denied",
            (true, false) => "shadow_denied",
            (true, true) => "allowed",
        };
        Self {
            outcome: Some(outcome),
            source: Some(verdict.source().name()),
            policies,
            upstream: None,
        }
    }
}

/// A request that is traced; it ends when this is dropped.
pub(crate) struct Span {
    tracer: Tracer,
    context: ParentContext,
    parent: Option<[u8; 8]>,
    begun: SystemTime,
    since: Instant,
    method: &'static str,
    route: Option<String>,
    pub(crate) status: u16,
    pub(crate) decided: DecisionAttributes,
    /// What others find out about it.
    pub(crate) notes: Option<RequestRecord>,
}

impl Tracer {
    /// None if nothing is to be traced. An error is a sentence.
    pub(crate) fn start(
        config: &Config,
        store: &'static str,
    ) -> Result<Option<(Self, ExporterThread)>, String> {
        let Some(endpoint) = config.traces.endpoint.clone() else {
            return Ok(None);
        };
        let connector = Connector {
            tls: connector_to(&endpoint, &config.gateway)?,
            connect_timeout: CONNECT,
        };
        let resource = Resource { store };
        let shared = Arc::new(Shared {
            resource,
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let (tell, told) = channel(MOST_WAITING);
        let exporting = export::start(
            Collector {
                endpoint,
                connector,
            },
            Arc::clone(&shared),
            told,
        );
        let exporting = exporting.map_err(|error| format!("[traces] cannot start: {error}"))?;
        let share = config.traces.share.as_percent() / 100.0;
        Ok(Some((
            Self {
                shared,
                ended: tell,
                share,
            },
            exporting,
        )))
    }

    /// Spans that a collector took, and that were lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.shared.sent.load(Relaxed),
            self.shared.lost.load(Relaxed),
        )
    }

    /// Begins a span, if this request is to have one: as its caller says, else one in so many.
    pub(crate) fn begin(&self, headers: &HeaderMap, method: &Method) -> Option<Span> {
        let parent = ParentContext::of(headers);
        let sampled = match parent {
            Some(parent) => parent.sampled,
            None => fastrand::f64() < self.share,
        };
        if !sampled {
            return None;
        }
        let trace = parent.map_or_else(|| fastrand::u128(1..).to_be_bytes(), |parent| parent.trace);
        let context = ParentContext {
            trace,
            span: fastrand::u64(1..).to_be_bytes(),
            sampled: true,
        };
        Some(Span {
            tracer: self.clone(),
            context,
            parent: parent.map(|parent| parent.span),
            begun: SystemTime::now(),
            since: Instant::now(),
            method: known(method),
            route: None,
            status: 0,
            decided: DecisionAttributes::default(),
            notes: None,
        })
    }
}

impl Span {
    /// What whoever comes next is told, so that its spans are part of this one.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        self.context.header()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let noted = self.notes.take().map(|notes| notes.decided());
        let ended = EndedSpan {
            trace: self.context.trace,
            span: self.context.span,
            parent: self.parent,
            begun: self.begun,
            took: self.since.elapsed(),
            method: self.method,
            route: self.route.take(),
            status: self.status,
            decided: noted.unwrap_or_else(|| std::mem::take(&mut self.decided)),
        };
        if self.tracer.ended.try_send(ended).is_err() {
            self.tracer.shared.lost.fetch_add(1, Relaxed);
        }
    }
}

/// Methods are whatever a client sends: others share one name.
fn known(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ];
    KNOWN
        .into_iter()
        .find(|known| method == known)
        .unwrap_or("_OTHER")
}

/// Around the routes of the API, where something is traced.
pub(crate) async fn traced(
    State(tracer): State<Tracer>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let Some(mut span) = tracer.begin(request.headers(), request.method()) else {
        return next.run(request).await;
    };
    span.route = request
        .extensions()
        .get::<MatchedPath>()
        .map(|path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    span.status = response.status().as_u16();
    if let Some(decided) = response.extensions_mut().remove::<DecisionAttributes>() {
        span.decided = decided;
    }
    response
}
