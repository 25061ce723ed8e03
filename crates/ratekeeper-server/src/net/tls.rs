//! TLS on both sides: our own certificates, loaded again when their files change, and whom we
//! trust.

use crate::net::stream::BatchedStream;
use arc_swap::ArcSwap;
use ratekeeper_policy::config::{Certificate, FileWatcher, GatewayConfig, Upstream};
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

/// What is spoken inside, the first choice first.
const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What a listener speaks inside TLS.
#[derive(Clone, Copy)]
pub(crate) enum Protocols {
    /// HTTP/2 or HTTP/1.1.
    Both,
    Http1,
    Http2,
    /// Something that ALPN has no name for.
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

/// Our own certificate.
pub(crate) struct OwnCertificate {
    files: Certificate,
    speaks: Protocols,
    config: ArcSwap<ServerConfig>,
}

impl OwnCertificate {
    /// From its files; an error is a sentence.
    pub(crate) fn load(files: &Certificate, speaks: Protocols) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            files: files.clone(),
            speaks,
            config: ArcSwap::from_pointee(server(files, speaks)?),
        }))
    }

    /// Greets a client; who takes longer than that is not served.
    pub(crate) async fn greet(
        &self,
        stream: TcpStream,
        within: Duration,
    ) -> io::Result<TlsStream<BatchedStream>> {
        let handshake =
            TlsAcceptor::from(self.config.load_full()).accept(BatchedStream::new(stream));
        Ok(TlsStream::Server(
            timeout(within, Box::pin(handshake)).await??,
        ))
    }

    /// Loads it again. If that fails the one from before stays.
    fn load_again(&self) {
        match server(&self.files, self.speaks) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!(
                    "the certificate {} was loaded again",
                    self.files.cert.display()
                );
            }
            Err(error) => tracing::error!("{error}; the certificate from before stays in force"),
        }
    }

    /// Loads it again whenever one of its files changes, until these are dropped.
    pub(crate) fn watch(self: &Arc<Self>) -> Vec<FileWatcher> {
        let watch = |path: &Path| {
            let own = Arc::clone(self);
            match FileWatcher::new(path, move || own.load_again()) {
                Ok(watch) => Some(watch),
                Err(error) => {
                    tracing::warn!(
                        "{} is not watched: {error}; start ratekeeper again after a change",
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

fn server(files: &Certificate, speaks: Protocols) -> Result<ServerConfig, String> {
    let chain = certificates(&files.cert)?;
    let key = key(files)?;
    let wrong = |error: rustls::Error| together(files, &error);
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(file)?), provider);
            let wrong = |error| {
                format!(
                    "{} cannot say which clients are served: {error}",
                    file.display()
                )
            };
            builder.with_client_cert_verifier(verifier.build().map_err(wrong)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(wrong)?;
    config.alpn_protocols = speaks.names();
    config.ticketer = ring::Ticketer::new().map_err(wrong)?;
    Ok(config)
}

fn key(files: &Certificate) -> Result<PrivateKeyDer<'static>, String> {
    let wrong = |error| {
        format!(
            "{} has no private key in PEM form: {error}",
            files.key.display()
        )
    };
    PrivateKeyDer::from_pem_file(&files.key).map_err(wrong)
}

fn together(files: &Certificate, error: &rustls::Error) -> String {
    format!(
        "{} and {} cannot be used together: {error}",
        files.cert.display(),
        files.key.display()
    )
}

/// Who signs, by a file.
fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let wrong = |error| {
            format!(
                "{} has a certificate that nobody can sign with: {error}",
                file.display()
            )
        };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

/// TLS to another service, by whom the gateway trusts; none if it is not an `https://` one.
pub(crate) fn connector_to(
    service: &Upstream,
    gateway: &GatewayConfig,
) -> Result<Option<TlsConnector>, String> {
    let mut gateway = gateway.clone();
    gateway.upstreams = vec![service.clone()];
    connector(&gateway)
}

/// How `https://` upstreams are spoken to; none if there are none. An error is a sentence.
pub(crate) fn connector(gateway: &GatewayConfig) -> Result<Option<TlsConnector>, String> {
    if !gateway.upstreams.iter().any(|upstream| upstream.is_tls()) {
        return Ok(None);
    }
    let mut config = client(gateway.ca_file.as_deref(), None)
        .map_err(|error| format!("{error} (`ca_file` under [gateway])"))?;
    config.alpn_protocols = vec![BOTH[usize::from(!gateway.http2)].to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// Speaks to servers that these sign for, or whom the system trusts, and shows a certificate if
/// there is one. An error is a sentence.
pub(crate) fn client(
    ca_file: Option<&Path>,
    own: Option<&Certificate>,
) -> Result<ClientConfig, String> {
    let roots = match ca_file {
        Some(file) => authorities(file)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(
                    "this system trusts nobody, so nobody can be spoken to in TLS: install ca-certificates, or \
                            name a file with who signs"
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
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some(own) => builder
            .with_client_auth_cert(certificates(&own.cert)?, key(own)?)
            .map_err(|error| together(own, &error)),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error| format!("{} has no certificate in PEM form: {error}", file.display());
    let all = CertificateDer::pem_file_iter(file)
        .map_err(wrong)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(wrong)?;
    if all.is_empty() {
        Err(format!("{} has no certificate in PEM form", file.display()))
    } else {
        Ok(all)
    }
}
