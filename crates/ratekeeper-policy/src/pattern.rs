//! Patterns of paths and hosts. Paths are compared by decoded segments, so that no spelling of a
//! path evades a limit.

use crate::host::host_name;
use crate::path::{Path, PathCase, Segments};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub(crate) fn without_parameters(segment: &[u8]) -> &[u8] {
    let end = segment
        .iter()
        .position(|byte| *byte == b';')
        .unwrap_or(segment.len());
    &segment[..end]
}

/// Decodes every `%XX`; a malformed one stays as it is.
pub(crate) fn decoded(segment: &[u8]) -> Cow<'_, [u8]> {
    if !segment.contains(&b'%') {
        return Cow::Borrowed(segment);
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment;
    while let Some((byte, after)) = decoded_byte(rest) {
        bytes.push(byte);
        rest = after;
    }
    Cow::Owned(bytes)
}

/// Splits off the first byte, decoding `%XX`.
#[inline]
pub(crate) fn decoded_byte(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    match (first, digit(0), digit(1)) {
        (b'%', Some(high), Some(low)) => Some(((high * 16 + low) as u8, &rest[2..])),
        _ => Some((*first, rest)),
    }
}

/// Maximum number of segments of a pattern: the tree of patterns is walked and dropped recursively.
const MAX_SEGMENTS: usize = 256;

/// One segment of a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Segment {
    Exactly(Box<[u8]>),
    /// `*`
    Any,
}

/// A pattern of paths: `/login`, `/users/*/orders`, `/api/**`.
///
/// `*` matches one segment; `**`, which can only be last, matches the rest, which may be empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PathPattern {
    text: Box<str>,
    pub(crate) segments: Vec<Segment>,
    /// Whether it ends in `**`.
    pub(crate) matches_rest: bool,
}

impl PathPattern {
    /// Whether a path matches, in any spelling and any reading.
    pub fn matches_path(&self, path: impl AsRef<[u8]>) -> bool {
        self.matches_any(&Path::new(path.as_ref(), PathCase::Sensitive))
    }

    /// Whether any reading of the path matches.
    pub(crate) fn matches_any(&self, path: &Path<'_>) -> bool {
        path.readings()
            .any(|reading| self.matches(reading, path.case))
    }

    /// Whether a reading matches; it is in lower case where case is ignored.
    pub(crate) fn matches(&self, path: &Segments<'_>, case: PathCase) -> bool {
        let fits = if self.matches_rest {
            path.len() >= self.segments.len()
        } else {
            path.len() == self.segments.len()
        };
        fits && self
            .segments
            .iter()
            .zip(path)
            .all(|(segment, part)| match segment {
                Segment::Exactly(exactly) => match case {
                    PathCase::Sensitive => **exactly == **part,
                    PathCase::Insensitive => exactly.eq_ignore_ascii_case(part),
                },
                Segment::Any => true,
            })
    }

    /// Whether some path matches both, and this one matches every path of the other.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let fits = if self.matches_rest {
            other.segments.len() >= self.segments.len()
        } else {
            !other.matches_rest && other.segments.len() == self.segments.len()
        };
        fits && self
            .segments
            .iter()
            .zip(&other.segments)
            .all(|(wide, narrow)| *wide == Segment::Any || wide == narrow)
    }

    /// Whether it matches every path.
    pub(crate) fn is_everything(&self) -> bool {
        self.matches_rest && self.segments.is_empty()
    }
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let path = text.strip_prefix('/').ok_or(PatternError::NoSlash)?;
        if path.contains(['?', '#']) {
            return Err(PatternError::Query);
        }
        let (rest, matches_rest) = match path.strip_suffix("**") {
            Some(rest) if rest.is_empty() || rest.ends_with('/') => (rest, true),
            _ => (path, false),
        };
        let read = |segment: &str| match segment {
            "*" => Ok(Segment::Any),
            "**" => Err(PatternError::RestNotLast),
            _ if segment.contains('*') => Err(PatternError::PartOfSegment),
            _ => match &*decoded(without_parameters(segment.as_bytes())) {
                // They would silently make it another pattern.
                b"." | b".." => Err(PatternError::Dots),
                exactly => Ok(Segment::Exactly(exactly.into())),
            },
        };
        let segments = rest
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(read)
            .collect::<Result<Vec<_>, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err(PatternError::TooLong);
        }
        Ok(Self {
            text: text.into(),
            segments,
            matches_rest,
        })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A pattern of hosts: a name, or with the prefix `*.` all its subdomains. Case is ignored.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HostPattern {
    text: Box<str>,
    matches_subdomains: bool,
}

impl HostPattern {
    fn name(&self) -> &str {
        if self.matches_subdomains {
            &self.text[2..]
        } else {
            &self.text
        }
    }

    /// Whether a host, as sent by clients, matches: a port is ignored.
    pub fn matches_host(&self, host: &[u8]) -> bool {
        self.matches(host_name(host))
    }

    /// Whether a name matches: see [`host_name`].
    pub(crate) fn matches(&self, host: &[u8]) -> bool {
        let name = self.name().as_bytes();
        match host.len().checked_sub(name.len()) {
            Some(before) if host[before..].eq_ignore_ascii_case(name) => {
                if self.matches_subdomains {
                    before > 1 && host[before - 1] == b'.'
                } else {
                    before == 0
                }
            }
            _ => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let text = text.trim_end_matches('.');
        let matches_subdomains = text.starts_with("*.");
        let name = if matches_subdomains { &text[2..] } else { text };
        // A name may end in a dot, which is ignored.
        let name = name.strip_suffix('.').unwrap_or(name);
        let bracketed = name.starts_with('[') && name.ends_with(']');
        if name.is_empty()
            || name.ends_with('.')
            || name.contains(['/', '*', ' '])
            || (name.contains(':') && !bracketed)
        {
            return Err(PatternError::Host);
        }
        Ok(Self {
            text: text.to_ascii_lowercase().into(),
            matches_subdomains,
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is not a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PatternError {
    /// The path does not begin with a slash.
    NoSlash,
    /// `**` is not last.
    RestNotLast,
    /// `*` is used for a part of a segment.
    PartOfSegment,
    /// The path has a query.
    Query,
    /// The path has a segment `.` or `..`.
    Dots,
    /// The path has more than 256 segments.
    TooLong,
    /// The text is not a host.
    Host,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSlash => "a path must begin with a slash, as in \"/api/**\"",
            Self::RestNotLast => {
                "`**` matches the rest of a path and must be last, as in \"/api/**\"; use `*` for one segment"
            }
            Self::PartOfSegment => "`*` matches one whole segment, as in \"/users/*/orders\", not a part of one",
            Self::Query => "a path pattern ends before the `?`, since queries are not matched; remove the query",
            Self::Dots => "a path pattern must not have segments `.` or `..`; write the resolved path",
            Self::TooLong => "a path pattern has at most 256 segments; end it in `**`, as in \"/api/**\"",
            Self::Host => "a host is a name without a port, as in \"api.example.com\" or \"*.example.com\"",
        })
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn matches(pattern: &str, path: &str) -> bool {
        pattern.parse::<PathPattern>().unwrap().matches_path(path)
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_the_rest() {
        for (pattern, yes, no) in [
            (
                "/login",
                &[
                    "/login",
                    "/login;a=1",
                    "/login;a/;b",
                    "/login/",
                    "//login",
                    "/./login",
                    "/a/../login",
                    "/%6cogin",
                    "/login/.",
                ][..],
                &["/", "/Login", "/login/x", "/xlogin"][..],
            ),
            (
                "/users/*",
                &["/users/7", "/users/%2F", "/users/*"],
                &["/users", "/users/7/x"],
            ),
            (
                "/users/*/orders",
                &["/users/7/orders"],
                &["/users/orders", "/users/7/orders/9"],
            ),
            (
                "/api/**",
                &[
                    "/api",
                    "/api/",
                    "/api/x",
                    "/api/x/y",
                    "/x/../api/y",
                    "/api/../x",
                    "/api%2Fx",
                ],
                &["/apis", "/", "/x"],
            ),
            ("/**", &["/", "", "/x", "/x/y"], &[]),
            ("/", &["/", "", "//", "/.", "/x/.."], &["/x"]),
            ("/a%20b", &["/a%20b", "/a b"], &["/ab"]),
            ("/a/%2a", &["/a/*", "/a/%2A"], &["/a/b"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn invalid_patterns_return_errors() {
        for (text, error) in [
            ("login", PatternError::NoSlash),
            ("", PatternError::NoSlash),
            ("/a/**/b", PatternError::RestNotLast),
            ("/a/**/**", PatternError::RestNotLast),
            ("/a*", PatternError::PartOfSegment),
            ("/a**", PatternError::PartOfSegment),
            ("/a?b=1", PatternError::Query),
            ("/a/../b", PatternError::Dots),
            ("/a/%2e%2E/b", PatternError::Dots),
            ("/a/%2e", PatternError::Dots),
        ] {
            assert_eq!(text.parse::<PathPattern>(), Err(error), "{text}");
        }
    }

    #[test]
    fn malformed_escapes_stay_as_they_are() {
        for (raw, read) in [
            ("%", "%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
            ("%41%", "A%"),
            ("%%41", "%A"),
        ] {
            assert_eq!(
                *crate::path::segments(raw.as_bytes(), PathCase::Sensitive)[0],
                *read.as_bytes()
            );
        }
    }

    #[test]
    fn a_pattern_covers_narrower_ones() {
        let covers = |wide: &str, narrow: &str| {
            wide.parse::<PathPattern>()
                .unwrap()
                .covers(&narrow.parse().unwrap())
        };
        assert!(
            covers("/**", "/a/*")
                && covers("/a/*", "/a/b")
                && covers("/a/**", "/a/b/**")
                && covers("/a", "/a")
        );
        assert!(
            !covers("/a/*", "/a/**")
                && !covers("/a", "/b")
                && !covers("/a/b", "/a/*")
                && !covers("/a/b/**", "/a/**")
        );
    }

    #[test]
    fn hosts_are_compared_without_case_and_dot() {
        let matches = |pattern: &str, host: &str| {
            pattern
                .parse::<HostPattern>()
                .unwrap()
                .matches_host(host.as_bytes())
        };
        assert!(
            matches("API.example.com", "api.Example.com")
                && matches("a.b", "a.b.")
                && matches("[::1]", "[::1]")
        );
        assert!(
            matches("*.example.com", "x.example.com")
                && matches("*.example.com", "x.y.example.com")
        );
        assert!(
            !matches("*.example.com", "example.com") && !matches("*.example.com", ".example.com")
        );
        assert!(
            !matches("*.example.com", "xexample.com")
                && !matches("a.b", "a.bc")
                && !matches("a.b", "")
        );
        for bad in ["", ".", "*.", "*..", "a:80", "a/b", "*", "a.*.b"] {
            assert_eq!(bad.parse::<HostPattern>(), Err(PatternError::Host), "{bad}");
        }
    }
}
