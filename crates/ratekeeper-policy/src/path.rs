//! Paths of requests, in every way that services may read them.

use crate::pattern::{decoded, decoded_byte, without_parameters};
use crate::request_check::has_dot_segment;
use smallvec::SmallVec;
use std::borrow::Cow;

/// The segments of a path; up to 12 are stored inline.
pub(crate) type Segments<'a> = SmallVec<[Cow<'a, [u8]>; 12]>;

/// The case sensitivity of paths.
///
/// It is a property of the services: where they ignore case, a policy for `/login` has to apply to
/// `/LOGIN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PathCase {
    /// `sensitive`: upper and lower case are different.
    #[default]
    Sensitive,
    /// `insensitive`: the letters A to Z are the same as a to z.
    Insensitive,
}

impl PathCase {
    /// The name in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sensitive => "sensitive",
            Self::Insensitive => "insensitive",
        }
    }
}

/// A path in every way that services read it. Most paths have one reading. Others have several:
/// those with dot segments, which some services resolve and others do not, and those with an
/// escaped slash or a backslash, which some services treat as a separator.
///
/// A policy applies if its pattern matches any reading. What exempts a request (`not`, `final`, the
/// allow list) must match every reading.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    pub(crate) case: PathCase,
    first: Segments<'a>,
    /// Not inline: few paths have any.
    others: Vec<Segments<'a>>,
}

impl<'a> Path<'a> {
    #[inline]
    pub(crate) fn new(path: &'a [u8], case: PathCase) -> Self {
        let first = segments(path, case);
        // Most paths have none of these bytes.
        let others = if path.iter().any(|byte| matches!(byte, b'.' | b'%' | b'\\')) {
            other_readings(path, case)
        } else {
            Vec::new()
        };
        Self {
            case,
            first,
            others,
        }
    }

    pub(crate) fn readings(&self) -> impl Iterator<Item = &Segments<'a>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Whether all services read it alike.
    pub(crate) fn has_one_reading(&self) -> bool {
        self.others.is_empty()
    }

    /// The reading to count by: the one with the most separators, and dots resolved, so that all
    /// spellings of a path are counted as one.
    pub(crate) fn key(&self) -> &Segments<'a> {
        self.others.last().unwrap_or(&self.first)
    }
}

/// Splits a path as most servers read it: `%6c` is `l`, `//` is `/`, `.` and `..` are resolved, a
/// trailing slash makes no difference, nor does what follows a `;` in a segment. An escaped slash
/// is part of its segment.
#[inline]
pub(crate) fn segments(path: &[u8], case: PathCase) -> Segments<'_> {
    read(path.split(|byte| *byte == b'/'), case, true)
}

/// The other readings; the last one has all separators split and all dots resolved.
#[cold]
fn other_readings(path: &[u8], case: PathCase) -> Vec<Segments<'_>> {
    let has_dots = has_dot_segment(path);
    let has_separators = has_other_separators(path);
    let mut readings = Vec::new();
    if has_dots {
        readings.push(read(path.split(|byte| *byte == b'/'), case, false));
    }
    if has_separators {
        let split = || split_at_all(path).into_iter();
        if has_dots {
            readings.push(read(split(), case, false));
        }
        readings.push(read(split(), case, true));
    } else if has_dots {
        readings.push(segments(path, case));
    }
    readings
}

fn has_other_separators(path: &[u8]) -> bool {
    let mut rest = path;
    while let Some((byte, after)) = decoded_byte(rest) {
        if byte == b'\\' || byte == b'/' && rest[0] == b'%' {
            return true;
        }
        rest = after;
    }
    false
}

/// Splits at slashes and backslashes, escaped or not.
fn split_at_all(path: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut rest = path;
    while let Some((byte, after)) = decoded_byte(rest) {
        if matches!(byte, b'/' | b'\\') {
            parts.push(&path[start..path.len() - rest.len()]);
            start = path.len() - after.len();
        }
        rest = after;
    }
    parts.push(&path[start..]);
    parts
}

#[inline]
fn read<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    case: PathCase,
    follows_dots: bool,
) -> Segments<'a> {
    let mut segments = Segments::new();
    for part in parts {
        let segment = decoded(without_parameters(part));
        match &*segment {
            b"" => {}
            b"." if follows_dots => {}
            b".." if follows_dots => drop(segments.pop()),
            _ => segments.push(in_case(segment, case)),
        }
    }
    segments
}

fn in_case(segment: Cow<'_, [u8]>, case: PathCase) -> Cow<'_, [u8]> {
    match case {
        PathCase::Insensitive if segment.iter().any(u8::is_ascii_uppercase) => {
            Cow::Owned(segment.to_ascii_lowercase())
        }
        _ => segment,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        let path = Path::new(path.as_bytes(), PathCase::Insensitive);
        let one = |segment: &Cow<'_, [u8]>| match std::str::from_utf8(segment).unwrap() {
            segment if segment.contains(['/', '\\']) => format!("/[{segment}]"),
            segment => format!("/{segment}"),
        };
        let text = |segments: &Segments<'_>| segments.iter().map(one).collect::<String>();
        let all: Vec<String> = path.readings().map(text).collect();
        assert_eq!(text(path.key()), all[all.len() - 1]);
        all
    }

    #[test]
    fn a_path_has_every_reading_of_services() {
        assert_eq!(readings("/A/b"), ["/a/b"]);
        assert_eq!(readings("/a.b/%41"), ["/a.b/a"]);
        assert_eq!(readings("/a/../b"), ["/b", "/a/../b", "/b"]);
        assert_eq!(readings("/a%2Fb/c"), ["/[a/b]/c", "/a/b/c"]);
        assert_eq!(readings("/a\\b"), ["/[a\\b]", "/a/b"]);
        assert_eq!(
            readings("/a%5cb;x/..;y/c"),
            ["/c", "/[a\\b]/../c", "/a/b/../c", "/a/c"]
        );
    }
}
