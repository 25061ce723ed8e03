//! What systemd is told: that it is ready, loads again, stops, and is alive. A datagram each;
//! without systemd nobody is told.
//!
//! By hand and not by a crate: it is one socket and five words.

use crate::net::workers::Workers;
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

    /// Checks the workers, and feeds the watchdog if it wants to be fed and all of them are alive.
    /// Without a worker that has ended or is stuck, part of the connections is served by nobody:
    /// better that systemd starts all again.
    pub(crate) fn feed_watchdog(&self, workers: &Workers) {
        if workers.check() && self.alive_every.is_some() {
            self.tell("WATCHDOG=1");
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::worker_health::WorkerHealth;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// What the watchdog hears when it is fed now; nothing if it is not.
    fn fed(notify: &Notify, workers: &Workers, socket: &UnixDatagram) -> Option<String> {
        notify.feed_watchdog(workers);
        let mut buffer = [0; 100];
        let read = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
    }

    #[test]
    fn the_watchdog_is_fed_as_long_as_all_workers_are_alive() {
        let place = std::env::temp_dir().join(format!("ratekeeper-{}-feed", std::process::id()));
        let _ = std::fs::remove_file(&place);
        let socket = UnixDatagram::bind(&place).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut notify = Notify {
            to: Some(connect(place.to_str().unwrap()).unwrap()),
            alive_every: Some(Duration::from_secs(1)),
        };
        let health = Arc::new(WorkerHealth::default());
        let mut workers = Workers::new(Arc::clone(&health));
        let (end, ends) = channel::<()>();
        workers.spawn("gateway", move |_| _ = ends.recv()).unwrap();
        let alive = || Some("WATCHDOG=1".to_owned());
        assert_eq!(fed(&notify, &workers, &socket), alive());
        health.silence("gateway-0", Duration::from_secs(10));
        assert_eq!(fed(&notify, &workers, &socket), alive(), "only stalled");
        health.silence("gateway-0", Duration::from_secs(15));
        assert_eq!(fed(&notify, &workers, &socket), None, "dead");
        health.silence("gateway-0", Duration::ZERO);
        assert_eq!(fed(&notify, &workers, &socket), alive(), "it runs again");
        notify.alive_every = None;
        assert_eq!(fed(&notify, &workers, &socket), None, "nobody wants it");
        notify.alive_every = Some(Duration::from_secs(1));
        drop(end);
        workers.wait_until_one_ends();
        assert_eq!(fed(&notify, &workers, &socket), None, "ended");
        std::fs::remove_file(place).unwrap();
    }
}
