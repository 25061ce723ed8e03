//! TLS on both sides: our own certificate, loaded again when its files change, and whom we trust.

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tollgate_policy::config::{Certificate, Gateway, Upstream, Watch};

/// What is spoken inside, the first choice first.
const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Our own certificate.
pub(crate) struct OwnCertificate {
    files: Certificate,
    config: ArcSwap<ServerConfig>,
}

impl OwnCertificate {
    /// From its files; an error is a sentence.
    pub(crate) fn load(files: &Certificate) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self { files: files.clone(), config: ArcSwap::from_pointee(server(files)?) }))
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Loads it again. If that fails the one from before stays.
    pub(crate) fn load_again(&self) {
        match server(&self.files) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!("the certificate {} was loaded again", self.files.cert.display());
            }
            Err(error) => tracing::error!("{error}; the certificate from before stays in force"),
        }
    }

    /// Loads it again whenever one of its files changes, until these are dropped.
    pub(crate) fn watch(self: &Arc<Self>) -> Vec<Watch> {
        let watch = |path: &Path| {
            let own = Arc::clone(self);
            match Watch::new(path, move || own.load_again()) {
                Ok(watch) => Some(watch),
                Err(error) => {
                    tracing::warn!("{} is not watched: {error}; start tollgate again after a change", path.display());
                    None
                }
            }
        };
        [&self.files.cert, &self.files.key].into_iter().filter_map(|path| watch(path)).collect()
    }
}

fn server(files: &Certificate) -> Result<ServerConfig, String> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| format!("{} has no private key in PEM form: {error}", files.key.display()))?;
    let wrong = |error: rustls::Error| {
        format!("{} and {} cannot be used together: {error}", files.cert.display(), files.key.display())
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(wrong)?;
    config.alpn_protocols = BOTH.map(<[u8]>::to_vec).to_vec();
    config.ticketer = ring::Ticketer::new().map_err(wrong)?;
    Ok(config)
}

/// How `https://` upstreams are spoken to; none if there are none. An error is a sentence.
/// TLS to another service, by whom the gateway trusts; none if it is not an `https://` one.
pub(crate) fn connector_to(service: &Upstream, gateway: &Gateway) -> Result<Option<TlsConnector>, String> {
    let mut gateway = gateway.clone();
    gateway.upstreams = vec![service.clone()];
    connector(&gateway)
}

pub(crate) fn connector(gateway: &Gateway) -> Result<Option<TlsConnector>, String> {
    if !gateway.upstreams.iter().any(|upstream| upstream.is_tls()) {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    match &gateway.ca_file {
        Some(file) => {
            for certificate in certificates(file)? {
                let wrong = |error| format!("{} has a certificate that nobody can sign with: {error}", file.display());
                roots.add(certificate).map_err(wrong)?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("this system trusts nobody, so no https:// upstream can be: install ca-certificates, or \
                            name who signs in `ca_file` under [gateway]"
                    .to_owned());
            }
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![BOTH[usize::from(!gateway.http2)].to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error| format!("{} has no certificate in PEM form: {error}", file.display());
    let all = CertificateDer::pem_file_iter(file).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    if all.is_empty() { Err(format!("{} has no certificate in PEM form", file.display())) } else { Ok(all) }
}
