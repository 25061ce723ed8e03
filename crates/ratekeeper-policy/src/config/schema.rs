//! The JSON Schema of ratekeeper.toml, for editors: made from the table of keys.

use super::keys::FILE;
use super::kind::{Default, Key, Kind, MOST, Table};
use super::tree::Data;
use ratekeeper::Algorithm;
use serde_json::{Map, Value, json};

/// The JSON Schema (2020-12) of ratekeeper.toml.
pub fn schema() -> Value {
    let mut schema = table(&FILE);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("ratekeeper.toml");
    schema
}

fn table(table: &Table) -> Value {
    let keys = table.keys();
    let properties = keys
        .iter()
        .map(|key| (key.name.to_owned(), property(key)))
        .collect::<Map<_, _>>();
    let required = keys
        .iter()
        .filter(|key| key.default == Default::Required)
        .map(|key| key.name)
        .collect::<Vec<_>>();
    let mut schema = json!({
        "type": "object",
        "description": table.doc,
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(key: &Key) -> Value {
    let mut schema = kind(&key.kind);
    schema["description"] = json!(key.doc);
    match key.default {
        Default::Unset | Default::Required => {}
        Default::Bool(value) => schema["default"] = json!(value),
        Default::Number(value) => schema["default"] = json!(value),
        Default::Text(value) => schema["default"] = json!(value),
        Default::Empty => schema["default"] = json!([]),
    }
    if let Some(example) = super::tree::Value::parse(key.example).filter(|_| !key.secret) {
        schema["examples"] = json!([as_json(&example)]);
    }
    schema
}

fn as_json(value: &super::tree::Value) -> Value {
    match &value.data {
        Data::Text(text) => json!(text),
        Data::Whole(number) => json!(i64::try_from(*number).unwrap_or(i64::MAX)),
        Data::Fraction(number) => json!(number),
        Data::Bool(value) => json!(value),
        Data::Time(time) => json!(time.to_string()),
        Data::List(values) => values.iter().map(as_json).collect(),
        Data::Table(entries) => entries
            .iter()
            .map(|entry| (entry.name.clone(), as_json(&entry.value)))
            .collect(),
    }
}

fn kind(of: &Kind) -> Value {
    match of {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Number { min, max: MOST } => json!({ "type": "integer", "minimum": min }),
        Kind::Number { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Percent => json!({ "type": "number", "minimum": 0, "maximum": 100 }),
        Kind::Share => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        Kind::Reserve => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, pattern("^[0-9.]+ *%$")] })
        }
        Kind::Text | Kind::Limit | Kind::Preflight | Kind::Attribute | Kind::Host => {
            json!({ "type": "string", "minLength": 1 })
        }
        // As many letters as bytes if they are ASCII; of others fewer will do.
        Kind::LongText { bytes } => json!({ "type": "string", "minLength": bytes.div_ceil(4) }),
        Kind::OneOf(words) => json!({ "enum": words }),
        Kind::OneOfNumbers(numbers) => json!({ "enum": numbers }),
        Kind::Listener => pattern("^(off|.+:[0-9]{1,5}|unix:/.+)$"),
        Kind::Network => pattern("^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"),
        Kind::Proxy => pattern("^(unix|[0-9A-Fa-f:.]+(/[0-9]{1,3})?)$"),
        Kind::HeaderName | Kind::Method => pattern("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$"),
        Kind::RedisUrl => pattern("^(rediss?(\\+sentinel|\\+cluster)?|redis\\+unix|unix)://.+$"),
        Kind::Upstream => pattern("^https?://[^?#@]+$"),
        Kind::Prefix => pattern("^[!-z|~]{1,64}$"),
        Kind::Path => pattern("^/[^?#]*$"),
        Kind::Algorithm => {
            let names = Algorithm::ALL
                .iter()
                .map(|algorithm| algorithm.name())
                .chain(["gcra"]);
            json!({ "enum": names.collect::<Vec<_>>() })
        }
        Kind::Duration | Kind::DurationWithin { .. } => pattern("^[0-9]+[a-z]+$"),
        Kind::Time => json!({ "type": "string", "format": "date-time" }),
        Kind::Status => json!({ "anyOf": [
            { "type": "integer", "minimum": 100, "maximum": 999 },
            pattern("^([1-9]xx|[1-9][0-9]{2}( *- *[1-9][0-9]{2})?)$"),
        ] }),
        Kind::True => json!({ "const": true }),
        Kind::OneOrMany(one) => {
            json!({ "anyOf": [kind(one), { "type": "array", "items": kind(one) }] })
        }
        Kind::Either(one, other) => json!({ "anyOf": [kind(one), kind(other)] }),
        Kind::Table(inner) => table(inner),
        Kind::Tables(inner) => json!({ "type": "array", "items": table(inner) }),
        Kind::Named(one) => json!({ "type": "object", "additionalProperties": kind(one) }),
    }
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}
