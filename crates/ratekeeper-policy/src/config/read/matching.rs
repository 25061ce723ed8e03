//! The conditions of `match`, which entries of the lists have too.

use super::{Reader, Section, each, scalar};
use crate::attribute::Attribute;
use crate::config::attributes::known_attribute;
use crate::config::kind::Kind;
use crate::config::tree::{Data, Entry};
use crate::matching::Match;

/// The attributes that have a key of their own.
const OWN: [(&str, Attribute); 4] = [
    ("user", Attribute::User),
    ("api_key", Attribute::ApiKey),
    ("plan", Attribute::Plan),
    ("tenant", Attribute::Tenant),
];

/// The conditions, with what must not hold.
pub(super) fn conditions(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Match {
    let mut when = without_not(reader, section);
    if let Some(mut not) = section.table(reader, "not") {
        when = when.unless(without_not(reader, &mut not));
        not.close();
    }
    when
}

fn without_not(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Match {
    let mut when = Match::new();
    if let Some(methods) = section.many(reader, "method", scalar::method) {
        when.methods = Some(
            methods
                .iter()
                .map(|method| method.to_ascii_uppercase())
                .collect(),
        );
    }
    when.paths = section.many(reader, "path", scalar::path);
    when.hosts = section.many(reader, "host", scalar::host);
    when.ips = super::settings::networks(reader, section, "ip");
    for (name, attribute) in OWN {
        if let Some(values) = section.many(reader, name, scalar::text) {
            when = when.attribute_is(attribute, values);
        }
    }
    if let Some((kind, entries)) = section.named(reader, "header") {
        for entry in entries {
            when = header(reader, section, kind, entry, when);
        }
    }
    if let Some((kind, entries)) = section.named(reader, "attribute") {
        for entry in entries {
            when = attribute(reader, section, kind, entry, when);
        }
    }
    when
}

fn header(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    kind: &Kind,
    entry: &Entry,
    when: Match,
) -> Match {
    let (name, place) = (entry.name.escape_debug(), section.place());
    if !scalar::is_header_name(&entry.name) {
        reader.error(
            entry.at,
            format!("`{name}` is no name of a header; write one as \"x-debug\""),
        );
        return when;
    }
    if when
        .headers
        .iter()
        .any(|(known, _)| known.eq_ignore_ascii_case(&entry.name))
    {
        reader.error(
            entry.at,
            format!("the header `{name}` is there twice {place}; case makes no difference, so say it once"),
        );
        return when;
    }
    let secret = Attribute::header(&entry.name).is_secret();
    match (&entry.value.data, kind) {
        (Data::Bool(true), _) => when.header(&entry.name),
        (Data::Text(_) | Data::List(_), Kind::Either(_, texts)) => {
            // A header may well say nothing.
            let text = |kind: &Kind, value: &_| match value {
                crate::config::tree::Value {
                    data: Data::Text(text),
                    ..
                } => Ok(text.clone()),
                value => scalar::text(kind, value),
            };
            match each(
                reader,
                &format!("the header `{name}` {place}"),
                (*texts, secret),
                &entry.value,
                text,
            ) {
                Some(values) => when.header_is(&entry.name, values),
                None => when,
            }
        }
        _ => {
            let wants = "true, a text or a list of texts; for a header that is absent use `not`";
            reader.error(
                entry.value.at,
                format!("the header `{name}` {place} must be {wants}"),
            );
            when
        }
    }
}

fn attribute(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    kind: &Kind,
    entry: &Entry,
    when: Match,
) -> Match {
    let (name, place) = (entry.name.escape_debug(), section.place());
    let attribute = Attribute::named(&entry.name);
    let help = match &attribute {
        Attribute::Custom(name) if name.is_empty() => {
            "an attribute needs a name that is not empty".to_owned()
        }
        Attribute::Custom(custom) => {
            if let Some(Err(error)) = reader
                .declared
                .as_ref()
                .map(|declared| known_attribute(custom, declared))
            {
                reader.error(entry.at, error.to_string());
                return when;
            }
            let what = format!("the attribute `{name}` {place}");
            return match each(
                reader,
                &what,
                (kind, attribute.is_secret()),
                &entry.value,
                scalar::text,
            ) {
                Some(values) => when.attribute_is(attribute, values),
                None => when,
            };
        }
        Attribute::Endpoint => "`endpoint` cannot be compared; use `method` and `path`".to_owned(),
        Attribute::Header(header) => {
            format!(
                "`{name}` is a header; write `header = {{ \"{}\" = … }}` instead",
                header.escape_debug()
            )
        }
        _ => format!("`{name}` has a key of its own; write `{name} = …` beside `attribute`"),
    };
    reader.error(entry.at, help);
    when
}
