//! Patterns of paths and hosts, and a path as it is compared: by segments, so that no spelling of
//! it goes round a limit.

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

/// With every `%XX` as its byte. One that is no such thing stays as it is.
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

/// The first byte, `%XX` being one, and what follows it.
#[inline]
pub(crate) fn decoded_byte(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    match (first, digit(0), digit(1)) {
        (b'%', Some(high), Some(low)) => Some(((high * 16 + low) as u8, &rest[2..])),
        _ => Some((*first, rest)),
    }
}

/// As deep as a tree of patterns may be: it is walked, and taken down, by calls within calls.
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
/// `*` is one segment, whatever it is; `**`, which can only be last, is the rest, if there is any.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PathPattern {
    text: Box<str>,
    pub(crate) segments: Vec<Segment>,
    /// Whether it ends in `**`.
    pub(crate) matches_rest: bool,
}

impl PathPattern {
    /// Whether a path matches, however it is spelled, in any way that services may read it.
    pub fn matches_path(&self, path: impl AsRef<[u8]>) -> bool {
        self.matches_any(&Path::new(path.as_ref(), PathCase::Sensitive))
    }

    /// Whether any reading of the path matches.
    pub(crate) fn matches_any(&self, path: &Path<'_>) -> bool {
        path.readings()
            .any(|reading| self.matches(reading, path.case))
    }

    /// Whether one reading matches, which is in lower case where case makes no difference.
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
            .all(|(segment, there)| match segment {
                Segment::Exactly(exactly) => match case {
                    PathCase::Sensitive => **exactly == **there,
                    PathCase::Insensitive => exactly.eq_ignore_ascii_case(there),
                },
                Segment::Any => true,
            })
    }

    /// Whether a path exists that both match, and this one matches every path of the other.
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
            .all(|(ours, theirs)| *ours == Segment::Any || ours == theirs)
    }

    /// Whether every path is one of it.
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
                // They would quietly make it another pattern.
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

/// A host, or with `*.` in front all hosts under it. Case says nothing.
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

    /// Whether a host is one of them, as clients write it: a port makes no difference.
    pub fn matches_host(&self, host: &[u8]) -> bool {
        self.matches(host_name(host))
    }

    /// The same of a name: see [`host_name`].
    pub(crate) fn matches(&self, host: &[u8]) -> bool {
        let name = self.name().as_bytes();
        match host.len().checked_sub(name.len()) {
            Some(before) if host[before..].eq_ignore_ascii_case(name) => {
                match self.matches_subdomains {
                    true => before > 1 && host[before - 1] == b'.',
                    false => before == 0,
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
        // A name may end in the dot of the root, which says nothing.
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

/// Why a text is no pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PatternError {
    /// A path begins with a slash.
    NoSlash,
    /// `**` stands before something else.
    RestNotLast,
    /// `*` stands for a part of a segment.
    PartOfSegment,
    /// A path has no query.
    Query,
    /// A pattern has no `.` or `..`.
    Dots,
    /// A pattern has no more than 256 segments.
    TooLong,
    /// No host.
    Host,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSlash => "a path begins with a slash, as in \"/api/**\"",
            Self::RestNotLast => {
                "`**` is the rest of a path and can only be last, as in \"/api/**\"; one segment is `*`"
            }
            Self::PartOfSegment => "`*` is one whole segment, as in \"/users/*/orders\"; it cannot be a part of one",
            Self::Query => "a path ends before the `?`; queries are not matched",
            Self::Dots => "a path is written without `.` and `..`",
            Self::TooLong => "a path has no more than 256 segments; end it in `**`, as in \"/api/**\"",
            Self::Host => "a host is a name without port, as in \"api.example.com\" or \"*.example.com\"",
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
    fn what_is_no_pattern_is_said_so() {
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
    fn what_is_no_escape_stays_as_it_is() {
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
    fn a_pattern_covers_what_is_narrower() {
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
