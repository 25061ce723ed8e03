//! Reading of conditions: those of `match`, and of entries of the lists.

use super::{Reader, Section, each, scalar};
use crate::attribute::Attribute;
use crate::config::attributes::known_attribute;
use crate::config::key_type::KeyType;
use crate::config::value::{Data, Entry};
use crate::matching::Match;

/// The attributes that have their own key.
const ATTRIBUTE_KEYS: [(&str, Attribute); 4] = [
    ("user", Attribute::User),
    ("api_key", Attribute::ApiKey),
    ("plan", Attribute::Plan),
    ("tenant", Attribute::Tenant),
];

/// Reads conditions, including `not`.
pub(super) fn conditions(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Match {
    let mut matching = without_not(reader, section);
    if let Some(mut not) = section.table(reader, "not") {
        matching = matching.unless(without_not(reader, &mut not));
        not.close();
    }
    matching
}

/// Reads conditions without `not`.
fn without_not(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Match {
    let mut matching = Match::new();
    if let Some(methods) = section.get_list(reader, "method", scalar::method) {
        matching.methods = Some(
            methods
                .iter()
                .map(|method| method.to_ascii_uppercase())
                .collect(),
        );
    }
    matching.paths = section.get_list(reader, "path", scalar::path);
    matching.hosts = section.get_list(reader, "host", scalar::host);
    matching.ips = super::settings::networks(reader, section, "ip");
    for (name, attribute) in ATTRIBUTE_KEYS {
        if let Some(values) = section.get_list(reader, name, scalar::text) {
            matching = matching.attribute_is(attribute, values);
        }
    }
    if let Some((key_type, entries)) = section.named_entries(reader, "header") {
        for entry in entries {
            matching = header(reader, section, key_type, entry, matching);
        }
    }
    if let Some((key_type, entries)) = section.named_entries(reader, "attribute") {
        for entry in entries {
            matching = attribute(reader, section, key_type, entry, matching);
        }
    }
    matching
}

/// Reads a condition on a header.
fn header(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    key_type: &KeyType,
    entry: &Entry,
    matching: Match,
) -> Match {
    let name = entry.name.escape_debug();
    let table = section.describe();
    if !scalar::is_header_name(&entry.name) {
        reader.error(
            entry.at,
            format!("`{name}` is not a valid header name; use one such as \"x-debug\""),
        );
        return matching;
    }
    if matching
        .headers
        .iter()
        .any(|(known, _)| known.eq_ignore_ascii_case(&entry.name))
    {
        reader.error(
            entry.at,
            format!(
                "the header `{name}` appears twice {table}, because names are case-insensitive; \
                 remove one"
            ),
        );
        return matching;
    }
    let secret = Attribute::header(&entry.name).is_secret();
    match (&entry.value.data, key_type) {
        (Data::Bool(true), _) => matching.header(&entry.name),
        (Data::String(_) | Data::Array(_), KeyType::Either(_, texts)) => {
            // The value of a header may be empty.
            let text = |key_type: &KeyType, value: &_| match value {
                crate::config::value::Value {
                    data: Data::String(text),
                    ..
                } => Ok(text.clone()),
                value => scalar::text(key_type, value),
            };
            match each(
                reader,
                &format!("the header `{name}` {table}"),
                (*texts, secret),
                &entry.value,
                text,
            ) {
                Some(values) => matching.header_is(&entry.name, values),
                None => matching,
            }
        }
        _ => {
            let expected =
                "true, a string or a list of strings; to require that it is absent, use `not`";
            reader.error(
                entry.value.at,
                format!("the header `{name}` {table} must be {expected}"),
            );
            matching
        }
    }
}

/// Reads a condition on a custom attribute.
fn attribute(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    key_type: &KeyType,
    entry: &Entry,
    matching: Match,
) -> Match {
    let name = entry.name.escape_debug();
    let table = section.describe();
    let attribute = Attribute::named(&entry.name);
    let help = match &attribute {
        Attribute::Custom(name) if name.is_empty() => {
            "the name of an attribute must not be empty".to_owned()
        }
        Attribute::Custom(custom) => {
            if let Some(Err(error)) = reader
                .declared
                .as_ref()
                .map(|declared| known_attribute(custom, declared))
            {
                reader.error(entry.at, error.to_string());
                return matching;
            }
            let description = format!("the attribute `{name}` {table}");
            return match each(
                reader,
                &description,
                (key_type, attribute.is_secret()),
                &entry.value,
                scalar::text,
            ) {
                Some(values) => matching.attribute_is(attribute, values),
                None => matching,
            };
        }
        Attribute::Endpoint => {
            "`endpoint` cannot be a condition; use `method` and `path`".to_owned()
        }
        Attribute::Header(header) => {
            format!(
                "`{name}` is a header; write `header = {{ \"{}\" = … }}` instead",
                header.escape_debug()
            )
        }
        _ => format!("`{name}` has its own key; write `{name} = …` beside `attribute`"),
    };
    reader.error(entry.at, help);
    matching
}
