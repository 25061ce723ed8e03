//! Errors at the start of a server.

use crate::config::{Diagnostic, Listen};
use crate::envoy::config::ConfigError;
use ratekeeper_policy::{Attribute, EngineError};
use ratekeeper_redis::ConnectError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error at the start: the problem, its location and how to fix it.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Errors in the configuration, a line each.
    Config(Vec<Diagnostic>),
    Policies(EngineError),
    /// Errors in Envoy's limits, a line each.
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
    /// An error of the gateway, in one sentence.
    Gateway(String),
    /// An error of the certificates, in one sentence.
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
            Self::Envoy(errors) => {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::TooManyLimits(error) => write!(f, "ratekeeper: Envoy limits: {error}"),
            Self::Listen {
                key,
                address,
                error,
            } => {
                let advice = match error.kind() {
                    io::ErrorKind::NotFound if address.tcp().is_none() => {
                        "create its directory first"
                    }
                    io::ErrorKind::PermissionDenied if address.tcp().is_none() => {
                        "choose a writable directory"
                    }
                    io::ErrorKind::AlreadyExists => "remove it, or choose another path",
                    io::ErrorKind::AddrInUse if address.tcp().is_none() => {
                        "stop the program that listens there, or choose another path"
                    }
                    io::ErrorKind::AddrInUse => {
                        "stop the program that listens there, or choose another port"
                    }
                    io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
                    io::ErrorKind::PermissionDenied => {
                        "choose a port above 1023, or allow this program to use it"
                    }
                    _ => "choose another address",
                };
                let variable = key.to_ascii_uppercase();
                write!(
                    f,
                    "ratekeeper: cannot listen on {address}: {error}; {advice} ({key} under \
                     [server] in the file of --config, or RATEKEEPER_SERVER__{variable})"
                )
            }
            Self::NothingToServe => f.write_str(
                "ratekeeper: every listener is off; set http under [server] to an address",
            ),
            Self::NoUpstream => f.write_str(
                "ratekeeper: no upstream; set --upstream http://127.0.0.1:3000, or upstreams under \
                 [gateway] in the file of --config",
            ),
            Self::By(attribute) => {
                write!(
                    f,
                    "ratekeeper: --by {attribute}: no request has this attribute here; "
                )?;
                match attribute {
                    Attribute::User => f.write_str(
                        "name the header of the user with RATEKEEPER_IDENTITY__USER__HEADER and \
                         the peers that set it with RATEKEEPER_IDENTITY__USER__FROM",
                    ),
                    Attribute::ApiKey => f.write_str(
                        "name its header with RATEKEEPER_IDENTITY__API_KEY__HEADER, or use \
                         --by header:NAME",
                    ),
                    _ => f.write_str("use --by header:NAME, or a policy in the file of --config"),
                }
            }
            Self::Gateway(error) => write!(f, "ratekeeper: {error}"),
            Self::Tls(error) => write!(
                f,
                "ratekeeper: {error} ([server.tls] in the file of --config, or \
                 RATEKEEPER_SERVER__TLS__CERT and the like)"
            ),
            Self::Redis(error) => {
                write!(
                    f,
                    "ratekeeper: {error} ([store] in the file of --config, or \
                     RATEKEEPER_STORE__URL and the like)"
                )
            }
            Self::Memory { max_keys } => write!(
                f,
                "ratekeeper: not enough memory for {max_keys} keys; lower max_keys under [store] \
                 in the file of --config, or RATEKEEPER_STORE__MAX_KEYS"
            ),
            Self::AuditLog { file, error } => write!(
                f,
                "ratekeeper: cannot write the audit log {}: {error}; set audit_log under [server] \
                 in the file of --config to a writable file, or RATEKEEPER_SERVER__AUDIT_LOG",
                file.display()
            ),
            Self::System(error) => {
                write!(
                    f,
                    "ratekeeper: cannot start: {error}; the system may lack threads or file \
                     descriptors"
                )
            }
        }
    }
}
