//! `config show` of certificates.

use super::{Writer, text};
use crate::config::gateway::Certificate;
use crate::config::listen::ListenerTls;

impl Writer<'_> {
    /// Writes one table if all listeners have the same certificate, otherwise one for each that has
    /// any.
    pub(super) fn tls(&mut self, tls: &ListenerTls) {
        let ListenerTls {
            http,
            grpc,
            resp,
            admin,
        } = tls;
        if let Some(all) = http
            .as_ref()
            .filter(|_| [grpc, resp, admin].iter().all(|other| *other == http))
        {
            self.certificate("[server.tls]", "server.tls", all);
            return;
        }
        for (name, own) in [
            ("http", http),
            ("grpc", grpc),
            ("resp", resp),
            ("admin", admin),
        ] {
            if let Some(own) = own {
                self.certificate(
                    &format!("[server.tls.{name}]"),
                    &format!("server.tls.{name}"),
                    own,
                );
            }
        }
    }

    fn certificate(&mut self, header: &str, path: &str, own: &Certificate) {
        self.table(header, path);
        for (name, value) in certificate(own) {
            self.line(&name, value);
        }
    }
}

/// The keys of a certificate and their values.
pub(super) fn certificate(own: &Certificate) -> Vec<(String, String)> {
    let Certificate {
        cert,
        key,
        client_ca,
    } = own;
    let files = [
        ("cert", Some(cert)),
        ("key", Some(key)),
        ("client_ca", client_ca.as_ref()),
    ];
    files
        .into_iter()
        .filter_map(|(name, file)| Some((name.to_owned(), text(file?.display()))))
        .collect()
}
