//! Notifications to systemd: ready, reloading, stopping and the watchdog, one datagram each.
//! Without NOTIFY_SOCKET nothing is sent.
//!
//! No crate is used, because it is one socket and five messages.

use crate::net::workers::Workers;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sender of notifications.
#[derive(Default)]
pub(crate) struct Notify {
    target: Option<(UnixDatagram, SocketAddr)>,
    /// Interval of watchdog notifications, if the watchdog is on.
    pub(crate) watchdog_interval: Option<Duration>,
}

impl Notify {
    /// Reads the socket and the watchdog interval from the environment.
    pub(crate) fn new() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match name
            .to_str()
            .ok_or(io::ErrorKind::InvalidInput.into())
            .and_then(connect)
        {
            Ok(target) => Self {
                target: Some(target),
                watchdog_interval: watchdog_interval(),
            },
            Err(error) => {
                tracing::warn!("cannot use NOTIFY_SOCKET={}: {error}", name.display());
                Self::default()
            }
        }
    }

    /// Reports that the server is ready.
    pub(crate) fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// Reports a reload, until `ready`. systemd uses the time to match the `ready` that follows.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now
            .tv_sec
            .saturating_mul(1_000_000)
            .saturating_add(now.tv_nsec / 1_000);
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports that the server is stopping.
    pub(crate) fn stopping(&self, status: &str) {
        self.notify(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Checks the workers, and notifies the watchdog if it is on and all of them are alive. The
    /// connections of a worker that has ended or is stuck are not served, so it is better that
    /// systemd restarts the process.
    pub(crate) fn notify_watchdog(&self, workers: &Workers) {
        if workers.check() && self.watchdog_interval.is_some() {
            self.notify("WATCHDOG=1");
        }
    }

    fn notify(&self, text: &str) {
        if let Some((socket, address)) = &self.target
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, "cannot notify systemd");
        }
    }
}

/// Creates a socket for a path, or for an abstract name, which begins with `@`.
fn connect(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        None => SocketAddr::from_pathname(name)?,
        Some(name) => abstract_name(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A receiver that does not read must not block the server.
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

/// Half the timeout of the watchdog, if it is on for this process.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_this_process = std::env::var_os("WATCHDOG_PID").is_none()
        || number("WATCHDOG_PID") == Some(std::process::id().into());
    let timeout = number("WATCHDOG_USEC").filter(|micros| is_this_process && *micros > 0)?;
    Some(Duration::from_micros((timeout / 2).max(1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::worker_health::WorkerHealth;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// Returns the notification that the watchdog receives now, or `None`.
    fn watchdog_message(
        notify: &Notify,
        workers: &Workers,
        socket: &UnixDatagram,
    ) -> Option<String> {
        notify.notify_watchdog(workers);
        let mut buffer = [0; 100];
        let read = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
    }

    #[test]
    fn the_watchdog_is_notified_while_all_workers_are_alive() {
        let path = std::env::temp_dir().join(format!("ratekeeper-{}-watchdog", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut notify = Notify {
            target: Some(connect(path.to_str().unwrap()).unwrap()),
            watchdog_interval: Some(Duration::from_secs(1)),
        };
        let health = Arc::new(WorkerHealth::default());
        let mut workers = Workers::new(Arc::clone(&health));
        let (end, ends) = channel::<()>();
        workers.spawn("gateway", move |_| _ = ends.recv()).unwrap();
        let alive = || Some("WATCHDOG=1".to_owned());
        assert_eq!(watchdog_message(&notify, &workers, &socket), alive());
        health.silence("gateway-0", Duration::from_secs(10));
        assert_eq!(
            watchdog_message(&notify, &workers, &socket),
            alive(),
            "only stalled"
        );
        health.silence("gateway-0", Duration::from_secs(15));
        assert_eq!(watchdog_message(&notify, &workers, &socket), None, "dead");
        health.silence("gateway-0", Duration::ZERO);
        assert_eq!(
            watchdog_message(&notify, &workers, &socket),
            alive(),
            "it runs again"
        );
        notify.watchdog_interval = None;
        assert_eq!(
            watchdog_message(&notify, &workers, &socket),
            None,
            "the watchdog is off"
        );
        notify.watchdog_interval = Some(Duration::from_secs(1));
        drop(end);
        workers.wait_until_one_ends();
        assert_eq!(watchdog_message(&notify, &workers, &socket), None, "ended");
        std::fs::remove_file(path).unwrap();
    }
}
