//! Reloading the configuration: when its file changes, on SIGHUP and on request.

use crate::app::App;
use crate::commands::config::{Mode, for_log, policy_count, warnings};
use crate::config::{self, Config, DeniedHits, FileWatcher};
use crate::envoy::{self, Settings};
use crate::run::log;
use crate::run::serve::{Flags, Start};
use ratekeeper::Clock;
use ratekeeper_policy::Policies;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Reloads the configuration of a running server.
pub(crate) struct Reload<C: Clock> {
    app: Arc<App<C>>,
    file: Option<PathBuf>,
    /// Directory of Envoy's limits.
    envoy: Option<PathBuf>,
    flags: Flags,
    /// Whether it runs as the gateway.
    gateway: bool,
    /// The configuration at the start; some sections need a restart.
    started: Config,
    /// Serializes reloads.
    loading: Mutex<()>,
}

/// Watches the files of the configuration. It starts before they are first loaded, so that no
/// change is missed.
pub(crate) struct WatchedFiles<C: Clock> {
    watches: Vec<FileWatcher>,
    reload: Arc<OnceLock<Arc<Reload<C>>>>,
    /// Whether a file changed since the last reload.
    changed: Arc<AtomicBool>,
    /// A warning for each file that cannot be watched.
    unwatched: Vec<String>,
}

impl<C: Clock> WatchedFiles<C> {
    /// Watches `file`, if there is one.
    pub(crate) fn new(file: Option<&Path>) -> Self {
        let mut watched = Self {
            watches: Vec::new(),
            reload: Arc::new(OnceLock::new()),
            changed: Arc::new(AtomicBool::new(false)),
            unwatched: Vec::new(),
        };
        if let Some(file) = file {
            watched.add(file);
        }
        watched
    }

    /// Watches a file or a directory.
    pub(crate) fn add(&mut self, path: &Path) {
        let reload = Arc::clone(&self.reload);
        let changed = Arc::clone(&self.changed);
        let on_change = move || {
            changed.store(true, SeqCst);
            if let Some(reload) = reload.get() {
                reload_if_changed(reload, &changed);
            }
        };
        match FileWatcher::new(path, on_change) {
            Ok(watch) => self.watches.push(watch),
            // Logging has not started yet.
            Err(error) => {
                self.unwatched.push(format!(
                    "{} is not watched: {error}; send SIGHUP after a change",
                    path.display()
                ));
            }
        }
    }

    /// Starts reloading on changes, including those that came before.
    pub(crate) fn start(&self, reload: &Arc<Reload<C>>) {
        for problem in &self.unwatched {
            tracing::warn!("{problem}");
        }
        // It is set once.
        let _ = self.reload.set(Arc::clone(reload));
        reload_if_changed(reload, &self.changed);
    }
}

/// Settings of Envoy's rate limit service other than its limits.
pub(crate) fn settings(config: &Config) -> Settings {
    Settings {
        enabled: config.policies.is_enabled(),
        denied_hits_consume: config.envoy.denied_hits == DeniedHits::Consume,
        response_headers: config.envoy.response_headers,
        dynamic_metadata: config.envoy.dynamic_metadata,
        on_failure: config.policies.default_on_failure(),
    }
}

fn reload_if_changed<C: Clock>(reload: &Reload<C>, changed: &AtomicBool) {
    if changed.swap(false, SeqCst) {
        // Errors have been logged.
        drop(reload.now("because its file changed"));
    }
}

impl<C: Clock> Reload<C> {
    pub(crate) fn new(app: Arc<App<C>>, start: &Start, started: Config) -> Self {
        let envoy = crate::run::serve::envoy_config(start, &started);
        Self {
            app,
            file: start.file.clone(),
            envoy,
            flags: start.flags.clone(),
            gateway: start.gateway,
            started,
            loading: Mutex::new(()),
        }
    }

    pub(crate) fn app(&self) -> &App<C> {
        &self.app
    }

    /// Loads and checks the configuration. A valid one is in force from the next decision on;
    /// otherwise nothing changes, and the errors are logged and returned. `cause` is for the log.
    pub(crate) fn now(&self, cause: &str) -> Result<Vec<String>, Vec<String>> {
        let _guard = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let reloads = &self.app.reloads;
        let result = self.load();
        match &result {
            Ok(warnings) => {
                reloads.succeeded.fetch_add(1, Relaxed);
                for warning in warnings {
                    tracing::warn!(target: log::EACH, "{warning}");
                }
                let policies = policy_count(&self.app.engine.policies());
                tracing::info!(target: log::EACH, "configuration reloaded {cause}: {policies}");
            }
            Err(problems) => {
                reloads.rejected.fetch_add(1, Relaxed);
                for problem in problems {
                    tracing::error!(target: log::EACH, "{problem}");
                }
                tracing::error!(
                    target: log::EACH,
                    "configuration rejected {cause}; the previous one stays in force"
                );
            }
        }
        reloads.stale.store(result.is_err(), Relaxed);
        result
    }

    fn load(&self) -> Result<Vec<String>, Vec<String>> {
        let loaded = Config::load(self.file.as_deref(), config::environment());
        let Some(mut config) = loaded.config else {
            return Err(loaded.diagnostics.iter().map(ToString::to_string).collect());
        };
        self.flags.apply(&mut config);
        let mode = if self.gateway {
            Mode::Proxy
        } else {
            Mode::Serve
        };
        let mut messages: Vec<String> = warnings(&loaded.diagnostics, &config, mode)
            .iter()
            .map(for_log)
            .collect();
        // A file emptied by an editor or a script is probably not meant to replace every limit.
        let built_in = Policies::built_in();
        let running = self.app.engine.policies();
        let is_emptied =
            config.policies.iter().eq(built_in.iter()) && !running.iter().eq(built_in.iter());
        if is_emptied && config.policies.is_enabled() {
            messages.push(
                "error: the new file has no policies; add some, set `enabled = false`, or restart"
                    .to_owned(),
            );
            return Err(messages);
        }
        for (section, changed) in [
            ("server", config.server != self.started.server),
            ("store", config.store != self.started.store),
            ("stats", config.stats != self.started.stats),
            ("log", config.log != self.started.log),
            ("traces", config.traces != self.started.traces),
        ] {
            if changed {
                messages.push(format!("changes in [{section}] need a restart"));
            }
        }
        if config.envoy.config != self.started.envoy.config {
            messages.push("changes of `config` in [envoy] need a restart".to_owned());
        }
        if self.gateway {
            if config.identity != self.started.identity {
                messages.push("changes in [identity] need a restart of the gateway".to_owned());
            }
            if !config.gateway.same_except_routes(&self.started.gateway) {
                messages.push(
                    "changes in [gateway] other than upstreams and routes need a restart of the \
                     gateway"
                        .to_owned(),
                );
            }
            if config.gateway.all_upstreams().next().is_none() {
                messages.push(
                    "error: the gateway has no upstream; set `upstreams` under [gateway]"
                        .to_owned(),
                );
                return Err(messages);
            }
        }
        let limits = match &self.envoy {
            None => None,
            Some(path) => Some(envoy::config::load(path).map_err(|errors| {
                errors
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<String>>()
            })?),
        };
        // Everything that can fail on its own comes before the first change.
        let gateway = self.app.gateway.get();
        let routes = gateway
            .map(|gateway| gateway.new_routes(&config.gateway))
            .transpose()
            .map_err(|error| vec![error])?;
        let settings = settings(&config);
        self.app
            .engine
            .set_policies(config.policies)
            .map_err(|error| vec![error.to_string()])?;
        if let (Some(gateway), Some(routes)) = (gateway, routes) {
            gateway.set_routes(routes);
        }
        if let Some(limits) = limits {
            self.app
                .envoy
                .replace(limits, settings)
                .map_err(|error| vec![error.to_string()])?;
        }
        self.app.declare_limits();
        self.app.set_identity(config.identity);
        self.app.configuration_changed();
        Ok(messages)
    }
}
