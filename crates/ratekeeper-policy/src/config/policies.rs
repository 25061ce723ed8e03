//! Policies, plans and lists.

use super::conditions::MatchTable;
use super::kinds::{OrEmpty, number};
use super::overload::AdaptiveTable;
use super::section::{
    Data, FlatForm, Form, KeyKind, KeySpec, KeyType, MAX_INTEGER, Place, Reader, TableForm,
};
use super::section::{Section, Table, TableSpec, Value, Writer};
use super::show::{inline, name};
use super::value::{Entry, Position};
use crate::attribute::Attribute;
use crate::matching::Match;
use crate::policies::{ListEntry, Plan};
use crate::policy::{
    Action, Cost, Count, DenialStatus, Limits, Missing, Penalty, Policy, Reserve, ReserveClasses,
    Rollout, StatusRange,
};
use crate::policy_limit::PolicyLimit;
use crate::validate::MAX_DENIALS;
use ratekeeper::adaptive::Class;
use ratekeeper::{Algorithm, store::OnFailure};
use std::marker::PhantomData;
use std::time::Duration;

crate::section! {
    /// A policy: which requests it applies to, by what they are counted, and how many are allowed.
    /// Without any policy: 100/min burst 20 per address.
    impl Policy, check = check_policy {
        /// Name of the policy in responses, metrics and the log. Its counters are stored under it.
        name: String => "login";
        /// Conditions of the requests it applies to. If not set, all requests.
        matching("match"): Match as TableForm<MatchTable> => { path = "/login" };
        /// Attributes that requests are counted by. If empty, all requests share one bucket.
        key: Vec<Attribute> = [] => ["ip"];
        /// What happens to a request that lacks an attribute of the key: "address" counts it by its
        /// address, "skip" does not apply the policy, "shared" counts it in one shared bucket,
        /// "deny" denies it.
        missing: Missing = "address" => "skip", quiet;
        /// In Redis Cluster, the leading attributes of the key that choose the node: keys that share
        /// them are on one node. If not set, the whole key.
        tag: Vec<Attribute> as OrEmpty<Attribute> => ["header:x-tenant"];
        /// The limits.
        limits: Limits as FlatForm<LimitsTable> => ();
        /// Units that a request takes, or the attribute that holds them.
        cost: Cost = 1 => 5, quiet;
        /// Which requests count. A request that does not count is refunded when it ends.
        count: Count = "all" => "failures", quiet;
        /// Status codes that are failures. If not set, 400 to 599.
        failure_status: Vec<StatusRange> as FailureStatus => [401, "5xx"];
        /// What happens to a request over the limit.
        action: Action as FlatForm<ActionTable> => ();
        /// HTTP status of denials.
        status: DenialStatus = 429 => 503, quiet;
        /// Adaptive limit on its requests in flight.
        adaptive: Option<AdaptiveLimit> as Option<TableForm<AdaptiveTable>>
            => { min = 5, max = 200 };
        /// Priority of its requests under overload; or a table of classes, each of which leaves a
        /// reserve to the others.
        class: Option<Class> as PriorityKey => "sheddable";
        /// The table of classes.
        reserves: Option<ReserveClasses> as Reserves => ();
        /// Percentage of keys that the policy is enforced for.
        rollout: Rollout = 100 => 10, quiet;
        /// If true, later policies do not apply to a request that this one applies to.
        stop("final"): bool = false => true, quiet;
        /// Ban for keys that are denied too often.
        penalty: Option<Penalty> => ();
        /// Fallback for its requests while Redis is unavailable. If not set, that of [store].
        on_failure: Option<OnFailure> => "closed";
        /// The lifetime of its leases.
        leased: Option<Duration> as FlatForm<LeaseTable> => ();
    }
}

crate::section! {
    /// The limits of a policy or a plan.
    struct LimitsTable, check = check_limits {
        /// The limit, such as "100/min burst 20".
        limit: Option<PolicyLimit> => "100/min burst 20";
        /// Several limits, all of which must allow a request.
        limits: Option<Vec<PolicyLimit>> => ["10/s", "20 concurrent"];
        /// Limits by the plan of the caller, instead of `limit` or `limits`.
        plan: Option<PlanOf> => { attribute = "plan" };
        /// Algorithm of the limits that do not name one.
        algorithm: Option<Algorithm> => "sliding_log";
    }
}

crate::section! {
    /// A plan: a named set of limits.
    struct PlanTable, check = check_plan {
        /// The limit of the plan, if it has one only.
        limit: Option<PolicyLimit> => "60/min burst 10";
        /// The limits of the plan, all of which must allow a request.
        limits: Option<Vec<PolicyLimit>> => ["60/min", "1000/d"];
        /// Algorithm of the limits that do not name one.
        algorithm: Option<Algorithm> => "sliding_window";
        /// Priority of its requests under overload.
        class: Option<Class> => "sheddable";
    }
}

crate::section! {
    /// How the plan of a request is chosen.
    struct PlanOf {
        /// Attribute that names the plan.
        attribute: Attribute = "plan" => "plan";
        /// Plan of requests without a known one. If not set, the policy does not apply to them.
        default: Option<String> => "free";
    }
}

crate::section! {
    /// A cost that is an attribute of the request.
    struct CostTable {
        /// Attribute that holds the cost.
        attribute: Attribute => "tokens";
        /// Cost of requests in which the attribute is missing or not a whole number.
        default: u64 = 1 => 1;
    }
}

crate::section! {
    /// Action over the limit.
    struct ActionTable, check = check_action {
        /// What happens to a request over the limit: "enforce" denies it, "shadow" only counts it,
        /// "delay" makes the caller wait.
        action: &'static str [KeyType::OneOf(&["enforce", "shadow", "delay"])] = "enforce"
            => "shadow", quiet;
        /// Maximum wait with `action = "delay"`, which requires it.
        max_delay: Option<Duration> => "2s";
    }
}

crate::section! {
    /// Classes of requests, each of which leaves a reserve to the others.
    impl ReserveClasses {
        /// Attribute that names the class.
        attribute: Attribute = "class" => "class";
        /// Class of requests without a known one. If not set, they leave no reserve.
        default: Option<String> => "batch";
        /// Reserve that each class leaves to the others: units, or a percentage of the limit.
        reserves("reserve"): Vec<(String, Reserve)> as NamedReserves
            => { batch = 20, crawler = "50%" };
    }
}

crate::section! {
    /// Ban for keys that are denied too often.
    impl Penalty {
        /// Number of denials that leads to a ban.
        denials: u64 [KeyType::number(1, MAX_DENIALS)] => 20;
        /// Time within which the denials are counted.
        within: Duration => "10m";
        /// Duration of the ban.
        ban: Duration => "1h";
    }
}

crate::section! {
    /// How decisions are made with Redis.
    struct LeaseTable {
        /// How decisions are made with Redis: "exact" asks Redis for each, "leased" decides by
        /// tokens that the node leases from it.
        mode: &'static str [KeyType::OneOf(&["exact", "leased"])] = "exact" => "leased";
        /// Maximum lifetime of a lease. Shorter is fairer between nodes, longer asks Redis less
        /// often.
        staleness: Duration [KeyType::millis(20, 60_000)] = "100ms" => "100ms";
    }
}

/// The end of a warning about a key that has an effect only with Redis.
pub const IGNORED_IN_MEMORY: &str = "{key} {in} has no effect with the store in memory; set `kind \
                                     = \"redis\"` in [store], or remove {key}";

fn check_policy(section: &Section<'_>, policy: Option<&Policy>) {
    if section.has("missing") && !section.has("key") {
        let message = "{key} {in} has no effect without `key`; add a `key` or remove {key}";
        section.warn("missing", message);
    }
    let counts_all = section.text("count").is_none_or(|count| count == "all");
    if section.has("failure_status") && counts_all {
        let message = "{key} {in} has no effect while `count` is \"all\"; set `count = \
                       \"failures\"`, or remove {key}";
        section.warn("failure_status", message);
    }
    let is_leased = section.text("mode") == Some("leased");
    if section.has("staleness") && !is_leased {
        let message = "{key} {in} has no effect while `mode` is \"exact\"; set `mode = \"leased\"`, \
                       or remove {key}";
        section.warn("staleness", message);
    }
    if section.reader.in_memory.get() && policy.is_some() {
        let for_redis = [("tag", true), ("on_failure", true), ("mode", is_leased)];
        for (key, _) in for_redis
            .into_iter()
            .filter(|(key, has)| *has && section.has(key))
        {
            section.warn(key, IGNORED_IN_MEMORY);
        }
    }
}

fn check_plan(section: &Section<'_>, _: Option<&PlanTable>) {
    check_both_limits(section);
}

fn check_both_limits(section: &Section<'_>) {
    if section.has("limit") && section.has("limits") {
        let message = "{key} and `limits` are both set {in}; put all limits into `limits`";
        section.error("limit", message);
    }
}

fn check_limits(section: &Section<'_>, _: Option<&LimitsTable>) {
    check_both_limits(section);
    if !section.has_table("plan") {
        return;
    }
    for name in ["limit", "limits"] {
        if section.has(name) {
            let message = "`plan` and {key} are both set {in}; remove one of them";
            section.error(name, message);
        }
    }
    if section.has("algorithm") {
        let message = "{key} {in} has no effect beside `plan`; move it into the plan";
        section.error("algorithm", message);
    }
}

fn check_action(section: &Section<'_>, _: Option<&ActionTable>) {
    match (
        section.text("action").unwrap_or("enforce"),
        section.has("max_delay"),
    ) {
        ("delay", false) => {
            let message = "`action = \"delay\"` {in} needs `max_delay`, for example `max_delay = \
                           \"2s\"`";
            section.error("action", message);
        }
        ("enforce" | "shadow", true) => {
            let message = "{key} {in} is only for `action = \"delay\"`; set that, or remove {key}";
            section.error("max_delay", message);
        }
        _ => {}
    }
}

/// The limits in `limit` or `limits`.
fn merge(limit: Option<PolicyLimit>, limits: Option<Vec<PolicyLimit>>) -> Vec<PolicyLimit> {
    limits.unwrap_or_else(|| limit.into_iter().collect())
}

/// One limit is written as `limit`, several as `limits`.
fn split(limits: &[PolicyLimit]) -> (Option<PolicyLimit>, Option<Vec<PolicyLimit>>) {
    match limits {
        [one] => (Some(*one), None),
        several => (None, Some(several.to_vec())),
    }
}

impl Form for LimitsTable {
    type Value = Limits;

    fn into_value(self) -> Limits {
        match self.plan {
            Some(PlanOf { attribute, default }) => Limits::Plan { attribute, default },
            None => Limits::Own(merge(self.limit, self.limits)),
        }
    }

    fn of(limits: &Limits) -> Option<Self> {
        let ((limit, limits), plan) = match limits {
            Limits::Own(own) if own.is_empty() => return None,
            Limits::Own(own) => (split(own), None),
            Limits::Plan { attribute, default } => {
                let (attribute, default) = (attribute.clone(), default.clone());
                ((None, None), Some(PlanOf { attribute, default }))
            }
        };
        let algorithm = None;
        Some(Self {
            limit,
            limits,
            plan,
            algorithm,
        })
    }
}

impl Form for ActionTable {
    type Value = Action;

    fn into_value(self) -> Action {
        match (self.action, self.max_delay) {
            ("delay", Some(max)) => Action::Delay { max },
            ("shadow", _) => Action::Shadow,
            _ => Action::Enforce,
        }
    }

    fn of(action: &Action) -> Option<Self> {
        let (action, max_delay) = match *action {
            Action::Enforce => ("enforce", None),
            Action::Shadow => ("shadow", None),
            Action::Delay { max } => ("delay", Some(max)),
        };
        Some(Self { action, max_delay })
    }
}

impl Form for LeaseTable {
    type Value = Option<Duration>;

    fn into_value(self) -> Option<Duration> {
        (self.mode == "leased").then_some(self.staleness)
    }

    fn of(leased: &Option<Duration>) -> Option<Self> {
        let (mode, staleness) = ("leased", (*leased)?);
        Some(Self { mode, staleness })
    }
}

/// `failure_status`: 400 to 599 unless it is written.
struct FailureStatus;

impl KeyKind for FailureStatus {
    type Value = Vec<StatusRange>;
    const TYPE: KeyType = Vec::<StatusRange>::TYPE;
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        Vec::<StatusRange>::read(place, value)
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(Policy::new("").failure_status)
    }

    fn show(value: &Self::Value, hide: bool) -> Option<String> {
        let is_default = *value == Policy::new("").failure_status;
        (!is_default).then(|| Vec::<StatusRange>::show(value, hide))?
    }
}

/// A number, or a table that names an attribute.
impl KeyKind for Cost {
    type Value = Self;
    const TYPE: KeyType = KeyType::Either(
        &KeyType::number(0, MAX_INTEGER),
        &KeyType::Table(&CostTable::SPEC),
    );

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self> {
        if matches!(value.data, Data::Table(_)) {
            let CostTable { attribute, default } = CostTable::read(place, value)?;
            return Some(Self::Attribute { attribute, default });
        }
        place.check(value, number(place.key_type, value).map(Self::Units))
    }

    fn show(value: &Self, hide: bool) -> Option<String> {
        Some(match value {
            Self::Units(units) => units.to_string(),
            Self::Attribute { attribute, default } => {
                let (attribute, default) = (attribute.clone(), *default);
                Writer::inline(&CostTable { attribute, default }, hide)
            }
        })
    }
}

/// `class`, if it is a word.
struct PriorityKey;

impl KeyKind for PriorityKey {
    type Value = Option<Class>;
    const TYPE: KeyType = KeyType::Either(&Class::TYPE, &KeyType::Table(&ReserveClasses::SPEC));
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        match value.data {
            Data::Table(_) => Some(None),
            _ => Class::read(place, value).map(Some),
        }
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(None)
    }

    fn show(value: &Self::Value, hide: bool) -> Option<String> {
        Class::show(value.as_ref()?, hide)
    }
}

/// `class`, if it is a table.
struct Reserves;

impl KeyKind for Reserves {
    type Value = Option<ReserveClasses>;
    const TYPE: KeyType = KeyType::Flatten(&TableSpec { doc: "", keys: &[] });

    fn get(section: &Section<'_>, _: &'static KeySpec) -> Option<Self::Value> {
        match (
            section.has_table("class"),
            section.value("class"),
            section.table.key("class"),
        ) {
            (true, Some(value), Some(spec)) => {
                ReserveClasses::read(&Place::new(section, spec), value).map(Some)
            }
            _ => Some(None),
        }
    }

    fn show(_: &Self::Value, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Self::Value, writer: &mut Writer<'_>, _: &'static KeySpec) {
        if let (Some(classes), Some(spec)) = (value, Policy::SPEC.key("class")) {
            let shown = Writer::inline(classes, writer.hide);
            writer.line(spec, &shown);
        }
    }
}

/// The reserve of each class.
struct NamedReserves;

impl KeyKind for NamedReserves {
    type Value = Vec<(String, Reserve)>;
    const TYPE: KeyType = KeyType::Named(&Reserve::TYPE);
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        let entries = place.entries(value)?.iter();
        let reserve = |Entry { name, value, .. }: &Entry| {
            let table = place.section.describe();
            let description = format!("the reserve of `{}` {table}", name.escape_debug());
            let reserve = Reserve::read(&place.part(description, &Reserve::TYPE), value)?;
            Some((name.clone(), reserve))
        };
        let read = entries.map(reserve).collect::<Vec<_>>();
        read.into_iter().collect()
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(Vec::new())
    }

    fn show(value: &Self::Value, hide: bool) -> Option<String> {
        let reserves = value
            .iter()
            .filter_map(|(class, reserve)| Some((name(class), Reserve::show(reserve, hide)?)));
        (!value.is_empty()).then(|| inline(reserves))
    }
}

/// `[plans.NAME]`
pub(super) struct Plans;

impl KeyKind for Plans {
    type Value = Vec<Plan>;
    const TYPE: KeyType = KeyType::Named(&PlanTable::TYPE);
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Vec<Plan>> {
        let mut plans = Vec::new();
        let entries = place.entries(value).unwrap_or_default();
        for (index, entry) in entries.iter().enumerate() {
            let plan = plan(place.reader, entry);
            if plan.is_none() {
                place.reader.broken.borrow_mut().push(("plans", index));
            }
            plans.push(plan.unwrap_or_else(|| Plan::new(entry.name.clone())));
        }
        Some(plans)
    }

    fn absent(_: &Place<'_, '_>) -> Option<Vec<Plan>> {
        Some(Vec::new())
    }

    fn show(_: &Vec<Plan>, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Vec<Plan>, writer: &mut Writer<'_>, _: &'static KeySpec) {
        for (index, plan) in value.iter().enumerate() {
            let (limit, limits) = split(&plan.limits);
            let (algorithm, class) = (None, plan.class);
            let table = PlanTable {
                limit,
                limits,
                algorithm,
                class,
            };
            let header = format!("[plans.{}]", name(&plan.name));
            writer.table(&header, &format!("plans.{index}"), false, &table);
        }
    }
}

/// Reads a plan.
fn plan(reader: &Reader<'_>, Entry { name, value, .. }: &Entry) -> Option<Plan> {
    let title = format!("[plans.{}]", name.escape_debug());
    let Data::Table(entries) = &value.data else {
        reader.error(value.at, format!("{title} must be a table with `limits`"));
        return None;
    };
    let before = reader.error_count();
    let place = (&entries[..], value.at);
    let section = Section::open(reader, &PlanTable::SPEC, place, title, String::new());
    let table = PlanTable::read_fields(&section)?;
    let limits = merge(table.limit, table.limits);
    let plan = Plan {
        name: name.clone(),
        limits,
        class: table.class,
    };
    (reader.error_count() == before).then_some(plan)
}

/// Tables of an array: `[[policy]]`, `[[gateway.route]]`.
pub struct Tables<T>(PhantomData<T>);

/// A table of an array.
pub trait ArrayItem: Table {
    /// The name in messages: `[[policy]] "login"`.
    fn title(key: &str, number: usize, name: Option<&Value>) -> String;

    /// The item in place of one that has errors, so that the others keep their index.
    fn placeholder(name: Option<&Value>) -> Self;
}

impl ArrayItem for Policy {
    fn title(key: &str, number: usize, name: Option<&Value>) -> String {
        match name {
            Some(name) if super::section::str_of(name).is_ok() => {
                format!("[[{key}]] {}", name.describe())
            }
            _ => format!("[[{key}]] number {number}"),
        }
    }

    fn placeholder(name: Option<&Value>) -> Self {
        Self::new(
            name.and_then(|name| super::section::str_of(name).ok())
                .unwrap_or_default(),
        )
    }
}

impl ArrayItem for ListEntry {
    fn title(key: &str, _: usize, _: Option<&Value>) -> String {
        format!("[[{key}]]")
    }

    fn placeholder(_: Option<&Value>) -> Self {
        Self::new(Match::new())
    }
}

impl<T: ArrayItem> KeyKind for Tables<T> {
    type Value = Vec<T>;
    const TYPE: KeyType = KeyType::Tables(&T::SPEC);
    const REQUIRED: bool = false;

    fn get(section: &Section<'_>, spec: &'static KeySpec) -> Option<Vec<T>> {
        let key = &section.path_of(spec.name)[..];
        let not_a_table = |at: Position| {
            let place = section.describe();
            let message =
                format!("`{key}` {place} must be an array of tables, written as [[{key}]]");
            section.reader.error(at, message);
        };
        let mut items = Vec::new();
        let values = match section.value(spec.name) {
            None => return Some(items),
            Some(Value {
                data: Data::Array(values),
                ..
            }) => values,
            Some(other) => {
                not_a_table(other.at);
                return Some(items);
            }
        };
        for (index, value) in values.iter().enumerate() {
            let Data::Table(entries) = &value.data else {
                not_a_table(value.at);
                continue;
            };
            let name = entries
                .iter()
                .find(|entry| entry.name == "name")
                .map(|entry| &entry.value);
            let before = section.reader.error_count();
            let title = T::title(key, index + 1, name);
            let place = (&entries[..], value.at);
            let section = Section::open(section.reader, &T::SPEC, place, title, String::new());
            let item = T::read_fields(&section);
            if section.reader.error_count() > before {
                section
                    .reader
                    .broken
                    .borrow_mut()
                    .push((spec.name, items.len()));
            }
            items.push(item.unwrap_or_else(|| T::placeholder(name)));
        }
        Some(items)
    }

    fn show(_: &Vec<T>, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Vec<T>, writer: &mut Writer<'_>, spec: &'static KeySpec) {
        for (index, item) in value.iter().enumerate() {
            let key = writer.path_of(spec.name);
            writer.table(
                &format!("[[{key}]]"),
                &format!("{key}.{index}"),
                false,
                item,
            );
        }
    }
}
