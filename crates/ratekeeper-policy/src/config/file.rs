//! The file: its tables, what is checked across them, and the configuration that they make.

use super::identity::{IdentityConfig, StatsConfig};
use super::overload::ShedTable;
use super::policies::{Plans, Tables};
use super::section::{Data, Flatten, KeyKind, KeySpec, KeyType, Section, Value, Writer};
use super::show::HIDDEN;
use super::value::{Entry, Position};
use super::{Config, Configuration, Policies};
use crate::matching::{HeaderTest, PathCase};
use crate::policies::{ListEntry, Plan};
use crate::policy::Policy;
use crate::validate::{Item, PolicyFinding};
use ratekeeper::store::OnFailure;

crate::section! {
    /// Settings of all policies.
    pub struct Switches {
        /// Whether limits are enforced. If false, every request is allowed, and responses have the
        /// source "off".
        enabled: bool = true => true;
        /// Whether upper and lower case in paths differ. Use "insensitive" if your services ignore
        /// case: then a policy for /login applies to /LOGIN too.
        path_case: PathCase = "sensitive" => "insensitive";
    }
}

crate::section! {
    /// Who is calling.
    pub struct Callers {
        /// How callers are identified.
        identity: IdentityConfig => ();
        /// Statistics of the heaviest callers.
        stats: StatsConfig => ();
    }
}

crate::section! {
    /// The limits.
    pub struct Rules, check = check_rules {
        /// Load shedding: under overload, the least important requests are denied first. Off unless
        /// this table is written.
        shed: Option<ShedTable> as Shedding => ();
        /// Named sets of limits. A policy chooses one by an attribute of the request.
        plans: Vec<Plan> as Plans => ();
        /// A policy: which requests it applies to, by what they are counted, and how many are
        /// allowed. Without any policy: 100/min burst 20 per address.
        policy: Vec<Policy> as Tables<Policy> => ();
        /// Allow list: requests that are allowed whatever the limits say.
        allow: Vec<ListEntry> as Tables<ListEntry> => ();
        /// Deny list: requests that are always denied, unless they are on the allow list.
        deny: Vec<ListEntry> as Tables<ListEntry> => ();
    }
}

crate::section! {
    /// The limits of requests, without the settings of a service.
    pub struct PolicyFile {
        /// Settings of all policies.
        switches: Switches as Flatten<Switches> => ();
        /// Who is calling.
        callers: Callers as Flatten<Callers> => ();
        /// The limits.
        rules: Rules as Flatten<Rules> => ();
    }
}

/// `[shed]`. With an error it is off, so that the policies are checked too.
struct Shedding;

impl KeyKind for Shedding {
    type Value = Option<ShedTable>;
    const TYPE: KeyType = ShedTable::TYPE;
    const REQUIRED: bool = false;

    fn get(section: &Section<'_>, spec: &'static KeySpec) -> Option<Self::Value> {
        Some(Option::<ShedTable>::get(section, spec).flatten())
    }

    fn show(_: &Self::Value, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Self::Value, writer: &mut Writer<'_>, spec: &'static KeySpec) {
        if let Some(shed) = value {
            writer.section(spec, shed);
        }
    }
}

impl Configuration for Config {
    type File = PolicyFile;

    const OTHER_TABLES: &[&str] = &["server", "store", "log", "traces", "envoy", "gateway"];

    fn rules(file: &mut PolicyFile) -> (&mut Switches, &mut Rules) {
        (&mut file.switches, &mut file.rules)
    }

    fn from_file(file: PolicyFile) -> Self {
        Self::of(
            file.switches,
            file.callers,
            file.rules,
            OnFailure::default(),
        )
    }

    fn to_file(&self, hide: bool) -> PolicyFile {
        let (switches, callers, rules) = self.tables(hide);
        PolicyFile {
            switches,
            callers,
            rules,
        }
    }
}

impl Config {
    /// The configuration in these tables.
    pub fn of(switches: Switches, callers: Callers, rules: Rules, on_failure: OnFailure) -> Self {
        let Callers {
            mut identity,
            stats,
        } = callers;
        if let Some(shed) = &rules.shed {
            identity.class.clone_from(&shed.header);
            identity.start.clone_from(&shed.start_header);
        }
        let policies = rules
            .policies()
            .enabled(switches.enabled)
            .path_case(switches.path_case)
            .ipv6_prefix(identity.ipv6_prefix)
            .on_failure(on_failure);
        Self {
            identity,
            stats,
            policies,
        }
    }

    /// The tables of this configuration. With `hide`, the values of the header with the API key are
    /// replaced, because they are secrets, whatever the name of the header.
    pub fn tables(&self, hide: bool) -> (Switches, Callers, Rules) {
        let identity = &self.identity;
        let mut policies = self.policies.clone();
        if hide {
            self.each_key_header(&mut policies, |test| {
                if let HeaderTest::OneOf(values) = test {
                    values.fill(HIDDEN.to_owned());
                }
            });
        }
        let shed = |shed| ShedTable::of(shed, identity.class.clone(), identity.start.clone());
        let switches = Switches {
            enabled: policies.enabled,
            path_case: policies.path_case,
        };
        let callers = Callers {
            identity: identity.clone(),
            stats: self.stats.clone(),
        };
        let rules = Rules {
            shed: policies.shed.as_ref().map(shed),
            plans: policies.plans,
            policy: policies.policies,
            allow: policies.allow,
            deny: policies.deny,
        };
        (switches, callers, rules)
    }

    /// Changes conditions on the header with the API key.
    pub(super) fn each_key_header(
        &self,
        policies: &mut Policies,
        change: impl Fn(&mut HeaderTest),
    ) {
        let Some(key) = self.identity.api_key.as_deref() else {
            return;
        };
        let lists = policies.allow.iter_mut().chain(&mut policies.deny);
        let lists = lists.map(|entry| &mut entry.matching);
        let own = policies
            .policies
            .iter_mut()
            .map(|policy| &mut policy.matching);
        for matching in own.chain(lists) {
            let mut next = Some(matching);
            while let Some(matching) = next {
                let headers = matching.headers.iter_mut();
                headers
                    .filter(|(name, _)| **name == *key)
                    .for_each(|(_, test)| change(test));
                next = matching.not.as_deref_mut();
            }
        }
    }
}

impl Rules {
    fn policies(self) -> Policies {
        Policies {
            plans: self.plans,
            policies: self.policy,
            allow: self.allow,
            deny: self.deny,
            shed: self.shed.as_ref().map(Into::into),
            ..Policies::new()
        }
    }
}

/// Reports the findings about the policies. Items with errors are incomplete, so further findings
/// about them are left out.
fn check_rules(file: &Section<'_>, rules: Option<&Rules>) {
    let Some(rules) = rules else { return };
    let is_complete = file.reader.error_count() == 0;
    for finding in rules.clone().policies().problems() {
        // If any item has errors, warnings may come from the parts that are missing.
        let is_broken = file.reader.broken.borrow().contains(&finding.item.table());
        if is_broken || !(is_complete || finding.is_error()) {
            continue;
        }
        let at = position_of(file, &finding);
        if finding.is_error() {
            file.reader.error(at, finding.message);
        } else {
            file.reader.warn(at, finding.message);
        }
    }
}

/// The position of the key that a finding is about.
fn position_of(file: &Section<'_>, finding: &PolicyFinding) -> Position {
    let (name, index) = finding.item.table();
    let Some(Entry { at, value, .. }) = file.entry(name) else {
        return Position::Nowhere;
    };
    let (at, keys) = match &value.data {
        Data::Table(plans) if finding.item != Item::Shed => match plans.get(index) {
            Some(Entry { value, .. }) => (value.at, &value.data),
            None => return *at,
        },
        Data::Array(items) => match items.get(index) {
            Some(value) => (value.at, &value.data),
            None => return *at,
        },
        keys => (*at, keys),
    };
    let Data::Table(keys) = keys else { return at };
    let find = |name: &str| keys.iter().find(|entry: &&Entry| entry.name == name);
    // A single limit may be written as `limits`, and the other way round.
    let written = find(finding.key).or_else(|| match finding.key {
        "limit" => find("limits"),
        "limits" => find("limit"),
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
        (None, _) => at,
    }
}
