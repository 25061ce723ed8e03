//! The service as those see it who keep it running: figures, the dashboard and the alerts that go
//! by them, logs.

mod documents;
mod figures;
mod log;
mod promtool;
mod queries;
mod scraped;
#[path = "../support/mod.rs"]
mod support;
mod top;
mod traces;
