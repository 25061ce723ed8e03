//! The keys of certificates: `[gateway] tls`, `[server.tls]`, and one table a listener in that.

use super::{Default, Key, Kind, Table, key};

const fn cert(doc: &'static str) -> Key {
    key("cert", Kind::Text, doc, "\"cert.pem\"")
}

const KEY: Key = key(
    "key",
    Kind::Text,
    "Its private key, in PEM form.",
    "\"key.pem\"",
);

const CLIENT_CA: Key = key(
    "client_ca",
    Kind::Text,
    "Who signs for clients, in PEM form: who shows no certificate of theirs is not served.",
    "\"clients.pem\"",
);

/// Of the gateway.
pub(super) static TLS: Table = Table {
    doc: "A certificate, loaded again whenever its files change.",
    keys: &[
        cert("The certificate and those it is signed by, in PEM form.").or(Default::Required),
        KEY.or(Default::Required),
        CLIENT_CA,
    ],
    also: None,
};

/// Of all listeners.
pub(super) static SERVER_TLS: Table = Table {
    doc: "The certificate of every listener that is not a Unix socket, loaded again whenever its files change.",
    keys: &[
        cert("The certificate and those it is signed by, in PEM form."),
        KEY,
        CLIENT_CA,
        key(
            "http",
            Kind::Table(&LISTENER_TLS),
            "What is different for `http`.",
            "",
        ),
        key(
            "grpc",
            Kind::Table(&LISTENER_TLS),
            "What is different for `grpc`.",
            "",
        ),
        key(
            "resp",
            Kind::Table(&LISTENER_TLS),
            "What is different for `resp`.",
            "",
        ),
        key(
            "admin",
            Kind::Table(&LISTENER_TLS),
            "What is different for `admin`.",
            "",
        ),
    ],
    also: None,
};

static LISTENER_TLS: Table = Table {
    doc: "What is different for one listener.",
    keys: &[
        cert("Its own certificate, with a key of its own."),
        KEY,
        CLIENT_CA,
        key("off", Kind::Bool, "It speaks without TLS.", "true").or(Default::Bool(false)),
    ],
    also: None,
};
