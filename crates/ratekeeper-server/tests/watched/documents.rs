//! docs/metrics.md, the dashboard and the alerts match what the binary exports.

use crate::promtool::promtool;
use crate::queries::{References, references};
use crate::scraped::{Family, families, pages};
use crate::support::directory;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Labels that are not in the exposition: added by Prometheus, or of buckets.
const TARGET_LABELS: [&str; 3] = ["instance", "job", "le"];

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

#[test]
fn the_docs_list_every_metric_and_no_other() {
    let page = fs::read_to_string(docs("metrics.md")).unwrap();
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| name | kind |"))
        .skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let documented: BTreeMap<String, (String, Vec<String>)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let labels = cells[3]
                .split(',')
                .map(|label| label.trim().trim_matches('`').to_owned());
            let mut labels: Vec<String> = labels.filter(|label| !label.is_empty()).collect();
            labels.sort();
            (
                cells[1].trim_matches('`').to_owned(),
                (cells[2].to_owned(), labels),
            )
        })
        .collect();
    let exported: BTreeMap<String, (String, Vec<String>)> = families(&pages())
        .into_iter()
        .map(|(name, family)| (name, (family.kind, family.labels.into_keys().collect())))
        .collect();
    assert_eq!(documented, exported);
}

fn assert_success(output: &Output) {
    let text = [&*output.stdout, &*output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    assert!(output.status.success(), "{text}");
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    assert_success(&promtool(
        &["check", "rules", "alerts.yml"],
        &docs("deploy"),
        "",
    ));
    assert_success(&promtool(
        &["test", "rules", "alerts_test.yml"],
        &docs("deploy"),
        "",
    ));
}

/// Every alert has a test where it fires.
#[test]
fn every_alert_is_described_and_tested() {
    let rules = fs::read_to_string(docs("deploy/alerts.yml")).unwrap();
    let tests = fs::read_to_string(docs("deploy/alerts_test.yml")).unwrap();
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 10);
    for alert in &alerts {
        // Once where all is well, and once where it fires.
        assert!(tests.matches(alert).count() >= 2, "{alert} is not tested");
    }
    for field in [
        "        summary: ",
        "          description: ",
        "labels: { severity: ",
    ] {
        assert_eq!(
            rules.matches(field.trim_start()).count(),
            alerts.len(),
            "{field}"
        );
    }
}

/// The expressions of the alert rules: on one line, or folded.
fn rule_expressions() -> Vec<String> {
    let text = fs::read_to_string(docs("deploy/alerts.yml")).unwrap();
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(expression) = line.trim().strip_prefix("expr: ") else {
            continue;
        };
        let mut expression = expression.trim_start_matches(">-").to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with("          ")) {
            expression.push(' ');
            expression.push_str(more.trim());
        }
        found.push(expression);
    }
    found
}

/// The expressions of the dashboard, with its variables filled in.
fn dashboard_expressions() -> Vec<String> {
    let text = fs::read_to_string(docs("deploy/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    let mut queue = vec![&dashboard];
    while let Some(value) = queue.pop() {
        match value {
            Value::Object(fields) => {
                found.extend(
                    fields
                        .get("expr")
                        .and_then(Value::as_str)
                        .map(ToOwned::to_owned),
                );
                queue.extend(fields.values());
            }
            Value::Array(values) => queue.extend(values),
            _ => {}
        }
    }
    found
        .into_iter()
        .map(|expression| {
            expression
                .replace("$__rate_interval", "5m")
                .replace("$instance", ".*")
                .replace("$policy", ".*")
        })
        .collect()
}

#[test]
fn the_dashboard_has_variables_and_panels_that_do_not_overlap() {
    let text = fs::read_to_string(docs("deploy/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(variables, ["datasource", "instance", "policy"]);
    let panels = dashboard["panels"].as_array().unwrap();
    let mut cells = std::collections::HashSet::new();
    let mut numbers = std::collections::HashSet::new();
    for panel in panels {
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "{panel}");
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
        }
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && cells.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn promtool_accepts_the_expressions_of_the_dashboard() {
    let rules: Vec<Value> = dashboard_expressions()
        .into_iter()
        .enumerate()
        .map(
            |(number, expr)| serde_json::json!({"record": format!("panel:{number}"), "expr": expr}),
        )
        .collect();
    assert!(rules.len() >= 30, "{}", rules.len());
    // JSON is YAML.
    let file = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string();
    assert_success(&promtool(
        &["check", "rules", "rules.yml"],
        &directory(&[("rules.yml", &file)]),
        "",
    ));
}

fn family<'a>(families: &'a BTreeMap<String, Family>, name: &str) -> Option<&'a Family> {
    let whole = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|part| families.get(name.strip_suffix(part)?));
    families
        .get(name)
        .or(whole.filter(|family| family.kind == "histogram"))
}

#[test]
fn the_dashboard_and_alerts_use_exported_metrics_labels_and_values() {
    let families = families(&pages());
    for expression in dashboard_expressions()
        .into_iter()
        .chain(rule_expressions())
    {
        let References { metrics, grouped } = references(&expression);
        assert!(!metrics.is_empty(), "{expression}");
        for (name, matchers) in &metrics {
            if name == "up" {
                continue;
            }
            let family = family(&families, name)
                .unwrap_or_else(|| panic!("{name} is not exported: {expression}"));
            for (label, values) in matchers
                .iter()
                .filter(|(label, _)| !TARGET_LABELS.contains(&&**label))
            {
                let exported = family
                    .labels
                    .get(label)
                    .unwrap_or_else(|| panic!("{name} has no {label}: {expression}"));
                let unknown: Vec<_> = values
                    .iter()
                    .filter(|value| *value != ".*" && !exported.contains(*value))
                    .collect();
                assert!(
                    unknown.is_empty(),
                    "{name} has no {label} {unknown:?}: {expression}"
                );
            }
        }
        for label in grouped
            .iter()
            .filter(|label| !TARGET_LABELS.contains(&&***label))
        {
            let known = metrics
                .iter()
                .filter_map(|(name, _)| family(&families, name))
                .any(|family| family.labels.contains_key(label));
            assert!(known, "nothing has {label}: {expression}");
        }
    }
}
