//! `tollgate serve`: binds, starts a worker a core, says where, reloads on SIGHUP and when the file changes, and stops
//! cleanly on SIGTERM and SIGINT.

use crate::admin::fleet::Fleet;
use crate::admin::{self, Admin};
use crate::app::App;
use crate::cli::ServeArgs;
use crate::envoy::config::Wrong;
use crate::envoy::{self, Grpc};
use crate::proxy::Stage;
use crate::reload::{Reload, Watched, settings};
use crate::store::{self, AnyStore};
use crate::traces::Tracer;
use crate::worker::{Worker, connection};
use crate::{configuration, http, listen, log, proxy, resp, welcome};
use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::{Arrivals, MemoryStore, SystemClock};
use tollgate_policy::config::{Certificate, Config, Diagnostic, Server, StoreConfig, Upstream};
use tollgate_policy::{EngineError, Policies};
use tollgate_redis::ConnectError;

/// Connections a worker has at once.
const MOST_CLIENTS: usize = 16_384;

/// Connections of the admin listener: few, so that descriptors are left for clients.
const MOST_OPERATORS: usize = 64;

/// What is served, by which configuration.
pub(crate) struct Start {
    pub(crate) file: Option<PathBuf>,
    /// What flags say over the file and the environment, whenever those are loaded.
    pub(crate) flags: Flags,
    /// Whether it stands in front of services; otherwise decisions are served.
    pub(crate) gateway: bool,
}

/// What flags say.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) policies: Option<Policies>,
    /// Where the limits of Envoy's rate limit service are.
    pub(crate) envoy_config: Option<PathBuf>,
    /// The services to stand in front of.
    pub(crate) upstreams: Vec<Upstream>,
    /// The certificate of the gateway.
    pub(crate) tls: Option<Certificate>,
}

impl Flags {
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(listen) = self.listen {
            config.server.http = Some(listen);
        }
        if let Some(path) = &self.envoy_config {
            config.envoy.config = Some(path.clone());
        }
        if !self.upstreams.is_empty() {
            config.gateway.upstreams.clone_from(&self.upstreams);
        }
        if self.tls.is_some() {
            config.gateway.tls.clone_from(&self.tls);
        }
        if let Some(policies) = &self.policies {
            let on_failure = config.policies.default_on_failure();
            config.policies = policies.clone().ipv6_prefix(config.identity.ipv6_prefix).on_failure(on_failure);
        }
    }
}

impl Start {
    pub(crate) fn serve(args: ServeArgs) -> Self {
        let flags = Flags { envoy_config: args.envoy_config, ..Flags::default() };
        Self { file: args.config, flags, gateway: false }
    }
}

/// Serves until a signal says to stop and the requests in flight have ended.
pub(crate) fn run(start: &Start) -> Result<(), CannotStart> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on SIGHUP ends nobody. A stop still does, at once, until the configuration is read: that may take for ever.
    let hang_up = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    let mut watched = Watched::new(start.file.as_deref());
    let config = configured(start)?;
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let envoy_config = envoy_config(start, &config);
    if let Some(path) = &envoy_config {
        watched.add(path);
    }
    let envoy_limits = envoy_config.as_deref().map(envoy::config::load).transpose().map_err(CannotStart::Envoy)?;
    let Server { http, grpc, resp, admin, .. } = config.server;
    // Without limits every answer would be yes: better that nobody listens.
    let grpc = grpc.filter(|_| envoy_limits.is_some()).map(|address| bind("grpc", address, cores)).transpose()?;
    // A gateway decides on what it forwards, and answers nobody else.
    let resp = resp.filter(|_| !start.gateway);
    let http = http.map(|address| bind("http", address, cores)).transpose()?;
    let resp = resp.map(|address| bind("resp", address, cores)).transpose()?;
    let admin = admin.map(|address| bind("admin", address, 1)).transpose()?;
    let first = |listeners: &Option<Vec<TcpListener>>| {
        listeners.iter().flatten().next().map(TcpListener::local_addr).transpose()
    };
    let (http_at, grpc_at, resp_at, admin_at) = (first(&http)?, first(&grpc)?, first(&resp)?, first(&admin)?);
    if http_at.is_none() && grpc_at.is_none() && resp_at.is_none() && admin_at.is_none() {
        return Err(CannotStart::NothingToServe);
    }

    // Caught from here on: a stop that comes while the rest starts is a clean one too.
    let mut signals = runtime.block_on(async { Signals::new(hang_up) })?;

    let store = runtime.block_on(store_of(&config))?;
    let app = Arc::new(App::new(&config, store)?);
    if let Some(limits) = envoy_limits {
        app.envoy.replace(limits, settings(&config)).map_err(|error| CannotStart::TooManyLimits(error.to_string()))?;
    }
    if let Some(file) = &config.server.audit_log {
        let opened = app.audit.write_to(file);
        opened.map_err(|error| CannotStart::AuditLog { file: file.clone(), error })?;
    }
    let (admin_token, keys_shown) = (config.server.admin_token.clone(), config.stats.keys);
    let fleet = Fleet::of(&app.engine);
    if let Some(fleet) = &fleet {
        runtime.block_on(fleet.begin());
        runtime.spawn(Arc::clone(fleet).run());
    }
    let arrivals = resp_at.map(|_| arrivals_of(&config)).transpose()?;
    let traces = Tracer::start(&config, app.engine.store().name()).map_err(CannotStart::Gateway)?;
    let (tracer, exporting) = traces.unzip();
    if let Some(tracer) = tracer {
        // It is set once.
        let _ = app.traces.set(tracer);
    }
    let gateway = match start.gateway {
        true => Some(proxy::Shared::new(&app, &config).map_err(CannotStart::Gateway)?),
        false => None,
    };
    let (gateway, holding) = gateway.unzip();
    if let Some(gateway) = &gateway {
        // It is set once.
        let _ = app.gateway.set(Arc::clone(gateway));
        let _inside = runtime.enter();
        gateway.watch_health();
    }
    let settings = config.gateway.clone();
    let reload = Arc::new(Reload::new(Arc::clone(&app), start, config));
    watched.tell(&reload);

    let (stop, stopped) = watch::channel(false);
    let mut workers = Vec::with_capacity(2 * cores + 1);
    let mut http = http;
    if let Some(gateway) = &gateway {
        for listener in http.take().into_iter().flatten() {
            let (worker, gateway) = (Worker::new(listener, MOST_CLIENTS)?, Arc::clone(gateway));
            let run = move || worker.run_with(|listener, _| proxy::serve(listener, gateway, cores));
            workers.push(thread::Builder::new().name("gateway".to_owned()).spawn(run)?);
        }
    }
    let http = http.into_iter().flatten();
    let http = http.map(|listener| ("worker", listener, http::router(Arc::clone(&app)), MOST_CLIENTS));
    let on_loopback = admin_at.is_some_and(|address| address.ip().is_loopback());
    let options = admin::Options { on_loopback, token: admin_token, keys: keys_shown, stopped: stopped.clone() };
    let routes = admin::router(Admin::new(Arc::clone(&reload), fleet, options));
    let admin = admin.into_iter().flatten().map(|listener| ("admin", listener, routes.clone(), MOST_OPERATORS));
    for (name, listener, router, most) in http.chain(admin) {
        let (worker, stopped) = (Worker::new(listener, most)?, stopped.clone());
        let connect = move |stream, peer| connection(stream, peer, router.clone());
        workers.push(thread::Builder::new().name(name.to_owned()).spawn(move || worker.run(connect, stopped))?);
    }
    for listener in grpc.into_iter().flatten() {
        let services = Grpc::new(&app, stopped.clone());
        let (worker, stopped) = (Worker::new(listener, MOST_CLIENTS)?, stopped.clone());
        let connect = move |stream, _| envoy::connection(stream, services.clone());
        workers.push(thread::Builder::new().name("grpc".to_owned()).spawn(move || worker.run(connect, stopped))?);
    }
    let shared = arrivals.map(|arrivals| Arc::new(resp::Shared::new(Arc::clone(&app), arrivals)));
    for (listener, shared) in resp.into_iter().flatten().zip(shared.iter().cycle()) {
        let worker = Worker::new(listener, resp::MOST_CLIENTS)?;
        let (shared, stopped) = (Arc::clone(shared), stopped.clone());
        let run = || worker.run_with(|listener, most| resp::serve(listener, most, shared, stopped));
        workers.push(thread::Builder::new().name("resp".to_owned()).spawn(run)?);
    }

    let mut out = io::stdout();
    let listeners = welcome::Listeners { http: http_at, grpc: grpc_at, resp: resp_at, admin: admin_at };
    let text = welcome::welcome(&listeners, gateway.as_ref().map(|_| &settings), &app.engine.policies());
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
    app.leaving.store(true, Relaxed);
    if let Some(gateway) = &gateway {
        gateway.drain.enter(Stage::Leaving);
        // Whoever asks is told that it is not ready, and sends nobody here any more. A person at a terminal does not wait.
        if name == "SIGTERM" {
            let again = async { while let Asked::Reload = signals.next().await {} };
            let _ = runtime.block_on(async { tokio::time::timeout(settings.drain_delay, again).await });
        }
        gateway.drain.enter(Stage::Stopping);
    }
    stop.send_replace(true);
    for worker in workers {
        if worker.join().is_err() {
            tracing::error!("a worker had panicked");
        }
    }
    let left_out = log::suppressed();
    if left_out > 0 {
        tracing::info!("{left_out} lines of the log were left out: they were like those before");
    }
    // The last lines of the access log are written once nobody is left who could write more.
    drop((reload, watched, gateway));
    if let Some(app) = Arc::into_inner(app) {
        drop(app);
    }
    drop((holding, exporting));
    Ok(())
}

/// The store that the configuration asks for.
async fn store_of(config: &Config) -> Result<AnyStore<SystemClock>, CannotStart> {
    let StoreConfig { max_keys, max_bytes, redis, .. } = &config.store;
    let keys = usize::try_from(*max_keys).unwrap_or(usize::MAX);
    let bytes = max_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if let Some(redis) = redis {
        let connected = store::redis(redis, config.policies.default_on_failure(), keys, bytes).await;
        return connected.map(AnyStore::Redis).map_err(CannotStart::Redis);
    }
    let mut store = MemoryStore::builder().max_keys(keys);
    if let Some(bytes) = bytes {
        store = store.max_bytes(bytes);
    }
    let store = store.try_build().map_err(|_| CannotStart::Memory { max_keys: *max_keys })?;
    Ok(AnyStore::Memory(store))
}

/// Where the limits of Envoy's rate limit service are, if it is served.
pub(crate) fn envoy_config(start: &Start, config: &Config) -> Option<PathBuf> {
    let given = config.envoy.config.as_deref().filter(|_| !start.gateway)?;
    Some(envoy::config::directory(given))
}

/// The keys of `CL.THROTTLE`: a table of their own in this process, as large as that of the store may be.
fn arrivals_of(config: &Config) -> Result<Arrivals<SystemClock>, CannotStart> {
    let StoreConfig { max_keys, max_bytes, redis, .. } = &config.store;
    if redis.is_some() {
        tracing::info!(
            "CL.THROTTLE is answered from the memory of this node; what is shared on Redis are the policies"
        );
    }
    let mut arrivals = Arrivals::builder().max_keys(usize::try_from(*max_keys).unwrap_or(usize::MAX));
    if let Some(bytes) = max_bytes {
        arrivals = arrivals.max_bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
    }
    arrivals.try_build().ok_or(CannotStart::Memory { max_keys: *max_keys })
}

/// The configuration, with what is doubtful in the log.
fn configured(start: &Start) -> Result<Config, CannotStart> {
    let loaded = configuration::load(start.file.as_deref());
    let Some(mut config) = loaded.config else { return Err(CannotStart::Config(loaded.diagnostics)) };
    start.flags.apply(&mut config);
    log::to_stderr(&config.log);
    for warning in &loaded.diagnostics {
        tracing::warn!(target: log::EACH, "{warning}");
    }
    if start.gateway && config.gateway.upstreams.is_empty() {
        return Err(CannotStart::NoUpstream);
    }
    if !start.gateway {
        for warning in configuration::unheard(&config.policies) {
            tracing::warn!(target: log::EACH, "{warning}");
        }
    }
    let usual = Config::default().server;
    let grpc = config.server.grpc.filter(|_| config.server.grpc != usual.grpc);
    if let Some(address) = grpc.filter(|_| config.envoy.config.is_none() || start.gateway) {
        tracing::warn!(
            "server.grpc is set to {address}, but nobody listens there without `config` in [envoy] (tollgate serve)"
        );
    }
    Ok(config)
}

fn bind(key: &'static str, address: SocketAddr, many: usize) -> Result<Vec<TcpListener>, CannotStart> {
    listen::bind(address, many).map_err(|error| CannotStart::Listen { key, address, error })
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
    /// A line for each file.
    Envoy(Vec<Wrong>),
    TooManyLimits(String),
    Listen {
        key: &'static str,
        address: SocketAddr,
        error: io::Error,
    },
    NothingToServe,
    NoUpstream,
    /// A sentence.
    Gateway(String),
    Redis(ConnectError),
    Memory {
        max_keys: u64,
    },
    AuditLog {
        file: PathBuf,
        error: io::Error,
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
            Self::Envoy(wrong) => {
                let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::TooManyLimits(error) => write!(f, "tollgate: the limits of Envoy: {error}"),
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
            Self::NoUpstream => f.write_str(
                "tollgate: there is no service to stand in front of; name one with --upstream http://127.0.0.1:3000, or as \
                 upstreams under [gateway] in the file of --config",
            ),
            Self::Gateway(error) => write!(f, "tollgate: {error}"),
            Self::Redis(error) => {
                write!(f, "tollgate: {error} ([store] in the file of --config, or TOLLGATE_STORE__URL and the like)")
            }
            Self::Memory { max_keys } => write!(
                f,
                "tollgate: there is no memory for {max_keys} keys; lower max_keys under [store] in the file of --config, or \
                 TOLLGATE_STORE__MAX_KEYS"
            ),
            Self::AuditLog { file, error } => write!(
                f,
                "tollgate: cannot write the audit log {}: {error}; name a file that can be written as audit_log under [server] in \
                 the file of --config, or TOLLGATE_SERVER__AUDIT_LOG",
                file.display()
            ),
            Self::System(error) => {
                write!(f, "tollgate: cannot start: {error}; the system may be short of threads or file descriptors")
            }
        }
    }
}
