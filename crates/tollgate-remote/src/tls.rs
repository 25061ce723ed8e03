//! TLS to a service behind `https://`.

use crate::address::{Address, ConnectError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// Trusts whom the system trusts, and who is in the file.
    pub(crate) fn new(address: &Address, ca_file: Option<&Path>) -> Result<Self, ConnectError> {
        let mut roots = RootCertStore::empty();
        for certificate in rustls_native_certs::load_native_certs().certs {
            // One that cannot be read is one less.
            let _ = roots.add(certificate);
        }
        if let Some(path) = ca_file {
            let bad = |why: &dyn std::fmt::Display| ConnectError::certificates(path, why);
            let mut found = 0;
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
                roots.add(certificate.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
                found += 1;
            }
            if found == 0 {
                return Err(bad(&"there is none in it"));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ConnectError::Url(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(address.host.clone()).map_err(|error| ConnectError::Url(error.to_string()))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(crate) async fn wrap(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}
