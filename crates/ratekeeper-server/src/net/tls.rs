//! TLS on both sides: our own certificates, reloaded when their files change, and the certificate
//! authorities that we trust.

use crate::config::{Certificate, FileWatcher, GatewayConfig, Upstream};
use crate::net::stream::BatchedStream;
use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The ALPN names of both HTTP versions, the preferred one first.
const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The protocols that a listener offers over TLS.
#[derive(Clone, Copy)]
pub(crate) enum Protocols {
    /// HTTP/2 or HTTP/1.1.
    Both,
    Http1,
    Http2,
    /// A protocol without an ALPN name.
    Other,
}

impl Protocols {
    fn names(self) -> Vec<Vec<u8>> {
        let names = match self {
            Self::Both => &BOTH[..],
            Self::Http2 => &BOTH[..1],
            Self::Http1 => &BOTH[1..],
            Self::Other => &[],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// The certificate of a listener, which can be reloaded.
pub(crate) struct ServerCertificate {
    files: Certificate,
    protocols: Protocols,
    config: ArcSwap<ServerConfig>,
}

impl ServerCertificate {
    /// Loads a certificate from its files. Errors are sentences.
    pub(crate) fn load(files: &Certificate, protocols: Protocols) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            files: files.clone(),
            protocols,
            config: ArcSwap::from_pointee(server(files, protocols)?),
        }))
    }

    /// Performs the TLS handshake with a client, within `timeout`.
    pub(crate) async fn handshake(
        &self,
        stream: TcpStream,
        handshake_timeout: Duration,
    ) -> io::Result<TlsStream<BatchedStream>> {
        let handshake =
            TlsAcceptor::from(self.config.load_full()).accept(BatchedStream::new(stream));
        Ok(TlsStream::Server(
            timeout(handshake_timeout, Box::pin(handshake)).await??,
        ))
    }

    /// Reloads the certificate. On failure the previous one stays in use.
    fn reload(&self) {
        match server(&self.files, self.protocols) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!("reloaded the certificate {}", self.files.cert.display());
            }
            Err(error) => tracing::error!("{error}; the previous certificate stays in use"),
        }
    }

    /// Reloads the certificate whenever one of its files changes, until the watchers are dropped.
    pub(crate) fn watch(self: &Arc<Self>) -> Vec<FileWatcher> {
        let watch = |path: &Path| {
            let certificate = Arc::clone(self);
            match FileWatcher::new(path, move || certificate.reload()) {
                Ok(watch) => Some(watch),
                Err(error) => {
                    tracing::warn!(
                        "cannot watch {}: {error}; restart ratekeeper after changing it",
                        path.display()
                    );
                    None
                }
            }
        };
        let Certificate {
            cert,
            key,
            client_ca,
            ..
        } = &self.files;
        [Some(cert), Some(key), client_ca.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| watch(path))
            .collect()
    }
}

fn server(files: &Certificate, protocols: Protocols) -> Result<ServerConfig, String> {
    let chain = certificates(&files.cert)?;
    let key = key(files)?;
    let invalid = |error: rustls::Error| key_mismatch(files, &error);
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::new(ca_certificates(file)?),
                provider,
            );
            let invalid = |error| {
                format!(
                    "{} cannot be used to verify client certificates: {error}",
                    file.display()
                )
            };
            builder.with_client_cert_verifier(verifier.build().map_err(invalid)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(invalid)?;
    config.alpn_protocols = protocols.names();
    config.ticketer = ring::Ticketer::new().map_err(invalid)?;
    Ok(config)
}

fn key(files: &Certificate) -> Result<PrivateKeyDer<'static>, String> {
    let invalid = |error| {
        format!(
            "{} contains no private key in PEM form: {error}",
            files.key.display()
        )
    };
    PrivateKeyDer::from_pem_file(&files.key).map_err(invalid)
}

fn key_mismatch(files: &Certificate, error: &rustls::Error) -> String {
    format!(
        "{} and {} cannot be used together: {error}",
        files.cert.display(),
        files.key.display()
    )
}

/// The certificate authorities in a PEM file.
fn ca_certificates(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let invalid = |error| {
            format!(
                "{} contains an invalid CA certificate: {error}",
                file.display()
            )
        };
        roots.add(certificate).map_err(invalid)?;
    }
    Ok(roots)
}

/// The TLS connector for a service, with the gateway's certificate authorities, or `None` if the
/// service is not an `https://` one.
pub(crate) fn connector_to(
    service: &Upstream,
    gateway: &GatewayConfig,
) -> Result<Option<TlsConnector>, String> {
    let mut gateway = gateway.clone();
    gateway.upstreams = vec![service.clone()];
    gateway.route.clear();
    connector(&gateway)
}

/// The TLS connector for `https://` upstreams, or `None` if there are none. Errors are sentences.
pub(crate) fn connector(gateway: &GatewayConfig) -> Result<Option<TlsConnector>, String> {
    if !gateway.all_upstreams().any(Upstream::is_tls) {
        return Ok(None);
    }
    let mut config = client(gateway.ca_file.as_deref(), None)
        .map_err(|error| format!("{error} (`ca_file` under [gateway])"))?;
    config.alpn_protocols = vec![BOTH[usize::from(!gateway.http2)].to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// A TLS client that trusts these certificate authorities, or the system's, and presents a
/// certificate if there is one. Errors are sentences.
pub(crate) fn client(
    ca_file: Option<&Path>,
    certificate: Option<&Certificate>,
) -> Result<ClientConfig, String> {
    let roots = match ca_file {
        Some(file) => ca_certificates(file)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(
                    "this system has no trusted CA certificates, so TLS connections cannot be verified: install \
                     ca-certificates, or name a file with CA certificates"
                        .to_owned(),
                );
            }
            roots
        }
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    match certificate {
        None => Ok(builder.with_no_client_auth()),
        Some(certificate) => builder
            .with_client_auth_cert(certificates(&certificate.cert)?, key(certificate)?)
            .map_err(|error| key_mismatch(certificate, &error)),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let invalid = |error| {
        format!(
            "{} contains no certificate in PEM form: {error}",
            file.display()
        )
    };
    let all = CertificateDer::pem_file_iter(file)
        .map_err(invalid)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(invalid)?;
    if all.is_empty() {
        Err(format!(
            "{} contains no certificate in PEM form",
            file.display()
        ))
    } else {
        Ok(all)
    }
}
