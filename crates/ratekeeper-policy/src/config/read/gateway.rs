//! Reading of `[gateway]`.

use super::settings::settings;
use super::{ReadError, Reader, Section, scalar};
use crate::attribute::Attribute;
use crate::config::gateway::{AccessLog, Balance, Certificate, GatewayConfig};
use crate::config::key_type::KeyType;
use crate::config::value::Value;
use std::num::NonZero;
use std::time::Duration;

/// Reads `[gateway]`.
pub(super) fn gateway(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<GatewayConfig> {
    let mut section = settings(reader, file, "gateway")?;
    let upstreams = section.get_list(reader, "upstreams", scalar::upstream);
    let balance = section
        .get(reader, "balance", scalar::word)
        .and_then(Balance::from_name);
    let balance_by = section.get(reader, "balance_by", balance_by);
    if balance.is_some_and(|balance| balance != Balance::ByKey) && section.has("balance_by") {
        let message = "`balance_by` in [gateway] has no effect unless `balance = \"by_key\"`; set \
                       that, or remove `balance_by`";
        reader.warn(section.position("balance_by"), message);
    }
    let http2 = section.get(reader, "http2", scalar::bool);
    let ca_file = section.get(reader, "ca_file", scalar::text);
    if let Some(upstreams) = upstreams.as_ref().filter(|_| ca_file.is_some())
        && !upstreams.is_empty()
        && !upstreams.iter().any(|upstream| upstream.is_tls())
    {
        let message =
            "`ca_file` in [gateway] has no effect, because no upstream is https://; remove it";
        reader.warn(section.position("ca_file"), message);
    }
    let retries = section.get(reader, "retries", scalar::number);
    let breaker = section.get(reader, "breaker", scalar::bool);
    let health_path = section.get(reader, "health_path", health_path);
    let tls = section
        .table(reader, "tls")
        .map(|inner| certificate(reader, inner));
    let hosts = section.get_list(reader, "hosts", scalar::host);
    let preflight = section.get(reader, "preflight", scalar::preflight);
    let proxy_protocol = section.get(reader, "proxy_protocol", scalar::bool);
    let mut time = |name| section.get(reader, name, scalar::duration);
    let health_interval = time("health_interval");
    let header_timeout = time("header_timeout");
    let keep_alive = time("keep_alive");
    let connect_timeout = time("connect_timeout");
    let idle_timeout = time("idle_timeout");
    let total_timeout: Option<Duration> = time("total_timeout");
    let abandoned_timeout = time("abandoned_timeout");
    let upgrade_timeout = time("upgrade_timeout");
    let body_timeout = time("body_timeout");
    let drain_delay = time("drain_delay");
    let drain_timeout = time("drain_timeout");
    let mut number = |name| section.get(reader, name, scalar::number);
    let max_head = number("max_head");
    let max_headers = number("max_headers");
    let max_body = number("max_body");
    let min_body_rate = number("min_body_rate");
    let max_connections = number("max_connections");
    let max_connections_per_address = number("max_connections_per_address");
    let access_log_every = number("access_log_every");
    let access_log = section.get(reader, "access_log", scalar::text);
    section.close();
    let tls = match tls {
        None => None,
        Some(certificate) => Some(certificate?),
    };
    Some(GatewayConfig {
        upstreams: upstreams?,
        balance: balance?,
        balance_by: balance_by?,
        http2: http2?,
        ca_file: ca_file.map(Into::into),
        retries: u32::try_from(retries?).ok()?,
        breaker: breaker?,
        health_path,
        health_interval: health_interval?,
        tls,
        hosts: hosts?,
        preflight: preflight?,
        proxy_protocol: proxy_protocol?,
        header_timeout: header_timeout?,
        keep_alive: keep_alive?,
        connect_timeout: connect_timeout?,
        idle_timeout: idle_timeout?,
        total_timeout,
        abandoned_timeout: abandoned_timeout?,
        upgrade_timeout: upgrade_timeout?,
        max_head: usize::try_from(max_head?).ok()?,
        max_headers: usize::try_from(max_headers?).ok()?,
        max_body,
        body_timeout: body_timeout?,
        min_body_rate: NonZero::new(min_body_rate?),
        max_connections: usize::try_from(max_connections?).ok()?,
        max_connections_per_address: NonZero::new(
            usize::try_from(max_connections_per_address?).ok()?,
        ),
        access_log: AccessLog::parse(&access_log?),
        access_log_every: access_log_every?,
        drain_delay: drain_delay?,
        drain_timeout: drain_timeout?,
    })
}

/// Reads a certificate, its key and the CA for clients.
fn certificate(reader: &mut Reader<'_>, mut section: Section<'_>) -> Option<Certificate> {
    let cert = section.get(reader, "cert", scalar::text);
    let key = section.get(reader, "key", scalar::text);
    let client_ca = section.get(reader, "client_ca", scalar::text);
    section.close();
    Some(Certificate {
        client_ca: client_ca.map(Into::into),
        ..Certificate::new(cert?, key?)
    })
}

/// The attribute of `balance_by`: one that the gateway knows for every request.
fn balance_by(key_type: &KeyType, value: &Value) -> Result<Attribute, ReadError> {
    match scalar::attribute(key_type, value)? {
        known @ (Attribute::Ip | Attribute::Path | Attribute::Header(_)) => Ok(known),
        other => Err(ReadError::message(format!(
            "`balance_by` in [gateway] must be \"ip\", \"path\" or a header such as \
             \"header:x-tenant\", not \"{other}\""
        ))),
    }
}

/// The path of a health check, which is not a pattern.
fn health_path(_: &KeyType, value: &Value) -> Result<String, ReadError> {
    let text = scalar::text(&KeyType::Text, value)?;
    let is_path = text.starts_with('/')
        && text
            .chars()
            .all(|c| c.is_ascii_graphic() && !"#\"<>\\^`{|}".contains(c));
    if is_path {
        Ok(text)
    } else {
        Err(ReadError::WrongType)
    }
}
