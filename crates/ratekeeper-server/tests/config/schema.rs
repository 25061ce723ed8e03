//! The committed JSON Schema is the one of the table of keys, and the files of the tests conform to
//! it.

use crate::config::Config;
use crate::good::EVERYTHING;
use crate::{EXAMPLE, load};
use ratekeeper_policy::config::Configuration;
use serde_json::{Value, json};

#[test]
fn the_committed_schema_is_current() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/ratekeeper.schema.json"
    );
    if std::env::var_os("RATEKEEPER_WRITE").is_some() {
        std::fs::write(path, format!("{:#}\n", Config::schema())).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let committed = serde_json::from_str::<Value>(&committed).unwrap_or_default();
    assert!(
        committed == Config::schema(),
        "docs/ratekeeper.schema.json is stale; regenerate it with\n    \
         RATEKEEPER_WRITE=1 cargo test -p ratekeeper-server --test config schema"
    );
}

/// Validates a value, for the parts of JSON Schema that ours uses, without patterns of strings.
fn conforms(schema: &Value, value: &Value) -> Result<(), String> {
    let fails = |why: &str| Err(format!("{value} {why}: {schema}"));
    if let Some(any) = schema["anyOf"].as_array() {
        return if any.iter().any(|one| conforms(one, value).is_ok()) {
            Ok(())
        } else {
            fails("is none of")
        };
    }
    if let Some(words) = schema["enum"].as_array() {
        return if words.contains(value) {
            Ok(())
        } else {
            fails("is none of the words")
        };
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return fails("is not the constant");
    }
    let is_type = match schema["type"].as_str() {
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        other => schema.get("const").is_some() && other.is_none(),
    };
    if !is_type {
        return fails("has another type");
    }
    if value.as_f64() < schema["minimum"].as_f64()
        || schema["maximum"]
            .as_f64()
            .is_some_and(|max| value.as_f64() > Some(max))
    {
        return fails("is out of range");
    }
    value
        .as_array()
        .into_iter()
        .flatten()
        .try_for_each(|one| conforms(&schema["items"], one))?;
    for (key, value) in value.as_object().into_iter().flatten() {
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(property), _) => conforms(property, value)?,
            (None, other) if other.is_object() => conforms(other, value)?,
            _ => return fails("has an unknown key"),
        }
    }
    let missing = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|key| value.get(key.as_str().unwrap()).is_none());
    if missing.is_some() {
        fails("lacks a key")
    } else {
        Ok(())
    }
}

fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => json!(text),
        toml::Value::Integer(number) => json!(number),
        toml::Value::Float(number) => json!(number),
        toml::Value::Boolean(value) => json!(value),
        toml::Value::Datetime(time) => json!(time.to_string()),
        toml::Value::Array(values) => values.iter().map(json).collect(),
        toml::Value::Table(table) => table
            .iter()
            .map(|(key, value)| (key.clone(), json(value)))
            .collect(),
    }
}

fn check(text: &str) -> Result<(), String> {
    conforms(&Config::schema(), &json(&toml::from_str(text).unwrap()))
}

#[test]
fn valid_files_conform() {
    for text in ["", EXAMPLE, EVERYTHING] {
        assert_eq!(check(text), Ok(()));
        assert_eq!(check(&load(text, &[]).config.unwrap().to_toml()), Ok(()));
    }
}

#[test]
fn invalid_files_do_not_conform() {
    for text in [
        "enabeld = true",
        "enabled = 1",
        "[store]\nmax_keys = 0",
        "[store]\nkind = \"postgres\"",
        "[store]\nconnections = 65",
        "[store]\non_failure = \"shut\"",
        "[[policy]]\nname = \"a\"\nlimit = \"5/s\"\nmode = \"lent\"",
        "[identity]\nipv6_prefix = 129",
        "[[policy]]\nlimit = \"5/min\"",
        "[[policy]]\nname = \"a\"\nmatch = { not = { not = {} } }",
        "[[policy]]\nname = \"a\"\nstatus = 500",
        "[[policy]]\nname = \"a\"\nmatch = { header = { x = false } }",
        "[policy]\nname = \"a\"",
    ] {
        assert!(check(text).is_err(), "{text}");
    }
}

/// The examples and defaults of the keys are valid values of them.
#[test]
fn examples_conform_to_their_own_keys() {
    fn walk(schema: &Value, checked: &mut usize) {
        for example in schema["examples"]
            .as_array()
            .into_iter()
            .flatten()
            .chain(schema.get("default"))
        {
            assert_eq!(conforms(schema, example), Ok(()));
            *checked += 1;
        }
        let properties = schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(|inner| inner.values());
        let any = schema["anyOf"].as_array().into_iter().flatten();
        let others = ["items", "additionalProperties"]
            .into_iter()
            .filter_map(|key| schema.get(key));
        properties
            .chain(any)
            .chain(others)
            .for_each(|one| walk(one, checked));
    }
    let mut checked = 0;
    walk(&Config::schema(), &mut checked);
    assert!(checked > 50, "{checked}");
}
