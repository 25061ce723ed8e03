//! `ratekeeper serve`: binds, starts a worker a core, says where, reloads on SIGHUP and when the
//! file changes, and stops cleanly on SIGTERM and SIGINT.

use crate::admin::fleet::Fleet;
use crate::admin::{self, Admin};
use crate::app::App;
use crate::cli::ServeArgs;
use crate::commands::config as config_command;
use crate::commands::config::Mode;
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
use ratekeeper_policy::config::{Certificate, Config, Listen, ServerConfig, StoreConfig, Upstream};
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

/// Connections a worker has at once.
const MOST_CLIENTS: usize = 16_384;

/// Connections of the admin listener: few, so that descriptors are left for clients.
const MOST_OPERATORS: usize = 64;

/// How much longer than the requests in flight a worker may take to stop.
const STOP_MARGIN: Duration = Duration::from_secs(2);

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
    pub(crate) listen: Option<Listen>,
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

/// Serves until a signal says to stop and the requests in flight have ended.
pub(crate) fn run(start: &Start) -> Result<(), StartError> {
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // From here on SIGHUP ends nobody. A stop still does, at once, until the configuration is read:
    // that may take for ever.
    let hang_up = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    // A file that may not grow further is an error of the write, not the end of the process.
    let _file_size =
        runtime.block_on(async { signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) })?;
    let mut watched = WatchedFiles::new(start.file.as_deref());
    let config = configured(start)?;
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
    // Caught from here on: a stop that comes while the rest starts is a clean one too.
    let mut signals = runtime.block_on(async { Signals::new(hang_up) })?;

    let store = runtime.block_on(store_of(&config))?;
    let app = Arc::new(App::new(&config, store)?);
    if let Some(limits) = envoy_limits {
        app.envoy
            .replace(limits, settings(&config))
            .map_err(|error| StartError::TooManyLimits(error.to_string()))?;
    }
    app.declare_limits();
    if let Some(file) = &config.server.audit_log {
        let opened = app.audit.write_to(file);
        opened.map_err(|error| StartError::AuditLog {
            file: file.clone(),
            error,
        })?;
    }
    let (admin_token, keys_shown) = (config.server.admin_token.clone(), config.stats.keys);
    let fleet = Fleet::of(&app.engine);
    if let Some(fleet) = &fleet {
        runtime.block_on(fleet.begin());
        runtime.spawn(Arc::clone(fleet).run());
    }
    // Only now: whoever connects is answered at once, also where Redis has kept the start waiting.
    let ServerConfig {
        http,
        grpc,
        resp,
        admin,
        ..
    } = config.server.clone();
    // Without limits every answer would be yes: better that nobody listens.
    let grpc = grpc
        .filter(|_| envoy_config.is_some())
        .map(|address| bind("grpc", address, cores))
        .transpose()?;
    // A gateway decides on what it forwards, and answers nobody else.
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
    let (http_at, grpc_at, resp_at, admin_at) =
        (first(&http)?, first(&grpc)?, first(&resp)?, first(&admin)?);
    if http_at.is_none() && grpc_at.is_none() && resp_at.is_none() && admin_at.is_none() {
        return Err(StartError::NothingToServe);
    }
    let arrivals = resp_at.as_ref().map(|_| arrivals_of(&config)).transpose()?;
    let traces = Tracer::start(&config, app.engine.store().name()).map_err(StartError::Gateway)?;
    let (tracer, exporting) = traces.unzip();
    if let Some(tracer) = tracer {
        // It is set once.
        let _ = app.traces.set(tracer);
    }
    let gateway = match start.gateway {
        true => Some(gateway::GatewayState::new(&app, &config).map_err(StartError::Gateway)?),
        false => None,
    };
    let (gateway, holding) = gateway.unzip();
    if let Some(gateway) = &gateway {
        // It is set once.
        let _ = app.gateway.set(Arc::clone(gateway));
        let _inside = runtime.enter();
        gateway.run_health_checks();
    }
    let (settings, store_settings) = (config.gateway.clone(), config.store.clone());
    let reload = Arc::new(Reload::new(Arc::clone(&app), start, config));
    watched.tell(&reload);

    let (stop, stopped) = watch::channel(false);
    let mut workers = Workers::new(Arc::clone(&app.health));
    let mut http = http;
    if let Some(gateway) = &gateway {
        for listener in http.take().into_iter().flatten() {
            let (worker, gateway) = (
                Worker::new(listener, None, MOST_CLIENTS)?,
                Arc::clone(gateway),
            );
            workers.spawn("gateway", move |heartbeat| {
                worker.run_with(heartbeat, |listener, _, _| {
                    gateway::serve(listener, gateway, cores)
                });
            })?;
        }
    }
    let http = http.into_iter().flatten();
    let own = &certificates.http;
    let http = http.map(|listener| {
        (
            "http",
            listener,
            own,
            api::router(
                Arc::clone(&app),
                http_at.as_ref().is_some_and(Listen::is_local),
            ),
            MOST_CLIENTS,
        )
    });
    let on_loopback = admin_at.as_ref().is_some_and(Listen::is_local);
    let options = admin::Options {
        on_loopback,
        token: admin_token.clone(),
        keys: keys_shown,
        stopped: stopped.clone(),
    };
    let routes = admin::router(Admin::new(Arc::clone(&reload), fleet, options));
    let own = &certificates.admin;
    let admin = admin.into_iter().flatten();
    let admin = admin.map(|listener| ("admin", listener, own, routes.clone(), MOST_OPERATORS));
    for (name, listener, own, router, most) in http.chain(admin) {
        let (worker, stopped) = (Worker::new(listener, own.as_ref(), most)?, stopped.clone());
        let connect =
            move |stream, peer, activity: &_| connection(stream, peer, router.clone(), activity);
        workers.spawn(name, move |heartbeat| {
            worker.run(heartbeat, connect, stopped);
        })?;
    }
    for listener in grpc.into_iter().flatten() {
        let services = Grpc::new(&app, stopped.clone());
        let own = certificates.grpc.as_ref();
        let (worker, stopped) = (Worker::new(listener, own, MOST_CLIENTS)?, stopped.clone());
        let connect =
            move |stream, _, activity: &_| envoy::connection(stream, services.clone(), activity);
        workers.spawn("grpc", move |heartbeat| {
            worker.run(heartbeat, connect, stopped);
        })?;
    }
    let shared = arrivals.map(|arrivals| {
        let operators = resp::Options {
            token: admin_token,
            keys: keys_shown,
        };
        Arc::new(resp::RespServer::new(Arc::clone(&app), arrivals, operators))
    });
    for (listener, shared) in resp.into_iter().flatten().zip(shared.iter().cycle()) {
        let worker = Worker::new(listener, certificates.resp.as_ref(), resp::MAX_CLIENTS)?;
        let (shared, stopped) = (Arc::clone(shared), stopped.clone());
        workers.spawn("resp", |heartbeat| {
            worker.run_with(heartbeat, |listener, own, most| {
                resp::serve(listener, own, most, shared, stopped)
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
        gateway.as_ref().map(|_| &settings),
        &app.engine.policies(),
        &store_settings,
        Fingerprints::of(&store_settings, app.engine.store()),
    );
    // A server whose standard output is closed serves all the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let status = text.lines().next().unwrap_or_default();
    notify.ready(status);

    let check_interval = notify
        .alive_every
        .map_or(BEAT_INTERVAL, |every| every.min(BEAT_INTERVAL));
    let name = loop {
        match runtime.block_on(signals.next_within(check_interval)) {
            Some(SignalRequest::Reload) => {
                if let Some(gateway) = &gateway {
                    gateway.reopen_log();
                }
                notify.reloading();
                let said = match reload.now("on SIGHUP") {
                    Ok(_) => status.to_owned(),
                    // What is wrong has been told.
                    Err(_) => format!(
                        "{status}; the configuration was refused, the one from before is in force"
                    ),
                };
                notify.ready(&said);
            }
            Some(SignalRequest::Stop(name)) => break name,
            None => {}
        }
        notify.feed_watchdog(&workers);
    };
    notify.stopping("requests in flight are served first");
    tracing::info!("{name}: stopping, requests in flight are served first");
    app.leaving.store(true, Relaxed);
    if let Some(gateway) = &gateway {
        gateway.drain.enter(Stage::Draining);
        // Whoever asks is told that it is not ready, and sends nobody here any more. A person at a
        // terminal does not wait.
        if name == "SIGTERM" {
            let again = async {
                while let SignalRequest::Reload = signals.next().await {
                    gateway.reopen_log();
                }
            };
            let _ =
                runtime.block_on(async { tokio::time::timeout(settings.drain_delay, again).await });
        }
        gateway.drain.enter(Stage::Stopping);
    }
    stop.send_replace(true);
    let grace = gateway.as_ref().map_or(SHUTDOWN_GRACE, |_| {
        settings.drain_timeout.max(SHUTDOWN_GRACE)
    });
    workers.join(grace + STOP_MARGIN);
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
    runtime.shutdown_background();
    Ok(())
}

/// How many connections all listeners take together.
pub(crate) fn most_connections(config: &Config) -> u64 {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let ServerConfig {
        http,
        grpc,
        resp,
        admin,
        ..
    } = &config.server;
    let of = |listener: &Option<Listen>, most: usize| if listener.is_some() { most } else { 0 };
    let http = match config.gateway.upstreams.is_empty() {
        true => of(http, MOST_CLIENTS * cores),
        false => of(http, config.gateway.max_connections),
    };
    let grpc = if config.envoy.config.is_some() {
        of(grpc, MOST_CLIENTS * cores)
    } else {
        0
    };
    let all = http + grpc + of(resp, resp::MAX_CLIENTS * cores) + of(admin, MOST_OPERATORS);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// As many files and connections as this process may have: it starts with fewer, for the sake of
/// older programs.
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
        tracing::debug!(%error, "the limit of open files stays");
    }
}

/// The store that the configuration asks for.
async fn store_of(config: &Config) -> Result<AnyStore<SystemClock>, StartError> {
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

/// Where the limits of Envoy's rate limit service are, if it is served.
pub(crate) fn envoy_config(start: &Start, config: &Config) -> Option<PathBuf> {
    let given = config.envoy.config.as_deref().filter(|_| !start.gateway)?;
    Some(envoy::config::directory(given))
}

/// The keys of `CL.THROTTLE`: a table of their own in this process, as large as that of the store
/// may be.
fn arrivals_of(config: &Config) -> Result<KeyedGcra<SystemClock>, StartError> {
    let StoreConfig {
        max_keys,
        max_bytes,
        redis,
        ..
    } = &config.store;
    if redis.is_some() {
        tracing::info!(
            "CL.THROTTLE is answered from the memory of this node; what is shared on Redis are the policies"
        );
    }
    let mut arrivals =
        KeyedGcra::builder().max_keys(usize::try_from(*max_keys).unwrap_or(usize::MAX));
    if let Some(bytes) = max_bytes {
        arrivals = arrivals.max_bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
    }
    arrivals.try_build().ok_or(StartError::Memory {
        max_keys: *max_keys,
    })
}

/// The configuration, with what is doubtful in the log.
fn configured(start: &Start) -> Result<Config, StartError> {
    let loaded = config_command::load(start.file.as_deref());
    let Some(mut config) = loaded.config else {
        return Err(StartError::Config(loaded.diagnostics));
    };
    start.flags.apply(&mut config);
    log::to_stderr(&config.log);
    if start.gateway && config.gateway.upstreams.is_empty() {
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

fn bind(key: &'static str, address: Listen, many: usize) -> Result<Vec<BoundSocket>, StartError> {
    listen::bind(&address, many).map_err(|error| StartError::Listen {
        key,
        address,
        error,
    })
}
