//! What can go wrong with a store that is elsewhere, in words for whoever has to mend it.

use std::fmt;

/// Why the store did not answer, or not with a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer in time.
    TimedOut,
    /// More callers wait for it than may.
    QueueFull,
    /// It cannot be reached; why.
    Unreachable(String),
    /// It answers that it cannot: the code of its error, and the error.
    Refused {
        /// `READONLY`, `OOM` and the like.
        code: String,
        /// As the server put it.
        message: String,
    },
    /// What it answers makes no sense.
    Protocol(String),
    /// A key of ours holds what is not ours.
    BadKey(String),
    /// It was in trouble a moment ago, and is tried again soon.
    Broken,
    /// It was not seen yet, so the secret that keys are named by is not known.
    NoSecret,
}

/// Errors of the server that are about the server, not about a call: the connection is not to be
/// kept.
const ABOUT_THE_SERVER: [&str; 7] = [
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "NOREPLICAS",
    "CLUSTERDOWN",
];
/// The others that are known, to be found in the text of a script's error. The `maxmemory-policy`
/// to set where Redis has a `maxmemory`. Keys expire when they are fresh, so the one with the
/// shortest time to live is the one that loses least. Of the others, `noeviction` makes every node
/// decide alone while memory is full, and all of the rest forget limits that are used up.
pub const MAXMEMORY_POLICY: &str = "volatile-ttl";

/// What to do about a full Redis, or one that would do the wrong thing when it is full.
pub const MAXMEMORY_ADVICE: &str = "set maxmemory-policy to volatile-ttl, and maxmemory to more than its keys take (docs/distributed.md, When Redis is full)";

const KNOWN: [&str; 6] = ["OOM", "BUSY", "NOPERM", "WRONGTYPE", "MISCONF", "NOSCRIPT"];

/// What a node of a Cluster says of keys that are not, or not all, its own; it has done nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Redirect<'a> {
    /// Another node has them. `asking`: it does not say so itself yet.
    To {
        host: &'a str,
        port: u16,
        asking: bool,
    },
    /// They are on the way.
    Later,
}

/// So many characters are shown of what a server says.
const MAX_TEXT: usize = 200;
const MAX_CODE: usize = 40;

/// The beginning of a text that a server sent, in one line without control characters.
fn shown(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (count, letter) in text.chars().enumerate() {
        if count >= max {
            shown.push('…');
            break;
        }
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

impl StoreError {
    pub(crate) fn unreachable(why: &dyn fmt::Display) -> Self {
        Self::Unreachable(shown(&why.to_string(), MAX_TEXT))
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
                // Before Redis 7 the error of a command within a script is inside the script's own.
                let known = ABOUT_THE_SERVER
                    .iter()
                    .chain(&KNOWN)
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

    /// Whether a script is not known to the server, which then did nothing.
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "NOSCRIPT")
    }

    /// Whether it is about the sentinels, not about the server.
    pub(crate) fn is_of_sentinels(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "SENTINEL")
    }

    /// Where else a node of a Cluster says that it is to be asked.
    pub(crate) fn redirect(&self) -> Option<Redirect<'_>> {
        let Self::Refused { code, message } = self else {
            return None;
        };
        let asking = match code.as_str() {
            "MOVED" => false,
            "ASK" => true,
            "TRYAGAIN" => return Some(Redirect::Later),
            _ => return None,
        };
        // `3999 127.0.0.1:6381`; where it has the address of who says so, the host may be left out.
        let (_, address) = message.trim().rsplit_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        Some(Redirect::To {
            host,
            port: port.parse().ok()?,
            asking,
        })
    }

    /// Whether another connection may find another server, or a better one.
    pub(crate) fn ends_the_connection(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Protocol(_) => true,
            Self::Refused { code, .. } => ABOUT_THE_SERVER.contains(&code.as_str()),
            _ => false,
        }
    }

    /// A word for it, to count it by.
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
                "Redis did not answer in time; see whether it is overloaded or far away",
            ),
            Self::QueueFull => {
                f.write_str("more decisions wait for Redis than may; it is too slow for the load")
            }
            Self::Unreachable(why) if why.contains("certificate") => {
                write!(
                    f,
                    "the certificate of Redis is not trusted ({why}); name a PEM file of whoever signed it as ca_file"
                )
            }
            Self::Unreachable(why) => {
                write!(
                    f,
                    "Redis cannot be reached ({why}); see that it runs and that the url is right"
                )
            }
            Self::Refused { code, message } => match code.as_str() {
                "READONLY" => f.write_str(
                    "this Redis is a replica and takes no writes; point the url at the primary",
                ),
                "LOADING" => {
                    f.write_str("Redis is loading its data and will answer when it is done")
                }
                "MASTERDOWN" => {
                    f.write_str("this Redis has lost its primary; point the url at one that is up")
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
                        "the Cluster does not serve all its keys ({message}); see that a primary of each is up"
                    )
                }
                "SENTINEL" => f.write_str(message),
                "OOM" => write!(f, "Redis is out of memory; {MAXMEMORY_ADVICE}"),
                "BUSY" => f.write_str("Redis is busy with somebody's script; SCRIPT KILL ends it"),
                "NOAUTH" => f.write_str(
                    "Redis wants a password; put it into the url: redis://:password@host",
                ),
                "WRONGPASS" => f.write_str(
                    "Redis does not take this user and password; check those in the url",
                ),
                "NOPERM" => write!(
                    f,
                    "the Redis user may not do what is needed ({message}); docs/distributed.md has the ACL rule that is enough"
                ),
                _ => write!(f, "Redis refuses: {code} {message}"),
            },
            Self::Protocol(what) => write!(
                f,
                "what answers is not a Redis that understands us ({what})"
            ),
            Self::BadKey(key) => {
                write!(
                    f,
                    "the key {key} in Redis holds something else; DEL it, or choose another prefix"
                )
            }
            Self::Broken => {
                f.write_str("Redis was in trouble a moment ago and is tried again soon")
            }
            Self::NoSecret => {
                f.write_str("Redis was not seen yet, so the secret of its keys is not known")
            }
        }
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_shown_in_one_short_line() {
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
