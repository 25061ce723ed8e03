//! State of a client's connection: its address, its activity, its deadlines.

use super::abandoned::AbandonedExchanges;
use super::forwarded_headers::ForwardedHeaders;
use super::informational::InformationalQueue;
use crate::gateway::address_limit::AddressSlot;
use crate::gateway::drain::{Drain, Stage};
use axum::http::HeaderValue;
use ratekeeper::{Clock, Timestamp, clock::CoarseClock};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// The name of a client without an address in forwarding headers.
const UNKNOWN: &str = "unknown";

/// The origin of all times in this module.
static START: LazyLock<Timestamp> = LazyLock::new(|| CoarseClock.now());

/// Milliseconds since the process began, never 0. Accurate to a tick of the kernel, which is enough
/// for timeouts; every request reads it.
pub(crate) fn now() -> u64 {
    let start = *START;
    u64::try_from(CoarseClock.now().saturating_since(start).as_millis())
        .unwrap_or(u64::MAX)
        .saturating_add(1)
}

/// The permits of a connection, from accept until its last handle is dropped.
pub(crate) struct Admission {
    /// Counts towards `max_connections`.
    pub(crate) _permit: OwnedSemaphorePermit,
    /// Counts towards the limit of its address, if there is one.
    pub(crate) _address: Option<AddressSlot>,
    pub(crate) drain: Arc<Drain>,
}

/// The state of one client connection, shared by its requests.
pub(crate) struct Client {
    /// `None` on a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
    /// Whether its forwarding headers are trusted.
    pub(crate) trusted: bool,
    pub(crate) tls: bool,
    /// Its address as in X-Forwarded-For.
    pub(crate) forwarded_for: HeaderValue,
    /// Its address as in Forwarded.
    pub(crate) forwarded_node: String,
    /// The cached forwarding headers for upstreams.
    pub(crate) forwarded_headers: ForwardedHeaders,
    /// Informational responses that wait to be sent, over HTTP/1.
    pub(crate) informational: InformationalQueue,
    /// The exchanges that it has abandoned.
    pub(crate) abandoned: AbandonedExchanges,
    /// Its connection permits, and the stages of stopping. `None` in tests.
    admission: Option<Admission>,
    /// Whether the connection has switched to another protocol, whose activity is unknown here.
    pub(crate) tunnel: AtomicBool,
    /// Whether requests share the connection, as in HTTP/2: an unfinished head blocks all of them.
    pub(crate) is_shared: AtomicBool,
    /// Whether a head has begun and not ended.
    in_head: AtomicBool,
    /// How many requests have begun, and how many are in flight.
    pub(super) requests: AtomicU64,
    in_flight: AtomicUsize,
    /// When the last one ended.
    idle_since: AtomicU64,
    /// When the head that is being sent began.
    head_since: AtomicU64,
    /// When the client stopped taking what is written to it; 0 if it takes data.
    blocked_since: AtomicU64,
}

/// A request that is in flight until this is dropped.
pub(crate) struct InFlightRequest(Arc<Client>);

impl InFlightRequest {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        client.requests.fetch_add(1, Relaxed);
        client.in_flight.fetch_add(1, Relaxed);
        Self(Arc::clone(client))
    }
}

impl InFlightRequest {
    /// The client that sent the request.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.0
    }

    /// Whether the response must announce the end of the connection.
    pub(crate) fn is_last(&self) -> bool {
        self.0
            .admission
            .as_ref()
            .is_some_and(|admission| admission.drain.stage() != Stage::Serving)
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Relaxed) == 1 {
            self.0.idle_since.store(now(), Relaxed);
        }
    }
}

/// The timeouts of a client connection.
#[derive(Clone, Copy)]
pub(crate) struct ClientTimeouts {
    pub(crate) head: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) idle: Duration,
}

impl Client {
    pub(crate) fn new(
        peer: Option<SocketAddr>,
        trusted: bool,
        tls: bool,
        admission: Option<Admission>,
    ) -> Self {
        let ip = peer.map(|peer| ratekeeper_policy::address::canonical(peer.ip()));
        let forwarded_node = match ip {
            Some(ip) if ip.is_ipv6() => format!("\"[{ip}]\""),
            Some(ip) => ip.to_string(),
            None => UNKNOWN.to_owned(),
        };
        // The text of an address is a valid header value.
        let forwarded_for = ip.and_then(|ip| HeaderValue::try_from(ip.to_string()).ok());
        let forwarded_for = forwarded_for.unwrap_or(HeaderValue::from_static(UNKNOWN));
        let now = now();
        Self {
            peer,
            trusted,
            tls,
            forwarded_for,
            forwarded_node,
            forwarded_headers: ForwardedHeaders::default(),
            informational: InformationalQueue::default(),
            abandoned: AbandonedExchanges::default(),
            admission,
            tunnel: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            in_head: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now),
            head_since: AtomicU64::new(now),
            blocked_since: AtomicU64::new(0),
        }
    }

    /// Sets how long exchanges with upstreams are kept after the client has left.
    pub(crate) fn abandoned_timeout(self, timeout: Duration) -> Self {
        Self {
            abandoned: AbandonedExchanges::new(timeout),
            ..self
        }
    }

    /// The stages of stopping the gateway; `None` in tests.
    pub(crate) fn drain(&self) -> Option<&Drain> {
        self.admission.as_ref().map(|admission| &*admission.drain)
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// Records a read, and whether it leaves a head unfinished.
    pub(crate) fn on_read(&self, in_head: bool) {
        if in_head != self.in_head.load(Relaxed) {
            if in_head {
                self.head_since.store(now(), Relaxed);
            }
            self.in_head.store(in_head, Relaxed);
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Records whether the client took any of what was written to it.
    pub(crate) fn on_write(&self, some: bool) {
        if self.is_blocked() == some {
            self.blocked_since
                .store(if some { 0 } else { now() }, Relaxed);
        }
    }

    /// Whether the client takes nothing of what is written to it.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_since.load(Relaxed) != 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Relaxed) == 0 && !self.in_head.load(Relaxed)
    }

    /// When the last request in flight ended.
    pub(crate) fn idle_since(&self) -> u64 {
        self.idle_since.load(Relaxed)
    }

    /// When the connection is cut off if nothing changes, or `None` if other timeouts apply.
    pub(crate) fn deadline(&self, timeouts: &ClientTimeouts) -> Option<u64> {
        let after = |since: u64, time: Duration| {
            since.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        };
        match self.blocked_since.load(Relaxed) {
            0 => {}
            since => return Some(after(since, timeouts.idle)),
        }
        if self.tunnel.load(Relaxed) {
            return None;
        }
        match (self.in_flight.load(Relaxed), self.in_head.load(Relaxed)) {
            (_, true) if self.is_shared.load(Relaxed) => {
                Some(after(self.head_since.load(Relaxed), timeouts.head))
            }
            // With pipelining the next head may have begun long before the previous response.
            (0, true) => Some(after(
                self.head_since.load(Relaxed).max(self.idle_since()),
                timeouts.head,
            )),
            (0, false) => Some(after(self.idle_since.load(Relaxed), timeouts.keep_alive)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipelined_head_has_its_full_timeout_after_the_response() {
        let timeouts = ClientTimeouts {
            head: Duration::from_millis(100),
            keep_alive: Duration::from_secs(60),
            idle: Duration::from_secs(60),
        };
        let client = Arc::new(Client::new(None, false, false, None));
        let request = InFlightRequest::new(&client);
        client.on_read(true);
        client.head_since.store(1, Relaxed);
        assert_eq!(
            client.deadline(&timeouts),
            None,
            "no deadline while another request is in flight"
        );
        drop(request);
        client.idle_since.store(5_000, Relaxed);
        assert_eq!(client.deadline(&timeouts), Some(5_100));

        client.head_since.store(6_000, Relaxed);
        assert_eq!(
            client.deadline(&timeouts),
            Some(6_100),
            "a head that begins later is timed from its first byte"
        );
    }
}
