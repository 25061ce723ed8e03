//! The fuzz target of path patterns.

use ratekeeper_policy::matching::PathPattern;

/// Matches any pattern with any path after a line break: a pattern matches its own text, and all
/// spellings of a path give the same result.
pub fn path(data: &[u8]) {
    let (pattern, path) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, data),
    };
    let Ok(text) = std::str::from_utf8(pattern) else {
        return;
    };
    let Ok(pattern) = text.parse::<PathPattern>() else {
        return;
    };
    assert!(
        pattern.matches_path(text.replace("**", "x/y").replace('*', "x")),
        "{text:?}"
    );
    assert_eq!(
        pattern.to_string().parse::<PathPattern>().as_ref(),
        Ok(&pattern)
    );
    let matches = pattern.matches_path(path);
    let doubled = path.iter().flat_map(|byte| {
        if *byte == b'/' {
            vec![b'/', b'/']
        } else {
            vec![*byte]
        }
    });
    assert_eq!(
        pattern.matches_path(doubled.collect::<Vec<_>>()),
        matches,
        "{text:?} {path:?}"
    );
    // A path with dots has another reading, in which they are segments.
    if matches && !path.iter().any(|byte| matches!(byte, b'.' | b'%')) {
        assert!(
            pattern.matches_path([b"/./", path, b"/"].concat()),
            "{text:?} {path:?}"
        );
    }
    // Escapes would be escaped twice; an escaped semicolon begins no parameters.
    if !path.iter().any(|byte| matches!(byte, b'%' | b';')) {
        let escaped = path.iter().map(|byte| match byte {
            b'/' => "/".to_owned(),
            byte => format!("%{byte:02x}"),
        });
        assert_eq!(
            pattern.matches_path(escaped.collect::<String>()),
            matches,
            "{text:?} {path:?}"
        );
    }
}
