//! Conditions on requests: `match`, and those of list entries.

use super::kinds::{Method, SecretText, is_token};
use super::section::{
    Data, FlatForm, Flatten, Form, KeyKind, KeySpec, KeyType, Place, ReadError, Section, Table,
};
use super::section::{TableSpec, Value, Writer};
use super::show::{HIDDEN, inline, list, name, text};
use super::value::Entry;
use crate::attribute::Attribute;
use crate::matching::{HeaderTest, Match, PathPattern};
use crate::pattern::HostPattern;
use crate::policies::ListEntry;
use ipnet::IpNet;

crate::section! {
    /// Conditions on a request, all of which must hold.
    impl Match {
        /// One of these methods.
        methods("method"): Option<Vec<String>> as Option<Vec<Method>> => ["POST", "PUT"];
        /// One of these paths. `*` stands for one segment, `**` for the rest of the path.
        paths("path"): Option<Vec<PathPattern>> => "/api/**";
        /// One of these hosts. `*.example.com` stands for every host below example.com, not for
        /// itself.
        hosts("host"): Option<Vec<HostPattern>> => "api.example.com";
        /// An address in one of these networks.
        ips("ip"): Option<Vec<IpNet>> => "203.0.113.0/24";
        /// Values of attributes.
        attributes: Vec<(Attribute, Vec<String>)> as FlatForm<AttributeTable> => ();
        /// Values of headers.
        headers: Vec<(Box<str>, HeaderTest)> as Headers => ();
    }
    also { not }
}

crate::section! {
    /// The conditions on attributes and headers.
    struct AttributeTable {
        /// One of these users.
        user: Option<Vec<String>> => "42";
        /// One of these API keys.
        api_key: Option<Vec<String>> as Option<Vec<SecretText>> => "…";
        /// One of these plans.
        plan: Option<Vec<String>> => "free";
        /// One of these tenants.
        tenant: Option<Vec<String>> => "acme";
        /// Headers: true if the header must be present, or the values of which it must have one.
        header: () as HeaderKey => { "x-debug" = true };
        /// Attributes of your own, each with the values of which it must have one.
        attribute: Vec<(Attribute, Vec<String>)> as OwnAttributes => { region = "eu" };
    }
}

crate::section! {
    /// Conditions on a request, all of which must hold.
    pub(super) struct MatchTable {
        /// The conditions that must hold.
        conditions: Match as Flatten<Match> => ();
        /// Conditions that must not all hold.
        not: Option<Match> => { method = "GET" };
    }
}

crate::section! {
    /// An entry of the allow or deny list: conditions, all of which must hold, and its end.
    impl ListEntry {
        /// Its conditions.
        matching: Match as FlatForm<MatchTable> => ();
        /// End of the entry: a date and time with offset. If not set, it never ends.
        until: Option<ratekeeper::Timestamp> => "2030-01-01T00:00:00Z";
        /// Reason of the entry, shown to operators.
        reason: Option<String> => "our own monitoring";
    }
}

impl Form for MatchTable {
    type Value = Match;

    fn into_value(self) -> Match {
        let not = self.not.map(Box::new);
        Match {
            not,
            ..self.conditions
        }
    }

    fn of(matching: &Match) -> Option<Self> {
        (*matching != Match::new()).then(|| Self {
            conditions: matching.clone(),
            not: matching.not.as_deref().cloned(),
        })
    }
}

impl Form for AttributeTable {
    type Value = Vec<(Attribute, Vec<String>)>;

    fn into_value(self) -> Self::Value {
        let known = [
            (Attribute::User, self.user),
            (Attribute::ApiKey, self.api_key),
            (Attribute::Plan, self.plan),
            (Attribute::Tenant, self.tenant),
        ];
        let known = known
            .into_iter()
            .filter_map(|(attribute, values)| Some((attribute, values?)));
        known.chain(self.attribute).collect()
    }

    fn of(value: &Self::Value) -> Option<Self> {
        let values = |wanted: Attribute| {
            let mut all = value.iter();
            all.find_map(|(attribute, values)| (*attribute == wanted).then(|| values.clone()))
        };
        let is_own = |(attribute, _): &&(Attribute, _)| matches!(attribute, Attribute::Custom(_));
        Some(Self {
            user: values(Attribute::User),
            api_key: values(Attribute::ApiKey),
            plan: values(Attribute::Plan),
            tenant: values(Attribute::Tenant),
            header: (),
            attribute: value.iter().filter(is_own).cloned().collect(),
        })
    }
}

/// The key of [`Headers`].
struct HeaderKey;

const TEXTS: KeyType = Vec::<String>::TYPE;

impl KeyKind for HeaderKey {
    type Value = ();
    const TYPE: KeyType = KeyType::Named(&KeyType::Either(&KeyType::True, &TEXTS));
    const REQUIRED: bool = false;

    fn get(_: &Section<'_>, _: &'static KeySpec) -> Option<()> {
        Some(())
    }

    fn show((): &(), _: bool) -> Option<String> {
        None
    }
}

/// The conditions on headers.
struct Headers;

impl KeyKind for Headers {
    type Value = Vec<(Box<str>, HeaderTest)>;
    const TYPE: KeyType = KeyType::Flatten(&TableSpec { doc: "", keys: &[] });

    fn get(section: &Section<'_>, _: &'static KeySpec) -> Option<Self::Value> {
        let spec = section.table.key("header")?;
        let Some(value) = section.value("header") else {
            return Some(Vec::new());
        };
        let place = Place::new(section, spec);
        let mut headers = Self::Value::new();
        let entries = place.entries(value)?;
        for entry in entries {
            let is_known = headers
                .iter()
                .any(|(known, _)| known.eq_ignore_ascii_case(&entry.name));
            let test = header_test(&place, entry, is_known);
            headers.extend(test.map(|test| (entry.name.to_ascii_lowercase().into(), test)));
        }
        (headers.len() == entries.len()).then_some(headers)
    }

    fn show(_: &Self::Value, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Self::Value, writer: &mut Writer<'_>, _: &'static KeySpec) {
        let hide = writer.hide;
        let tests = value.iter().map(|(header, test)| {
            let test = match test {
                HeaderTest::Present => "true".to_owned(),
                HeaderTest::OneOf(values) => shown(&Attribute::header(header), values, hide),
            };
            (name(header), test)
        });
        if let (false, Some(spec)) = (value.is_empty(), AttributeTable::SPEC.key("header")) {
            writer.line(spec, &inline(tests));
        }
    }
}

/// Reads a condition on a header. `is_known`: there is another one on this header.
fn header_test(
    place: &Place<'_, '_>,
    Entry { name, at, value }: &Entry,
    is_known: bool,
) -> Option<HeaderTest> {
    let shown = name.escape_debug();
    let table = place.section.describe();
    if !is_token(name) {
        let message = format!("`{shown}` is not a valid header name; use one such as \"x-debug\"");
        place.reader.error(*at, message);
        return None;
    }
    if is_known {
        let message = format!(
            "the header `{shown}` appears twice {table}, because names are case-insensitive; remove \
             one"
        );
        place.reader.error(*at, message);
        return None;
    }
    let description = format!("the header `{shown}` {table}");
    match &value.data {
        Data::Bool(true) => Some(HeaderTest::Present),
        Data::String(_) | Data::Array(_) => {
            let mut place = place.part(description, &TEXTS);
            place.secret = Attribute::header(name).is_secret();
            Vec::<HeaderValue>::read(&place, value).map(HeaderTest::OneOf)
        }
        _ => {
            let expected =
                "true, a string or a list of strings; to require that it is absent, use `not`";
            place
                .reader
                .error(value.at, format!("{description} must be {expected}"));
            None
        }
    }
}

/// The value of a header, which may be empty.
struct HeaderValue;

crate::key_kind!(
    HeaderValue as String,
    String::TYPE,
    |_: &_, value: &Value| match &value.data {
        Data::String(text) => Ok(text.clone()),
        _ => super::section::str_of(value).map(ToOwned::to_owned),
    },
    |value: &String, _| Some(text(value))
);

/// The conditions on custom attributes.
struct OwnAttributes;

impl KeyKind for OwnAttributes {
    type Value = Vec<(Attribute, Vec<String>)>;
    const TYPE: KeyType = KeyType::Named(&TEXTS);
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        let entries = place.entries(value)?.iter();
        let read = entries
            .map(|entry| own_attribute(place, entry))
            .collect::<Vec<_>>();
        read.into_iter().collect()
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(Vec::new())
    }

    fn show(value: &Self::Value, hide: bool) -> Option<String> {
        let keys = value
            .iter()
            .map(|(attribute, values)| (name(attribute.name()), shown(attribute, values, hide)));
        (!value.is_empty()).then(|| inline(keys))
    }
}

/// Reads a condition on a custom attribute.
fn own_attribute(
    place: &Place<'_, '_>,
    Entry { name, at, value }: &Entry,
) -> Option<(Attribute, Vec<String>)> {
    let attribute = Attribute::named(name);
    let shown = name.escape_debug();
    let help = match &attribute {
        Attribute::Custom(name) if name.is_empty() => {
            "the name of an attribute must not be empty".to_owned()
        }
        Attribute::Custom(_) => match place.reader.known(attribute.clone()) {
            Err(ReadError::Message { message, .. }) => message,
            _ => {
                let description = format!("the attribute `{shown}` {}", place.section.describe());
                let mut place = place.part(description, &TEXTS);
                place.secret = attribute.is_secret();
                let values = Vec::<String>::read(&place, value)?;
                return Some((attribute, values));
            }
        },
        Attribute::Endpoint => {
            "`endpoint` cannot be a condition; use `method` and `path`".to_owned()
        }
        Attribute::Header(header) => {
            let header = header.escape_debug();
            format!("`{shown}` is a header; write `header = {{ \"{header}\" = … }}` instead")
        }
        _ => format!("`{shown}` has its own key; write `{shown} = …` beside `attribute`"),
    };
    place.reader.error(*at, help);
    None
}

/// The values of an attribute in TOML syntax, hidden if they are secret.
fn shown(attribute: &Attribute, values: &[String], hide: bool) -> String {
    let hide = hide && attribute.is_secret();
    list(
        values
            .iter()
            .map(|value| text(if hide { HIDDEN } else { value })),
    )
}
