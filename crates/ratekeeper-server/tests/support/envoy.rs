//! A real Envoy, as `make tools` installs it.

use super::config_file;
use ratekeeper_testkit::tools;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that `make tools` installs, or `None` if the test is to be skipped: see [`tools`].
pub(crate) fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/envoy");
    tools::file(&path, "scripts/venv installs it")
}

/// A running Envoy; killed when dropped.
pub(crate) struct Envoy(Child);

impl Envoy {
    /// Starts Envoy with these listeners and clusters, as YAML, and waits until it listens on all
    /// of these addresses.
    pub(crate) fn start(
        program: &Path,
        listeners: &str,
        clusters: &str,
        at: &[SocketAddr],
    ) -> Self {
        let config = format!("static_resources:\n  listeners:{listeners}\n  clusters:{clusters}\n");
        let file = config_file(&config).with_extension("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(file.with_extension("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(&file).args([
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "-l",
            "warn",
        ]);
        let envoy = Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap(),
        );
        let start = Instant::now();
        while at
            .iter()
            .any(|address| TcpStream::connect(address).is_err())
        {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "Envoy does not listen; see {}",
                file.display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        envoy
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cluster with one endpoint, and `more` settings.
pub(crate) fn cluster(name: &str, at: SocketAddr, more: &str) -> String {
    format!(
        "
  - name: {name}
    type: STATIC
    connect_timeout: 5s{more}
    load_assignment:
      cluster_name: {name}
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }} }}] }}]",
        at.ip(),
        at.port()
    )
}
