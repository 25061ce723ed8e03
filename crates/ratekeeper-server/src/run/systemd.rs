//! What systemd is told: that it is ready, loads again, stops, and is alive. A datagram each;
//! without systemd nobody is told.
//!
//! By hand and not by a crate: it is one socket and five words.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that we are alive.
    pub(crate) alive_every: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub(crate) fn new() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match name
            .to_str()
            .ok_or(io::ErrorKind::InvalidInput.into())
            .and_then(connect)
        {
            Ok(to) => Self {
                to: Some(to),
                alive_every: watchdog(),
            },
            Err(error) => {
                tracing::warn!(
                    "NOTIFY_SOCKET is {name:?}, where nobody can be told anything: {error}"
                );
                Self::default()
            }
        }
    }

    /// It serves.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// It loads its configuration, until it is ready again. Since when is what systemd tells an
    /// answer from an old one by.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now
            .tv_sec
            .saturating_mul(1_000_000)
            .saturating_add(now.tv_nsec / 1_000);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    pub(crate) fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={status}"));
    }

    pub(crate) fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.to
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, "systemd was not told");
        }
    }
}

/// By a path, or a name that begins with `@` and is in no directory.
fn connect(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        None => SocketAddr::from_pathname(name)?,
        Some(hidden) => abstract_name(hidden)?,
    };
    let socket = UnixDatagram::unbound()?;
    // Who does not listen is not waited for.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(target_os = "linux")]
fn abstract_name(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_name(_: &str) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Twice as often as it must be, if this process is meant.
fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let meant = std::env::var_os("WATCHDOG_PID").is_none()
        || number("WATCHDOG_PID") == Some(std::process::id().into());
    let every = number("WATCHDOG_USEC").filter(|micros| meant && *micros > 0)?;
    Some(Duration::from_micros((every / 2).max(1_000)))
}
