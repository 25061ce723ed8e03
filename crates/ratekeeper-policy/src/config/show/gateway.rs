//! `config show` of `[gateway]`.

use super::tls::certificate;
use super::{Writer, inline, list, text};
use crate::config::gateway::GatewayConfig;
use crate::config::time::duration_text;
use std::num::NonZero;

impl Writer<'_> {
    /// Writes `[gateway]`, unless it is all defaults.
    pub(super) fn gateway(&mut self, gateway: &GatewayConfig) {
        if *gateway == GatewayConfig::default() {
            return;
        }
        let GatewayConfig {
            upstreams,
            balance,
            balance_by,
            http2,
            ca_file,
            retries,
            breaker,
            health_path,
            health_interval,
            tls,
            hosts,
            preflight,
            proxy_protocol,
            header_timeout,
            keep_alive,
            connect_timeout,
            idle_timeout,
            total_timeout,
            abandoned_timeout,
            upgrade_timeout,
            max_head,
            max_headers,
            max_body,
            body_timeout,
            min_body_rate,
            max_connections,
            max_connections_per_address,
            access_log,
            access_log_every,
            drain_delay,
            drain_timeout,
        } = gateway;
        self.table("[gateway]", "gateway");
        self.line("upstreams", list(upstreams.iter().map(text)));
        self.line("balance", text(balance.name()));
        self.line("balance_by", text(balance_by));
        self.line("http2", http2.to_string());
        self.optional("ca_file", ca_file.as_ref().map(|file| text(file.display())));
        self.line("retries", retries.to_string());
        self.line("breaker", breaker.to_string());
        self.optional("health_path", health_path.as_ref().map(text));
        self.line("health_interval", text(duration_text(*health_interval)));
        self.optional("tls", tls.as_ref().map(|tls| inline(certificate(tls))));
        self.line("hosts", list(hosts.iter().map(text)));
        self.line("preflight", text(preflight));
        self.line("proxy_protocol", proxy_protocol.to_string());
        self.line("header_timeout", text(duration_text(*header_timeout)));
        self.line("keep_alive", text(duration_text(*keep_alive)));
        self.line("connect_timeout", text(duration_text(*connect_timeout)));
        self.line("idle_timeout", text(duration_text(*idle_timeout)));
        self.optional(
            "total_timeout",
            total_timeout.map(|time| text(duration_text(time))),
        );
        self.line("abandoned_timeout", text(duration_text(*abandoned_timeout)));
        self.line("upgrade_timeout", text(duration_text(*upgrade_timeout)));
        self.line("max_head", max_head.to_string());
        self.line("max_headers", max_headers.to_string());
        self.optional("max_body", max_body.map(|bytes| bytes.to_string()));
        self.line("body_timeout", text(duration_text(*body_timeout)));
        self.line(
            "min_body_rate",
            min_body_rate.map_or(0, NonZero::get).to_string(),
        );
        self.line("max_connections", max_connections.to_string());
        self.line(
            "max_connections_per_address",
            max_connections_per_address
                .map_or(0, NonZero::get)
                .to_string(),
        );
        self.line("access_log", text(access_log));
        self.line("access_log_every", access_log_every.to_string());
        self.line("drain_delay", text(duration_text(*drain_delay)));
        self.line("drain_timeout", text(duration_text(*drain_timeout)));
    }
}
