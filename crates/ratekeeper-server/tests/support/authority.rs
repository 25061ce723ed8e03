//! Certificates that are made here.

use crate::support::directory;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use std::path::PathBuf;

/// Somebody who signs certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    at: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let at = directory(&[("ca.pem", &issuer.pem())]);
        Self { issuer, at }
    }

    pub(crate) fn ca(&self) -> String {
        self.at.join("ca.pem").display().to_string()
    }

    /// A certificate for a name, valid until a year; its files.
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
