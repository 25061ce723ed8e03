//! The service as those see it who keep it running: figures, the dashboard and the alerts that go
//! by them, logs.

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
