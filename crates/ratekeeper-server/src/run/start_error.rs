//! Why a server did not start.

use crate::envoy::config::ConfigError;
use ratekeeper_policy::config::{Diagnostic, Listen};
use ratekeeper_policy::{Attribute, EngineError};
use ratekeeper_redis::ConnectError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why the server did not start: what, where and how to mend it.
#[derive(Debug)]
pub(crate) enum StartError {
    /// A line for each problem.
    Config(Vec<Diagnostic>),
    Policies(EngineError),
    /// A line for each file.
    Envoy(Vec<ConfigError>),
    TooManyLimits(String),
    Listen {
        key: &'static str,
        address: Listen,
        error: io::Error,
    },
    NothingToServe,
    NoUpstream,
    /// `--by` names an attribute that no request has.
    By(Attribute),
    /// A sentence.
    Gateway(String),
    /// A sentence.
    Tls(String),
    Redis(ConnectError),
    Memory {
        max_keys: u64,
    },
    AuditLog {
        file: PathBuf,
        error: io::Error,
    },
    System(io::Error),
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> Self {
        Self::Policies(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(diagnostics) => {
                let lines: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::Policies(error) => write!(f, "ratekeeper: {error}"),
            Self::Envoy(wrong) => {
                let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::TooManyLimits(error) => write!(f, "ratekeeper: the limits of Envoy: {error}"),
            Self::Listen { key, address, error } => {
                let mend = match error.kind() {
                    io::ErrorKind::NotFound if address.tcp().is_none() => "make its directory first",
                    io::ErrorKind::PermissionDenied if address.tcp().is_none() => {
                        "choose a directory that this user may write in"
                    }
                    io::ErrorKind::AlreadyExists => "remove it, or choose another path",
                    io::ErrorKind::AddrInUse if address.tcp().is_none() => {
                        "stop the program that listens there, or choose another path"
                    }
                    io::ErrorKind::AddrInUse => "stop the program that listens there, or choose another port",
                    io::ErrorKind::AddrNotAvailable => "choose an address that this machine has",
                    io::ErrorKind::PermissionDenied => "choose a port above 1023, or allow this program to take it",
                    _ => "choose another address",
                };
                let variable = key.to_ascii_uppercase();
                write!(
                    f,
                    "ratekeeper: cannot listen on {address}: {error}; {mend} ({key} under [server] in the file of --config, or \
                     RATEKEEPER_SERVER__{variable})"
                )
            }
            Self::NothingToServe => {
                f.write_str("ratekeeper: every listener is off; set http under [server] to an address")
            }
            Self::NoUpstream => f.write_str(
                "ratekeeper: there is no service to stand in front of; name one with --upstream http://127.0.0.1:3000, or as \
                 upstreams under [gateway] in the file of --config",
            ),
            Self::By(attribute) => {
                write!(f, "ratekeeper: --by {attribute}: no request has this attribute here; ")?;
                match attribute {
                    Attribute::User => f.write_str(
                        "name the header of the user with RATEKEEPER_IDENTITY__USER__HEADER and the peers that set it with \
                         RATEKEEPER_IDENTITY__USER__FROM",
                    ),
                    Attribute::ApiKey => {
                        f.write_str("name its header with RATEKEEPER_IDENTITY__API_KEY__HEADER, or use --by header:NAME")
                    }
                    _ => f.write_str("use --by header:NAME, or a policy in the file of --config"),
                }
            }
            Self::Gateway(error) => write!(f, "ratekeeper: {error}"),
            Self::Tls(error) => write!(
                f,
                "ratekeeper: {error} ([server.tls] in the file of --config, or RATEKEEPER_SERVER__TLS__CERT and the like)"
            ),
            Self::Redis(error) => {
                write!(f, "ratekeeper: {error} ([store] in the file of --config, or RATEKEEPER_STORE__URL and the like)")
            }
            Self::Memory { max_keys } => write!(
                f,
                "ratekeeper: there is no memory for {max_keys} keys; lower max_keys under [store] in the file of --config, or \
                 RATEKEEPER_STORE__MAX_KEYS"
            ),
            Self::AuditLog { file, error } => write!(
                f,
                "ratekeeper: cannot write the audit log {}: {error}; name a file that can be written as audit_log under [server] in \
                 the file of --config, or RATEKEEPER_SERVER__AUDIT_LOG",
                file.display()
            ),
            Self::System(error) => {
                write!(f, "ratekeeper: cannot start: {error}; the system may be short of threads or file descriptors")
            }
        }
    }
}
