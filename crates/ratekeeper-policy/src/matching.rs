//! Matching of requests: the conditions of `match`, all of which must hold.

use crate::address;
use crate::attribute::Attribute;
use crate::path::Path;
use crate::subject::Subject;
use ipnet::IpNet;
use std::fmt;

pub use crate::path::PathCase;
pub use crate::pattern::{HostPattern, PathPattern, PatternError};

/// Conditions on a request. All must hold; without any, every request matches.
///
/// ```
/// use ratekeeper_policy::Match;
///
/// let orders = Match::new()
///     .method("POST")
///     .path("/api/orders/**".parse()?)
///     .unless(Match::new().attribute("plan", "pro"));
/// # Ok::<_, ratekeeper_policy::matching::PatternError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// One of these methods, in upper case; any if `None`.
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<PathPattern>>,
    pub(crate) hosts: Option<Vec<HostPattern>>,
    pub(crate) headers: Vec<(Box<str>, HeaderTest)>,
    pub(crate) ips: Option<Vec<IpNet>>,
    pub(crate) attributes: Vec<(Attribute, Vec<String>)>,
    pub(crate) not: Option<Box<Match>>,
}

/// A condition on a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HeaderTest {
    Present,
    OneOf(Vec<String>),
}

/// # Building
impl Match {
    /// Matches every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method; one of those added must match.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods
            .get_or_insert_default()
            .push(method.to_ascii_uppercase());
        self
    }

    /// Adds a path pattern; one of those added must match.
    #[must_use]
    pub fn path(mut self, pattern: PathPattern) -> Self {
        self.paths.get_or_insert_default().push(pattern);
        self
    }

    /// Adds a host pattern; one of those added must match.
    #[must_use]
    pub fn host(mut self, pattern: HostPattern) -> Self {
        self.hosts.get_or_insert_default().push(pattern);
        self
    }

    /// Adds a network; one of those added must contain the client address.
    #[must_use]
    pub fn ip(mut self, network: IpNet) -> Self {
        self.ips
            .get_or_insert_default()
            .push(address::canonical_network(network));
        self
    }

    /// Requires a header.
    #[must_use]
    pub fn header(mut self, name: &str) -> Self {
        self.headers
            .push((name.to_ascii_lowercase().into(), HeaderTest::Present));
        self
    }

    /// Requires a header with one of these values.
    #[must_use]
    pub fn header_is<V: Into<String>>(
        mut self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.headers
            .push((name.to_ascii_lowercase().into(), HeaderTest::OneOf(values)));
        self
    }

    /// Requires an attribute with this value.
    #[must_use]
    pub fn attribute(self, attribute: impl Into<Attribute>, value: &str) -> Self {
        self.attribute_is(attribute, [value])
    }

    /// Requires an attribute with one of these values.
    #[must_use]
    pub fn attribute_is<V: Into<String>>(
        mut self,
        attribute: impl Into<Attribute>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        self.attributes.push((
            attribute.into(),
            values.into_iter().map(Into::into).collect(),
        ));
        self
    }

    /// Excludes requests that match these conditions.
    #[must_use]
    pub fn unless(mut self, not: Match) -> Self {
        self.not = Some(Box::new(not));
        self
    }
}

/// Why a policy does not apply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MismatchReason {
    /// The request lacks an attribute to match on.
    Missing(Attribute),
    /// The method does not match.
    Method,
    /// The path does not match.
    Path,
    /// The host does not match.
    Host,
    /// The client address is in none of the networks.
    Ip,
    /// The header is missing or has another value.
    Header(Box<str>),
    /// The attribute has another value.
    Attribute(Attribute),
    /// The request is excluded by `not`.
    Not,
    /// The request lacks an attribute of the key.
    NoKey(Attribute),
    /// The request has no known plan, and there is no default plan.
    NoPlan(Attribute),
    /// An earlier policy that matches is final.
    After(Box<str>),
}

impl fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "the request has no {name} to match"),
            Self::Method => f.write_str("the method does not match"),
            Self::Path => f.write_str("the path does not match"),
            Self::Host => f.write_str("the host does not match"),
            Self::Ip => f.write_str("the address is in none of the networks"),
            Self::Header(name) => write!(f, "the header {name} is missing or has another value"),
            Self::Attribute(name) => write!(f, "the attribute {name} has another value"),
            Self::Not => f.write_str("the request is excluded by `not`"),
            Self::NoKey(name) => write!(f, "the request has no {name} to count by"),
            Self::NoPlan(name) => write!(
                f,
                "the request has no known {name}, and the policy has no default plan"
            ),
            Self::After(policy) => write!(f, "the earlier policy {policy} is final"),
        }
    }
}

/// # Matching
impl Match {
    /// Whether it matches, in any reading of the path.
    pub(crate) fn holds(&self, subject: &Subject<'_>, path: Option<&Path<'_>>) -> bool {
        self.first_failed(subject, path, PathTest::AnyReading)
            .is_none()
    }

    /// Whether it matches in every reading of the path: for what exempts a request.
    pub(crate) fn holds_in_every_reading(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
    ) -> bool {
        self.first_failed(subject, path, PathTest::EveryReading)
            .is_none()
    }

    /// Whether it matches a request, if some reading of the path is known to match.
    pub(crate) fn holds_on_path(&self, subject: &Subject<'_>, path: Option<&Path<'_>>) -> bool {
        self.first_failed(subject, path, PathTest::Known).is_none()
    }

    /// The first condition that does not hold.
    pub(crate) fn mismatch(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
    ) -> Option<MismatchReason> {
        let unless_missing = |attribute: Attribute, reason: MismatchReason| {
            if subject.has(&attribute) {
                reason
            } else {
                MismatchReason::Missing(attribute)
            }
        };
        self.first_failed(subject, path, PathTest::AnyReading)
            .map(|failure| match failure {
                FailedCondition::Method => {
                    unless_missing(Attribute::Method, MismatchReason::Method)
                }
                FailedCondition::Path => unless_missing(Attribute::Path, MismatchReason::Path),
                FailedCondition::Host => unless_missing(Attribute::Host, MismatchReason::Host),
                FailedCondition::Ip => unless_missing(Attribute::Ip, MismatchReason::Ip),
                FailedCondition::Header(name) => MismatchReason::Header(name.into()),
                FailedCondition::Attribute(name) => {
                    unless_missing(name.clone(), MismatchReason::Attribute(name.clone()))
                }
                FailedCondition::Not => MismatchReason::Not,
            })
    }

    fn first_failed(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
        test: PathTest,
    ) -> Option<FailedCondition<'_>> {
        let is = |attribute: &Attribute, test: &dyn Fn(&[u8]) -> bool| {
            subject.bytes(attribute).is_some_and(test)
        };
        if let Some(methods) = &self.methods
            && !is(&Attribute::Method, &|value| {
                methods
                    .iter()
                    .any(|one| one.as_bytes().eq_ignore_ascii_case(value))
            })
        {
            return Some(FailedCondition::Method);
        }
        let matches = |path: &Path<'_>, paths: &[PathPattern]| match test {
            PathTest::Known => true,
            PathTest::AnyReading => paths.iter().any(|pattern| pattern.matches_any(path)),
            PathTest::EveryReading => {
                let matches = |reading| {
                    paths
                        .iter()
                        .any(|pattern| pattern.matches(reading, path.case))
                };
                path.readings().all(matches)
            }
        };
        if let Some(paths) = &self.paths
            && !path.is_some_and(|path| matches(path, paths))
        {
            return Some(FailedCondition::Path);
        }
        if let Some(hosts) = &self.hosts
            && !is(&Attribute::Host, &|value| {
                hosts.iter().any(|pattern| pattern.matches(value))
            })
        {
            return Some(FailedCondition::Host);
        }
        if let Some(networks) = &self.ips
            && !subject
                .address()
                .is_some_and(|ip| networks.iter().any(|network| network.contains(&ip)))
        {
            return Some(FailedCondition::Ip);
        }
        for (name, test) in &self.headers {
            let holds = match test {
                HeaderTest::Present => subject.has_header(name),
                HeaderTest::OneOf(values) => values
                    .iter()
                    .any(|value| subject.header_has_value(name, value.as_bytes())),
            };
            if !holds {
                return Some(FailedCondition::Header(name));
            }
        }
        for (attribute, values) in &self.attributes {
            let holds = match attribute {
                // Compared as addresses, which have many spellings.
                Attribute::Ip => {
                    let parsed = |value: &String| value.parse().ok().map(address::canonical);
                    subject.address().is_some_and(|actual| {
                        values.iter().any(|value| parsed(value) == Some(actual))
                    })
                }
                other => is(other, &|actual| {
                    values.iter().any(|value| value.as_bytes() == actual)
                }),
            };
            if !holds {
                return Some(FailedCondition::Attribute(attribute));
            }
        }
        match &self.not {
            Some(not) => {
                let test = match test {
                    PathTest::EveryReading => PathTest::AnyReading,
                    PathTest::AnyReading | PathTest::Known => PathTest::EveryReading,
                };
                not.first_failed(subject, path, test)
                    .is_none()
                    .then_some(FailedCondition::Not)
            }
            None => None,
        }
    }

    /// Whether every request that matches this also matches the other, as far as can be seen from
    /// the conditions.
    pub(crate) fn implies(&self, other: &Self) -> bool {
        fn within<T>(
            narrow: Option<&Vec<T>>,
            wide: Option<&Vec<T>>,
            covers: impl Fn(&T, &T) -> bool,
        ) -> bool {
            let Some(wide) = wide else { return true };
            narrow.is_some_and(|narrow| {
                narrow
                    .iter()
                    .all(|one| wide.iter().any(|other| covers(other, one)))
            })
        }
        within(
            self.methods.as_ref(),
            other.methods.as_ref(),
            |wide, one| wide == one,
        ) && within(
            self.paths.as_ref(),
            other.paths.as_ref(),
            PathPattern::covers,
        ) && within(self.hosts.as_ref(), other.hosts.as_ref(), |wide, one| {
            wide == one
        }) && within(self.ips.as_ref(), other.ips.as_ref(), |wide, one| {
            wide.contains(one)
        }) && other
            .headers
            .iter()
            .all(|header| self.headers.contains(header))
            && other
                .attributes
                .iter()
                .all(|test| self.attributes.contains(test))
            && match &other.not {
                None => true,
                Some(not) => self.not.as_ref().is_some_and(|own| not.implies(own)),
            }
    }

    pub(crate) fn uses_path(&self) -> bool {
        self.paths.is_some() || self.not.as_ref().is_some_and(|not| not.uses_path())
    }

    /// Whether no request can match, as with an empty list of alternatives.
    pub(crate) fn is_impossible(&self) -> bool {
        let empty_header = |(_, test): &(_, HeaderTest)| *test == HeaderTest::OneOf(Vec::new());
        self.methods.as_ref().is_some_and(Vec::is_empty)
            || self.paths.as_ref().is_some_and(Vec::is_empty)
            || self.hosts.as_ref().is_some_and(Vec::is_empty)
            || self.ips.as_ref().is_some_and(Vec::is_empty)
            || self.headers.iter().any(empty_header)
            || self.attributes.iter().any(|(_, values)| values.is_empty())
            || self.not.as_ref().is_some_and(|not| self.implies(not))
    }
}

/// Which readings of a path must match.
#[derive(Clone, Copy)]
enum PathTest {
    AnyReading,
    EveryReading,
    /// A reading is known to match.
    Known,
}

/// A condition that does not hold.
enum FailedCondition<'a> {
    Method,
    Path,
    Host,
    Ip,
    Header(&'a str),
    Attribute(&'a Attribute),
    Not,
}
