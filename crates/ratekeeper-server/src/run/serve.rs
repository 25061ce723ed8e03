//! `ratekeeper serve` and `proxy`: binds the listeners, starts a worker per core, prints the
//! addresses, reloads on SIGHUP and when the file changes, and stops cleanly on SIGTERM and SIGINT.

use crate::admin::fleet::Fleet;
use crate::admin::{self, Admin};
use crate::app::App;
use crate::cli::ServeArgs;
use crate::commands::config as config_command;
use crate::commands::config::Mode;
use crate::config::{Certificate, Config, Listen, ServerConfig, StoreConfig, Upstream};
use crate::envoy::{self, Grpc};
use crate::gateway::Stage;
use crate::net::certificates::Certificates;
use crate::net::listen;
use crate::net::listen::BoundSocket;
use crate::net::worker::{SHUTDOWN_GRACE, Worker, connection};
use crate::net::worker_health::BEAT_INTERVAL;
use crate::net::workers::Workers;
use crate::observe::traces::Tracer;
use crate::run::reload::{Reload, WatchedFiles, settings};
use crate::run::signals::{SignalRequest, Signals};
use crate::run::start_error::StartError;
use crate::run::systemd::Notify;
use crate::run::welcome::Fingerprints;
use crate::run::{log, welcome};
use crate::store::{self, AnyStore};
use crate::{api, gateway, resp};
use ratekeeper::{MemoryStore, clock::SystemClock, keyed::KeyedGcra};
use ratekeeper_policy::Policies;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Maximum connections of a worker.
const MAX_WORKER_CONNECTIONS: usize = 16_384;

/// Maximum connections of the admin listener: few, to leave file descriptors for clients.
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// Time a worker may take to stop beyond that of the requests in flight.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// The server to start: its configuration and its mode.
pub(crate) struct Start {
    pub(crate) file: Option<PathBuf>,
    /// Flags, which override the file and the environment at every load.
    pub(crate) flags: Flags,
    /// Whether it runs as the gateway; otherwise it serves decisions.
    pub(crate) gateway: bool,
}

/// Settings from command-line flags.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    pub(crate) listen: Option<Listen>,
    pub(crate) policies: Option<Policies>,
    /// Directory of Envoy's limits.
    pub(crate) envoy_config: Option<PathBuf>,
    /// The upstreams of the gateway.
    pub(crate) upstreams: Vec<Upstream>,
    /// The certificate of the gateway.
    pub(crate) tls: Option<Certificate>,
}

impl Flags {
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(listen) = &self.listen {
            config.server.http = Some(listen.clone());
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
            config.policies = policies
                .clone()
                .ipv6_prefix(config.identity.ipv6_prefix)
                .on_failure(on_failure);
        }
    }
}

impl Start {
    pub(crate) fn serve(args: ServeArgs) -> Self {
        let flags = Flags {
            envoy_config: args.envoy_config,
            ..Flags::default()
        };
        Self {
            file: args.config,
            flags,
            gateway: false,
        }
    }
}

/// Serves until a signal requests a stop and the requests in flight have ended.
pub(crate) fn run(start: &Start) -> Result<(), StartError> {
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // From here on SIGHUP does not end the process. A stop still does, at once, until the
    // configuration is read, because that may block for ever.
    let hang_up = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    // Without this handler, a write beyond the maximum file size would end the process.
    let _file_size =
        runtime.block_on(async { signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) })?;
    let mut watched = WatchedFiles::new(start.file.as_deref());
    let config = load_config(start)?;
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let envoy_config = envoy_config(start, &config);
    if let Some(path) = &envoy_config {
        watched.add(path);
    }
    let envoy_limits = envoy_config
        .as_deref()
        .map(envoy::config::load)
        .transpose()
        .map_err(StartError::Envoy)?;
    let certificates =
        Certificates::load(&config.server, start.gateway).map_err(StartError::Tls)?;
    // From here on a stop is clean, even while the rest starts.
    let mut signals = runtime.block_on(async { Signals::new(hang_up) })?;

    let store = runtime.block_on(create_store(&config))?;
    let app = Arc::new(App::new(&config, store)?);
    if let Some(limits) = envoy_limits {
        app.envoy
            .replace(limits, settings(&config))
            .map_err(|error| StartError::TooManyLimits(error.to_string()))?;
    }
    app.declare_limits();
    if let Some(file) = &config.server.audit_log {
        let result = app.audit.write_to(file);
        result.map_err(|error| StartError::AuditLog {
            file: file.clone(),
            error,
        })?;
    }
    let admin_token = config.server.admin_token.clone();
    let key_display = config.stats.keys;
    let fleet = Fleet::of(&app.engine);
    if let Some(fleet) = &fleet {
        runtime.block_on(fleet.begin());
        runtime.spawn(Arc::clone(fleet).run());
    }
    // Bound after the store connects, so that every accepted connection is served at once.
    let ServerConfig {
        http,
        grpc,
        resp,
        admin,
        ..
    } = config.server.clone();
    // Without limits every response would be OK, so the listener stays off.
    let grpc = grpc
        .filter(|_| envoy_config.is_some())
        .map(|address| bind("grpc", address, cores))
        .transpose()?;
    // The gateway decides only on the requests it forwards.
    let resp = resp.filter(|_| !start.gateway);
    let http = http
        .map(|address| bind("http", address, cores))
        .transpose()?;
    let resp = resp
        .map(|address| bind("resp", address, cores))
        .transpose()?;
    let admin = admin.map(|address| bind("admin", address, 1)).transpose()?;
    let first = |listeners: &Option<Vec<BoundSocket>>| {
        listeners
            .iter()
            .flatten()
            .next()
            .map(BoundSocket::address)
            .transpose()
    };
    let http_at = first(&http)?;
    let grpc_at = first(&grpc)?;
    let resp_at = first(&resp)?;
    let admin_at = first(&admin)?;
    if http_at.is_none() && grpc_at.is_none() && resp_at.is_none() && admin_at.is_none() {
        return Err(StartError::NothingToServe);
    }
    let throttle_keys = resp_at
        .as_ref()
        .map(|_| throttle_keys(&config))
        .transpose()?;
    let traces = Tracer::start(&config, app.engine.store().name()).map_err(StartError::Gateway)?;
    let (tracer, exporter) = traces.unzip();
    if let Some(tracer) = tracer {
        // It is set once.
        let _ = app.traces.set(tracer);
    }
    let gateway = if start.gateway {
        Some(
            gateway::GatewayState::new(&app, &config, http.as_ref().map_or(0, Vec::len))
                .map_err(StartError::Gateway)?,
        )
    } else {
        None
    };
    let (gateway, gateway_threads) = gateway.unzip();
    if let Some(gateway) = &gateway {
        // It is set once.
        let _ = app.gateway.set(Arc::clone(gateway));
        gateway.run_health_checks(runtime.handle().clone());
    }
    let gateway_config = config.gateway.clone();
    let store_config = config.store.clone();
    let reload = Arc::new(Reload::new(Arc::clone(&app), start, config));
    watched.start(&reload);

    let (stop, stopped) = watch::channel(false);
    let mut workers = Workers::new(Arc::clone(&app.health));
    let mut http = http;
    if let Some(gateway) = &gateway {
        for (number, listener) in http.take().into_iter().flatten().enumerate() {
            let worker = Worker::new(listener, None, MAX_WORKER_CONNECTIONS)?;
            let gateway = Arc::clone(gateway);
            workers.spawn("gateway", move |heartbeat| {
                worker.run_with(heartbeat, |listener, _, _| {
                    gateway::serve(listener, gateway, number)
                });
            })?;
        }
    }
    let http = http.into_iter().flatten();
    let certificate = &certificates.http;
    let http = http.map(|listener| {
        (
            "http",
            listener,
            certificate,
            api::router(
                Arc::clone(&app),
                http_at.as_ref().is_some_and(Listen::is_local),
            ),
            MAX_WORKER_CONNECTIONS,
        )
    });
    let on_loopback = admin_at.as_ref().is_some_and(Listen::is_local);
    let options = admin::Options {
        on_loopback,
        token: admin_token.clone(),
        keys: key_display,
        stopped: stopped.clone(),
    };
    let routes = admin::router(Admin::new(Arc::clone(&reload), fleet, options));
    let certificate = &certificates.admin;
    let admin = admin.into_iter().flatten();
    let admin = admin.map(|listener| {
        (
            "admin",
            listener,
            certificate,
            routes.clone(),
            MAX_ADMIN_CONNECTIONS,
        )
    });
    for (name, listener, certificate, router, max_connections) in http.chain(admin) {
        let worker = Worker::new(listener, certificate.as_ref(), max_connections)?;
        let stopped = stopped.clone();
        let connect =
            move |stream, peer, activity: &_| connection(stream, peer, router.clone(), activity);
        workers.spawn(name, move |heartbeat| {
            worker.run(heartbeat, connect, stopped);
        })?;
    }
    for listener in grpc.into_iter().flatten() {
        let services = Grpc::new(&app, stopped.clone());
        let certificate = certificates.grpc.as_ref();
        let worker = Worker::new(listener, certificate, MAX_WORKER_CONNECTIONS)?;
        let stopped = stopped.clone();
        let connect =
            move |stream, _, activity: &_| envoy::connection(stream, services.clone(), activity);
        workers.spawn("grpc", move |heartbeat| {
            worker.run(heartbeat, connect, stopped);
        })?;
    }
    let shared = throttle_keys.map(|throttle_keys| {
        let options = resp::Options {
            token: admin_token,
            keys: key_display,
        };
        Arc::new(resp::RespServer::new(
            Arc::clone(&app),
            throttle_keys,
            options,
        ))
    });
    for (listener, shared) in resp.into_iter().flatten().zip(shared.iter().cycle()) {
        let worker = Worker::new(listener, certificates.resp.as_ref(), resp::MAX_CLIENTS)?;
        let shared = Arc::clone(shared);
        let stopped = stopped.clone();
        workers.spawn("resp", |heartbeat| {
            worker.run_with(heartbeat, |listener, certificate, max_connections| {
                resp::serve(listener, certificate, max_connections, shared, stopped)
            });
        })?;
    }

    let notify = Notify::new();
    let mut out = io::stdout();
    if let Some(address) = &http_at {
        tracing::debug!(%address, workers = cores, "listening");
    }
    let at = |listen: Option<Listen>, tls: bool| {
        listen.map(|listen| welcome::ListenAddress {
            tls: tls && listen.tcp().is_some(),
            listen,
        })
    };
    let listeners = welcome::Listeners {
        http: at(
            http_at,
            certificates.http.is_some() || gateway.as_ref().is_some_and(|gateway| gateway.is_tls()),
        ),
        grpc: at(grpc_at, certificates.grpc.is_some()),
        resp: at(resp_at, certificates.resp.is_some()),
        admin: at(admin_at, certificates.admin.is_some()),
    };
    let text = welcome::welcome(
        &listeners,
        gateway.as_ref().map(|_| &gateway_config),
        &app.engine.policies(),
        &store_config,
        Fingerprints::of(&store_config, app.engine.store()),
    );
    // A closed standard output is not an error.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let status = text.lines().next().unwrap_or_default();
    notify.ready(status);

    let check_interval = notify
        .watchdog_interval
        .map_or(BEAT_INTERVAL, |interval| interval.min(BEAT_INTERVAL));
    let signal_name = loop {
        match runtime.block_on(signals.next_within(check_interval)) {
            Some(SignalRequest::Reload) => {
                if let Some(gateway) = &gateway {
                    gateway.reopen_log();
                }
                notify.reloading();
                let reload_status = match reload.now("on SIGHUP") {
                    Ok(_) => status.to_owned(),
                    // Errors have been logged.
                    Err(_) => format!("{status}; configuration rejected, previous one in force"),
                };
                notify.ready(&reload_status);
            }
            Some(SignalRequest::Stop(name)) => break name,
            None => {}
        }
        notify.notify_watchdog(&workers);
    };
    notify.stopping("finishing requests in flight");
    tracing::info!("{signal_name}: stopping, finishing requests in flight");
    app.shutting_down.store(true, Relaxed);
    if let Some(gateway) = &gateway {
        gateway.drain.enter(Stage::Draining);
        // `/readyz` now reports not ready, and load balancers have time to notice. A user at a
        // terminal, with SIGINT, does not wait.
        if signal_name == "SIGTERM" {
            let until_stop = async {
                while let SignalRequest::Reload = signals.next().await {
                    gateway.reopen_log();
                }
            };
            let _ = runtime.block_on(async {
                tokio::time::timeout(gateway_config.drain_delay, until_stop).await
            });
        }
        gateway.drain.enter(Stage::Stopping);
    }
    stop.send_replace(true);
    let grace = gateway.as_ref().map_or(SHUTDOWN_GRACE, |_| {
        gateway_config.drain_timeout.max(SHUTDOWN_GRACE)
    });
    workers.join(grace + STOP_MARGIN);
    let suppressed = log::suppressed();
    if suppressed > 0 {
        tracing::info!("{suppressed} similar log lines were suppressed");
    }
    // The writer of the access log ends when all its senders are dropped.
    drop((reload, watched, gateway));
    if let Some(app) = Arc::into_inner(app) {
        drop(app);
    }
    drop((gateway_threads, exporter));
    runtime.shutdown_background();
    Ok(())
}

/// Maximum connections of all listeners together.
pub(crate) fn max_connections(config: &Config) -> u64 {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let ServerConfig {
        http,
        grpc,
        resp,
        admin,
        ..
    } = &config.server;
    let of = |listener: &Option<Listen>, max: usize| if listener.is_some() { max } else { 0 };
    let http = if config.gateway.all_upstreams().next().is_none() {
        of(http, MAX_WORKER_CONNECTIONS * cores)
    } else {
        of(http, config.gateway.max_connections)
    };
    let grpc = if config.envoy.config.is_some() {
        of(grpc, MAX_WORKER_CONNECTIONS * cores)
    } else {
        0
    };
    let all = http + grpc + of(resp, resp::MAX_CLIENTS * cores) + of(admin, MAX_ADMIN_CONNECTIONS);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Raises the soft limit of file descriptors to the hard limit. It is lower by default for the sake
/// of older programs.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        )
    {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

/// Creates the store of the configuration.
async fn create_store(config: &Config) -> Result<AnyStore<SystemClock>, StartError> {
    let StoreConfig {
        max_keys,
        max_bytes,
        redis,
        ..
    } = &config.store;
    if let Some(redis) = redis {
        let builder =
            store::redis_builder(&config.store, redis, config.policies.default_on_failure());
        return builder
            .connect()
            .await
            .map(AnyStore::Redis)
            .map_err(StartError::Redis);
    }
    let keys = usize::try_from(*max_keys).unwrap_or(usize::MAX);
    let bytes = max_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut store = MemoryStore::builder().max_keys(keys);
    if let Some(bytes) = bytes {
        store = store.max_bytes(bytes);
    }
    let store = store.try_build().map_err(|_| StartError::Memory {
        max_keys: *max_keys,
    })?;
    Ok(AnyStore::Memory(store))
}

/// The directory of Envoy's limits, if Envoy's rate limit service is on.
pub(crate) fn envoy_config(start: &Start, config: &Config) -> Option<PathBuf> {
    let given = config.envoy.config.as_deref().filter(|_| !start.gateway)?;
    Some(envoy::config::directory(given))
}

/// Creates the keys of `CL.THROTTLE`: a separate table in this process, with the maximum size of
/// the store.
fn throttle_keys(config: &Config) -> Result<KeyedGcra<SystemClock>, StartError> {
    let StoreConfig {
        max_keys,
        max_bytes,
        redis,
        ..
    } = &config.store;
    if redis.is_some() {
        tracing::info!("CL.THROTTLE counts on this node only; only policies are shared");
    }
    let mut builder =
        KeyedGcra::builder().max_keys(usize::try_from(*max_keys).unwrap_or(usize::MAX));
    if let Some(bytes) = max_bytes {
        builder = builder.max_bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
    }
    builder.try_build().ok_or(StartError::Memory {
        max_keys: *max_keys,
    })
}

/// Loads the configuration and logs its warnings.
fn load_config(start: &Start) -> Result<Config, StartError> {
    let loaded = config_command::load(start.file.as_deref());
    let Some(mut config) = loaded.config else {
        return Err(StartError::Config(loaded.diagnostics));
    };
    start.flags.apply(&mut config);
    log::to_stderr(&config.log);
    if start.gateway && config.gateway.all_upstreams().next().is_none() {
        return Err(StartError::NoUpstream);
    }
    if start.gateway && start.flags.policies.is_some() {
        let attributes = config.policies.attributes();
        if let Some(attribute) = attributes
            .into_iter()
            .find(|attribute| !config.identity.provides(attribute))
        {
            return Err(StartError::By(attribute.clone()));
        }
    }
    for warning in config_command::warnings(&loaded.diagnostics, &config, Mode::of(start)) {
        tracing::warn!(target: log::EACH, "{}", config_command::for_log(&warning));
    }
    Ok(config)
}

fn bind(key: &'static str, address: Listen, count: usize) -> Result<Vec<BoundSocket>, StartError> {
    listen::bind(&address, count).map_err(|error| StartError::Listen {
        key,
        address,
        error,
    })
}
