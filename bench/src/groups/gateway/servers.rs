//! The upstream services, and the two proxies in front of them, each a child process that ends with
//! this one.

use super::{Load, Workload};
use crate::programs::{self, Process};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The core of the proxies; the upstream and wrk run on another.
const CORE: &str = "0";
pub(super) const FREE_CORE: &str = "1";

/// A limit that is never reached.
const NGINX_RATE: &str = "1000000r/s";
const OUR_LIMIT: &str = "1000000000/s";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Competitor {
    Nginx,
    Ratekeeper,
}

impl Competitor {
    pub(super) const ALL: [Self; 2] = [Self::Nginx, Self::Ratekeeper];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Ratekeeper => "ratekeeper",
        }
    }
}

/// The upstream services.
pub(super) struct Upstream {
    /// The port of an nginx: 1 KB, and 100 KB under `/large`.
    port: u16,
    /// The port of 64 KB in chunks of 1 KB: nginx makes no small chunks.
    chunks_port: u16,
    /// The directory of configurations and the certificate.
    pub(super) directory: PathBuf,
    _processes: [Process; 2],
}

impl Upstream {
    pub(super) fn start() -> Result<Self, String> {
        let directory =
            std::env::temp_dir().join(format!("ratekeeper-bench-gateway-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(&directory)
            .output()
            .map_err(|error| format!("openssl: {error}"))?;
        if !made.status.success() {
            return Err(format!(
                "openssl did not make a certificate: {}",
                String::from_utf8_lossy(&made.stderr)
            ));
        }
        let port = free_port()?;
        fs::write(directory.join("large"), "x".repeat(100 << 10))
            .map_err(|error| error.to_string())?;
        let kilobyte = "x".repeat(1024);
        let server = format!(
            "server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000000; client_max_body_size 0;\n\
             location / {{ return 200 \"{kilobyte}\"; }} location = /large {{ root .; sendfile on; }} }}"
        );
        let nginx = nginx(&directory, "upstream", &server, FREE_CORE, port)?;
        let (chunks, chunks_port) = chunks()?;
        Ok(Self {
            port,
            chunks_port,
            directory,
            _processes: [nginx, chunks],
        })
    }

    fn port_of(&self, workload: &Workload) -> u16 {
        if workload.chunks {
            self.chunks_port
        } else {
            self.port
        }
    }
}

/// Starts the service of small chunks, on the core that the proxies leave free.
fn chunks() -> Result<(Process, u16), String> {
    let program = programs::program("web-service")?;
    let mut command = Command::new("taskset");
    command.args(["-c", FREE_CORE]).arg(program).arg("chunks");
    Process::listening(&mut command, |line| Some(line))
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // If it fails, what is left is in the system's temporary directory.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A running proxy.
pub(super) struct Server {
    pub(super) url: String,
    process: Process,
}

impl Server {
    pub(super) fn start(
        competitor: Competitor,
        upstream: &Upstream,
        workload: &Workload,
    ) -> Result<Self, String> {
        let (process, port) = match competitor {
            Competitor::Nginx => Self::nginx(upstream, workload)?,
            Competitor::Ratekeeper => Self::ratekeeper(upstream, workload)?,
        };
        let scheme = if workload.tls { "https" } else { "http" };
        Ok(Self {
            url: format!("{scheme}://127.0.0.1:{port}{}", workload.path),
            process,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    fn nginx(upstream: &Upstream, workload: &Workload) -> Result<(Process, u16), String> {
        let (port, behind) = (free_port()?, upstream.port_of(workload));
        let http2 = if workload.load == Load::Http2 {
            " http2"
        } else {
            ""
        };
        let (ssl, certificate) = if workload.tls {
            (
                " ssl",
                "ssl_certificate cert.pem; ssl_certificate_key key.pem; ssl_protocols TLSv1.3;",
            )
        } else {
            ("", "")
        };
        let server = format!(
            "limit_req_zone $binary_remote_addr zone=all:10m rate={NGINX_RATE};\n\
             upstream behind {{ server 127.0.0.1:{behind}; keepalive 128; keepalive_requests 1000000000; }}\n\
             server {{ listen 127.0.0.1:{port}{ssl}{http2}; {certificate} keepalive_requests 1000000000;\n\
             client_max_body_size 0; client_body_buffer_size 128k; proxy_buffers 16 16k;\n\
             location / {{ limit_req zone=all burst=1000000 nodelay; proxy_pass http://behind; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; }} }}"
        );
        let process = nginx(&upstream.directory, "proxy", &server, CORE, port)?;
        Ok((process, port))
    }

    fn ratekeeper(upstream: &Upstream, workload: &Workload) -> Result<(Process, u16), String> {
        let mut command = Command::new("taskset");
        command
            .args(["-c", CORE])
            .arg(programs::ratekeeper()?)
            .current_dir(&upstream.directory)
            .env("RATEKEEPER_SERVER__ADMIN", "off");
        command.args(["proxy", "--listen", "127.0.0.1:0", "--limit", OUR_LIMIT]);
        command.args([
            "--upstream",
            &format!("http://127.0.0.1:{}", upstream.port_of(workload)),
        ]);
        if workload.tls {
            command.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
        }
        Process::listening(&mut command, |line| {
            let (_, url) = line.split_once(": gateway listening on ")?;
            url.rsplit(':').next()
        })
    }
}

/// Starts an nginx with as many workers as it has cores, which is one.
fn nginx(
    directory: &Path,
    name: &str,
    server: &str,
    core: &str,
    port: u16,
) -> Result<Process, String> {
    let text = format!(
        "daemon off; worker_processes 1; pid {name}.pid; error_log stderr crit;\nevents {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; \
         scgi_temp_path s;\n{server}\n}}\n"
    );
    fs::write(directory.join(format!("{name}.conf")), text).map_err(|error| error.to_string())?;
    let mut command = Command::new("taskset");
    command
        .args(["-c", core, "nginx", "-p"])
        .arg(directory)
        .args(["-c", &format!("{name}.conf")]);
    // Without a master process no worker keeps running when it is killed.
    command.args(["-g", "master_process off;"]);
    let process = Process::start(&mut command)?;
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > until {
            return Err("nginx did not start (on Debian: apt-get install nginx-light)".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(process)
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    Ok(listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port())
}
