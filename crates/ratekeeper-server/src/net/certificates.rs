//! The TLS certificates of the listeners, from `[server.tls]`.

use crate::net::tls::{OwnCertificate, Protocols};
use ratekeeper_policy::config::{Certificate, FileWatcher, Listen, ListenerTls, ServerConfig};
use std::sync::Arc;

/// `None` where a listener is off, is a Unix socket, or does not use TLS.
pub(crate) struct Certificates {
    pub(crate) http: Option<Arc<OwnCertificate>>,
    pub(crate) grpc: Option<Arc<OwnCertificate>>,
    pub(crate) resp: Option<Arc<OwnCertificate>>,
    pub(crate) admin: Option<Arc<OwnCertificate>>,
    /// Reload the certificates when their files change, until dropped.
    _watches: Vec<FileWatcher>,
}

impl Certificates {
    /// Loads the certificates. Errors are sentences. A gateway has its own certificate for `http`.
    pub(crate) fn load(server: &ServerConfig, gateway: bool) -> Result<Self, String> {
        let ServerConfig {
            http,
            grpc,
            resp,
            admin,
            tls,
            ..
        } = server;
        let ListenerTls {
            http: of_http,
            grpc: of_grpc,
            resp: of_resp,
            admin: of_admin,
            ..
        } = tls;
        let http = http.as_ref().filter(|_| !gateway);
        let http = own(http, of_http.as_ref(), Protocols::Http1)?;
        let grpc = own(grpc.as_ref(), of_grpc.as_ref(), Protocols::Http2)?;
        let resp = own(resp.as_ref(), of_resp.as_ref(), Protocols::Other)?;
        let admin = own(admin.as_ref(), of_admin.as_ref(), Protocols::Http1)?;
        let watches = [&http, &grpc, &resp, &admin]
            .into_iter()
            .flatten()
            .flat_map(OwnCertificate::watch)
            .collect();
        Ok(Self {
            http,
            grpc,
            resp,
            admin,
            _watches: watches,
        })
    }
}

fn own(
    at: Option<&Listen>,
    files: Option<&Certificate>,
    speaks: Protocols,
) -> Result<Option<Arc<OwnCertificate>>, String> {
    let files = files.filter(|_| at.is_some_and(|at| at.tcp().is_some()));
    files
        .map(|files| OwnCertificate::load(files, speaks))
        .transpose()
}
