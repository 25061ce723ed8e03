//! The fuzz target of Envoy's limits.

use super::config::EnvoyConfig;
use super::matching::{RuleIndex, find};

/// Loads any text as a file: an error is one line with a location in the file; a valid file loads
/// to the same again, and every descriptor finds an existing rule or none.
pub fn envoy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut config = EnvoyConfig::default();
    if let Err(error) = config.add("limits.yaml", text) {
        let message = error.to_string();
        assert!(
            message.starts_with("limits.yaml:") && !message.contains(['\n', '\r']),
            "{message:?}"
        );
        if let Some((line, column)) = error.location {
            // A line begins after the last line break, too. YAML has several kinds of line breaks.
            let lines = 1 + text
                .matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
                .count() as u64;
            assert!(
                (1..=lines).contains(&line) && column >= 1,
                "{message} in {lines} lines"
            );
        }
        return;
    }
    let mut again = EnvoyConfig::default();
    assert!(again.add("limits.yaml", text).is_ok());
    assert_eq!(again.rules, config.rules);
    assert!(
        again.add("other.yaml", text).is_err(),
        "a domain is in one file"
    );

    // Descriptors from words of the file, so that some match.
    let words: Vec<&str> = text
        .split([':', ',', ' ', '\n', '{', '}', '[', ']', '"'])
        .filter(|word| !word.is_empty())
        .collect();
    for level in config.domains.values() {
        for entries in words.windows(2).chain(words.windows(4)).take(200) {
            let descriptor = || entries.chunks_exact(2).map(|pair| (pair[0], pair[1]));
            let (mut bucket, mut same) = (Vec::new(), Vec::new());
            let found = find(level, descriptor(), &mut bucket);
            assert_eq!(
                (found, &bucket),
                (find(level, descriptor(), &mut same), &same)
            );
            assert!(found.is_none_or(|RuleIndex(at)| at < config.rules.len()));
        }
    }
}
