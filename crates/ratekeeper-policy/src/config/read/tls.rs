//! Reading of `[server.tls]`: the certificate of all listeners, and of each.

use super::{Reader, Section, scalar};
use crate::config::gateway::Certificate;
use crate::config::listen::ListenerTls;
use std::path::PathBuf;

/// The files that a table names.
#[derive(Clone, Default)]
struct Files {
    pair: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
}

/// Reads `[server.tls]`. `None` if it has errors.
pub(super) fn tls(reader: &mut Reader<'_>, server: &mut Section<'_>) -> Option<ListenerTls> {
    let Some(mut section) = server.table(reader, "tls") else {
        return Some(ListenerTls::default());
    };
    let all = files(reader, &mut section);
    let mut own = |name| listener(reader, &mut section, name, all.as_ref());
    let (http, grpc, resp, admin) = (own("http"), own("grpc"), own("resp"), own("admin"));
    let none = [&http, &grpc, &resp, &admin]
        .iter()
        .all(|own| matches!(own, Some(None)));
    if none && section.has("client_ca") {
        let message = format!(
            "`client_ca` has no effect {} without a certificate; add `cert` and `key`",
            section.describe()
        );
        reader.error(section.position("client_ca"), message);
    }
    section.close();
    Some(ListenerTls {
        http: http?,
        grpc: grpc?,
        resp: resp?,
        admin: admin?,
    })
}

/// Reads the certificate of one listener, if it has one.
fn listener(
    reader: &mut Reader<'_>,
    tls: &mut Section<'_>,
    name: &'static str,
    all: Option<&Files>,
) -> Option<Option<Certificate>> {
    let Some(mut section) = tls.table(reader, name) else {
        return all.map(|all| certificate(all.clone()));
    };
    let own = files(reader, &mut section);
    let off = section.get(reader, "off", scalar::bool);
    if all.is_some_and(|all| all.pair.is_none())
        && own.as_ref().is_some_and(|own| own.pair.is_none())
        && off == Some(false)
    {
        let message = format!(
            "`cert` is missing {}; add `cert = \"cert.pem\"` and `key = \"key.pem\"`",
            section.describe()
        );
        reader.error(section.at, message);
    }
    section.close();
    let (all, own) = (all?.clone(), own?);
    let files = Files {
        pair: own.pair.or(all.pair),
        client_ca: own.client_ca.or(all.client_ca),
    };
    Some(certificate(files).filter(|_| off == Some(false)))
}

fn certificate(files: Files) -> Option<Certificate> {
    let (cert, key) = files.pair?;
    Some(Certificate {
        client_ca: files.client_ca,
        ..Certificate::new(cert, key)
    })
}

/// Reads the files of a table. `cert` and `key` must be set together, because they are a pair.
fn files(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<Files> {
    let cert = section.get(reader, "cert", scalar::text);
    let key = section.get(reader, "key", scalar::text);
    let client_ca = section.get(reader, "client_ca", scalar::text);
    for (one, other) in [("cert", "key"), ("key", "cert")] {
        if section.has(one) && !section.has(other) {
            let message = format!(
                "`{one}` is set without `{other}` {}; add `{other} = \"{other}.pem\"`",
                section.describe()
            );
            reader.error(section.position(one), message);
            return None;
        }
    }
    Some(Files {
        pair: cert.zip(key).map(|(cert, key)| (cert.into(), key.into())),
        client_ca: client_ca.map(Into::into),
    })
}
