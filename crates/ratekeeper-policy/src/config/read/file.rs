//! A whole file: the settings, then the policies, and what is wrong with them taken together.

use super::{Reader, Section, gateway, policy, pressure, scalar, settings, store};
use crate::config::keys::FILE;
use crate::config::tree::{Data, Entry, Spot, Value};
use crate::config::{
    Config, EnvoyService, Gateway, Identity, LogConfig, Server, StatsConfig, StoreConfig,
    TracesConfig,
};
use crate::path::PathCase;
use crate::policies::Policies;
use crate::validate::{Item, PolicyFinding};
use ratekeeper::store::OnFailure;

type Settings = (
    Server,
    (StoreConfig, OnFailure),
    Identity,
    StatsConfig,
    (LogConfig, TracesConfig),
    EnvoyService,
    Gateway,
);

/// What a file says, and what variables say instead.
pub(crate) struct Read {
    /// None if something is wrong with it.
    settings: Option<Settings>,
    pub(crate) enabled: Option<bool>,
    /// Whether the file has policies of its own.
    pub(crate) has_policies: bool,
    pub(crate) policies: Policies,
}

impl Read {
    /// All together, if nothing is wrong.
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

/// Reads the tree of a file. All that is wrong goes to the reader.
pub(crate) fn read(reader: &mut Reader<'_>, entries: &[Entry]) -> Read {
    let mut file = Section::open(
        reader,
        &FILE,
        (entries, Spot::Nowhere),
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
    let shedding = pressure::shed(reader, &mut file);
    let in_memory = store
        .as_ref()
        .is_some_and(|(store, _)| store.redis.is_none());
    let identity = identity
        .zip(shedding.as_ref())
        .map(|(identity, shedding)| pressure::believed(identity, shedding));
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
    policies.shed = shedding.as_ref().and_then(|shedding| shedding.shed);
    // Of what is wrong in itself nothing more is said: half of it is missing here.
    let mut broken = Vec::new();
    let mut judge = |reader: &Reader<'_>, before: usize, item: Item| {
        if reader.errors() > before {
            broken.push(item);
        }
    };
    if let Some((table, entries)) = policy::plans(reader, &mut file) {
        for (index, entry) in entries.iter().enumerate() {
            let before = reader.errors();
            policies.plans.push(policy::plan(reader, table, entry));
            judge(reader, before, Item::Plan(index));
        }
    }
    for (index, table) in file.tables(reader, "policy").into_iter().enumerate() {
        let before = reader.errors();
        policies
            .policies
            .push(policy::policy(reader, table, index + 1, in_memory));
        judge(reader, before, Item::Policy(index));
    }
    for (index, table) in file.tables(reader, "allow").into_iter().enumerate() {
        let before = reader.errors();
        policies.allow.push(policy::listed(reader, table, "allow"));
        judge(reader, before, Item::Allow(index));
    }
    for (index, table) in file.tables(reader, "deny").into_iter().enumerate() {
        let before = reader.errors();
        policies.deny.push(policy::listed(reader, table, "deny"));
        judge(reader, before, Item::Deny(index));
    }
    file.close();

    let whole = reader.errors() == 0;
    for problem in policies.problems() {
        // What is doubtful of the whole may come from the part that is missing.
        if broken.contains(&problem.item) || !(whole || problem.is_error()) {
            continue;
        }
        let at = spot_of(entries, &problem);
        match problem.is_error() {
            true => reader.error(at, problem.message),
            false => reader.warn(at, problem.message),
        }
    }
    Read {
        settings,
        enabled,
        has_policies: !policies.policies.is_empty(),
        policies,
    }
}

/// Where the file says what a problem is about.
fn spot_of(entries: &[Entry], problem: &PolicyFinding) -> Spot {
    let (table, index) = match problem.item {
        Item::Plan(index) => ("plans", index),
        Item::Policy(index) => ("policy", index),
        Item::Allow(index) => ("allow", index),
        Item::Deny(index) => ("deny", index),
        Item::Shed => return shed_spot(entries, problem.key),
    };
    let item = named(entries, table).and_then(|entry| match &entry.value.data {
        Data::Table(plans) => plans.get(index).map(|plan| &plan.value),
        Data::List(items) => items.get(index),
        _ => None,
    });
    let Some(Value {
        at,
        data: Data::Table(keys),
    }) = item
    else {
        return Spot::Nowhere;
    };
    // One limit may be written as a list of one.
    let written = named(keys, problem.key).or_else(|| match problem.key {
        "limit" => named(keys, "limits"),
        "limits" => named(keys, "limit"),
        _ => None,
    });
    match (written.map(|entry| &entry.value), problem.index) {
        (
            Some(Value {
                at,
                data: Data::List(values),
            }),
            Some(index),
        ) => values.get(index).map_or(*at, |one| one.at),
        (Some(value), _) => value.at,
        (None, _) => *at,
    }
}

fn shed_spot(entries: &[Entry], key: &str) -> Spot {
    let Some(shed) = named(entries, "shed") else {
        return Spot::Nowhere;
    };
    match &shed.value.data {
        Data::Table(keys) => named(keys, key).map_or(shed.at, |entry| entry.value.at),
        _ => shed.at,
    }
}

fn named<'v>(entries: &'v [Entry], name: &str) -> Option<&'v Entry> {
    entries.iter().find(|entry| entry.name == name)
}
