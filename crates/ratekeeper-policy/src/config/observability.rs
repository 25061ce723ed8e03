//! Configuration of the log and the traces.

use super::Upstream;
use crate::policy::Rollout;

/// `[log]`: the log on standard error.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogConfig {
    /// The format of lines.
    pub format: LogFormat,
    /// The lowest level that is logged: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: &'static str,
    /// Whether repeated lines are sampled.
    pub sample: bool,
}

/// The format of lines of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogFormat {
    /// `text`: for people.
    Text,
    /// `json`: one object per line.
    Json,
}

/// `[traces]`: traces of requests, sent to an OpenTelemetry collector.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct TracesConfig {
    /// The OTLP/HTTP address of the collector; without one, nothing is traced.
    pub endpoint: Option<Upstream>,
    /// The share of requests that are traced, of those whose caller has made no sampling decision.
    pub share: Rollout,
}
