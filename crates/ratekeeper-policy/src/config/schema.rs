//! The JSON Schema of ratekeeper.toml, for editors, generated from the table of keys.

use super::key_type::{KeySpec, KeyType, MAX_INTEGER, TableSpec};
use super::value::Data;
use ratekeeper::Algorithm;
use serde_json::{Map, Value, json};

/// The JSON Schema (2020-12) of a file with these keys.
pub(super) fn schema(file: &TableSpec) -> Value {
    let mut schema = table(file);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("ratekeeper.toml");
    schema
}

fn table(table: &TableSpec) -> Value {
    let keys = table.keys();
    let properties = keys
        .iter()
        .map(|key| (key.name.to_owned(), property(key)))
        .collect::<Map<_, _>>();
    let required = keys
        .iter()
        .filter(|key| key.required)
        .map(|key| key.name)
        .collect::<Vec<_>>();
    let mut schema = json!({
        "type": "object",
        "description": table.doc.trim_start(),
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(key: &KeySpec) -> Value {
    let value = |text: &str| super::value::Value::parse(text).map(|value| as_json(&value));
    let mut schema = type_schema(&key.key_type);
    schema["description"] = json!(key.doc.trim_start());
    if let Some(default) = key.default.and_then(value) {
        schema["default"] = default;
    }
    if let Some(example) = value(key.example).filter(|_| !key.secret) {
        schema["examples"] = json!([example]);
    }
    schema
}

fn as_json(value: &super::value::Value) -> Value {
    match &value.data {
        Data::String(text) => json!(text),
        Data::Integer(number) => json!(i64::try_from(*number).unwrap_or(i64::MAX)),
        Data::Float(number) => json!(number),
        Data::Bool(value) => json!(value),
        Data::Datetime(time) => json!(time.to_string()),
        Data::Array(values) => values.iter().map(as_json).collect(),
        Data::Table(entries) => entries
            .iter()
            .map(|entry| (entry.name.clone(), as_json(&entry.value)))
            .collect(),
    }
}

fn type_schema(of: &KeyType) -> Value {
    match of {
        KeyType::Bool => json!({ "type": "boolean" }),
        KeyType::Number {
            min,
            max: MAX_INTEGER,
        } => json!({ "type": "integer", "minimum": min }),
        KeyType::Number { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        KeyType::Percent => json!({ "type": "number", "minimum": 0, "maximum": 100 }),
        KeyType::Share => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        KeyType::Reserve => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, pattern("^[0-9.]+ *%$")] })
        }
        KeyType::Text { pattern: "", .. } => json!({ "type": "string", "minLength": 1 }),
        KeyType::Text { pattern, .. } => self::pattern(pattern),
        // JSON Schema counts characters, and a character has at most four bytes.
        KeyType::Secret { bytes } => json!({ "type": "string", "minLength": bytes.div_ceil(4) }),
        KeyType::OneOf(words) => json!({ "enum": words }),
        KeyType::OneOfNumbers(numbers) => json!({ "enum": numbers }),
        KeyType::Algorithm => {
            let names = Algorithm::ALL
                .iter()
                .map(|algorithm| algorithm.name())
                .chain(["gcra"]);
            json!({ "enum": names.collect::<Vec<_>>() })
        }
        KeyType::Duration | KeyType::DurationWithin { .. } => pattern("^[0-9]+[a-z]+$"),
        KeyType::Time => json!({ "type": "string", "format": "date-time" }),
        KeyType::Status => json!({ "anyOf": [
            { "type": "integer", "minimum": 100, "maximum": 999 },
            pattern("^([1-9]xx|[1-9][0-9]{2}( *- *[1-9][0-9]{2})?)$"),
        ] }),
        KeyType::True => json!({ "const": true }),
        KeyType::OneOrMany(one) => {
            json!({ "anyOf": [type_schema(one), { "type": "array", "items": type_schema(one) }] })
        }
        KeyType::Either(one, other) => json!({ "anyOf": [type_schema(one), type_schema(other)] }),
        KeyType::Table(inner) | KeyType::Flatten(inner) => table(inner),
        KeyType::Tables(inner) => json!({ "type": "array", "items": table(inner) }),
        KeyType::Named(one) => {
            json!({ "type": "object", "additionalProperties": type_schema(one) })
        }
    }
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}
