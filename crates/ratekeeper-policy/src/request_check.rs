//! Request checks: a request that a service may read differently than the policies do is rejected,
//! never rewritten.

use crate::attribute::Attribute;
use crate::host::{check_host, host_name};
use crate::matching::HeaderTest;
use crate::matching::Match;
use crate::pattern::decoded_byte;
use crate::policies::Policies;
use crate::policy::{Cost, Limits, Policy};
use smallvec::SmallVec;
use std::fmt;

/// Why a request was rejected: a service may read it differently than the policies do. The response
/// has the status 400.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The path has a segment `.` or `..`, written out or escaped.
    DotSegment,
    /// The host has user information before an `@`.
    UserInfo,
    /// The host is not a name or address with an optional port.
    Host,
    /// The request target and the header Host name different hosts.
    HostMismatch,
    /// A header that policies use is repeated with different values.
    RepeatedHeader(Box<str>),
    /// A cookie that requests are counted by is repeated with different values.
    RepeatedCookie(Box<str>),
    /// A header that policies use is spelled with `_` for `-`, which many services treat as the
    /// same name.
    HeaderSpelling(Box<str>),
}

impl RequestError {
    /// A stable error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::DotSegment => "bad_target",
            Self::UserInfo | Self::Host | Self::HostMismatch => "bad_host",
            Self::RepeatedHeader(_) | Self::HeaderSpelling(_) => "repeated_header",
            Self::RepeatedCookie(_) => "repeated_cookie",
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DotSegment => f.write_str(
                "the path has a segment `.` or `..`, plain or escaped, which services resolve differently; send the resolved path",
            ),
            Self::UserInfo => f.write_str(
                "the host has user information before an `@`; remove it, and send credentials in the header Authorization",
            ),
            Self::Host => f.write_str(
                "the host is not a name or address with an optional port; write it as in example.com or example.com:8080",
            ),
            Self::HostMismatch => {
                f.write_str("the request target and the header Host name different hosts; send the same host in both")
            }
            Self::RepeatedHeader(name) => {
                write!(f, "the header {name} is repeated with different values; send it once")
            }
            Self::RepeatedCookie(name) => {
                write!(f, "the cookie {name} is repeated with different values; send it once")
            }
            Self::HeaderSpelling(name) => write!(
                f,
                "a header is spelled like {name} with `_` and `-` exchanged, which some services treat as the same header; send only {name}"
            ),
        }
    }
}

impl std::error::Error for RequestError {}

/// The parts of a request to check, borrowed.
#[derive(Clone, Debug)]
pub struct RequestParts<'a, H> {
    /// The path as sent, without its query.
    pub path: &'a [u8],
    /// The host in the target of the request, as in `GET http://example.com/` or `:authority` of
    /// HTTP/2.
    pub authority: Option<&'a [u8]>,
    /// Returns a new iterator over all headers, with names in lower case; a name may be repeated.
    pub headers: H,
}

/// Rejects a path with a dot segment: `.` or `..`, also with escaped dots (`%2e`), with parameters
/// (`..;x`), and behind an escaped slash, a backslash or an escaped one, which some services treat
/// as separators.
///
/// ```
/// use ratekeeper_policy::request::check_path;
///
/// assert!(check_path(b"/api/v1.2/...").is_ok());
/// for path in ["/api/../x", "/api/%2e%2E/x", "/api/..;a=b/x", "/api%2f..%5cx", "/."] {
///     assert!(check_path(path.as_bytes()).is_err());
/// }
/// ```
#[inline]
pub fn check_path(path: &[u8]) -> Result<(), RequestError> {
    // Most paths have neither byte.
    if path.iter().any(|byte| matches!(byte, b'.' | b'%')) && has_dot_segment(path) {
        return Err(RequestError::DotSegment);
    }
    Ok(())
}

pub(crate) fn has_dot_segment(path: &[u8]) -> bool {
    // The number of dots in the segment so far; `None` if it has anything else.
    let mut dots = Some(0_u8);
    let mut rest = path;
    let mut in_parameters = false;
    while let Some((byte, after)) = decoded_byte(rest) {
        rest = after;
        match byte {
            b'/' | b'\\' if matches!(dots, Some(1 | 2)) => return true,
            b'/' | b'\\' => (dots, in_parameters) = (Some(0), false),
            _ if in_parameters => {}
            b';' => in_parameters = true,
            b'.' => dots = dots.filter(|dots| *dots < 2).map(|dots| dots + 1),
            _ => dots = None,
        }
    }
    matches!(dots, Some(1 | 2))
}

/// Rejects hosts with user information, malformed hosts, and a target and headers Host that name
/// different hosts. Case, ports and a trailing dot make no difference.
pub fn check_hosts<'a>(
    authority: Option<&'a [u8]>,
    headers: impl Iterator<Item = &'a [u8]>,
) -> Result<(), RequestError> {
    let mut known: Option<&[u8]> = None;
    for host in authority.into_iter().chain(headers) {
        check_host(host)?;
        if known.is_some_and(|known| !host_name(known).eq_ignore_ascii_case(host_name(host))) {
            return Err(RequestError::HostMismatch);
        }
        known = Some(host);
    }
    Ok(())
}

/// Rejects a header with one of these names, in lower case, that is repeated with different values,
/// or spelled with `_` for `-`.
pub fn check_headers<'a, 'n>(
    names: impl Iterator<Item = &'n str> + Clone,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<(), RequestError> {
    let mut values: SmallVec<[Option<&[u8]>; 8]> = SmallVec::new();
    for (name, value) in headers {
        for (at, known) in names
            .clone()
            .enumerate()
            .filter(|(_, known)| is_spelling_of(name, known))
        {
            if name != known {
                return Err(RequestError::HeaderSpelling(known.into()));
            }
            if values.len() <= at {
                values.resize(at + 1, None);
            }
            if values[at]
                .replace(value)
                .is_some_and(|before| before != value)
            {
                return Err(RequestError::RepeatedHeader(known.into()));
            }
        }
    }
    Ok(())
}

/// Rejects a cookie that is repeated with different values; `values` are all of them.
pub fn check_cookie<'a>(
    name: &str,
    mut values: impl Iterator<Item = &'a [u8]>,
) -> Result<(), RequestError> {
    let first = values.next();
    if values.any(|value| first != Some(value)) {
        return Err(RequestError::RepeatedCookie(name.into()));
    }
    Ok(())
}

/// Whether two names are the same to services that treat `_` and `-` as equal.
fn is_spelling_of(name: &str, known: &str) -> bool {
    let is_dash = |byte: u8| matches!(byte, b'_' | b'-');
    name.len() == known.len()
        && name
            .bytes()
            .zip(known.bytes())
            .all(|(a, b)| a == b || is_dash(a) && is_dash(b))
}

/// The parts of a request that the policies use, and that are checked therefore.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestChecks {
    path: bool,
    host: bool,
    headers: Vec<Box<str>>,
}

impl RequestChecks {
    pub(crate) fn new(policies: &Policies) -> Self {
        let mut checks = Self::default();
        policies
            .policies
            .iter()
            .for_each(|policy| checks.add_policy(policy));
        policies
            .allow
            .iter()
            .chain(&policies.deny)
            .for_each(|entry| checks.add_match(&entry.matching));
        checks
    }

    /// Checks a request: with `everything` all parts, otherwise only what the policies use; and the
    /// headers in `more`.
    pub(crate) fn check<'a, I: Iterator<Item = (&'a str, &'a [u8])>>(
        &self,
        request: RequestParts<'a, impl Fn() -> I>,
        more: &[&str],
        everything: bool,
    ) -> Result<(), RequestError> {
        let RequestParts {
            path,
            authority,
            headers,
        } = request;
        if self.path || everything {
            check_path(path)?;
        }
        if self.host || everything {
            check_hosts(
                authority,
                headers()
                    .filter(|(name, _)| *name == "host")
                    .map(|(_, value)| value),
            )?;
        }
        let names = self
            .headers
            .iter()
            .map(|name| &**name)
            .chain(more.iter().copied());
        if self.headers.is_empty() && more.is_empty() {
            Ok(())
        } else {
            check_headers(names, headers())
        }
    }

    fn add_policy(&mut self, policy: &Policy) {
        self.add_match(&policy.matching);
        policy.key.iter().for_each(|attribute| self.add(attribute));
        if let Limits::Plan { attribute, .. } = &policy.limits {
            self.add(attribute);
        }
        if let Cost::Attribute { attribute, .. } = &policy.cost {
            self.add(attribute);
        }
        if let Some(class) = &policy.reserves {
            self.add(&class.attribute);
        }
    }

    fn add_match(&mut self, matching: &Match) {
        self.path |= matching.paths.is_some();
        self.host |= matching.hosts.is_some();
        for (name, test) in &matching.headers {
            // Presence does not depend on the value.
            if *test != HeaderTest::Present {
                self.add_header(name);
            }
        }
        matching
            .attributes
            .iter()
            .for_each(|(attribute, _)| self.add(attribute));
        if let Some(not) = &matching.not {
            self.add_match(not);
        }
    }

    fn add(&mut self, attribute: &Attribute) {
        match attribute {
            Attribute::Path | Attribute::Endpoint => self.path = true,
            Attribute::Host => self.host = true,
            Attribute::Header(name) => self.add_header(name),
            _ => {}
        }
    }

    fn add_header(&mut self, name: &str) {
        match name {
            "host" => self.host = true,
            // HTTP/2 may split it: repeated headers are one list.
            "cookie" => {}
            _ if self.headers.iter().any(|known| **known == *name) => {}
            _ => self.headers.push(name.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::ListEntry;

    #[test]
    fn a_dot_segment_is_rejected_in_any_spelling() {
        for path in [
            ".",
            "..",
            "/.",
            "/..",
            "/./",
            "/../",
            "/a/.",
            "/a/..",
            "/a/./b",
            "/a/../b",
            "/../a",
            "//../a",
            "/a//..",
            "/%2e",
            "/%2E%2e/x",
            "/.%2e/x",
            "/%2e./x",
            "/..;/x",
            "/..;a=b/x",
            "/.;a/x",
            "/..%3b/x",
            "/..;a=/../x",
            "/a%2f../x",
            "/a%2F..%2fx",
            "/a\\..\\x",
            "/a%5c../x",
            "/a/..%5Cx",
            "/a%2f%2e%2e%2fx",
            "/a%3f/../x",
            "/%/../",
            "/%2/..",
        ] {
            assert_eq!(
                check_path(path.as_bytes()),
                Err(RequestError::DotSegment),
                "{path}"
            );
        }
        for path in [
            "",
            "/",
            "*",
            "/a",
            "/a.b",
            "/.a",
            "/..a",
            "/a..",
            "/...",
            "/a/.../b",
            "/a/v1.2/",
            "/.well-known/x",
            "/a;v=..",
            "/a;..",
            "/%2",
            "/%2e%2e%2e",
            "/%zz",
            "/a%2fb",
            "/%252e%252e/",
            "//",
            "/;/",
            "/%00..",
        ] {
            assert_eq!(check_path(path.as_bytes()), Ok(()), "{path}");
        }
    }

    #[test]
    fn hosts_must_agree_and_have_no_user() {
        let check = |authority: Option<&'static str>, hosts: &[&'static str]| {
            check_hosts(
                authority.map(str::as_bytes),
                hosts.iter().map(|host| host.as_bytes()),
            )
        };
        assert_eq!(
            check(Some("api.example.com"), &["API.example.com.:443"]),
            Ok(())
        );
        assert_eq!(check(None, &["[::1]:80"]), Ok(()));
        assert_eq!(check(None, &[]), Ok(()));
        assert_eq!(
            check(Some("u@api.example.com"), &[]),
            Err(RequestError::UserInfo)
        );
        assert_eq!(
            check(None, &["u:p@api.example.com"]),
            Err(RequestError::UserInfo)
        );
        assert_eq!(
            check(Some("a.example.com"), &["b.example.com"]),
            Err(RequestError::HostMismatch)
        );
        assert_eq!(
            check(None, &["a.example.com", "b.example.com"]),
            Err(RequestError::HostMismatch)
        );
        for host in [
            "a:80:80",
            "a:x",
            "a b",
            "a/b",
            "ap%69.example",
            "[::1",
            "[::1]x",
            "[]",
            "é.example",
        ] {
            assert_eq!(check(None, &[host]), Err(RequestError::Host), "{host}");
        }
    }

    #[test]
    fn headers_that_policies_use_have_one_value_and_one_spelling() {
        let check = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (*name, value.as_bytes()));
            check_headers(["x-api-key", "x-plan"].into_iter(), headers)
        };
        assert_eq!(
            check(&[
                ("x-api-key", "a"),
                ("accept", "x"),
                ("x-api-key", "a"),
                ("accept", "y")
            ]),
            Ok(())
        );
        assert_eq!(
            check(&[("x-api-key", "a"), ("x-plan", "a"), ("x-api-key", "b")]),
            Err(RequestError::RepeatedHeader("x-api-key".into()))
        );
        assert_eq!(
            check(&[("x_api-key", "a")]),
            Err(RequestError::HeaderSpelling("x-api-key".into()))
        );
    }

    #[test]
    fn only_what_policies_use_is_checked() {
        let request = |path: &'static str| RequestParts {
            path: path.as_bytes(),
            authority: Some(b"u@h"),
            headers: || {
                [
                    ("x-key", &b"a"[..]),
                    ("x-key", b"b"),
                    ("x-there", b"a"),
                    ("x-there", b"b"),
                ]
                .into_iter()
            },
        };
        let none = RequestChecks::new(&Policies::new());
        assert_eq!(none.check(request("/.."), &[], false), Ok(()));
        assert_eq!(
            none.check(request("/.."), &[], true),
            Err(RequestError::DotSegment)
        );
        assert_eq!(
            none.check(request("/"), &[], true),
            Err(RequestError::UserInfo)
        );
        assert!(none.check(request("/"), &["x-key"], false).is_err());
        let not = Match::new().unless(Match::new().path("/x".parse().unwrap()));
        let listed = RequestChecks::new(&Policies::new().deny(ListEntry::new(not)));
        assert_eq!(
            listed.check(request("/.."), &[], false),
            Err(RequestError::DotSegment)
        );
        let there = Policy::new("there").matching(Match::new().header("x-there"));
        let by_key = RequestChecks::new(
            &Policies::new()
                .policy(there)
                .policy(Policy::new("key").key("header:X-Key")),
        );
        assert_eq!(
            by_key.check(request("/"), &[], false),
            Err(RequestError::RepeatedHeader("x-key".into()))
        );
    }
}
