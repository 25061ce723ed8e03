//! Certificates of the gateway and of the listeners.

use ratekeeper_policy::config::section::{Form, Section};
use ratekeeper_policy::section;
use std::path::PathBuf;

section! {
    /// A certificate and its key, in PEM form. It is reloaded when its files change.
    pub(crate) struct Certificate {
        /// File with the certificate and its chain, in PEM form.
        cert: PathBuf => "cert.pem";
        /// File with the private key of the certificate, in PEM form.
        key: PathBuf => "key.pem";
        /// File with CA certificates (PEM). Clients must present a certificate signed by one of
        /// them. If not set, no client certificate is required.
        client_ca: Option<PathBuf> => "clients.pem";
    }
}

section! {
    /// Certificate of every listener that is not a Unix socket. It is reloaded when its files change.
    pub(super) struct ServerTlsTable, check = check_server_tls {
        /// File with the certificate and its chain, in PEM form.
        cert: Option<PathBuf> => "cert.pem";
        /// File with the private key of the certificate, in PEM form.
        key: Option<PathBuf> => "key.pem";
        /// File with CA certificates (PEM). Clients must present a certificate signed by one of
        /// them. If not set, no client certificate is required.
        client_ca: Option<PathBuf> => "clients.pem";
        /// Settings for `http` alone. Keys that are not set are taken from [server.tls].
        http: Option<ListenerTable> => ();
        /// Settings for `grpc` alone. Keys that are not set are taken from [server.tls].
        grpc: Option<ListenerTable> => ();
        /// Settings for `resp` alone. Keys that are not set are taken from [server.tls].
        resp: Option<ListenerTable> => ();
        /// Settings for `admin` alone. Keys that are not set are taken from [server.tls].
        admin: Option<ListenerTable> => ();
    }
}

section! {
    /// Settings for one listener. Keys that are not set are taken from [server.tls].
    struct ListenerTable, check = check_pair {
        /// File with a certificate of its own and the chain, in PEM form. Needs `key` as well.
        cert: Option<PathBuf> => "cert.pem";
        /// File with the private key of the certificate, in PEM form.
        key: Option<PathBuf> => "key.pem";
        /// File with CA certificates (PEM) for clients of this listener. If not set, that of
        /// [server.tls], if any.
        client_ca: Option<PathBuf> => "clients.pem";
        /// If true, no TLS on this listener.
        off: bool = false => true, quiet;
    }
}

/// The certificate of each listener that uses TLS.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct ListenerTls {
    /// HTTP.
    pub(crate) http: Option<Certificate>,
    /// gRPC.
    pub(crate) grpc: Option<Certificate>,
    /// RESP.
    pub(crate) resp: Option<Certificate>,
    /// Metrics and administration.
    pub(crate) admin: Option<Certificate>,
}

impl Certificate {
    /// The certificate in these files.
    pub(crate) fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            cert: cert.into(),
            key: key.into(),
            client_ca: None,
        }
    }
}

fn check_pair(section: &Section<'_>, _: Option<&ListenerTable>) {
    is_pair(section);
}

/// Whether `cert` and `key` are set together, because they are a pair.
fn is_pair(section: &Section<'_>) -> bool {
    for (one, other) in [("cert", "key"), ("key", "cert")] {
        if section.has(one) && !section.has(other) {
            let message =
                format!("{{key}} is set without `{other}` {{in}}; add `{other} = \"{other}.pem\"`");
            section.error(one, &message);
            return false;
        }
    }
    true
}

fn check_server_tls(section: &Section<'_>, table: Option<&ServerTlsTable>) {
    let is_pair = is_pair(section);
    let Some(table) = table.filter(|_| is_pair) else {
        return;
    };
    let listeners = [
        ("http", &table.http),
        ("grpc", &table.grpc),
        ("resp", &table.resp),
        ("admin", &table.admin),
    ];
    let has_no_effect = |own: &ListenerTable| own.cert.is_none() && own.key.is_none() && !own.off;
    for (name, own) in listeners.into_iter().filter(|_| table.cert.is_none()) {
        if let (true, Some(value)) = (own.as_ref().is_some_and(has_no_effect), section.value(name))
        {
            let message = format!(
                "`cert` is missing in `tls.{name}` of [server]; add `cert = \"cert.pem\"` and `key \
                 = \"key.pem\"`"
            );
            section.reader.error(value.at, message);
        }
    }
    if section.has("client_ca") && table.clone().into_value() == ListenerTls::default() {
        let message = "{key} has no effect {in} without a certificate; add `cert` and `key`";
        section.error("client_ca", message);
    }
}

impl Form for ServerTlsTable {
    type Value = ListenerTls;

    fn into_value(self) -> ListenerTls {
        let certificate = |own: &Option<ListenerTable>| {
            let own = own.as_ref();
            let file = |own: Option<&PathBuf>, all: &Option<PathBuf>| own.or(all.as_ref()).cloned();
            (!own.is_some_and(|own| own.off)).then_some(())?;
            Some(Certificate {
                cert: file(own.and_then(|own| own.cert.as_ref()), &self.cert)?,
                key: file(own.and_then(|own| own.key.as_ref()), &self.key)?,
                client_ca: file(own.and_then(|own| own.client_ca.as_ref()), &self.client_ca),
            })
        };
        ListenerTls {
            http: certificate(&self.http),
            grpc: certificate(&self.grpc),
            resp: certificate(&self.resp),
            admin: certificate(&self.admin),
        }
    }

    /// One certificate for all listeners if they have the same, otherwise one for each.
    fn of(tls: &ListenerTls) -> Option<Self> {
        if *tls == ListenerTls::default() {
            return None;
        }
        let same = [&tls.grpc, &tls.resp, &tls.admin]
            .iter()
            .all(|other| **other == tls.http);
        let all = tls.http.as_ref().filter(|_| same);
        let own = |own: &Option<Certificate>| {
            own.clone().filter(|_| !same).map(|own| ListenerTable {
                cert: Some(own.cert),
                key: Some(own.key),
                client_ca: own.client_ca,
                off: false,
            })
        };
        Some(Self {
            cert: all.map(|all| all.cert.clone()),
            key: all.map(|all| all.key.clone()),
            client_ca: all.and_then(|all| all.client_ca.clone()),
            http: own(&tls.http),
            grpc: own(&tls.grpc),
            resp: own(&tls.resp),
            admin: own(&tls.admin),
        })
    }
}
