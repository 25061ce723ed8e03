//! The URL of Redis, validated before it is used.

use super::address::{port, split_port};
use super::secret::HIDDEN;
use ratekeeper_policy::config::section::{
    KeyKind, KeyType, Place, ReadError, Value, join_or, str_of, text,
};
use std::fmt;
use std::str::FromStr;

/// The URL of Redis: `redis://user:password@host:6379/0`, `rediss://…` over TLS,
/// `unix:///run/redis.sock?db=0&user=…&pass=…`.
///
/// `redis+sentinel://user:password@host:26379,host:26379/mymaster/0` is the primary of a
/// Sentinel setup, `redis+cluster://user:password@host:6379,host:6379` a Cluster; with TLS they
/// begin with
/// `rediss+`.
///
/// It prints without its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl(String);

impl RedisUrl {
    /// The whole URL, with its password.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it is `rediss://`, or `rediss+…://`.
    pub(crate) fn is_tls(&self) -> bool {
        self.0.starts_with("rediss:") || self.0.starts_with("rediss+")
    }

    /// Whether it is `redis+sentinel://` or `rediss+sentinel://`.
    pub(crate) fn has_sentinels(&self) -> bool {
        parts(&self.0).is_some_and(|(scheme, _)| scheme.ends_with("+sentinel"))
    }
}

/// The error for text that is not a [`RedisUrl`]. It repeats only the scheme, because the text may
/// contain a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RedisUrlError {
    /// The scheme is unknown or missing: the one found, if any.
    Scheme(Option<String>),
    /// It contains whitespace or a control character.
    Blank,
    /// The host is missing or invalid.
    Host,
    /// The port is invalid.
    Port,
    /// The database is not a number.
    Database,
    /// A user name without a password.
    User,
    /// Sentinels without the name of the primary.
    Primary,
    /// A Cluster with a database.
    Cluster,
    /// The path of the socket is missing, or has an unknown parameter.
    Socket,
}

const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "redis+unix",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];

impl fmt::Display for RedisUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(found) => {
                let known = join_or(SCHEMES.iter().map(|scheme| format!("{scheme}://")));
                write!(f, "it must begin with {known}")?;
                found
                    .as_ref()
                    .map_or(Ok(()), |found| write!(f, ", not {found}://"))?;
                f.write_str(", for example \"redis://127.0.0.1:6379\"")
            }
            Self::Blank => f.write_str("it contains a space; write %20 instead"),
            Self::Host => f.write_str(
                "it needs a valid host, for example \"redis://127.0.0.1:6379\"; in a password \
                 write / as %2F, ? as %3F and # as %23",
            ),
            Self::Port => f.write_str(
                "its port must be a number from 1 to 65535, for example \
                 \"redis://127.0.0.1:6379\"; in a password write / as %2F, ? as %3F and # as %23",
            ),
            Self::Database => f.write_str(
                "only the number of the database may follow the host, for example \
                 \"redis://127.0.0.1:6379/0\"",
            ),
            Self::User => f.write_str(
                "it has a user or an @, but no password; write redis://user:password@host, or \
                 redis://:password@host for a password alone",
            ),
            Self::Primary => f.write_str(
                "the name of the primary must follow the sentinels, and then the database if it is \
                 not 0, for example \"redis+sentinel://127.0.0.1:26379/mymaster\"",
            ),
            Self::Cluster => f.write_str(
                "a Cluster has no databases, so nothing may follow its hosts, for example \
                 \"redis+cluster://127.0.0.1:6379\"",
            ),
            Self::Socket => f.write_str(
                "a socket must be written as \"unix:///run/redis.sock\", followed by \
                 ?db=0&user=…&pass=… as needed",
            ),
        }
    }
}

impl std::error::Error for RedisUrlError {}

/// The parts of a URL, undecoded.
enum Parts<'a> {
    Tcp {
        user_info: Option<&'a str>,
        host: &'a str,
        path_and_query: &'a str,
    },
    Socket {
        path: &'a str,
        query: Option<&'a str>,
    },
}

/// The scheme and the parts; `None` if the scheme is unknown.
fn parts(text: &str) -> Option<(&str, Parts<'_>)> {
    let (scheme, rest) = text
        .split_once("://")
        .filter(|(scheme, _)| SCHEMES.contains(scheme))?;
    if scheme.ends_with("unix") {
        let (path, query) = rest
            .split_once('?')
            .map_or((rest, None), |(path, query)| (path, Some(query)));
        return Some((scheme, Parts::Socket { path, query }));
    }
    let (authority, path_and_query) =
        rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user_info, host) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(user, host)| (Some(user), host));
    Some((
        scheme,
        Parts::Tcp {
            user_info,
            host,
            path_and_query,
        },
    ))
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, RedisUrlError> {
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(RedisUrlError::Blank);
        }
        let Some((scheme, parts)) = parts(text) else {
            return Err(RedisUrlError::Scheme(scheme_of(text)));
        };
        match parts {
            Parts::Tcp {
                user_info,
                host,
                path_and_query,
            } => {
                let several = scheme.contains('+');
                host.split(',')
                    .filter(|_| several)
                    .try_for_each(check_host)?;
                if !several {
                    check_host(host)?;
                }
                check_path(scheme, path_and_query)?;
                // Without a password there would be no login, and the user may be meant as
                // password.
                let has_password = |info: &str| {
                    info.split_once(':')
                        .is_some_and(|(_, password)| !password.is_empty())
                };
                if !user_info.is_none_or(has_password) {
                    return Err(RedisUrlError::User);
                }
            }
            Parts::Socket { path, query } => check_socket(path, query)?,
        }
        Ok(Self(text.to_owned()))
    }
}

/// The text before `://`, if it looks like a scheme, and not like something that may be secret.
fn scheme_of(text: &str) -> Option<String> {
    const MAX_SCHEME_LEN: usize = 20;
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.len() <= MAX_SCHEME_LEN
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then(|| scheme.to_owned())
}

/// Validates a host with an optional port.
fn check_host(text: &str) -> Result<(), RedisUrlError> {
    let (host, port_text) = split_port(text).ok_or(RedisUrlError::Host)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !text.starts_with('[') && (host.is_empty() || !host.chars().all(is_name)) {
        return Err(RedisUrlError::Host);
    }
    if port_text.is_none_or(|text| port(text).is_some()) {
        Ok(())
    } else {
        Err(RedisUrlError::Port)
    }
}

/// Validates what follows the hosts: the primary or the database.
fn check_path(scheme: &str, path_and_query: &str) -> Result<(), RedisUrlError> {
    let is_database = |text: &str| text.is_empty() || is_number(text);
    let path = path_and_query.strip_prefix('/').unwrap_or_default();
    let is_path = path_and_query.is_empty() || path_and_query.starts_with('/');
    match scheme.split_once('+') {
        Some((_, "sentinel")) => {
            let (name, database) = path.split_once('/').unwrap_or((path, ""));
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if !name.is_empty() && name.chars().all(is_name) && is_database(database) {
                Ok(())
            } else {
                Err(RedisUrlError::Primary)
            }
        }
        Some(_) if is_path && (path.is_empty() || path == "0") => Ok(()),
        Some(_) => Err(RedisUrlError::Cluster),
        None if is_path && is_database(path) => Ok(()),
        None => Err(RedisUrlError::Database),
    }
}

/// Validates the path and the parameters of a Unix socket.
fn check_socket(path: &str, query: Option<&str>) -> Result<(), RedisUrlError> {
    // A # begins a fragment, which would be cut off, and with it part of a password.
    let cut = path.contains('#') || query.is_some_and(|query| query.contains('#'));
    if cut || !path.starts_with('/') || path == "/" {
        return Err(RedisUrlError::Socket);
    }
    let (mut user, mut password) = (false, false);
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        match pair.split_once('=') {
            Some(("db", number)) if is_number(number) => {}
            Some(("db", _)) => return Err(RedisUrlError::Database),
            Some(("user", _)) => user = true,
            Some(("pass", text)) => password = !text.is_empty(),
            _ => return Err(RedisUrlError::Socket),
        }
    }
    if user && !password {
        Err(RedisUrlError::User)
    } else {
        Ok(())
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u32>().is_ok()
}

impl fmt::Display for RedisUrl {
    /// The URL without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It was validated when it was created, so this cannot happen.
        let Some((scheme, parts)) = parts(&self.0) else {
            return f.write_str(HIDDEN);
        };
        write!(f, "{scheme}://")?;
        match parts {
            Parts::Tcp {
                user_info,
                host,
                path_and_query,
            } => {
                if let Some(info) = user_info {
                    let user = info.split(':').next().unwrap_or_default();
                    write!(f, "{user}:{HIDDEN}@")?;
                }
                write!(f, "{host}{path_and_query}")
            }
            Parts::Socket { path, query } => {
                f.write_str(path)?;
                for (at, pair) in query
                    .into_iter()
                    .flat_map(|query| query.split('&'))
                    .enumerate()
                {
                    let pair = if pair.starts_with("pass=") {
                        format!("pass={HIDDEN}")
                    } else {
                        pair.to_owned()
                    };
                    write!(f, "{}{pair}", if at == 0 { '?' } else { '&' })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL of the store, which must be set if that is Redis.
impl KeyKind for RedisUrl {
    type Value = Self;
    const TYPE: KeyType = KeyType::text(
        "the URL of a Redis server, such as \"redis://127.0.0.1:6379\"",
        "^(rediss?(\\+sentinel|\\+cluster)?|redis\\+unix|unix)://.+$",
    );
    const REQUIRED: bool = false;
    const SECRET: bool = true;

    // The message repeats no part of the URL, because it may contain a password.
    fn parse(_: &KeyType, value: &Value) -> Result<Self, ReadError> {
        str_of(value)?
            .parse()
            .map_err(|error| ReadError::message(format!("`url` in [store] is invalid: {error}")))
    }

    fn absent(place: &Place<'_, '_>) -> Option<Self> {
        if place.section.text("kind") == Some("redis") {
            let message = "`kind = \"redis\"` {in} needs `url`, for example `url = \
                           \"redis://127.0.0.1:6379\"`";
            place.section.error("kind", message);
        }
        None
    }

    fn show(url: &Self, hide: bool) -> Option<String> {
        Some(if hide { text(url) } else { text(url.reveal()) })
    }
}
