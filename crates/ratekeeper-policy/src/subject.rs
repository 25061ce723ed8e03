//! Who is asking: the attributes of one request, borrowed from wherever they are.

use crate::address;
use crate::attribute::Attribute;
use crate::deadline::request_start;
use crate::host::host_name;
use ratekeeper::Timestamp;
use std::fmt;
use std::net::IpAddr;

/// Who is asking. Made for one request from what is there already; nothing is copied.
///
/// ```
/// use ratekeeper_policy::Subject;
///
/// let subject = Subject::new()
///     .ip("203.0.113.7".parse()?)
///     .user("42")
///     .method("GET")
///     .path("/api/orders?page=2")
///     .with("region", "eu");
/// # Ok::<_, std::net::AddrParseError>(())
/// ```
///
/// Values are bytes: a header need not be text to be counted by.
#[derive(Clone, Default)]
pub struct Subject<'a> {
    ip: Option<IpAddr>,
    user: Option<&'a [u8]>,
    api_key: Option<&'a [u8]>,
    plan: Option<&'a [u8]>,
    tenant: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    /// As it was written, with its port if it has one.
    host: Option<&'a [u8]>,
    endpoint: Option<&'a [u8]>,
    headers: Option<&'a dyn Headers>,
    /// Names of your own. (A `SmallVec` would pin the lifetime.)
    custom: [Option<(&'a str, &'a [u8])>; INLINE],
    more: Vec<(&'a str, &'a [u8])>,
    at_once: bool,
    start: Option<Timestamp>,
    deadline: Option<Timestamp>,
}

/// So many names of your own need no memory of their own.
const INLINE: usize = 4;

/// The headers of a request, wherever they are kept.
pub trait Headers: Sync {
    /// The first header of that name, which is in lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// Whether a header of that name, which is in lower case, says exactly this. A name may be
    /// there several times.
    fn says(&self, name: &str, value: &[u8]) -> bool {
        self.header(name) == Some(value)
    }
}

impl<N: AsRef<str> + Sync, V: AsRef<[u8]> + Sync> Headers for Vec<(N, V)> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(known, _)| known.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }

    fn says(&self, name: &str, value: &[u8]) -> bool {
        self.iter().any(|(known, said)| {
            known.as_ref().eq_ignore_ascii_case(name) && said.as_ref() == value
        })
    }
}

/// # Saying who asks
impl<'a> Subject<'a> {
    /// Nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The client's address. An IPv4 address that is written as one of IPv6 is that IPv4 address.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(address::canonical(ip));
        self
    }

    /// Who is signed in.
    #[must_use]
    pub fn user(mut self, user: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.user = there(user.as_ref());
        self
    }

    /// The key the client showed.
    #[must_use]
    pub fn api_key(mut self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.api_key = there(key.as_ref());
        self
    }

    /// What the client pays for.
    #[must_use]
    pub fn plan(mut self, plan: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.plan = there(plan.as_ref());
        self
    }

    /// Whose customer the client is.
    #[must_use]
    pub fn tenant(mut self, tenant: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.tenant = there(tenant.as_ref());
        self
    }

    /// The method of the request.
    #[must_use]
    pub fn method(mut self, method: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.method = Some(method.as_ref());
        self
    }

    /// The path of the request; what follows a `?` is not part of it.
    #[must_use]
    pub fn path(mut self, path: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.path = Some(path_of(path.as_ref()));
        self
    }

    /// The host of the request; user information, a port and a dot at the end are not part of it.
    #[must_use]
    pub fn host(mut self, host: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.host = Some(host.as_ref());
        self
    }

    /// The route that a framework found for the request, such as `/users/{id}`.
    #[must_use]
    pub fn endpoint(mut self, route: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.endpoint = Some(route.as_ref());
        self
    }

    /// The headers of the request.
    #[must_use]
    pub fn headers(mut self, headers: &'a dyn Headers) -> Self {
        self.headers = Some(headers);
        self
    }

    /// Whoever asks does not wait: where others would wait in line, it is turned away.
    #[must_use]
    pub fn no_wait(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// When the request began, by a clock that is believed: how long its caller [has
    /// patience](crate::overload::Shed::patience) counts from then. Nothing began in the future.
    #[must_use]
    pub fn start(mut self, start: Timestamp) -> Self {
        self.start = Some(start);
        self
    }

    /// From then on nobody waits for the answer: what comes later is turned away before it costs
    /// anything, and nobody waits in line for longer.
    #[must_use]
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// An attribute by its name, whichever it is; that of an address must be one, or it is not
    /// there.
    ///
    /// `start` and `deadline` are times, written as [`request_start`] reads them; what else they
    /// say is an attribute of your own.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.set(name, value);
        self
    }

    /// The same for a subject that stays where it is, in a loop over attributes.
    pub fn set(&mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) {
        let value = value.as_ref();
        match name {
            "ip" => {
                if let Some(ip) = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                {
                    self.ip = Some(address::canonical(ip));
                }
            }
            "user" => self.user = there(value),
            "api_key" => self.api_key = there(value),
            "plan" => self.plan = there(value),
            "tenant" => self.tenant = there(value),
            "method" => self.method = Some(value),
            "path" => self.path = Some(path_of(value)),
            "host" => self.host = Some(value),
            "endpoint" => self.endpoint = Some(value),
            _ => {
                match name {
                    "start" => self.start = request_start(value),
                    "deadline" => self.deadline = request_start(value),
                    _ => {}
                }
                let known = self
                    .custom
                    .iter_mut()
                    .flatten()
                    .chain(&mut self.more)
                    .find(|(known, _)| *known == name);
                if let Some((_, known)) = known {
                    *known = value;
                } else if let Some(free) = self.custom.iter_mut().find(|place| place.is_none()) {
                    *free = Some((name, value));
                } else {
                    self.more.push((name, value));
                }
            }
        }
    }
}

/// The path of a target, without what follows a `?`.
fn path_of(target: &[u8]) -> &[u8] {
    let path = without_origin(target);
    let end = path
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#'))
        .unwrap_or(path.len());
    &path[..end]
}

/// A target may name scheme and host before its path.
fn without_origin(target: &[u8]) -> &[u8] {
    let after_scheme = target
        .windows(3)
        .position(|three| three == b"://")
        .filter(|at| !target[..*at].contains(&b'/'));
    let Some(host) = after_scheme.map(|at| at + 3) else {
        return target;
    };
    let path = target[host..]
        .iter()
        .position(|byte| *byte == b'/')
        .map(|at| host + at);
    path.map_or(b"/", |path| &target[path..])
}

/// Nobody is called nothing: who is named by an empty text is not named.
fn there(value: &[u8]) -> Option<&[u8]> {
    (!value.is_empty()).then_some(value)
}

/// # Asking
impl<'a> Subject<'a> {
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.ip
    }

    pub(crate) fn is_at_once(&self) -> bool {
        self.at_once
    }

    /// When the request began, and until when its caller waits, as far as is said.
    pub(crate) fn times(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.start, self.deadline)
    }

    pub(crate) fn raw_path(&self) -> Option<&'a [u8]> {
        self.path
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.header(name).is_some()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.and_then(|headers| headers.header(name))
    }

    pub(crate) fn header_says(&self, name: &str, value: &[u8]) -> bool {
        self.headers
            .is_some_and(|headers| headers.says(name, value))
    }

    /// What it has under that name. An address has no bytes of its own to show, nor has an endpoint
    /// that the framework does not name.
    pub(crate) fn bytes(&self, attribute: &Attribute) -> Option<&'a [u8]> {
        match attribute {
            Attribute::Ip => None,
            Attribute::Endpoint => self.endpoint,
            Attribute::User => self.user,
            Attribute::ApiKey => self.api_key,
            Attribute::Plan => self.plan,
            Attribute::Tenant => self.tenant,
            Attribute::Method => self.method,
            Attribute::Path => self.path,
            Attribute::Host => self.host.map(host_name),
            Attribute::Header(name) => self.header(name).and_then(there),
            Attribute::Custom(name) => self
                .own()
                .find(|(known, _)| **known == **name)
                .map(|(_, value)| *value),
        }
    }

    /// An attribute of the user's own.
    pub(crate) fn custom(&self, name: &str) -> Option<&'a [u8]> {
        self.own()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }

    fn own(&self) -> impl Iterator<Item = &(&'a str, &'a [u8])> {
        self.custom.iter().flatten().chain(&self.more)
    }

    /// The route of the framework, else what stands for it: method and path.
    pub(crate) fn route(&self) -> Option<(&'a [u8], &'a [u8])> {
        match (self.endpoint, self.path) {
            (Some(route), _) => Some((self.method.unwrap_or_default(), route)),
            (None, Some(path)) => Some((self.method.unwrap_or_default(), path)),
            (None, None) => None,
        }
    }

    /// Whether the framework named the route.
    pub(crate) fn names_its_route(&self) -> bool {
        self.endpoint.is_some()
    }

    pub(crate) fn has(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Ip => self.ip.is_some(),
            Attribute::Endpoint => self.route().is_some(),
            other => self.bytes(other).is_some(),
        }
    }
}

impl fmt::Debug for Subject<'_> {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = crate::attribute::KNOWN
            .iter()
            .filter(|attribute| self.has(attribute))
            .map(Attribute::name);
        f.debug_set()
            .entries(known)
            .entries(self.own().map(|(name, _)| name))
            .finish()
    }
}
