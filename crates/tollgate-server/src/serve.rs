//! `tollgate serve`: binds, starts a worker a core, says where, reloads on SIGHUP and when the file changes, and stops
//! cleanly on SIGTERM and SIGINT.

use crate::app::App;
use crate::cli::ServeArgs;
use crate::reload::{Reload, Watched};
use crate::worker::Worker;
use crate::{configuration, http, listen, proxy, welcome};
use axum::http::Uri;
use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::MemoryStore;
use tollgate_policy::config::{Config, Diagnostic, Server};
use tollgate_policy::{EngineError, Policies};
use tracing_subscriber::EnvFilter;

/// Connections a worker has at once.
const MOST_CLIENTS: usize = 16_384;

/// Connections of the admin listener: few, so that descriptors are left for clients.
const MOST_OPERATORS: usize = 64;

/// What is served, by which configuration.
pub(crate) struct Start {
    pub(crate) file: Option<PathBuf>,
    /// What flags say over the file and the environment, whenever those are loaded.
    pub(crate) flags: Flags,
    /// The service to stand in front of; without one decisions are served.
    pub(crate) upstream: Option<Uri>,
}

/// What flags say.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) policies: Option<Policies>,
}

impl Flags {
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(listen) = self.listen {
            config.server.http = Some(listen);
        }
        if let Some(policies) = &self.policies {
            config.policies = policies.clone().ipv6_prefix(config.identity.ipv6_prefix);
        }
    }
}

impl Start {
    pub(crate) fn serve(args: ServeArgs) -> Self {
        Self { file: args.config, flags: Flags::default(), upstream: None }
    }
}

/// Serves until a signal says to stop and the requests in flight have ended.
pub(crate) fn run(start: &Start) -> Result<(), CannotStart> {
    log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on SIGHUP ends nobody. A stop still does, at once, until the configuration is read: that may take for ever.
    let hang_up = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    let watched = Watched::new(start.file.as_deref());
    let config = configured(start)?;
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let Server { http, admin, .. } = config.server;
    let http = http.map(|address| bind("http", address, cores)).transpose()?;
    let admin = admin.map(|address| bind("admin", address, 1)).transpose()?;
    let first = |listeners: &Option<Vec<TcpListener>>| {
        listeners.iter().flatten().next().map(TcpListener::local_addr).transpose()
    };
    let (http_at, admin_at) = (first(&http)?, first(&admin)?);
    if http_at.is_none() && admin_at.is_none() {
        return Err(CannotStart::NothingToServe);
    }

    // Caught from here on: a stop that comes while the rest starts is a clean one too.
    let mut signals = runtime.block_on(async { Signals::new(hang_up) })?;

    let mut store = MemoryStore::builder().max_keys(usize::try_from(config.store.max_keys).unwrap_or(usize::MAX));
    if let Some(bytes) = config.store.max_bytes {
        store = store.max_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    let store = store.try_build().map_err(|_| CannotStart::Memory { max_keys: config.store.max_keys })?;
    let app = Arc::new(App::new(&config, store)?);
    let identity = config.identity.clone();
    let reload = Arc::new(Reload::new(Arc::clone(&app), start, config));
    watched.tell(&reload);

    let (stop, stopped) = watch::channel(false);
    let mut workers = Vec::with_capacity(cores + 1);
    let router = || match &start.upstream {
        None => http::router(Arc::clone(&app)),
        Some(upstream) => proxy::router(&app, &identity, upstream),
    };
    let http = http.into_iter().flatten().map(|listener| ("worker", listener, router(), MOST_CLIENTS));
    let on_loopback = admin_at.is_some_and(|address| address.ip().is_loopback());
    let admin = admin.into_iter().flatten();
    let admin =
        admin.map(|listener| ("admin", listener, http::admin(Arc::clone(&reload), on_loopback), MOST_OPERATORS));
    for (name, listener, router, most) in http.chain(admin) {
        let (worker, stopped) = (Worker::new(listener, most)?, stopped.clone());
        workers.push(thread::Builder::new().name(name.to_owned()).spawn(move || worker.run(router, stopped))?);
    }

    let mut out = io::stdout();
    let text = welcome::welcome(http_at, admin_at, start.upstream.as_ref(), &app.engine.policies());
    // A server whose standard output is closed serves all the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Some(address) = http_at {
        tracing::debug!(%address, workers = cores, "listening");
    }

    let name = loop {
        match runtime.block_on(signals.next()) {
            // What is wrong has been told.
            Asked::Reload => drop(reload.now("on SIGHUP")),
            Asked::Stop(name) => break name,
        }
    };
    tracing::info!("{name}: stopping, requests in flight are served first");
    stop.send_replace(true);
    for worker in workers {
        if worker.join().is_err() {
            tracing::error!("a worker had panicked");
        }
    }
    Ok(())
}

/// The configuration, with what is doubtful in the log.
fn configured(start: &Start) -> Result<Config, CannotStart> {
    let loaded = configuration::load(start.file.as_deref());
    let Some(mut config) = loaded.config else { return Err(CannotStart::Config(loaded.diagnostics)) };
    start.flags.apply(&mut config);
    for warning in &loaded.diagnostics {
        tracing::warn!("{warning}");
    }
    if start.upstream.is_none() {
        for warning in configuration::unheard(&config.policies) {
            tracing::warn!("{warning}");
        }
    }
    let usual = Config::default().server;
    for (key, address, usual) in [("grpc", config.server.grpc, usual.grpc), ("resp", config.server.resp, usual.resp)] {
        if let Some(address) = address.filter(|_| address != usual) {
            tracing::warn!("server.{key} is set to {address}, but this version serves HTTP only");
        }
    }
    Ok(config)
}

fn bind(key: &'static str, address: SocketAddr, many: usize) -> Result<Vec<TcpListener>, CannotStart> {
    listen::bind(address, many).map_err(|error| CannotStart::Listen { key, address, error })
}

/// Quiet unless RUST_LOG says otherwise. Keys of callers are never logged.
fn log_to_stderr() {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let (filter, problem) = match EnvFilter::builder().parse(&wanted) {
        Ok(filter) if !wanted.is_empty() => (filter, None),
        Ok(_) => (EnvFilter::new("info"), None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false).init();
    if let Some(error) = problem {
        tracing::warn!("RUST_LOG is ignored: {error}; write it as in RUST_LOG=debug or RUST_LOG=tollgate=debug");
    }
}

/// The signals that ask for something.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// What a signal asks for.
enum Asked {
    Stop(&'static str),
    Reload,
}

impl Signals {
    fn new(hang_up: Signal) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hang_up })
    }

    /// Waits for one.
    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}

/// Why the server did not start: what, where and how to mend it.
#[derive(Debug)]
pub(crate) enum CannotStart {
    /// A line for each problem.
    Config(Vec<Diagnostic>),
    Policies(EngineError),
    Listen {
        key: &'static str,
        address: SocketAddr,
        error: io::Error,
    },
    NothingToServe,
    Memory {
        max_keys: u64,
    },
    System(io::Error),
}

impl From<EngineError> for CannotStart {
    fn from(error: EngineError) -> Self {
        Self::Policies(error)
    }
}

impl From<io::Error> for CannotStart {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for CannotStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(diagnostics) => {
                let lines: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::Policies(error) => write!(f, "tollgate: {error}"),
            Self::Listen { key, address, error } => {
                let mend = match error.kind() {
                    io::ErrorKind::AddrInUse => "stop the program that listens there, or choose another port",
                    io::ErrorKind::AddrNotAvailable => "choose an address that this machine has",
                    io::ErrorKind::PermissionDenied => "choose a port above 1023, or allow this program to take it",
                    _ => "choose another address",
                };
                let variable = key.to_ascii_uppercase();
                write!(
                    f,
                    "tollgate: cannot listen on {address}: {error}; {mend} ({key} under [server] in the file of --config, or \
                     TOLLGATE_SERVER__{variable})"
                )
            }
            Self::NothingToServe => {
                f.write_str("tollgate: every listener is off; set http under [server] to an address")
            }
            Self::Memory { max_keys } => write!(
                f,
                "tollgate: there is no memory for {max_keys} keys; lower max_keys under [store] in the file of --config, or \
                 TOLLGATE_STORE__MAX_KEYS"
            ),
            Self::System(error) => {
                write!(f, "tollgate: cannot start: {error}; the system may be short of threads or file descriptors")
            }
        }
    }
}
