//! Checks of a configuration on this machine.

use super::Finding;
use crate::config::{Certificate, Config};
use crate::net::certificates::Certificates;
use crate::run::serve;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Number of file descriptors above which a limit is taken as intended.
const ENOUGH_DESCRIPTORS: u64 = 10_000;

/// Size of a key in a full table.
const KEY_BYTES: u64 = 32;

pub(super) fn check(file: Option<&Path>, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(listeners(config));
    findings.extend(secrets(file, config));
    findings.extend(certificates(config));
    findings.extend(descriptors(config));
    findings.extend(memory(config));
    findings
}

fn listeners(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let server = &config.server;
    if [&server.http, &server.grpc, &server.resp, &server.admin]
        .iter()
        .all(|listener| listener.is_none())
    {
        let message =
            "every listener is off, so nothing is served; set http under [server] to an address";
        findings.push(Finding::new("nothing_served", message));
    }
    let requires_certificate = server
        .tls
        .admin
        .as_ref()
        .is_some_and(|tls| tls.client_ca.is_some());
    if let Some(at) = server
        .admin
        .as_ref()
        .filter(|at| !at.is_local() && !requires_certificate && server.admin_token.is_none())
    {
        let message = format!(
            "the admin listener is on {at}, where anyone who reaches it can read all statistics, \
             and changes are rejected; listen on 127.0.0.1, or set admin_token and client_ca under \
             [server.tls.admin]"
        );
        findings.push(Finding::new("admin_open", message));
    }
    let gateway = config.gateway.all_upstreams().next().is_some();
    if let Some(at) = server
        .http
        .as_ref()
        .filter(|at| gateway && at.tcp().is_none() && !config.identity.trusted_proxies.has_unix())
    {
        let message = format!(
            "the gateway is on {at}, where clients have no address and share one bucket; let the \
             proxy in front send {} and add \"unix\" to trusted_proxies under [identity]",
            config.identity.header
        );
        findings.push(Finding::new("one_bucket", message));
    }
    findings
}

/// Files with secrets that every user on this machine can read.
fn secrets(file: Option<&Path>, config: &Config) -> Vec<Finding> {
    let tls = &config.server.tls;
    let all = [
        &tls.http,
        &tls.grpc,
        &tls.resp,
        &tls.admin,
        &config.gateway.tls,
    ];
    let mut keys: Vec<&Path> = all
        .into_iter()
        .flatten()
        .map(|certificate: &Certificate| certificate.key.as_path())
        .collect();
    keys.sort();
    keys.dedup();
    let is_world_readable = |path: &&Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
    };
    let mut findings = Vec::new();
    for key in keys.into_iter().filter(is_world_readable) {
        let message = format!(
            "every user on this machine can read the private key {0}; chmod o-r {0}",
            key.display()
        );
        findings.push(Finding::new("key_readable", message));
    }
    let server = &config.server;
    let secrets = [
        &server.id_secret,
        &server.admin_token,
        &config.store.key_secret,
    ];
    let has_secret = secrets.iter().any(|secret| secret.is_some());
    let has_password = config.store.redis.as_ref().is_some_and(|redis| {
        redis.sentinel_password.is_some() || redis.url.to_string() != redis.url.reveal()
    });
    // Secrets from the environment are in no file.
    let contains_secret = |path: &&Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        [
            "id_secret",
            "admin_token",
            "key_secret",
            "sentinel_password",
            "url",
        ]
        .iter()
        .any(|key| text.lines().any(|line| line.trim_start().starts_with(key)))
    };
    if let Some(file) = file.filter(|file| {
        (has_secret || has_password) && is_world_readable(file) && contains_secret(file)
    }) {
        let message = format!(
            "every user on this machine can read the secrets in {0}; chmod o-r {0}",
            file.display()
        );
        findings.push(Finding::new("config_readable", message));
    }
    findings
}

fn certificates(config: &Config) -> Option<Finding> {
    let error = Certificates::load(&config.server, false).err()?;
    Some(Finding::new(
        "certificate",
        format!("{error}; ratekeeper does not start until this is fixed"),
    ))
}

/// A finding if the listeners may need more file descriptors than the process may have.
fn descriptors(config: &Config) -> Option<Finding> {
    let max = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum?;
    let wanted = serve::max_connections(config);
    (max < wanted.min(ENOUGH_DESCRIPTORS)).then(|| {
        let message = format!(
            "a process may have {max} files and connections here, and the listeners take up to \
             {wanted} connections; raise ulimit -n, or LimitNOFILE in the systemd unit"
        );
        Finding::new("descriptors", message)
    })
}

fn memory(config: &Config) -> Option<Finding> {
    let tables = 1 + u64::from(config.server.resp.is_some());
    let bytes = config
        .store
        .max_keys
        .saturating_mul(KEY_BYTES)
        .saturating_add(config.store.max_bytes.unwrap_or(0));
    let wanted = bytes.saturating_mul(tables);
    let available = machine_memory()?;
    (wanted > available).then(|| {
        let message = format!(
            "max_keys = {} needs up to {} MB, the machine has {} MB; lower max_keys or max_bytes \
             under [store]",
            config.store.max_keys,
            wanted >> 20,
            available >> 20
        );
        Finding::new("memory", message)
    })
}

/// Memory of this machine in bytes, or of the cgroup if that is less.
fn machine_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let total = kib?.saturating_mul(1024);
    Some(group.map_or(total, |group| group.min(total)))
}
