//! `config show` of `[log]` and `[traces]`.

use super::{Writer, text};
use crate::config::observability::{LogConfig, LogFormat, TracesConfig};
use crate::policy::Rollout;

impl Writer<'_> {
    /// Writes `[log]`.
    pub(super) fn log(&mut self, log: &LogConfig) {
        self.table("[log]", "log");
        let format = match log.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        self.line("format", text(format));
        self.line("level", text(log.level));
        self.line("sample", log.sample.to_string());
    }

    /// Writes `[traces]`, unless it is all defaults.
    pub(super) fn traces(&mut self, traces: &TracesConfig) {
        let TracesConfig { endpoint, share } = traces;
        if endpoint.is_none() && Some(*share) == Rollout::percent(1.0) {
            return;
        }
        self.table("[traces]", "traces");
        if let Some(endpoint) = endpoint {
            self.line("endpoint", text(endpoint));
        }
        self.line("percent", share.as_percent().to_string());
    }
}
