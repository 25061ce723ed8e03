//! The TLS certificates of the listeners, from `[server.tls]`.

use crate::config::{Certificate, FileWatcher, Listen, ListenerTls, ServerConfig};
use crate::net::tls::{Protocols, ServerCertificate};
use std::sync::Arc;

/// `None` where a listener is off, is a Unix socket, or does not use TLS.
pub(crate) struct Certificates {
    pub(crate) http: Option<Arc<ServerCertificate>>,
    pub(crate) grpc: Option<Arc<ServerCertificate>>,
    pub(crate) resp: Option<Arc<ServerCertificate>>,
    pub(crate) admin: Option<Arc<ServerCertificate>>,
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
            http: http_tls,
            grpc: grpc_tls,
            resp: resp_tls,
            admin: admin_tls,
            ..
        } = tls;
        let http = http.as_ref().filter(|_| !gateway);
        let http = load_one(http, http_tls.as_ref(), Protocols::Http1)?;
        let grpc = load_one(grpc.as_ref(), grpc_tls.as_ref(), Protocols::Http2)?;
        let resp = load_one(resp.as_ref(), resp_tls.as_ref(), Protocols::Other)?;
        let admin = load_one(admin.as_ref(), admin_tls.as_ref(), Protocols::Http1)?;
        let watches = [&http, &grpc, &resp, &admin]
            .into_iter()
            .flatten()
            .flat_map(ServerCertificate::watch)
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

fn load_one(
    listener: Option<&Listen>,
    files: Option<&Certificate>,
    protocols: Protocols,
) -> Result<Option<Arc<ServerCertificate>>, String> {
    let files = files.filter(|_| listener.is_some_and(|listener| listener.tcp().is_some()));
    files
        .map(|files| ServerCertificate::load(files, protocols))
        .transpose()
}
