//! Reading of the whole file: the settings, then the policies, then findings about all of them.

use super::{Reader, Section, gateway, overload, policy, scalar, settings, store};
use crate::config::keys::FILE;
use crate::config::value::{Data, Entry, Position, Value};
use crate::config::{
    Config, EnvoyConfig, GatewayConfig, IdentityConfig, LogConfig, ServerConfig, StatsConfig,
    StoreConfig, TracesConfig,
};
use crate::path::PathCase;
use crate::policies::Policies;
use crate::validate::{Item, PolicyFinding};
use ratekeeper::store::OnFailure;

type Settings = (
    ServerConfig,
    (StoreConfig, OnFailure),
    IdentityConfig,
    StatsConfig,
    (LogConfig, TracesConfig),
    EnvoyConfig,
    GatewayConfig,
);

/// The settings and policies of a file, with the variables applied.
pub(crate) struct ParsedFile {
    /// `None` if they have errors.
    settings: Option<Settings>,
    pub(crate) enabled: Option<bool>,
    /// Whether the file has policies.
    pub(crate) has_policies: bool,
    pub(crate) policies: Policies,
}

impl ParsedFile {
    /// The configuration; `None` if there are errors.
    pub(crate) fn config(self, policies: Policies) -> Option<Config> {
        let (server, (store, on_failure), identity, stats, (log, traces), envoy, gateway) =
            self.settings?;
        let policies = policies
            .enabled(self.enabled?)
            .ipv6_prefix(identity.ipv6_prefix)
            .on_failure(on_failure);
        Some(Config {
            server,
            store,
            identity,
            stats,
            log,
            traces,
            envoy,
            gateway,
            policies,
        })
    }
}

/// Reads the values of a file. Errors and warnings go to the reader.
pub(crate) fn read(reader: &mut Reader<'_>, entries: &[Entry]) -> ParsedFile {
    let mut file = Section::open(
        reader,
        &FILE,
        (entries, Position::Nowhere),
        String::new(),
        String::new(),
    );
    let enabled = file.get(reader, "enabled", scalar::bool);
    let path_case = file
        .get(reader, "path_case", scalar::word)
        .and_then(PathCase::from_name);
    let server = settings::server(reader, &mut file);
    let store = store::store(reader, &mut file);
    let identity = settings::identity(reader, &mut file);
    let stats = settings::stats(reader, &mut file);
    let log = settings::log(reader, &mut file);
    let traces = settings::traces(reader, &mut file);
    let envoy = settings::envoy(reader, &mut file);
    let gateway = gateway::gateway(reader, &mut file);
    let shed = overload::shed(reader, &mut file);
    let in_memory = store
        .as_ref()
        .is_some_and(|(store, _)| store.redis.is_none());
    let identity = identity
        .zip(shed.as_ref())
        .map(|(identity, shed)| overload::with_shed_headers(identity, shed));
    let settings = (|| {
        Some((
            server?,
            store?,
            identity?,
            stats?,
            (log?, traces?),
            envoy?,
            gateway?,
        ))
    })();

    let mut policies = Policies::new().path_case(path_case.unwrap_or_default());
    policies.shed = shed.as_ref().and_then(|shed| shed.shed);
    // Items with errors are incomplete, so further findings about them are left out.
    let mut broken = Vec::new();
    let mut mark_broken = |reader: &Reader<'_>, before: usize, item: Item| {
        if reader.error_count() > before {
            broken.push(item);
        }
    };
    if let Some((table, entries)) = policy::plans(reader, &mut file) {
        for (index, entry) in entries.iter().enumerate() {
            let before = reader.error_count();
            policies.plans.push(policy::plan(reader, table, entry));
            mark_broken(reader, before, Item::Plan(index));
        }
    }
    for (index, table) in file.tables(reader, "policy").into_iter().enumerate() {
        let before = reader.error_count();
        policies
            .policies
            .push(policy::policy(reader, table, index + 1, in_memory));
        mark_broken(reader, before, Item::Policy(index));
    }
    for (index, table) in file.tables(reader, "allow").into_iter().enumerate() {
        let before = reader.error_count();
        policies
            .allow
            .push(policy::list_entry(reader, table, "allow"));
        mark_broken(reader, before, Item::Allow(index));
    }
    for (index, table) in file.tables(reader, "deny").into_iter().enumerate() {
        let before = reader.error_count();
        policies
            .deny
            .push(policy::list_entry(reader, table, "deny"));
        mark_broken(reader, before, Item::Deny(index));
    }
    file.close();

    let is_complete = reader.error_count() == 0;
    for finding in policies.problems() {
        // If any item has errors, warnings may come from the parts that are missing.
        if broken.contains(&finding.item) || !(is_complete || finding.is_error()) {
            continue;
        }
        let at = position_of(entries, &finding);
        if finding.is_error() {
            reader.error(at, finding.message);
        } else {
            reader.warn(at, finding.message);
        }
    }
    ParsedFile {
        settings,
        enabled,
        has_policies: !policies.policies.is_empty(),
        policies,
    }
}

/// The position of the key that a finding is about.
fn position_of(entries: &[Entry], finding: &PolicyFinding) -> Position {
    let (table, index) = match finding.item {
        Item::Plan(index) => ("plans", index),
        Item::Policy(index) => ("policy", index),
        Item::Allow(index) => ("allow", index),
        Item::Deny(index) => ("deny", index),
        Item::Shed => return shed_position(entries, finding.key),
    };
    let item = find_entry(entries, table).and_then(|entry| match &entry.value.data {
        Data::Table(plans) => plans.get(index).map(|plan| &plan.value),
        Data::Array(items) => items.get(index),
        _ => None,
    });
    let Some(Value {
        at,
        data: Data::Table(keys),
    }) = item
    else {
        return Position::Nowhere;
    };
    // A single limit may be written as `limits`, and the other way round.
    let written = find_entry(keys, finding.key).or_else(|| match finding.key {
        "limit" => find_entry(keys, "limits"),
        "limits" => find_entry(keys, "limit"),
        _ => None,
    });
    match (written.map(|entry| &entry.value), finding.index) {
        (
            Some(Value {
                at,
                data: Data::Array(values),
            }),
            Some(index),
        ) => values.get(index).map_or(*at, |one| one.at),
        (Some(value), _) => value.at,
        (None, _) => *at,
    }
}

/// The position of a key of `[shed]`.
fn shed_position(entries: &[Entry], key: &str) -> Position {
    let Some(shed) = find_entry(entries, "shed") else {
        return Position::Nowhere;
    };
    match &shed.value.data {
        Data::Table(keys) => find_entry(keys, key).map_or(shed.at, |entry| entry.value.at),
        _ => shed.at,
    }
}

/// The entry of this name.
fn find_entry<'v>(entries: &'v [Entry], name: &str) -> Option<&'v Entry> {
    entries.iter().find(|entry| entry.name == name)
}
