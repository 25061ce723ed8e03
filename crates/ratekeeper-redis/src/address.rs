//! The location of Redis: one server, the primary that sentinels name, or a Cluster.

use crate::builder::ConnectError;
use crate::connection::{Endpoint, EndpointAddress};
use redis::{ConnectionAddr, IntoConnectionInfo};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A host and a port.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The kind of deployment that a URL names.
pub(crate) enum Deployment {
    One(Endpoint),
    Sentinels {
        sentinels: Vec<Address>,
        master: String,
        dial: Dialer,
    },
    Cluster {
        seeds: Vec<Address>,
        dial: Dialer,
    },
}

/// The scheme, user, database and certificates with which to connect to any of several servers.
#[derive(Clone)]
pub(crate) struct Dialer {
    scheme: &'static str,
    /// `user:password@`, or empty.
    user_info: String,
    /// `/1`, or empty.
    database: String,
    certificates: Option<Certificates>,
}

impl Dialer {
    pub(crate) fn endpoint(&self, address: &Address) -> Result<Endpoint, ConnectError> {
        let url = format!(
            "{}://{}{address}{}",
            self.scheme, self.user_info, self.database
        );
        endpoint(&url, self.certificates.as_ref())
    }

    /// A copy with another user, or none, and without a database.
    pub(crate) fn as_user(&self, auth: Option<&(String, String)>) -> Self {
        let encoded = |text: &str| {
            text.bytes().fold(String::new(), |text, byte| match byte {
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                    text + char::from(byte).encode_utf8(&mut [0; 4])
                }
                _ => text + &format!("%{byte:02X}"),
            })
        };
        let user_info =
            auth.map(|(user, password)| format!("{}:{}@", encoded(user), encoded(password)));
        Self {
            user_info: user_info.unwrap_or_default(),
            database: String::new(),
            ..self.clone()
        }
    }
}

/// URL prefixes that name several servers, with the scheme for each server and the default port.
const MULTI_SERVER_SCHEMES: [(&str, &str, u16); 4] = [
    ("redis+sentinel://", "redis", 26_379),
    ("rediss+sentinel://", "rediss", 26_379),
    ("redis+cluster://", "redis", 6_379),
    ("rediss+cluster://", "rediss", 6_379),
];

impl Deployment {
    pub(crate) fn of(url: &str, ca_file: Option<&Path>) -> Result<Self, ConnectError> {
        let certificates = match ca_file {
            Some(path) => Some((path.to_owned(), read(path)?)),
            None => None,
        };
        let multi_server = MULTI_SERVER_SCHEMES
            .iter()
            .find_map(|(begin, scheme, port)| Some((url.strip_prefix(begin)?, scheme, *port)));
        let Some((rest, scheme, port)) = multi_server else {
            return endpoint(url, certificates.as_ref()).map(Self::One);
        };
        let invalid = |reason: &str| ConnectError::Url(reason.to_owned());
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user_info, hosts) = authority
            .rsplit_once('@')
            .map_or(("", authority), |(user, hosts)| (user, hosts));
        let user_info = if user_info.is_empty() {
            String::new()
        } else {
            format!("{user_info}@")
        };
        let addresses: Option<Vec<Address>> =
            hosts.split(',').map(|host| address(host, port)).collect();
        let addresses = addresses
            .ok_or_else(|| invalid("its hosts must be a list of host:port, separated by commas"))?;
        let mut dial = Dialer {
            scheme,
            user_info,
            database: String::new(),
            certificates,
        };
        let deployment = if port == 26_379 {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            if master.is_empty() {
                return Err(invalid(
                    "the name of the primary must follow the sentinels, as in /mymaster",
                ));
            }
            if !database.is_empty() {
                dial.database = format!("/{database}");
            }
            Self::Sentinels {
                sentinels: addresses.clone(),
                master: master.to_owned(),
                dial: dial.clone(),
            }
        } else if path.is_empty() || path == "0" {
            Self::Cluster {
                seeds: addresses.clone(),
                dial: dial.clone(),
            }
        } else {
            return Err(invalid("a Cluster only has the database 0"));
        };
        // Reports an invalid user, password or database now.
        dial.endpoint(&addresses[0])?;
        Ok(deployment)
    }
}

fn address(text: &str, port: u16) -> Option<Address> {
    let (host, rest_of_host) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest_of_host.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None if rest_of_host.is_empty() => port,
        None => return None,
    };
    (!host.is_empty()).then(|| Address {
        host: host.to_owned(),
        port,
    })
}

/// The path and contents of a PEM file of certificates.
type Certificates = (PathBuf, Vec<u8>);

fn endpoint(url: &str, certificates: Option<&Certificates>) -> Result<Endpoint, ConnectError> {
    let info = url
        .into_connection_info()
        .map_err(|error| ConnectError::Url(error.to_string()))?;
    let at = match info.addr().clone() {
        ConnectionAddr::Tcp(host, port) => EndpointAddress::Tcp {
            host,
            port,
            tls: None,
        },
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            let reason = "#insecure is not supported; set ca_file to the certificate to trust";
            return Err(ConnectError::Url(reason.to_owned()));
        }
        ConnectionAddr::TcpTls { host, port, .. } => EndpointAddress::Tcp {
            host,
            port,
            tls: Some(tls(certificates)?),
        },
        ConnectionAddr::Unix(path) => EndpointAddress::Unix(path),
        _ => return Err(ConnectError::Url("its scheme is not supported".to_owned())),
    };
    if let (Some((path, _)), EndpointAddress::Tcp { tls: None, .. } | EndpointAddress::Unix(_)) =
        (certificates, &at)
    {
        let reason = "certificates are for TLS, and the url is not; write rediss://";
        return Err(ConnectError::Certificates(path.clone(), reason.to_owned()));
    }
    Ok(Endpoint {
        at,
        login: info.redis_settings().clone(),
    })
}

/// A TLS configuration that trusts these certificates, or those of the system if there are none.
fn tls(certificates: Option<&Certificates>) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut roots = RootCertStore::empty();
    match certificates {
        Some((path, pem)) => {
            let invalid = |reason: String| ConnectError::Certificates(path.clone(), reason);
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
                roots
                    .add(certificate)
                    .map_err(|error| invalid(error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| ConnectError::Url(error.to_string()))?;
    Ok(Arc::new(
        config.with_root_certificates(roots).with_no_client_auth(),
    ))
}

fn read(path: &Path) -> Result<Vec<u8>, ConnectError> {
    let invalid = |reason: String| ConnectError::Certificates(path.to_owned(), reason);
    let file = std::fs::read(path).map_err(|error| invalid(error.to_string()))?;
    // The PEM reader returns an empty list for a file without certificates; then no certificate
    // would be trusted.
    if String::from_utf8_lossy(&file).contains("-----BEGIN CERTIFICATE-----") {
        Ok(file)
    } else {
        Err(invalid("the file contains no certificate".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multi_server(url: &str) -> Option<(Vec<String>, String, Dialer)> {
        let text = |all: Vec<Address>| all.iter().map(Address::to_string).collect();
        match Deployment::of(url, None).ok()? {
            Deployment::One(_) => None,
            Deployment::Sentinels {
                sentinels,
                master,
                dial,
            } => Some((text(sentinels), master, dial)),
            Deployment::Cluster { seeds, dial } => Some((text(seeds), String::new(), dial)),
        }
    }

    #[test]
    fn urls_of_several_servers() {
        let (hosts, master, dial) =
            multi_server("rediss+sentinel://ann:s3cret@a:1,b,[::1]:3/main/2").unwrap();
        assert_eq!(hosts, ["a:1", "b:26379", "[::1]:3"]);
        assert_eq!(
            (&*master, dial.scheme, &*dial.user_info, &*dial.database),
            ("main", "rediss", "ann:s3cret@", "/2")
        );
        let (hosts, _, dial) = multi_server("redis+cluster://:pw@a,b:7000").unwrap();
        assert_eq!(
            (hosts, &*dial.user_info),
            (vec!["a:6379".to_owned(), "b:7000".to_owned()], ":pw@")
        );
        assert_eq!(
            dial.as_user(Some(&("x".to_owned(), "a b@".to_owned())))
                .user_info,
            "x:a%20b%40@"
        );
        assert!(multi_server("redis+cluster://a/0").is_some());
    }

    #[test]
    fn invalid_urls_are_errors_with_a_reason() {
        for (url, reason) in [
            ("redis+sentinel://a:1", "/mymaster"),
            ("redis+sentinel://a:1/m/x", "database"),
            ("redis+cluster://a/1", "the database 0"),
            ("redis+cluster://a,,b", "separated by commas"),
            ("redis+cluster://a:0", "separated by commas"),
            ("redis+cluster://", "separated by commas"),
        ] {
            let message = Deployment::of(url, None)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(message.to_lowercase().contains(reason), "{url}: {message}");
        }
    }
}
