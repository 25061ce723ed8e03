//! The configuration, loaded again while the service runs: when its file changes, on SIGHUP, on
//! request.

use crate::app::App;
use crate::commands::config::{Mode, counted, for_log, warnings};
use crate::envoy::{self, Settings};
use crate::run::log;
use crate::run::serve::{Flags, Start};
use ratekeeper::Clock;
use ratekeeper_policy::Policies;
use ratekeeper_policy::config::{self, Config, FileWatcher};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub(crate) struct Reload<C: Clock> {
    app: Arc<App<C>>,
    file: Option<PathBuf>,
    /// Where the limits of Envoy's rate limit service are.
    envoy: Option<PathBuf>,
    flags: Flags,
    /// Whether it stands in front of a service.
    gateway: bool,
    /// What the service was started with: not all of it can change while it runs.
    started: Config,
    /// One at a time.
    loading: Mutex<()>,
}

/// Loads the configuration again whenever its file changes, from before it is loaded for the first
/// time: no change is missed.
pub(crate) struct WatchedFiles<C: Clock> {
    watches: Vec<FileWatcher>,
    reload: Arc<OnceLock<Arc<Reload<C>>>>,
    /// Whether the file changed and nobody was told yet.
    missed: Arc<AtomicBool>,
    /// What cannot be watched, in a sentence each.
    unwatched: Vec<String>,
}

impl<C: Clock> WatchedFiles<C> {
    /// Without a file there is nothing to watch.
    pub(crate) fn new(file: Option<&Path>) -> Self {
        let (reload, missed) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let mut watched = Self {
            watches: Vec::new(),
            reload,
            missed,
            unwatched: Vec::new(),
        };
        if let Some(file) = file {
            watched.add(file);
        }
        watched
    }

    /// A file or a directory.
    pub(crate) fn add(&mut self, path: &Path) {
        let (told, early) = (Arc::clone(&self.reload), Arc::clone(&self.missed));
        let on_change = move || {
            early.store(true, SeqCst);
            if let Some(reload) = told.get() {
                catch_up(reload, &early);
            }
        };
        match FileWatcher::new(path, on_change) {
            Ok(watch) => self.watches.push(watch),
            // Nobody logs yet.
            Err(error) => {
                self.unwatched.push(format!(
                    "{} is not watched: {error}; send SIGHUP after a change",
                    path.display()
                ));
            }
        }
    }

    /// From now on changes are for `reload`, those that came before too.
    pub(crate) fn tell(&self, reload: &Arc<Reload<C>>) {
        for problem in &self.unwatched {
            tracing::warn!("{problem}");
        }
        // It is told once.
        let _ = self.reload.set(Arc::clone(reload));
        catch_up(reload, &self.missed);
    }
}

/// How Envoy's requests are judged, beside its limits.
pub(crate) fn settings(config: &Config) -> Settings {
    Settings {
        enabled: config.policies.is_enabled(),
        denied_hits_consume: config.envoy.denied_hits_consume,
        response_headers: config.envoy.response_headers,
        dynamic_metadata: config.envoy.dynamic_metadata,
        on_failure: config.policies.default_on_failure(),
    }
}

fn catch_up<C: Clock>(reload: &Reload<C>, missed: &AtomicBool) {
    if missed.swap(false, SeqCst) {
        // What is wrong has been told.
        drop(reload.now("because its file changed"));
    }
}

impl<C: Clock> Reload<C> {
    pub(crate) fn new(app: Arc<App<C>>, start: &Start, started: Config) -> Self {
        let (file, flags, gateway) = (start.file.clone(), start.flags.clone(), start.gateway);
        let envoy = crate::run::serve::envoy_config(start, &started);
        Self {
            app,
            file,
            envoy,
            flags,
            gateway,
            started,
            loading: Mutex::new(()),
        }
    }

    pub(crate) fn app(&self) -> &App<C> {
        &self.app
    }

    /// Loads and checks the configuration and, if it is right, goes by it from the next decision
    /// on. Otherwise all stays as it was, and what is wrong is told. `why` it was asked for is for
    /// the log.
    pub(crate) fn now(&self, why: &str) -> Result<Vec<String>, Vec<String>> {
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let reloads = &self.app.reloads;
        let result = self.load();
        match &result {
            Ok(warnings) => {
                reloads.taken.fetch_add(1, Relaxed);
                for warning in warnings {
                    tracing::warn!(target: log::EACH, "{warning}");
                }
                let policies = counted(&self.app.engine.policies());
                tracing::info!(target: log::EACH, "configuration loaded again {why}: {policies}");
            }
            Err(problems) => {
                reloads.refused.fetch_add(1, Relaxed);
                for problem in problems {
                    tracing::error!(target: log::EACH, "{problem}");
                }
                tracing::error!(
                    target: log::EACH,
                    "configuration not loaded {why}: the one from before stays in force until this is mended"
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
        let mut told: Vec<String> = warnings(&loaded.diagnostics, &config, mode)
            .iter()
            .map(for_log)
            .collect();
        // A file that an editor or a script has emptied is hardly meant to change every limit.
        let (built_in, running) = (Policies::built_in(), self.app.engine.policies());
        let emptied =
            config.policies.iter().eq(built_in.iter()) && !running.iter().eq(built_in.iter());
        if emptied && config.policies.is_enabled() {
            let mend = "write some, or `enabled = false`, or start ratekeeper again";
            told.push(format!(
                "error: the configuration has no policies any more; {mend}"
            ));
            return Err(told);
        }
        for (section, changed) in [
            ("server", config.server != self.started.server),
            ("store", config.store != self.started.store),
            ("stats", config.stats != self.started.stats),
            ("log", config.log != self.started.log),
            ("traces", config.traces != self.started.traces),
        ] {
            if changed {
                told.push(format!(
                    "[{section}] is another one than at the start; it takes effect when ratekeeper is started again"
                ));
            }
        }
        if config.envoy.config != self.started.envoy.config {
            told.push(
                "`config` in [envoy] takes effect when ratekeeper is started again".to_owned(),
            );
        }
        if self.gateway {
            let changed = config.identity != self.started.identity;
            told.extend(
                changed.then(|| {
                    "[identity] takes effect when the gateway is started again".to_owned()
                }),
            );
            let changed = config.gateway != self.started.gateway;
            told.extend(
                changed
                    .then(|| "[gateway] takes effect when the gateway is started again".to_owned()),
            );
        }
        let limits = match &self.envoy {
            None => None,
            Some(path) => Some(envoy::config::load(path).map_err(|wrong| {
                wrong
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<String>>()
            })?),
        };
        let settings = settings(&config);
        self.app
            .engine
            .set_policies(config.policies)
            .map_err(|error| vec![error.to_string()])?;
        if let Some(limits) = limits {
            self.app
                .envoy
                .replace(limits, settings)
                .map_err(|error| vec![error.to_string()])?;
        }
        self.app.declare_limits();
        self.app.believe(config.identity);
        self.app.configuration_changed();
        Ok(told)
    }
}
