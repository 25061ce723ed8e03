//! How the service is watched: its log and its traces.

use super::Upstream;
use crate::policy::Rollout;

/// What the service says on standard error.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogConfig {
    /// In which form.
    pub format: LogFormat,
    /// The least important that is said: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: &'static str,
    /// Whether what is repeated is thinned out.
    pub sample: bool,
}

/// In which form lines of the log are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogFormat {
    /// `text`: for people.
    Text,
    /// `json`: an object a line.
    Json,
}

/// Spans of requests, for a collector of OpenTelemetry.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct TracesConfig {
    /// Where the collector takes OTLP over HTTP; none if nothing is traced.
    pub endpoint: Option<Upstream>,
    /// The share of requests that are traced, of those whose caller does not say whether to.
    pub share: Rollout,
}
