//! `tollgate serve`: binds, starts a worker a core, says where, and stops cleanly on SIGTERM and SIGINT.

use crate::buckets::{Buckets, MOST_LIMITS};
use crate::cli::ServeArgs;
use crate::config::{Config, ConfigError};
use crate::worker::Worker;
use crate::{http, listen, welcome};
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::MemoryStore;
use tracing_subscriber::EnvFilter;

/// Serves until a signal says to stop and the requests in flight have ended.
pub(crate) fn run(args: &ServeArgs) -> Result<(), CannotStart> {
    log_to_stderr();
    let server = Config::read(args.config.as_deref())?.server;
    for (key, address) in server.not_served() {
        tracing::warn!("server.{key} is set to {address}, but this version serves HTTP only");
    }

    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let wanted = server.http.0;
    let listeners = listen::bind(wanted, cores).map_err(|error| CannotStart::Listen { address: wanted, error })?;
    let address = listeners[0].local_addr()?;

    // Caught from here on: a stop that comes while the rest starts is a clean one too.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;

    let app = http::router(Arc::new(Buckets::new(MemoryStore::new(), MOST_LIMITS)));
    let (stop, stopped) = watch::channel(false);
    let mut workers = Vec::with_capacity(cores);
    for listener in listeners {
        let (worker, app, stopped) = (Worker::new(listener)?, app.clone(), stopped.clone());
        workers.push(thread::Builder::new().name("worker".to_owned()).spawn(move || worker.run(app, stopped))?);
    }

    let mut out = io::stdout();
    // A server whose standard output is closed serves all the same.
    let _ = out.write_all(welcome::welcome(address).as_bytes()).and_then(|()| out.flush());
    tracing::debug!(%address, workers = cores, "listening");

    let name = runtime.block_on(signals.next());
    tracing::info!("{name}: stopping, requests in flight are served first");
    stop.send_replace(true);
    for worker in workers {
        if worker.join().is_err() {
            tracing::error!("a worker had panicked");
        }
    }
    Ok(())
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

/// The two signals that ask for a clean stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one and names it.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Why the server did not start: one sentence that says what, where and how to mend it.
#[derive(Debug)]
pub(crate) enum CannotStart {
    Config(ConfigError),
    Listen { address: SocketAddr, error: io::Error },
    System(io::Error),
}

impl From<ConfigError> for CannotStart {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
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
            Self::Config(error) => error.fmt(f),
            Self::Listen { address, error } => {
                let mend = match error.kind() {
                    io::ErrorKind::AddrInUse => "stop the program that listens there, or choose another port",
                    io::ErrorKind::AddrNotAvailable => "choose an address that this machine has",
                    io::ErrorKind::PermissionDenied => "choose a port above 1023, or allow this program to take it",
                    _ => "choose another address",
                };
                write!(f, "cannot listen on {address}: {error}; {mend} (http under [server] in the file of --config)")
            }
            Self::System(error) => {
                write!(f, "cannot start: {error}; the system may be short of threads or file descriptors")
            }
        }
    }
}
