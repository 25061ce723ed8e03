//! The reference tables: every key of the file with its default, and no other.

use crate::Wrong;
use crate::config::Config;
use crate::page::Page;
use ratekeeper_policy::config::Configuration;
use serde_json::Value;
use std::collections::BTreeMap;

/// The headings above the tables of keys, with the tables of the file.
const TABLES: [(&str, &[&str]); 14] = [
    ("The file", &[""]),
    ("`[server]`", &["server."]),
    ("`[store]`", &["store."]),
    ("`[identity]`", &["identity."]),
    ("`[stats]`", &["stats."]),
    ("`[log]`", &["log."]),
    ("`[traces]`", &["traces."]),
    ("`[envoy]`", &["envoy."]),
    ("`[gateway]`", &["gateway."]),
    ("`[shed]`", &["shed."]),
    ("`[plans.NAME]`", &["plans.NAME."]),
    ("`[[policy]]`", &["policy."]),
    ("`[[allow]]` and `[[deny]]`", &["allow.", "deny."]),
    (
        "Conditions",
        &[
            "policy.match.",
            "policy.match.not.",
            "allow.",
            "allow.not.",
            "deny.",
            "deny.not.",
        ],
    ),
];

/// Keys and their defaults as in the page: empty, `required`, or the value.
type Keys = BTreeMap<String, String>;

/// Every key of the schema, by its path from the top.
fn known() -> Keys {
    let mut keys = Keys::new();
    collect(&Config::schema(), "", &mut keys);
    keys
}

fn collect(table: &Value, prefix: &str, keys: &mut Keys) {
    for (name, property) in table["properties"].as_object().into_iter().flatten() {
        let required = table["required"]
            .as_array()
            .is_some_and(|required| required.iter().any(|key| key == name));
        let default = match property.get("default") {
            _ if required => "required".to_owned(),
            None => String::new(),
            Some(default) => default.to_string(),
        };
        keys.insert(format!("{prefix}{name}"), default);
        let inner = format!("{prefix}{name}.");
        collect(property, &inner, keys);
        collect(&property["items"], &inner, keys);
        collect(
            &property["additionalProperties"],
            &format!("{inner}NAME."),
            keys,
        );
        property["anyOf"]
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|one| collect(one, &inner, keys));
    }
}

/// Every key in the tables of the page.
fn written(page: &Page, wrong: &mut Wrong) -> Keys {
    let mut keys = Keys::new();
    let mut prefixes: &[&str] = &[];
    for (number, line) in &page.prose {
        if let Some(heading) = line
            .strip_prefix('#')
            .map(|heading| heading.trim_start_matches('#').trim())
        {
            prefixes = TABLES
                .into_iter()
                .find(|(known, _)| *known == heading)
                .map_or(&[], |(_, prefixes)| prefixes);
        }
        let mut cells = line.split('|').map(str::trim).skip(1);
        let name = cells
            .next()
            .and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
        let Some(name) = name else { continue };
        let default = cells
            .nth(1)
            .unwrap_or_default()
            .trim_matches('`')
            .replace('_', "");
        for prefix in prefixes {
            if keys
                .insert(format!("{prefix}{name}"), default.clone())
                .is_some()
            {
                wrong.push(page.at(*number, &format!("`{prefix}{name}` is there twice")));
            }
        }
    }
    keys
}

#[test]
fn the_reference_lists_exactly_the_keys_with_their_defaults() {
    let page = Page::read();
    let mut wrong = Wrong::new();
    let known = known();
    let written = written(&page, &mut wrong);
    assert!(known.len() > 100, "the schema has more keys than {known:?}");
    for (key, default) in &known {
        match written.get(key) {
            None => wrong.push(format!("`{key}` is missing")),
            Some(said) if *said != default.replace('_', "") => {
                wrong.push(format!(
                    "the default of `{key}` is `{default}`, not `{said}`"
                ));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        written
            .keys()
            .filter(|key| !known.contains_key(*key))
            .map(|key| format!("there is no `{key}`")),
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
