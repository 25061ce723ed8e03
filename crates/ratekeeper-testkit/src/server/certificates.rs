//! A certificate authority and a server certificate signed by it, made with the `openssl` program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub(super) struct Certificates {
    pub(super) ca: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Certificates {
    pub(super) fn make(dir: &Path) -> Self {
        const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(
            dir,
            &format!(
                "req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 3650 -subj /CN=ratekeeper-testkit \
                 -addext keyUsage=critical,keyCertSign"
            ),
        );
        openssl(
            dir,
            &format!("req {NEW_KEY} -keyout server.key -out server.csr -subj /CN=localhost"),
        );
        // Without basicConstraints some clients take it for an authority and reject it.
        let extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        fs::write(dir.join("server.ext"), extensions).expect("the directory can be written to");
        openssl(
            dir,
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 3650 \
             -extfile server.ext",
        );
        Self {
            ca: dir.join("ca.pem"),
            certificate: dir.join("server.pem"),
            key: dir.join("server.key"),
        }
    }
}

fn openssl(dir: &Path, arguments: &str) {
    let output = match Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(dir)
        .output()
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("openssl is not installed; on Debian it is in the package openssl")
        }
        output => output.expect("openssl runs"),
    };
    assert!(
        output.status.success(),
        "openssl {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
