//! Reading of `[server]`, `[identity]`, `[stats]`, `[log]`, `[traces]` and `[envoy]`.

use super::tls::tls;
use super::{ReadError, Reader, Section, scalar};
use crate::attribute::Attribute;
use crate::config::key_type::KeyType;
use crate::config::value::{Data, Position, Value};
use crate::config::{
    EnvoyConfig, IdentityConfig, KeyDisplay, Listen, LogConfig, LogFormat, ServerConfig,
    StatsConfig, TracesConfig, UserHeader,
};
use crate::trusted_peers::TrustedPeers;
use ipnet::IpNet;

/// Opens a table; if it is not written, an empty one, so that its keys are read for their defaults.
pub(super) fn settings<'v>(
    reader: &mut Reader<'_>,
    file: &mut Section<'v>,
    name: &'static str,
) -> Option<Section<'v>> {
    let written = file.table(reader, name);
    let table = file.table.key(name)?.key_type.table()?;
    written.or_else(|| {
        Some(Section::open(
            reader,
            table,
            (&[], Position::Nowhere),
            format!("[{name}]"),
            String::new(),
        ))
    })
}

/// Reads `[server]`.
pub(super) fn server(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<ServerConfig> {
    let mut section = settings(reader, file, "server")?;
    let mut listeners: Vec<(&str, Listen)> = Vec::new();
    let mut listener = |name: &'static str| {
        let address = section.get(reader, name, scalar::listener)?;
        let has_fixed_port =
            |address: &&Listen| address.tcp().is_none_or(|address| address.port() != 0);
        if let Some(address) = address.as_ref().filter(has_fixed_port) {
            if let Some((other, _)) = listeners.iter().find(|(_, known)| known == address) {
                let at = if section.has(name) {
                    section.position(name)
                } else {
                    section.position(other)
                };
                reader.error(
                    at,
                    format!(
                        "`{other}` and `{name}` in [server] both listen on {address}; give each \
                         its own address"
                    ),
                );
            }
            listeners.push((name, address.clone()));
        }
        Some(address)
    };
    let (http, grpc, resp, admin) = (
        listener("http"),
        listener("grpc"),
        listener("resp"),
        listener("admin"),
    );
    let tls = tls(reader, &mut section);
    let id_secret = section.get(reader, "id_secret", scalar::secret);
    let admin_token = section.get(reader, "admin_token", scalar::secret);
    let audit_log = section
        .get(reader, "audit_log", scalar::text)
        .map(Into::into);
    section.close();
    Some(ServerConfig {
        http: http?,
        grpc: grpc?,
        resp: resp?,
        admin: admin?,
        tls: tls?,
        id_secret,
        admin_token,
        audit_log,
    })
}

/// Reads `[identity]`.
pub(super) fn identity(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<IdentityConfig> {
    let mut section = settings(reader, file, "identity")?;
    let (trusted_proxies, trusts_unix) = proxies(reader, &mut section, "trusted_proxies").unzip();
    if let Some(all) = trusted_proxies
        .iter()
        .flatten()
        .find(|network| network.prefix_len() == 0)
    {
        reader.warn(
            section.position("trusted_proxies"),
            format!(
                "{all} trusts every peer, so any client can claim any address; list only your \
                 proxies"
            ),
        );
    }
    let header = section.get(reader, "header", scalar::header_name);
    let ipv6_prefix = section.get(reader, "ipv6_prefix", scalar::number);
    let user = user_header(reader, &mut section);
    let api_key = from_header(reader, &mut section, "api_key");
    let attributes = section.get_list(reader, "attributes", |key_type, value| {
        let name = scalar::text(key_type, value)?;
        match Attribute::named(&name) {
            attribute if attribute.is_built_in() => Err(ReadError::message(format!(
                "`{}` is a built-in attribute; remove it",
                name.escape_debug()
            ))),
            _ => Ok(name),
        }
    });
    section.close();
    reader.declared.clone_from(&attributes);
    let ipv6_prefix = u8::try_from(ipv6_prefix?).ok()?;
    Some(IdentityConfig {
        trusted_proxies: trusted_proxies?,
        trusts_unix: trusts_unix?,
        header: header?,
        ipv6_prefix,
        user,
        api_key,
        attributes: attributes?,
        class: None,
        start: None,
    })
}

/// Reads the header that names the user. `from` has no default, because without it any client could
/// claim to be any user.
fn user_header(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<UserHeader> {
    let mut inner = section.table(reader, "user")?;
    let header = inner.get(reader, "header", scalar::header_name);
    let from = proxies(reader, &mut inner, "from");
    let is_written = inner.has("from");
    let at = inner.position("from");
    inner.close();
    let from = match from {
        Some((networks, unix)) => {
            let peers = networks.into_iter().collect::<TrustedPeers>();
            if unix { peers.unix() } else { peers }
        }
        // `from` is present but invalid, which has been reported.
        None if is_written => return None,
        None => TrustedPeers::none(),
    };
    if from.is_empty() {
        let header = header.as_deref().unwrap_or("x-user-id");
        let problem = if is_written { "is empty" } else { "is missing" };
        reader.error(
            at,
            format!(
                "`from` {problem} in `user` of [identity]: a client could send {header} itself and \
                 claim to be any user; list the peers that set it, for example user = {{ header = \
                 \"{header}\", from = [\"10.0.0.0/8\"] }}"
            ),
        );
        return None;
    }
    if let Some(all) = from
        .as_networks()
        .iter()
        .find(|network| network.prefix_len() == 0)
    {
        reader.warn(
            at,
            format!(
                "{all} trusts every peer, so any client can claim to be any user; list only the \
                 peers that set the header"
            ),
        );
    }
    Some(UserHeader {
        header: header?,
        from,
    })
}

/// Reads a table with a header only.
fn from_header(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    name: &'static str,
) -> Option<String> {
    let mut inner = section.table(reader, name)?;
    let header = inner.get(reader, "header", scalar::header_name);
    inner.close();
    header
}

/// Reads `[stats]`.
pub(super) fn stats(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<StatsConfig> {
    let mut section = settings(reader, file, "stats")?;
    let keys = section.get(reader, "keys", scalar::word);
    let top = section.get(reader, "top", scalar::number);
    section.close();
    let keys = match keys? {
        "plain" => KeyDisplay::Plain,
        _ => KeyDisplay::Fingerprint,
    };
    Some(StatsConfig {
        keys,
        top: usize::try_from(top?).ok()?,
    })
}

/// Reads `[log]`.
pub(super) fn log(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<LogConfig> {
    let mut section = settings(reader, file, "log")?;
    let format = section.get(reader, "format", scalar::word);
    let level = section.get(reader, "level", scalar::word);
    let sample = section.get(reader, "sample", scalar::bool);
    section.close();
    let format = match format? {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    };
    Some(LogConfig {
        format,
        level: level?,
        sample: sample?,
    })
}

/// Reads `[traces]`.
pub(super) fn traces(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<TracesConfig> {
    let mut section = settings(reader, file, "traces")?;
    let endpoint = section.get(reader, "endpoint", scalar::upstream);
    let share = section.get(reader, "percent", scalar::percent);
    section.close();
    Some(TracesConfig {
        endpoint,
        share: share?,
    })
}

/// Reads `[envoy]`.
pub(super) fn envoy(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<EnvoyConfig> {
    let mut section = settings(reader, file, "envoy")?;
    let config = section.get(reader, "config", scalar::text);
    let denied_hits = section.get(reader, "denied_hits", scalar::word);
    let response_headers = section.get(reader, "response_headers", scalar::bool);
    let dynamic_metadata = section.get(reader, "dynamic_metadata", scalar::bool);
    section.close();
    Some(EnvoyConfig {
        config: config.map(Into::into),
        denied_hits_consume: denied_hits? == "consume",
        response_headers: response_headers?,
        dynamic_metadata: dynamic_metadata?,
    })
}

/// Reads networks; warns of one that has bits set after its prefix.
pub(super) fn networks(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    name: &'static str,
) -> Option<Vec<IpNet>> {
    proxies(reader, section, name).map(|(networks, _)| networks)
}

/// Reads networks, and whether `unix` is among them, which only some keys accept.
fn proxies(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    name: &'static str,
) -> Option<(Vec<IpNet>, bool)> {
    let mut warnings = Vec::new();
    let mut unix = false;
    let read = |key_type: &KeyType, value: &Value| {
        if matches!((key_type, &value.data), (KeyType::Proxy, Data::String(text)) if text == "unix")
        {
            unix = true;
            return Ok(None);
        }
        let (network, has_host_bits) = scalar::network(key_type, value)?;
        if has_host_bits {
            warnings.push((
                value.at,
                format!(
                    "{} has bits set after its prefix; write {network}",
                    value.describe()
                ),
            ));
        }
        Ok(Some(network))
    };
    let networks = section.get_list(reader, name, read);
    for (at, message) in warnings {
        reader.warn(at, message);
    }
    Some((networks?.into_iter().flatten().collect(), unix))
}
