//! Subjects: the attributes of one request, borrowed from the caller.

use crate::address;
use crate::attribute::Attribute;
use crate::deadline::request_start;
use crate::host::host_name;
use ratekeeper::Timestamp;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// The attributes of one request. It borrows them; nothing is copied.
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
    /// As sent, with its port if it has one.
    host: Option<&'a [u8]>,
    endpoint: Option<&'a [u8]>,
    headers: Option<&'a dyn Headers>,
    /// Custom attributes. (A `SmallVec` would pin the lifetime.)
    custom: [Option<(&'a str, &'a [u8])>; INLINE_ATTRIBUTES],
    more: Vec<(&'a str, &'a [u8])>,
    cost: Option<u64>,
    within: Option<Duration>,
    no_wait: bool,
    start: Option<Timestamp>,
    deadline: Option<Timestamp>,
}

/// Number of custom attributes stored inline.
const INLINE_ATTRIBUTES: usize = 4;

/// Access to the headers of a request.
pub trait Headers: Sync {
    /// The value of the first header with this name, which is in lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// Whether a header with this name, which is in lower case, has this value. The name may be
    /// repeated.
    fn has_value(&self, name: &str, value: &[u8]) -> bool {
        self.header(name) == Some(value)
    }
}

impl<N: AsRef<str> + Sync, V: AsRef<[u8]> + Sync> Headers for Vec<(N, V)> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(known, _)| known.as_ref().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_ref())
    }

    fn has_value(&self, name: &str, value: &[u8]) -> bool {
        self.iter().any(|(known, known_value)| {
            known.as_ref().eq_ignore_ascii_case(name) && known_value.as_ref() == value
        })
    }
}

/// # Building
impl<'a> Subject<'a> {
    /// Creates a subject without attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the client address. An IPv4 address in IPv6 form becomes IPv4.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(address::canonical(ip));
        self
    }

    /// Sets the authenticated user.
    #[must_use]
    pub fn user(mut self, user: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.user = non_empty(user.as_ref());
        self
    }

    /// Sets the API key.
    #[must_use]
    pub fn api_key(mut self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.api_key = non_empty(key.as_ref());
        self
    }

    /// Sets the plan of the client.
    #[must_use]
    pub fn plan(mut self, plan: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.plan = non_empty(plan.as_ref());
        self
    }

    /// Sets the tenant of the client.
    #[must_use]
    pub fn tenant(mut self, tenant: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.tenant = non_empty(tenant.as_ref());
        self
    }

    /// Sets the method.
    #[must_use]
    pub fn method(mut self, method: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.method = Some(method.as_ref());
        self
    }

    /// Sets the path; a query is cut off.
    #[must_use]
    pub fn path(mut self, path: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.path = Some(path_of(path.as_ref()));
        self
    }

    /// Sets the host; user information, port and trailing dot are ignored.
    #[must_use]
    pub fn host(mut self, host: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.host = Some(host.as_ref());
        self
    }

    /// Sets the route that a framework matched, such as `/users/{id}`.
    #[must_use]
    pub fn endpoint(mut self, route: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.endpoint = Some(route.as_ref());
        self
    }

    /// Sets the headers.
    #[must_use]
    pub fn headers(mut self, headers: &'a dyn Headers) -> Self {
        self.headers = Some(headers);
        self
    }

    /// Sets the cost of the request, 1 otherwise; each policy multiplies it by its own.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Sets within what time the caller needs the verdict. A store that has to ask a server falls
    /// back before that time is over; it also bounds the wait in a queue.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Disables waiting: where the request would wait in a queue, it is denied.
    #[must_use]
    pub fn no_wait(mut self) -> Self {
        self.no_wait = true;
        self
    }

    /// Sets when the request began, by a trusted clock: its
    /// [patience](crate::overload::Shed::patience) counts from then. A time in the future counts as
    /// now.
    #[must_use]
    pub fn start(mut self, start: Timestamp) -> Self {
        self.start = Some(start);
        self
    }

    /// Sets a deadline: after it the request is denied before it costs anything, and until then at
    /// most it waits in a queue.
    #[must_use]
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets an attribute by name, built-in or custom; an `ip` that is not an address is ignored.
    ///
    /// `start` and `deadline` are times, in the formats of [`request_start`]; other values are
    /// plain custom attributes.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.set(name, value);
        self
    }

    /// Sets an attribute by name in place, as in a loop.
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
            "user" => self.user = non_empty(value),
            "api_key" => self.api_key = non_empty(value),
            "plan" => self.plan = non_empty(value),
            "tenant" => self.tenant = non_empty(value),
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
                } else if let Some(free) = self.custom.iter_mut().find(|slot| slot.is_none()) {
                    *free = Some((name, value));
                } else {
                    self.more.push((name, value));
                }
            }
        }
    }
}

/// The path of a request target, without its query.
fn path_of(target: &[u8]) -> &[u8] {
    let path = without_origin(target);
    let end = path
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#'))
        .unwrap_or(path.len());
    &path[..end]
}

/// Removes scheme and host from a target in absolute form.
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

/// Empty values are treated as absent.
fn non_empty(value: &[u8]) -> Option<&[u8]> {
    (!value.is_empty()).then_some(value)
}

/// # Access
impl<'a> Subject<'a> {
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The cost, 1 if it is not set.
    pub(crate) fn units(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    pub(crate) fn has_cost(&self) -> bool {
        self.cost.is_some()
    }

    /// Within what time the caller needs the verdict.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.within
    }

    pub(crate) fn is_no_wait(&self) -> bool {
        self.no_wait
    }

    /// The start and the deadline, if set.
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

    pub(crate) fn header_has_value(&self, name: &str, value: &[u8]) -> bool {
        self.headers
            .is_some_and(|headers| headers.has_value(name, value))
    }

    /// The value of an attribute. There are no bytes for an address, or for an endpoint that the
    /// framework did not name.
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
            Attribute::Header(name) => self.header(name).and_then(non_empty),
            Attribute::Custom(name) => self
                .custom_attributes()
                .find(|(known, _)| **known == **name)
                .map(|(_, value)| *value),
        }
    }

    /// The value of a custom attribute.
    pub(crate) fn custom(&self, name: &str) -> Option<&'a [u8]> {
        self.custom_attributes()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }

    fn custom_attributes(&self) -> impl Iterator<Item = &(&'a str, &'a [u8])> {
        self.custom.iter().flatten().chain(&self.more)
    }

    /// Method and endpoint, or method and path if the endpoint is not named.
    pub(crate) fn route(&self) -> Option<(&'a [u8], &'a [u8])> {
        match (self.endpoint, self.path) {
            (Some(route), _) => Some((self.method.unwrap_or_default(), route)),
            (None, Some(path)) => Some((self.method.unwrap_or_default(), path)),
            (None, None) => None,
        }
    }

    /// Whether the framework named the endpoint.
    pub(crate) fn has_named_endpoint(&self) -> bool {
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
            .entries(self.custom_attributes().map(|(name, _)| name))
            .finish()
    }
}
