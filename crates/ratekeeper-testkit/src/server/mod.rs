//! Real `redis-server` processes, each with a port and a directory of its own.
//!
//! ```no_run
//! use ratekeeper_testkit::RedisServer;
//!
//! let redis = RedisServer::start();
//! redis.command(&["SET", "greeting", "hello"]);
//! redis.kill();
//! redis.restart(); // the same port, an empty store
//! ```
//!
//! A server ends when its value is dropped, also in a panic. A `static` is never dropped: do not
//! keep one there.

mod builder;
mod certificates;
mod clock;
mod cluster;
mod process;
mod sentinels;

pub use builder::Builder;
pub use cluster::RedisCluster;
pub use sentinels::RedisSentinels;

use crate::resp::{Connection, Reply};
use certificates::Certificates;
use clock::ClockFile;
use process::Process;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The timeout for anything here, after which it panics. Usually it takes a few milliseconds.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// The polling interval.
const POLL: Duration = Duration::from_millis(2);

/// A `redis-server` process on 127.0.0.1. All methods take `&self`, so threads can share it.
#[derive(Debug)]
pub struct RedisServer {
    // The process before its directory: fields are dropped in this order.
    process: Mutex<Option<Process>>,
    files: Files,
    port: u16,
    /// The Cluster bus port; 0 if it is not a Cluster node.
    bus_port: u16,
    password: Option<String>,
    url: String,
    certificates: Option<Certificates>,
    clock: Option<ClockFile>,
}

impl RedisServer {
    /// Starts a server with the defaults: a free port, no password, nothing kept on disk.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed or does not answer.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The port on 127.0.0.1; the TLS port if the server has TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients: `redis://127.0.0.1:PORT`, with the password if there is one; `rediss:`
    /// with TLS; `unix:///PATH` if a Unix socket was requested.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The Unix socket. Every server has one.
    pub fn unix_path(&self) -> &Path {
        &self.files.socket
    }

    /// The certificate of the authority that signed the server's own, in PEM.
    ///
    /// # Panics
    ///
    /// If the server was not built with [`tls`](Builder::tls).
    pub fn ca_file(&self) -> &Path {
        &self
            .certificates
            .as_ref()
            .expect("a server has a CA only if built with .tls(true)")
            .ca
    }

    /// The contents of the server's log.
    pub fn log(&self) -> String {
        self.files.log()
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If it has been killed and not restarted.
    pub fn pid(&self) -> u32 {
        self.running()
            .as_ref()
            .expect("redis-server was killed; restart() it first")
            .id()
    }

    /// Kills the server (SIGKILL) and waits until it is gone. Killing it again does nothing.
    pub fn kill(&self) {
        drop(self.running().take());
    }

    /// Starts the server again on the same port, directory and clock; kills it first if it is
    /// running. The data is back only with [`aof`](Builder::aof).
    pub fn restart(&self) {
        let mut running = self.running();
        drop(running.take());
        let deadline = Instant::now() + WAIT_TIMEOUT;
        *running = Some(loop {
            match self.launch() {
                Ok(process) => break process,
                // Another process may use the port for a moment.
                Err(_) if self.files.port_was_taken() && Instant::now() < deadline => {
                    thread::sleep(POLL);
                }
                Err(problem) => panic!("{problem}"),
            }
        });
    }

    /// Stops the process (SIGSTOP): connections stay open and nothing answers, until
    /// [`cont`](Self::cont).
    pub fn stop_signal(&self) {
        self.running()
            .as_ref()
            .expect("redis-server was killed; restart() it first")
            .stop();
    }

    /// Lets the process go on (SIGCONT).
    pub fn cont(&self) {
        self.running()
            .as_ref()
            .expect("redis-server was killed; restart() it first")
            .cont();
    }

    /// Steps the clock that Redis sees. The next `TIME` shows the step.
    ///
    /// # Panics
    ///
    /// If the server was not built with [`clock_file`](Builder::clock_file).
    pub fn step_clock(&self, by: Duration, forward: bool) {
        let clock = self
            .clock
            .as_ref()
            .expect("a server's clock can be stepped only if built with .clock_file(true)");
        clock.step(by, forward);
    }

    /// Sends a command on a connection of its own. An error reply of Redis is a [`Reply::Error`].
    ///
    /// # Panics
    ///
    /// If there is no reply within [`TIMEOUT`](crate::resp::TIMEOUT).
    pub fn command(&self, arguments: &[&str]) -> Reply {
        self.try_command(arguments).unwrap_or_else(|error| {
            panic!(
                "{arguments:?} got no reply from redis-server {}: {error}",
                self.port
            )
        })
    }

    /// Sends a command on a connection of its own, to a server that may be down.
    pub fn try_command(&self, arguments: &[&str]) -> io::Result<Reply> {
        self.connect()?.command(arguments)
    }

    /// Opens a connection (by the Unix socket, so TLS does not matter) and authenticates.
    pub fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::unix(&self.files.socket)?;
        if let Some(password) = &self.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    fn running(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process and waits until it answers PING, which it does once it has loaded its
    /// data.
    fn launch(&self) -> Result<Process, String> {
        let mut process = Process::spawn(&self.files, self.clock.as_ref());
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            // Its own socket: another process on the same port cannot answer here.
            if self
                .try_command(&["PING"])
                .is_ok_and(|reply| reply == Reply::Simple("PONG".into()))
            {
                return Ok(process);
            }
            if let Some(status) = process.ended() {
                return Err(format!(
                    "redis-server ended with {status} at its start; its log:\n{}",
                    self.log()
                ));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "redis-server did not answer PING in {WAIT_TIMEOUT:?}; its log:\n{}",
                    self.log()
                ));
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until a replica has its master's data.
    fn await_master(&self) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !self
            .command(&["INFO", "replication"])
            .text()
            .is_some_and(|info| info.contains("master_link_status:up"))
        {
            assert!(
                Instant::now() < deadline,
                "the replica did not reach its master; its log:\n{}",
                self.log()
            );
            thread::sleep(POLL);
        }
    }
}

/// Waits until the condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "timed out after {WAIT_TIMEOUT:?} waiting until {what}"
        );
        thread::sleep(5 * POLL);
    }
}

/// The files of a server, in a directory that is removed with it.
#[derive(Debug)]
struct Files {
    dir: TempDir,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    /// Whether the config is that of a sentinel.
    sentinel: bool,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("ratekeeper-redis-")
            .tempdir()
            .expect("a temporary directory");
        let [config, socket, log] =
            ["redis.conf", "redis.sock", "redis.log"].map(|name| dir.path().join(name));
        Self {
            dir,
            config,
            socket,
            log,
            sentinel: false,
        }
    }

    fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    fn port_was_taken(&self) -> bool {
        // Only of the last start: the log is appended to.
        let log = self.log();
        log.rsplit("oO0OoO0OoO0Oo Redis is starting")
            .next()
            .is_some_and(|last| last.contains("Address already in use"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // A child that Redis had forked may outlive it by a moment, and write to the log while it
        // is being removed.
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while fs::remove_dir_all(self.dir.path()).is_err()
            && self.dir.path().exists()
            && Instant::now() < deadline
        {
            thread::sleep(POLL);
        }
    }
}
