//! The keys of certificates: `[gateway] tls`, `[server.tls]`, and its table for each listener.

use super::{DefaultValue, KeySpec, KeyType, TableSpec, key};

const fn cert(doc: &'static str) -> KeySpec {
    key("cert", KeyType::Text, doc, "\"cert.pem\"")
}

const KEY: KeySpec = key(
    "key",
    KeyType::Text,
    "File with the private key of the certificate, in PEM form.",
    "\"key.pem\"",
);

const CLIENT_CA: KeySpec = client_ca(
    "File with CA certificates (PEM). Clients must present a certificate signed by one of them. If \
     not set, no client certificate is required.",
);

const fn client_ca(doc: &'static str) -> KeySpec {
    key("client_ca", KeyType::Text, doc, "\"clients.pem\"")
}

/// The certificate of the gateway.
pub(super) static TLS: TableSpec = TableSpec {
    doc: "A certificate. It is reloaded when its files change.",
    keys: &[
        cert("File with the certificate and its chain, in PEM form.").or(DefaultValue::Required),
        KEY.or(DefaultValue::Required),
        CLIENT_CA,
    ],
    extends: None,
};

/// The certificates of the listeners.
pub(super) static SERVER_TLS: TableSpec = TableSpec {
    doc: "Certificate of every listener that is not a Unix socket. It is reloaded when its files \
          change.",
    keys: &[
        cert("File with the certificate and its chain, in PEM form."),
        KEY,
        CLIENT_CA,
        key(
            "http",
            KeyType::Table(&LISTENER_TLS),
            "Settings for `http` alone. Keys that are not set are taken from [server.tls].",
            "",
        ),
        key(
            "grpc",
            KeyType::Table(&LISTENER_TLS),
            "Settings for `grpc` alone. Keys that are not set are taken from [server.tls].",
            "",
        ),
        key(
            "resp",
            KeyType::Table(&LISTENER_TLS),
            "Settings for `resp` alone. Keys that are not set are taken from [server.tls].",
            "",
        ),
        key(
            "admin",
            KeyType::Table(&LISTENER_TLS),
            "Settings for `admin` alone. Keys that are not set are taken from [server.tls].",
            "",
        ),
    ],
    extends: None,
};

static LISTENER_TLS: TableSpec = TableSpec {
    doc: "Settings for one listener. Keys that are not set are taken from [server.tls].",
    keys: &[
        cert("File with a certificate of its own and the chain, in PEM form. Needs `key` as well."),
        KEY,
        client_ca(
            "File with CA certificates (PEM) for clients of this listener. If not set, that of \
             [server.tls], if any.",
        ),
        key(
            "off",
            KeyType::Bool,
            "If true, no TLS on this listener.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
    ],
    extends: None,
};
