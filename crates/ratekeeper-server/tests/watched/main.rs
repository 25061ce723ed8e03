//! Observability: metrics, dashboard, alerts, logs, traces, `ratekeeper top`.

mod documents;
mod log;
mod metrics;
mod promtool;
mod queries;
mod scraped;
#[path = "../support/mod.rs"]
mod support;
mod top;
mod traces;
