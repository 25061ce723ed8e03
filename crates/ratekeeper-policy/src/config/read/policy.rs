//! Reading of policies, plans, and the entries of the lists.

use super::{Reader, Section, matching, overload, scalar, store};
use crate::attribute::Attribute;
use crate::config::key_type::{KeyType, TableSpec};
use crate::config::value::{Data, Entry, Position, Value};
use crate::policies::{ListEntry, Plan};
use crate::policy::{
    Action, Cost, Count, DenialStatus, Limits, Missing, Penalty, Policy, ReserveClasses,
};
use crate::policy_limit::PolicyLimit;
use ratekeeper::Algorithm;
use std::time::Duration;

/// Reads a plan.
pub(super) fn plan(reader: &mut Reader<'_>, table: &'static TableSpec, entry: &Entry) -> Plan {
    let title = format!("[plans.{}]", entry.name.escape_debug());
    let mut plan = Plan::new(entry.name.clone());
    let Data::Table(entries) = &entry.value.data else {
        reader.error(
            entry.value.at,
            format!("{title} must be a table with `limits`"),
        );
        return plan;
    };
    let mut section = Section::open(
        reader,
        table,
        (entries, entry.value.at),
        title,
        String::new(),
    );
    let algorithm = section.get(reader, "algorithm", scalar::algorithm);
    plan.limits = limits(reader, &mut section, algorithm).unwrap_or_default();
    plan.class = section.get(reader, "class", overload::class);
    section.close();
    plan
}

/// Reads `limit` or `limits` of a plan or a policy. `None` if they are missing or have errors.
fn limits(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    algorithm: Option<Algorithm>,
) -> Option<Vec<PolicyLimit>> {
    let one = section
        .get(reader, "limit", scalar::limit(algorithm))
        .map(|limit| vec![limit]);
    let several = section.get_list(reader, "limits", scalar::limit(algorithm));
    if section.has("limit") && section.has("limits") {
        let message = format!(
            "`limit` and `limits` are both set {}; put all limits into `limits`",
            section.describe()
        );
        reader.error(section.position("limit"), message);
    }
    several.or(one)
}

/// Reads a policy.
pub(super) fn policy(
    reader: &mut Reader<'_>,
    (table, entries, at): (&'static TableSpec, &[Entry], Position),
    number: usize,
    in_memory: bool,
) -> Policy {
    let name = entries
        .iter()
        .find(|entry| entry.name == "name")
        .map(|entry| &entry.value);
    let title = match name {
        Some(
            name @ Value {
                data: Data::String(text),
                ..
            },
        ) if !text.is_empty() => {
            format!("[[policy]] {}", name.describe())
        }
        _ => format!("[[policy]] number {number}"),
    };
    let mut opened = Section::open(reader, table, (entries, at), title, String::new());
    let section = &mut opened;
    let mut policy = Policy::new(
        section
            .get(reader, "name", scalar::text)
            .unwrap_or_default(),
    );
    if let Some(mut conditions) = section.table(reader, "match") {
        policy.matching = matching::conditions(reader, &mut conditions);
        conditions.close();
    }
    let attribute = reader.attribute();
    policy.key = section
        .get_list(reader, "key", &attribute)
        .unwrap_or_default();
    policy.missing = section
        .get(reader, "missing", scalar::word)
        .and_then(Missing::from_name)
        .unwrap_or_default();
    if section.has("missing") && policy.key.is_empty() && !section.has("key") {
        let message = format!(
            "`missing` {} has no effect without `key`; add a `key` or remove `missing`",
            section.describe()
        );
        reader.warn(section.position("missing"), message);
    }
    policy.tag = section
        .get_list(reader, "tag", attribute)
        .unwrap_or_default();
    if !policy.tag.is_empty() && in_memory {
        reader.warn(
            section.position("tag"),
            store::ignored_in_memory("tag", &section.describe()),
        );
    }
    policy.limits = limits_of(reader, section);
    policy.cost = cost(reader, section);
    policy.count = match section.get(reader, "count", scalar::word) {
        Some("failures") => Count::Failures,
        Some("successes") => Count::Successes,
        _ => Count::All,
    };
    if let Some(ranges) = section.get_list(reader, "failure_status", scalar::status) {
        policy.failure_status = ranges;
        if policy.count == Count::All {
            let message = format!(
                "`failure_status` {} has no effect while `count` is \"all\"; set `count = \
                 \"failures\"`, or remove `failure_status`",
                section.describe()
            );
            reader.warn(section.position("failure_status"), message);
        }
    }
    policy.action = action(reader, section);
    policy.status = match section.get(reader, "status", scalar::one_of_numbers) {
        Some(503) => DenialStatus::ServiceUnavailable,
        _ => DenialStatus::TooManyRequests,
    };
    policy.adaptive = overload::adaptive(reader, section);
    let is_word =
        |entry: &Entry| entry.name == "class" && !matches!(entry.value.data, Data::Table(_));
    if section.entries.iter().any(is_word) {
        policy.class = section.get(reader, "class", overload::class);
    } else {
        policy.reserves = class(reader, section);
    }
    policy.rollout = section
        .get(reader, "rollout", scalar::percent)
        .unwrap_or(policy.rollout);
    policy.stop = section.get(reader, "final", scalar::bool).unwrap_or(false);
    policy.penalty = penalty(reader, section);
    policy.on_failure = section.get(reader, "on_failure", scalar::on_failure);
    if policy.on_failure.is_some() && in_memory {
        reader.warn(
            section.position("on_failure"),
            store::ignored_in_memory("on_failure", &section.describe()),
        );
    }
    policy.leased = leased(reader, section, in_memory);
    opened.close();
    policy
}

/// Reads `mode` and `staleness`: the lifetime of leases, if the policy is leased.
fn leased(reader: &mut Reader<'_>, section: &mut Section<'_>, in_memory: bool) -> Option<Duration> {
    let is_leased = section.get(reader, "mode", scalar::word) == Some("leased");
    let staleness = section.get(reader, "staleness", scalar::duration);
    if is_leased && in_memory {
        reader.warn(
            section.position("mode"),
            store::ignored_in_memory("mode", &section.describe()),
        );
    }
    if section.has("staleness") && !is_leased {
        let message = format!(
            "`staleness` {} has no effect while `mode` is \"exact\"; set `mode = \"leased\"`, or \
             remove `staleness`",
            section.describe()
        );
        reader.warn(section.position("staleness"), message);
    }
    staleness.filter(|_| is_leased)
}

/// Reads the limits of a policy: `limit`, `limits` or `plan`.
fn limits_of(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Limits {
    let algorithm = section.get(reader, "algorithm", scalar::algorithm);
    let own = limits(reader, section, algorithm);
    let Some(mut plan) = section.table(reader, "plan") else {
        return Limits::Own(own.unwrap_or_default());
    };
    let known = reader.attribute();
    let attribute = plan.get(reader, "attribute", known);
    let default = plan.get(reader, "default", scalar::text);
    plan.close();
    for name in ["limit", "limits"]
        .into_iter()
        .filter(|name| section.has(name))
    {
        let message = format!(
            "`plan` and `{name}` are both set {}; remove one of them",
            section.describe()
        );
        reader.error(section.position(name), message);
    }
    if section.has("algorithm") {
        let message = format!(
            "`algorithm` {} has no effect beside `plan`; move it into the plan",
            section.describe()
        );
        reader.error(section.position("algorithm"), message);
    }
    Limits::Plan {
        attribute: attribute.unwrap_or(Attribute::Plan),
        default,
    }
}

/// Reads `cost`.
fn cost(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Cost {
    let is_table =
        |entry: &Entry| entry.name == "cost" && matches!(entry.value.data, Data::Table(_));
    if !section.entries.iter().any(is_table) {
        return Cost::Units(section.get(reader, "cost", scalar::number).unwrap_or(1));
    }
    let Some(mut cost) = section.table(reader, "cost") else {
        return Cost::Units(1);
    };
    let known = reader.attribute();
    let attribute = cost.get(reader, "attribute", known);
    let default = cost.get(reader, "default", scalar::number).unwrap_or(1);
    cost.close();
    let Some(attribute) = attribute else {
        return Cost::Units(default);
    };
    Cost::Attribute { attribute, default }
}

/// Reads `action` and `max_delay`.
fn action(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Action {
    let action = section.get(reader, "action", scalar::word);
    let max = section.get(reader, "max_delay", scalar::duration);
    match (action, section.has("max_delay")) {
        (Some("delay"), false) => {
            let message = format!(
                "`action = \"delay\"` {} needs `max_delay`, for example `max_delay = \"2s\"`",
                section.describe()
            );
            reader.error(section.position("action"), message);
        }
        (Some("enforce" | "shadow"), true) => {
            let message = format!(
                "`max_delay` {} is only for `action = \"delay\"`; set that, or remove `max_delay`",
                section.describe()
            );
            reader.error(section.position("max_delay"), message);
        }
        _ => {}
    }
    match (action, max) {
        (Some("shadow"), _) => Action::Shadow,
        (Some("delay"), Some(max)) => Action::Delay { max },
        _ => Action::Enforce,
    }
}

/// Reads a `class` table: the reserves.
fn class(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<ReserveClasses> {
    let mut inner = section.table(reader, "class")?;
    let known = reader.attribute();
    let attribute = inner.get(reader, "attribute", known);
    let mut class = ReserveClasses::by(attribute.unwrap_or(Attribute::Custom("class".into())));
    class.default = inner.get(reader, "default", scalar::text);
    if let Some((key_type, entries)) = inner.named_entries(reader, "reserve") {
        for entry in entries {
            let description = format!(
                "the reserve of `{}` {}",
                entry.name.escape_debug(),
                inner.describe()
            );
            if let Some(reserve) = reader.value(
                &description,
                (key_type, false),
                &entry.value,
                scalar::reserve,
            ) {
                class = class.reserve(&entry.name, reserve);
            }
        }
    }
    inner.close();
    Some(class)
}

/// Reads `penalty`.
fn penalty(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<Penalty> {
    let mut inner = section.table(reader, "penalty")?;
    let denials = inner.get(reader, "denials", scalar::number);
    let within = inner.get(reader, "within", scalar::duration);
    let ban = inner.get(reader, "ban", scalar::duration);
    inner.close();
    Some(Penalty {
        denials: denials?,
        within: within?,
        ban: ban?,
    })
}

/// Reads an entry of the allow list or the deny list.
pub(super) fn list_entry(
    reader: &mut Reader<'_>,
    (table, entries, at): (&'static TableSpec, &[Entry], Position),
    name: &str,
) -> ListEntry {
    let mut section = Section::open(
        reader,
        table,
        (entries, at),
        format!("[[{name}]]"),
        String::new(),
    );
    let mut list_entry = ListEntry::new(matching::conditions(reader, &mut section));
    list_entry.until = section.get(reader, "until", scalar::time);
    list_entry.reason = section.get(reader, "reason", scalar::text);
    section.close();
    list_entry
}

/// The entries of `plans`, and the table of their keys.
pub(super) fn plans<'v>(
    reader: &mut Reader<'_>,
    file: &mut Section<'v>,
) -> Option<(&'static TableSpec, &'v [Entry])> {
    let (key_type, entries): (&'static KeyType, _) = file.named_entries(reader, "plans")?;
    Some((key_type.table()?, entries))
}
