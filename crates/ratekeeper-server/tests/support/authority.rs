//! A test certificate authority.

use crate::support::directory;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use std::path::PathBuf;

/// A certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    path: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let path = directory(&[("ca.pem", &issuer.pem())]);
        Self { issuer, path }
    }

    pub(crate) fn ca(&self) -> String {
        self.path.join("ca.pem").display().to_string()
    }

    /// Issues a certificate for a name, valid until a year. Returns the files of the certificate and
    /// the key.
    pub(crate) fn sign(&self, name: &str, until: i32) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = directory(&[
            ("cert.pem", &certificate.pem()),
            ("key.pem", &key.serialize_pem()),
        ]);
        (files.join("cert.pem"), files.join("key.pem"))
    }
}
