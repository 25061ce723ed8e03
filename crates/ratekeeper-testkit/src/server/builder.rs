//! [`Builder`]: the settings of a server before it starts.

use super::{Certificates, ClockFile, Files, RedisServer};
use crate::ports;
use std::fmt::Write;
use std::fs;
use std::sync::Mutex;

/// Attempts to find a free port before giving up.
const PORTS_TRIED: usize = 50;

/// The builder of a server; from [`RedisServer::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing starts before .start()"]
pub struct Builder {
    aof: bool,
    unix_socket: bool,
    password: Option<String>,
    tls: bool,
    clock_file: bool,
    master: Option<Master>,
    cluster: bool,
    sentinel: bool,
    more: String,
}

#[derive(Clone, Debug)]
struct Master {
    port: u16,
    password: Option<String>,
    tls: bool,
}

impl Builder {
    /// Whether every write is on disk before it is answered (`appendonly yes`, `appendfsync
    /// always`).
    pub fn aof(mut self, aof: bool) -> Self {
        self.aof = aof;
        self
    }

    /// Whether [`url`](RedisServer::url) names the Unix socket. The port listens too.
    pub fn unix_socket(mut self, unix_socket: bool) -> Self {
        self.unix_socket = unix_socket;
        self
    }

    /// The password that clients must send.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Whether the port accepts only TLS, with a certificate for `localhost` and 127.0.0.1 signed
    /// by [`ca_file`](RedisServer::ca_file). Clients need no certificate.
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// The memory limit of the server, and its eviction policy, such as `noeviction` or
    /// `allkeys-lru`.
    pub fn maxmemory(self, bytes: u64, policy: &str) -> Self {
        self.arg("maxmemory", &bytes.to_string())
            .arg("maxmemory-policy", policy)
    }

    /// Makes it a replica of `master`; `start` returns when it has the data.
    pub fn replica_of(mut self, master: &RedisServer) -> Self {
        let tls = master.certificates.is_some();
        self.master = Some(Master {
            port: master.port,
            password: master.password.clone(),
            tls,
        });
        self
    }

    /// Whether the clock that Redis sees can be stepped ([`step_clock`](RedisServer::step_clock)).
    /// Needs libfaketime.
    pub fn clock_file(mut self, clock_file: bool) -> Self {
        self.clock_file = clock_file;
        self
    }

    /// Makes it a node of a Cluster, without slots and without other nodes; see
    /// [`RedisCluster`](super::RedisCluster).
    pub fn cluster_node(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Makes it a sentinel; what it watches is set by `arg`.
    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Any setting of redis.conf, with or without leading dashes: `.arg("--hz", "100")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        let _ = writeln!(self.more, "{} {value}", name.trim_start_matches('-'));
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// If `redis-server`, or `openssl` or `libfaketime` if they are needed, is not installed, or
    /// the server does not answer.
    pub fn start(self) -> RedisServer {
        let mut files = Files::new();
        files.sentinel = self.sentinel;
        let mut server = RedisServer {
            process: Mutex::new(None),
            certificates: self.tls.then(|| Certificates::make(files.dir.path())),
            clock: self.clock_file.then(|| ClockFile::make(files.dir.path())),
            files,
            port: 0,
            bus_port: 0,
            password: self.password.clone(),
            url: String::new(),
        };
        for _ in 0..PORTS_TRIED {
            // Free again when the listener is dropped, here.
            (_, server.port) = ports::listen();
            if self.cluster {
                (_, server.bus_port) = ports::listen();
            }
            server.url = self.url(&server);
            fs::write(&server.files.config, self.config(&server))
                .expect("the directory can be written to");
            match server.launch() {
                Ok(process) => {
                    server.process = Mutex::new(Some(process));
                    if self.master.is_some() {
                        server.await_master();
                    }
                    return server;
                }
                // Another process took the port after it was free.
                Err(_) if server.files.port_was_taken() => {}
                Err(problem) => panic!("{problem}"),
            }
        }
        panic!("each of {PORTS_TRIED} ports that were free was taken before redis-server had it");
    }

    fn url(&self, server: &RedisServer) -> String {
        if self.unix_socket {
            let password = self
                .password
                .as_ref()
                .map(|password| format!("?pass={password}"))
                .unwrap_or_default();
            return format!("unix://{}{password}", server.files.socket.display());
        }
        let scheme = if self.tls { "rediss" } else { "redis" };
        let password = self
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        format!("{scheme}://{password}127.0.0.1:{}", server.port)
    }

    fn config(&self, server: &RedisServer) -> String {
        let mut config = String::new();
        let mut set = |name: &str, value: &str| {
            let _ = writeln!(config, "{name} {value}");
        };
        let path = |path: &std::path::Path| {
            quoted(
                path.to_str()
                    .expect("a temporary directory with a name in UTF-8"),
            )
        };
        set("bind", "127.0.0.1");
        set("dir", &path(server.files.dir.path()));
        set("logfile", &path(&server.files.log));
        set("unixsocket", &path(&server.files.socket));
        if !self.sentinel {
            set("save", "\"\"");
            // A replica would wait 5 s for others to join.
            set("repl-diskless-sync-delay", "0");
        }
        if self.cluster {
            set("cluster-enabled", "yes");
            set("cluster-port", &server.bus_port.to_string());
        }
        let port = server.port.to_string();
        if let Some(certificates) = &server.certificates {
            set("port", "0");
            set("tls-port", &port);
            set("tls-cert-file", &path(&certificates.certificate));
            set("tls-key-file", &path(&certificates.key));
            set("tls-ca-cert-file", &path(&certificates.ca));
            set("tls-auth-clients", "no");
        } else {
            set("port", &port);
        }
        if self.aof {
            set("appendonly", "yes");
            set("appendfsync", "always");
        }
        if let Some(password) = &self.password {
            set("requirepass", &quoted(password));
        }
        if let Some(master) = &self.master {
            assert!(
                !master.tls,
                "a replica of a server with TLS is not supported here"
            );
            set("replicaof", &format!("127.0.0.1 {}", master.port));
            if let Some(password) = &master.password {
                set("masterauth", &quoted(password));
            }
        }
        config + &self.more
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
