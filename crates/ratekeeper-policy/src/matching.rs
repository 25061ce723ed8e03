//! Whether a policy is about a request: the conditions of `match`, all of which must hold.

use crate::address;
use crate::attribute::Attribute;
use crate::path::Path;
use crate::subject::Subject;
use ipnet::IpNet;
use std::fmt;

pub use crate::path::PathCase;
pub use crate::pattern::{HostPattern, PathPattern, PatternError};

/// Conditions on a request. All must hold; none means that every request will do.
///
/// ```
/// use ratekeeper_policy::Match;
///
/// let orders = Match::new().method("POST").path("/api/orders/**".parse()?).unless(Match::new().attribute("plan", "pro"));
/// # Ok::<_, ratekeeper_policy::matching::PatternError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// One of these, in upper case; any if there are none.
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<PathPattern>>,
    pub(crate) hosts: Option<Vec<HostPattern>>,
    pub(crate) headers: Vec<(Box<str>, HeaderTest)>,
    pub(crate) ips: Option<Vec<IpNet>>,
    pub(crate) attributes: Vec<(Attribute, Vec<String>)>,
    pub(crate) not: Option<Box<Match>>,
}

/// What is asked of a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HeaderTest {
    Present,
    OneOf(Vec<String>),
}

/// # Saying what must hold
impl Match {
    /// Every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// This method, or another of those named.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods
            .get_or_insert_default()
            .push(method.to_ascii_uppercase());
        self
    }

    /// A path of this pattern, or of another one named.
    #[must_use]
    pub fn path(mut self, pattern: PathPattern) -> Self {
        self.paths.get_or_insert_default().push(pattern);
        self
    }

    /// This host, or another of those named.
    #[must_use]
    pub fn host(mut self, pattern: HostPattern) -> Self {
        self.hosts.get_or_insert_default().push(pattern);
        self
    }

    /// A client within this network, or within another of those named.
    #[must_use]
    pub fn ip(mut self, network: IpNet) -> Self {
        self.ips
            .get_or_insert_default()
            .push(address::canonical_network(network));
        self
    }

    /// The header is there.
    #[must_use]
    pub fn header(mut self, name: &str) -> Self {
        self.headers
            .push((name.to_ascii_lowercase().into(), HeaderTest::Present));
        self
    }

    /// The header says one of these.
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

    /// The attribute is this.
    #[must_use]
    pub fn attribute(self, attribute: impl Into<Attribute>, value: &str) -> Self {
        self.attribute_is(attribute, [value])
    }

    /// The attribute is one of these.
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

    /// Not all of these hold.
    #[must_use]
    pub fn unless(mut self, not: Match) -> Self {
        self.not = Some(Box::new(not));
        self
    }
}

/// Why a policy is not about a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MismatchReason {
    /// The request has nothing of that name to be matched by.
    Missing(Attribute),
    /// Another method.
    Method,
    /// Another path.
    Path,
    /// Another host.
    Host,
    /// A client of another network.
    Ip,
    /// The header is missing or says something else.
    Header(Box<str>),
    /// The attribute is something else.
    Attribute(Attribute),
    /// What `not` says holds.
    Not,
    /// The request has nothing to be counted by under that name.
    NoKey(Attribute),
    /// The request has no plan, and there is none by default.
    NoPlan(Attribute),
    /// A policy before it is the last that applies.
    After(Box<str>),
}

impl fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "the request has no {name} to be matched by"),
            Self::Method => f.write_str("the method is another one"),
            Self::Path => f.write_str("the path is another one"),
            Self::Host => f.write_str("the host is another one"),
            Self::Ip => f.write_str("the address is not in its networks"),
            Self::Header(name) => write!(f, "the header {name} is missing or says something else"),
            Self::Attribute(name) => write!(f, "the attribute {name} is something else"),
            Self::Not => f.write_str("what its `not` excludes holds"),
            Self::NoKey(name) => write!(f, "the request has no {name} to be counted by"),
            Self::NoPlan(name) => write!(
                f,
                "the request has no known {name}, and the policy no default plan"
            ),
            Self::After(policy) => write!(f, "the policy {policy} before it is final"),
        }
    }
}

/// # Judging
impl Match {
    /// Whether it holds, `path` being that of the subject, in any reading of the path.
    pub(crate) fn holds(&self, subject: &Subject<'_>, path: Option<&Path<'_>>) -> bool {
        self.first_failed(subject, path, PathTest::AnyReading)
            .is_none()
    }

    /// Whether it holds in every reading of the path: for what lets a request go.
    pub(crate) fn holds_in_every_reading(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
    ) -> bool {
        self.first_failed(subject, path, PathTest::EveryReading)
            .is_none()
    }

    /// Whether it holds of a request of whose path any reading is known to match.
    pub(crate) fn holds_on_path(&self, subject: &Subject<'_>, path: Option<&Path<'_>>) -> bool {
        self.first_failed(subject, path, PathTest::Known).is_none()
    }

    /// The first condition that does not hold.
    pub(crate) fn mismatch(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
    ) -> Option<MismatchReason> {
        let unless_missing =
            |attribute: Attribute, why: MismatchReason| match subject.has(&attribute) {
                true => why,
                false => MismatchReason::Missing(attribute),
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
            && !is(&Attribute::Method, &|there| {
                methods
                    .iter()
                    .any(|one| one.as_bytes().eq_ignore_ascii_case(there))
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
            && !is(&Attribute::Host, &|there| {
                hosts.iter().any(|pattern| pattern.matches(there))
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
                // Compared as an address: it has many spellings.
                Attribute::Ip => {
                    let said = |value: &String| value.parse().ok().map(address::canonical);
                    subject
                        .address()
                        .is_some_and(|there| values.iter().any(|value| said(value) == Some(there)))
                }
                other => is(other, &|there| {
                    values.iter().any(|value| value.as_bytes() == there)
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

    /// Whether whatever holds here holds there too, as far as their words show.
    pub(crate) fn implies(&self, other: &Self) -> bool {
        fn within<T>(
            ours: Option<&Vec<T>>,
            theirs: Option<&Vec<T>>,
            covers: impl Fn(&T, &T) -> bool,
        ) -> bool {
            let Some(theirs) = theirs else { return true };
            ours.is_some_and(|ours| {
                ours.iter()
                    .all(|one| theirs.iter().any(|wide| covers(wide, one)))
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
                Some(not) => self.not.as_ref().is_some_and(|ours| not.implies(ours)),
            }
    }

    pub(crate) fn uses_path(&self) -> bool {
        self.paths.is_some() || self.not.as_ref().is_some_and(|not| not.uses_path())
    }

    /// Whether nothing can hold: a list of which one must be that has none.
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

/// How many readings of a path must match.
#[derive(Clone, Copy)]
enum PathTest {
    AnyReading,
    EveryReading,
    /// One is known to.
    Known,
}

/// The condition that does not hold.
enum FailedCondition<'a> {
    Method,
    Path,
    Host,
    Ip,
    Header(&'a str),
    Attribute(&'a Attribute),
    Not,
}
