//! The metrics and labels of a PromQL expression. Its grammar is left to promtool.

/// A label and the values it may have.
pub(crate) type Matcher = (String, Vec<String>);

/// The metrics of an expression with their matchers, and the labels it groups by.
#[derive(Default, Debug)]
pub(crate) struct References {
    pub(crate) metrics: Vec<(String, Vec<Matcher>)>,
    pub(crate) grouped: Vec<String>,
}

pub(crate) fn references(expression: &str) -> References {
    let mut found = References::default();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let word = &rest[start..];
        let end = word
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
            .unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        let behind = after.trim_start();
        let preceded_by_digit = rest[..start].ends_with(|c: char| c.is_ascii_digit());
        if preceded_by_digit {
            // A duration, such as 5m, or a number in exponential form.
            rest = after;
        } else if word == "by" {
            let list = behind
                .strip_prefix('(')
                .and_then(|list| list.split_once(')'))
                .unwrap();
            found
                .grouped
                .extend(list.0.split(',').map(|label| label.trim().to_owned()));
            rest = list.1;
        } else if behind.starts_with("by (")
            || behind.starts_with('(')
            || ["and", "or", "unless", "offset"].contains(&word)
        {
            rest = after;
        } else if let Some(matchers) = behind.strip_prefix('{') {
            let (matchers, after) = matchers.split_once('}').unwrap();
            found
                .metrics
                .push((word.to_owned(), matchers.split(", ").map(matcher).collect()));
            rest = after;
        } else {
            found.metrics.push((word.to_owned(), Vec::new()));
            rest = after;
        }
    }
    found
}

fn matcher(text: &str) -> Matcher {
    let (label, values) = text.split_once('=').unwrap();
    let values = values.trim_start_matches('~').trim_matches('"');
    (
        label.to_owned(),
        values.split('|').map(ToOwned::to_owned).collect(),
    )
}

#[test]
fn names_labels_values_and_groups_are_found() {
    let found = references(
        "sum by (le, a) (rate(x_total{a=\"b\", c=~\"d|e\"}[5m] offset 1h)) / y > 0.05 and on_z == 1e3",
    );
    let matchers = vec![
        ("a".to_owned(), vec!["b".to_owned()]),
        ("c".to_owned(), vec!["d".to_owned(), "e".to_owned()]),
    ];
    let plain = |name: &str| (name.to_owned(), Vec::new());
    assert_eq!(
        found.metrics,
        [("x_total".to_owned(), matchers), plain("y"), plain("on_z")]
    );
    assert_eq!(found.grouped, ["le", "a"]);
}
