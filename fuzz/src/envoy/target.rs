//! What the fuzz target of Envoy's limits runs.

use super::config::EnvoyConfig;
use super::matching::{RuleIndex, find};

/// Any text as a file: what is wrong is told in a line that points into it; what is right reads the
/// same again, and finds a rule that there is for whatever descriptor.
pub fn envoy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut config = EnvoyConfig::default();
    if let Err(wrong) = config.add("limits.yaml", text) {
        let told = wrong.to_string();
        assert!(
            told.starts_with("limits.yaml:") && !told.contains(['\n', '\r']),
            "{told:?}"
        );
        if let Some((line, column)) = wrong.location {
            // Behind the last line break a line begins, too. YAML has more kinds of them than one.
            let lines = 1 + text
                .matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
                .count() as u64;
            assert!(
                (1..=lines).contains(&line) && column >= 1,
                "{told} in {lines} lines"
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

    // Descriptors made of the words of the file itself, so that some are known.
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
