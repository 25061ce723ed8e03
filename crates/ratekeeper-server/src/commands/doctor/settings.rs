//! What is wrong with a configuration on this machine.

use super::Finding;
use crate::net::certificates::Certificates;
use crate::run::serve;
use ratekeeper_policy::config::{Certificate, Config};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Who has so many descriptors has thought about it.
const ENOUGH: u64 = 10_000;

/// What a key takes in a table that is full.
const KEY_BYTES: u64 = 32;

pub(super) fn look(file: Option<&Path>, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(listeners(config));
    findings.extend(secrets(file, config));
    findings.extend(certificates(config));
    findings.extend(descriptors(config));
    findings.extend(memory(config));
    findings
}

fn listeners(config: &Config) -> Vec<Finding> {
    let (mut findings, server) = (Vec::new(), &config.server);
    if [&server.http, &server.grpc, &server.resp, &server.admin]
        .iter()
        .all(|listener| listener.is_none())
    {
        let says =
            "every listener is off, so nothing is served; set http under [server] to an address";
        findings.push(Finding::new("nothing_served", says));
    }
    let checked = server
        .tls
        .admin
        .as_ref()
        .is_some_and(|tls| tls.client_ca.is_some());
    if let Some(at) = server
        .admin
        .as_ref()
        .filter(|at| !at.is_local() && !checked && server.admin_token.is_none())
    {
        let says = format!(
            "the admin listener is on {at}, where whoever reaches it reads every figure and nobody can change anything; listen on \
             127.0.0.1, or set admin_token and client_ca under [server.tls.admin]"
        );
        findings.push(Finding::new("admin_open", says));
    }
    let gateway = !config.gateway.upstreams.is_empty();
    if let Some(at) = server
        .http
        .as_ref()
        .filter(|at| gateway && at.tcp().is_none() && !config.identity.trusts_unix)
    {
        let says = format!(
            "the gateway is on {at}, where nobody has an address, so all callers share one; have the proxy in front send \
             {} and add \"unix\" to trusted_proxies under [identity]",
            config.identity.header
        );
        findings.push(Finding::new("one_bucket", says));
    }
    findings
}

/// Files that anybody on this machine can read, and should not.
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
        .map(|own: &Certificate| own.key.as_path())
        .collect();
    keys.sort();
    keys.dedup();
    let open = |path: &&Path| {
        fs::metadata(path).is_ok_and(|there| there.permissions().mode() & 0o004 != 0)
    };
    let mut findings = Vec::new();
    for key in keys.into_iter().filter(open) {
        let says = format!(
            "everybody on this machine can read the private key {0}; chmod o-r {0}",
            key.display()
        );
        findings.push(Finding::new("key_readable", says));
    }
    let server = &config.server;
    let secrets = [
        &server.id_secret,
        &server.admin_token,
        &config.store.key_secret,
    ];
    let secret = secrets.iter().any(|secret| secret.is_some());
    let redis = config.store.redis.as_ref().is_some_and(|redis| {
        redis.sentinel_password.is_some() || redis.url.to_string() != redis.url.reveal()
    });
    // What the environment says is in no file.
    let written = |path: &&Path| {
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
    if let Some(file) = file.filter(|file| (secret || redis) && open(file) && written(file)) {
        let says = format!(
            "everybody on this machine can read the secrets in {0}; chmod o-r {0}",
            file.display()
        );
        findings.push(Finding::new("config_readable", says));
    }
    findings
}

fn certificates(config: &Config) -> Option<Finding> {
    let wrong = Certificates::load(&config.server, false).err()?;
    Some(Finding::new(
        "certificate",
        format!("{wrong}; until that is mended ratekeeper does not start"),
    ))
}

/// A connection takes a descriptor. The server takes as many as it may.
fn descriptors(config: &Config) -> Option<Finding> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum?;
    let wanted = serve::most_connections(config);
    (most < wanted.min(ENOUGH)).then(|| {
        let says = format!(
            "a process may have {most} files and connections here, and the listeners take up to {wanted} connections; raise ulimit -n, or \
             LimitNOFILE in the unit of systemd"
        );
        Finding::new("descriptors", says)
    })
}

fn memory(config: &Config) -> Option<Finding> {
    let tables = 1 + u64::from(config.server.resp.is_some());
    let bytes = config
        .store
        .max_keys
        .saturating_mul(KEY_BYTES)
        .saturating_add(config.store.max_bytes.unwrap_or(0));
    let (wanted, there) = (bytes.saturating_mul(tables), machine_memory()?);
    (wanted > there).then(|| {
        let says = format!(
            "max_keys = {} may take {} MB, and this machine has {} MB; lower max_keys or max_bytes under [store]",
            config.store.max_keys,
            wanted >> 20,
            there >> 20
        );
        Finding::new("memory", says)
    })
}

/// What this machine has, or what this process may take of it.
fn machine_memory() -> Option<u64> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = all.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let all = kib?.saturating_mul(1024);
    Some(group.map_or(all, |group| group.min(all)))
}
