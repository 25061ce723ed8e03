//! The real proxies, each with the very file that docs/deploy ships.

use crate::client::send;
use crate::support::envoy::{self, Envoy, cluster};
use crate::support::{directory, eventually};
use ratekeeper_testkit::{free_port, tools};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A proxy that calls ratekeeper and then forwards requests to a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proxy {
    Nginx,
    Caddy,
    Traefik,
    Envoy,
}

/// A running proxy and its address; it ends with the test.
pub(crate) struct Running {
    _process: Process,
    pub(crate) at: SocketAddr,
}

enum Process {
    Plain { _child: Killed },
    Envoy { _envoy: Envoy },
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long a proxy waits for ratekeeper.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeouts {
    Shipped,
    /// So long that a slow machine does not let a request through.
    Long,
}

impl Proxy {
    pub(crate) const ALL: [Self; 4] = [Self::Nginx, Self::Caddy, Self::Traefik, Self::Envoy];

    /// Starts it between clients and the service; `None`, with a message, where it is not
    /// installed.
    pub(crate) fn start(
        self,
        timeouts: Timeouts,
        ratekeeper: SocketAddr,
        service: SocketAddr,
    ) -> Option<Running> {
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let process = match self {
            Self::Nginx => nginx(at, timeouts, ratekeeper, service),
            Self::Caddy => caddy(at, timeouts, ratekeeper, service),
            Self::Traefik => traefik(at, timeouts, ratekeeper, service)?,
            Self::Envoy => Process::Envoy {
                _envoy: start_envoy(at, timeouts, ratekeeper, service)?,
            },
        };
        eventually(&format!("{self:?} listens"), || {
            TcpStream::connect(at).is_ok()
        });
        // Traefik listens before it has read its file, and answers 404 until then. This client is
        // in no case.
        let ready = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        if self == Self::Traefik {
            eventually("Traefik routes", || {
                send(at, Ipv4Addr::LOCALHOST, ready).status() != 404
            });
        }
        Some(Running {
            _process: process,
            at,
        })
    }
}

/// A file of docs/deploy with other addresses, and other timeouts if requested.
fn shipped(name: &str, timeouts: Timeouts, addresses: &[(&str, &str)]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/deploy")
        .join(name);
    let mut text =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for (old, new) in addresses {
        assert!(text.contains(old), "{name} has no {old}");
        text = text.replace(old, new);
    }
    if timeouts == Timeouts::Long {
        let long = text
            .replace("0.25s", "60s")
            .replace("250ms", "60s")
            .replace("500ms", "60s");
        assert_ne!(long, text, "{name} has no timeouts");
        text = long;
    }
    text
}

fn run(mut command: Command) -> Process {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process::Plain {
        _child: Killed(
            child.unwrap_or_else(|error| panic!("{name}: {error}; make tools installs it")),
        ),
    }
}

fn nginx(
    at: SocketAddr,
    timeouts: Timeouts,
    ratekeeper: SocketAddr,
    service: SocketAddr,
) -> Process {
    let snippet = shipped(
        "nginx.conf",
        timeouts,
        &[("127.0.0.1:8080", &ratekeeper.to_string())],
    );
    let prefix = directory(&[]);
    let own = prefix.display();
    let config = format!(
        "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\nevents {{}}\nhttp {{ access_log off; \
         client_body_temp_path {own}; proxy_temp_path {own}; fastcgi_temp_path {own}; uwsgi_temp_path {own}; scgi_temp_path {own};\n\
         server {{ listen {at};\n{snippet}\nlocation / {{ auth_request /_ratekeeper; proxy_pass http://{service}; }} }} }}"
    );
    fs::write(prefix.join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(prefix.join("nginx.conf"))
        .arg("-e")
        .arg(prefix.join("error.log"));
    run(command)
}

fn caddy(
    at: SocketAddr,
    timeouts: Timeouts,
    ratekeeper: SocketAddr,
    service: SocketAddr,
) -> Process {
    let addresses = [
        (":8000", &*format!(":{}", at.port())),
        ("127.0.0.1:8080", &ratekeeper.to_string()),
        ("127.0.0.1:3000", &service.to_string()),
    ];
    let config = format!(
        "{{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}}\n{}",
        shipped("Caddyfile", timeouts, &addresses)
    );
    let dir = directory(&[("Caddyfile", &config)]);
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(dir.join("Caddyfile"))
        .env("HOME", &dir);
    run(command)
}

fn traefik(
    at: SocketAddr,
    timeouts: Timeouts,
    ratekeeper: SocketAddr,
    service: SocketAddr,
) -> Option<Process> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/traefik");
    let program = tools::file(&program, "scripts/venv installs it")?;
    let relay = format!("127.0.0.1:{}", free_port());
    let addresses = [
        ("127.0.0.1:8080", &*ratekeeper.to_string()),
        ("127.0.0.1:3000", &service.to_string()),
        ("127.0.0.1:8079", &relay),
    ];
    let text = shipped("traefik.yml", timeouts, &addresses);
    let flags = text
        .lines()
        .filter_map(|line| Some(format!("--{}", line.strip_prefix("#   --")?)));
    // A traefik.yml in the working directory would be its static configuration.
    let dir = directory(&[("dynamic.yml", &text)]);
    let mut command = Command::new(program);
    command
        .arg(format!("--entryPoints.web.address={at}"))
        .args(flags);
    command.arg(format!(
        "--providers.file.filename={}",
        dir.join("dynamic.yml").display()
    ));
    command
        .args([
            "--global.checkNewVersion=false",
            "--global.sendAnonymousUsage=false",
        ])
        .current_dir(&dir);
    Some(run(command))
}

fn start_envoy(
    at: SocketAddr,
    timeouts: Timeouts,
    ratekeeper: SocketAddr,
    service: SocketAddr,
) -> Option<Envoy> {
    let program = envoy::program()?;
    let filter = shipped(
        "envoy-ext-authz.yaml",
        timeouts,
        &[("http://127.0.0.1:8080", &format!("http://{ratekeeper}"))],
    );
    // An entry of the list of filters: the first line after the dash, the others indented alike.
    let lines: Vec<&str> = filter
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let filter = lines.join("\n            ");
    let listener = format!(
        "
  - name: edge
    address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: service }} }}]
          http_filters:
          - {filter}
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}",
        ip = at.ip(),
        port = at.port(),
    );
    let clusters = [
        cluster("service", service, ""),
        cluster("ratekeeper", ratekeeper, ""),
    ]
    .concat();
    Some(Envoy::start(&program, &listener, &clusters, &[at]))
}
