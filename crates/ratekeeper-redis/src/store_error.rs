//! [`StoreError`]: why Redis did not decide, with what to do about it.

use std::fmt;

/// Why Redis did not decide.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// Redis did not answer in time.
    TimedOut,
    /// More callers wait for Redis than [`max_waiting`](crate::RedisStoreBuilder::max_waiting)
    /// allows.
    QueueFull,
    /// Redis cannot be reached; the reason.
    Unreachable(String),
    /// Redis answered with an error.
    Refused {
        /// The error code, such as `READONLY` or `OOM`.
        code: String,
        /// The server's message.
        message: String,
    },
    /// The reply is invalid; the reason.
    Protocol(String),
    /// A key of this store holds data of another kind; the key.
    BadKey(String),
    /// Redis has failed repeatedly, so decisions do not ask it until a probe succeeds.
    Broken,
    /// Redis has not been reached yet, so the secret that keys are hashed with is not known.
    NoSecret,
}

/// Error codes that concern the server as a whole and not one call: the connection is closed.
const SERVER_ERROR_CODES: [&str; 7] = [
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "NOREPLICAS",
    "CLUSTERDOWN",
];
/// The `maxmemory-policy` to set where Redis has a `maxmemory`. Keys expire when their limit is
/// full again, so evicting the key with the shortest time to live loses least. Of the other
/// policies, `noeviction` makes every node decide alone while memory is full, and the rest forget
/// limits that are used up.
pub const MAXMEMORY_POLICY: &str = "volatile-ttl";

/// What to do about a Redis that is full, or whose `maxmemory-policy` is wrong.
pub const MAXMEMORY_ADVICE: &str = "set maxmemory-policy to volatile-ttl, and maxmemory to more than its keys take (docs/distributed.md, When Redis is full)";

/// Other known error codes, to be found in the text of a script's error.
const CALL_ERROR_CODES: [&str; 6] = ["OOM", "BUSY", "NOPERM", "WRONGTYPE", "MISCONF", "NOSCRIPT"];

/// A redirection by a Cluster node that does not have a slot, or not all of its keys. It has
/// executed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Redirect<'a> {
    /// Another node has the slot (`MOVED`), or is importing it (`ASK`, `asking`).
    To {
        host: &'a str,
        port: u16,
        asking: bool,
    },
    /// The keys are migrating (`TRYAGAIN`).
    TryAgain,
}

/// Characters shown of a server's message, and of its error code.
const MAX_TEXT: usize = 200;
const MAX_CODE: usize = 40;

/// The beginning of a server's text, on one line and without control characters.
fn shown(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (count, letter) in text.chars().enumerate() {
        if count >= max {
            shown.push('…');
            break;
        }
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

impl StoreError {
    pub(crate) fn unreachable(reason: &dyn fmt::Display) -> Self {
        Self::Unreachable(shown(&reason.to_string(), MAX_TEXT))
    }

    pub(crate) fn of(error: &redis::RedisError) -> Self {
        use redis::ErrorKind;
        let text = || {
            error
                .detail()
                .map_or_else(|| error.to_string(), str::to_owned)
        };
        if error.is_timeout() {
            return Self::TimedOut;
        }
        match error.kind() {
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => Self::unreachable(error),
            ErrorKind::AuthenticationFailed => Self::Refused {
                code: "WRONGPASS".to_owned(),
                message: shown(&text(), MAX_TEXT),
            },
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                Self::Protocol(shown(&error.to_string(), MAX_TEXT))
            }
            _ => {
                let message = text();
                // Before Redis 7 the error of a command inside a script is part of the script's
                // error message.
                let known = SERVER_ERROR_CODES
                    .iter()
                    .chain(&CALL_ERROR_CODES)
                    .find(|code| message.contains(**code));
                let code = match error.code() {
                    Some(code) if code != "ERR" => code,
                    code => known.copied().or(code).unwrap_or("ERR"),
                };
                Self::Refused {
                    code: shown(code, MAX_CODE),
                    message: shown(&message, MAX_TEXT),
                }
            }
        }
    }

    /// Whether the server does not know a script. It has executed nothing then.
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "NOSCRIPT")
    }

    /// Whether a sentinel sent the error and not the server.
    pub(crate) fn is_from_sentinels(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "SENTINEL")
    }

    /// The redirection, if a Cluster node answered with one.
    pub(crate) fn redirect(&self) -> Option<Redirect<'_>> {
        let Self::Refused { code, message } = self else {
            return None;
        };
        let asking = match code.as_str() {
            "MOVED" => false,
            "ASK" => true,
            "TRYAGAIN" => return Some(Redirect::TryAgain),
            _ => return None,
        };
        // `3999 127.0.0.1:6381`; the host may be missing where it is that of the node itself.
        let (_, address) = message.trim().rsplit_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        Some(Redirect::To {
            host,
            port: port.parse().ok()?,
            asking,
        })
    }

    /// Whether the connection should be replaced: a new one may reach another server, or a working
    /// one.
    pub(crate) fn needs_new_connection(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Protocol(_) => true,
            Self::Refused { code, .. } => SERVER_ERROR_CODES.contains(&code.as_str()),
            _ => false,
        }
    }

    /// A short name of the error, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::QueueFull => "queue_full",
            Self::Unreachable(_) => "unreachable",
            Self::Refused { .. } => "refused",
            Self::Protocol(_) => "protocol",
            Self::BadKey(_) => "bad_key",
            Self::Broken => "broken",
            Self::NoSecret => "no_secret",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str(
                "Redis did not answer in time; check whether it is overloaded or far away",
            ),
            Self::QueueFull => {
                f.write_str("too many decisions wait for Redis; use a faster server, or leases for the busiest limits")
            }
            Self::Unreachable(reason) if reason.contains("certificate") => {
                write!(
                    f,
                    "the certificate of Redis is not trusted ({reason}); set ca_file to a PEM file of the CA that signed it"
                )
            }
            Self::Unreachable(reason) => {
                write!(
                    f,
                    "Redis cannot be reached ({reason}); check that it runs and that the url is right"
                )
            }
            Self::Refused { code, message } => match code.as_str() {
                "READONLY" => f.write_str(
                    "this Redis is a replica and takes no writes; point the url at the primary",
                ),
                "LOADING" => {
                    f.write_str("Redis is loading its data; it will answer when that is done")
                }
                "MASTERDOWN" => {
                    f.write_str("this Redis has lost its primary; point the url at a server that is up")
                }
                "CROSSSLOT" | "MOVED" => f.write_str(
                    "this Redis is part of a Cluster; write the url as redis+cluster://host:port",
                ),
                "NOCLUSTER" => f.write_str(
                    "this Redis is not part of a Cluster; write the url as redis://host:port",
                ),
                "CLUSTERDOWN" => {
                    write!(
                        f,
                        "the Cluster does not serve all its slots ({message}); check that each has a primary that is up"
                    )
                }
                "SENTINEL" | "VERSION" | "FULL" => f.write_str(message),
                "OOM" => write!(f, "Redis is out of memory; {MAXMEMORY_ADVICE}"),
                "BUSY" => f.write_str("Redis is busy with another script; end it with SCRIPT KILL"),
                "NOAUTH" => f.write_str(
                    "Redis requires a password; put it into the url: redis://:password@host",
                ),
                "WRONGPASS" => f.write_str(
                    "Redis rejected the user and password; check those in the url",
                ),
                "NOPERM" => write!(
                    f,
                    "the Redis user lacks a permission ({message}); docs/distributed.md has the ACL rule it needs"
                ),
                _ => write!(f, "Redis returned an error: {code} {message}"),
            },
            Self::Protocol(reason) => write!(
                f,
                "the server is not a compatible Redis ({reason}); check the url"
            ),
            Self::BadKey(key) => {
                write!(
                    f,
                    "the key {key} in Redis holds data of another kind; DEL it, or choose another prefix"
                )
            }
            Self::Broken => f.write_str("Redis failed a moment ago and will be tried again soon"),
            Self::NoSecret => {
                f.write_str("Redis has not been reached yet, so the secret that keys are hashed with is not known")
            }
        }
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_messages_are_shown_on_one_short_line() {
        assert_eq!(shown("all of it", 9), "all of it");
        assert_eq!(shown("all of it", 8), "all of i…");
        assert_eq!(
            shown("a\r\n\u{1b}[31mä\u{9b}", 99),
            "a\\r\\n\\u{1b}[31mä\\u{9b}"
        );
        assert_eq!(
            shown(&"ä".repeat(500), MAX_TEXT).chars().count(),
            MAX_TEXT + 1
        );
    }
}
