//! OpenTelemetry spans: one for each sampled request of the gateway or of the HTTP API.
//!
//! Without `[traces]` there is no tracer and no cost. Spans contain no keys, addresses or paths.

mod context;
mod export;
mod wire;

pub(crate) use context::TRACEPARENT;
pub(crate) use export::ExporterThread;

use crate::config::Config;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{Sender, channel};

/// Maximum spans waiting for export; more are dropped.
const MAX_BUFFERED: usize = 4_096;

/// Timeout of a connection to the collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to the tracer; clones share it.
#[derive(Clone)]
pub(crate) struct Tracer {
    state: Arc<ExportState>,
    spans: Sender<EndedSpan>,
    /// Share of the requests without a `traceparent` that are sampled.
    share: f64,
}

/// State shared by the tracer and the exporter.
struct ExportState {
    resource: Resource,
    sent: AtomicU64,
    lost: AtomicU64,
}

/// Attributes of all spans.
struct Resource {
    store: &'static str,
}

/// A span on its way to the collector.
struct EndedSpan {
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    start: SystemTime,
    elapsed: Duration,
    method: &'static str,
    /// Route of the API.
    route: Option<String>,
    status: u16,
    decision: DecisionAttributes,
}

/// Attributes of the decision on a request.
#[derive(Clone, Default)]
pub(crate) struct DecisionAttributes {
    pub(crate) outcome: Option<&'static str>,
    pub(crate) source: Option<&'static str>,
    /// Policies that denied it, or would have.
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
    start: SystemTime,
    started: Instant,
    method: &'static str,
    route: Option<String>,
    pub(crate) status: u16,
    pub(crate) decision: DecisionAttributes,
    /// Record of the gateway, which has the decision there.
    pub(crate) record: Option<RequestRecord>,
}

impl Tracer {
    /// Starts the tracer. Returns `None` if no endpoint is configured. An error is a sentence.
    pub(crate) fn start(
        config: &Config,
        store: &'static str,
    ) -> Result<Option<(Self, ExporterThread)>, String> {
        let Some(endpoint) = config.traces.endpoint.clone() else {
            return Ok(None);
        };
        let connector = Connector {
            tls: connector_to(&endpoint, &config.gateway)?,
            connect_timeout: CONNECT_TIMEOUT,
        };
        let state = Arc::new(ExportState {
            resource: Resource { store },
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let (sender, receiver) = channel(MAX_BUFFERED);
        let exporter = export::start(
            Collector {
                endpoint,
                connector,
            },
            Arc::clone(&state),
            receiver,
        );
        let exporter = exporter.map_err(|error| format!("[traces] cannot start: {error}"))?;
        let share = config.traces.share.as_percent() / 100.0;
        Ok(Some((
            Self {
                state,
                spans: sender,
                share,
            },
            exporter,
        )))
    }

    /// Numbers of spans accepted by the collector, and lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.state.sent.load(Relaxed), self.state.lost.load(Relaxed))
    }

    /// Begins a span if the request is sampled: by its `traceparent`, otherwise at random.
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
            start: SystemTime::now(),
            started: Instant::now(),
            method: method_name(method),
            route: None,
            status: 0,
            decision: DecisionAttributes::default(),
            record: None,
        })
    }
}

impl Span {
    /// The header for the upstream, which makes its spans children of this one.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        self.context.header()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let recorded = self.record.take().map(|record| record.decided());
        let ended = EndedSpan {
            trace: self.context.trace,
            span: self.context.span,
            parent: self.parent,
            start: self.start,
            elapsed: self.started.elapsed(),
            method: self.method,
            route: self.route.take(),
            status: self.status,
            decision: recorded.unwrap_or_else(|| std::mem::take(&mut self.decision)),
        };
        if self.tracer.spans.try_send(ended).is_err() {
            self.tracer.state.lost.fetch_add(1, Relaxed);
        }
    }
}

/// The name of a method. Other methods share one name, because clients can send anything.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ];
    KNOWN
        .into_iter()
        .find(|known| method == known)
        .unwrap_or("_OTHER")
}

/// Middleware that traces the routes of the API.
pub(crate) async fn trace(
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
    if let Some(decision) = response.extensions_mut().remove::<DecisionAttributes>() {
        span.decision = decision;
    }
    response
}
