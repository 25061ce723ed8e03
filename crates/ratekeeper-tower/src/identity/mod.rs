//! Client identity: the client's address, from the connection and from trusted proxies.

mod forwarding;
mod hops;
mod node;
mod peer;

pub use forwarding::Forwarding;
pub use peer::{PeerAddr, peer};

use crate::head::find_header;
use forwarding::KNOWN;
use hops::Hops;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use ratekeeper_policy::{address::canonical, request::TrustedPeers};
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// At most this many hops of a forwarding header are read.
const MAX_HOPS: usize = 32;

/// Finds the address of the client: the peer of the connection, unless it is a trusted proxy.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use ratekeeper_tower::Identity;
///
/// let identity = Identity::direct().trust("10.0.0.0/8".parse()?);
/// let mut headers = HeaderMap::new();
/// // The client made up 1.1.1.1; the proxy at 10.0.0.1 appended the address of its peer.
/// headers.insert("x-forwarded-for", HeaderValue::from_static("1.1.1.1, 203.0.113.7"));
///
/// let proxy = "10.0.0.1".parse()?;
/// assert_eq!(identity.client(Some(proxy), &headers).ip(), Some("203.0.113.7".parse()?));
///
/// // The headers of an untrusted peer are ignored.
/// let untrusted = "198.51.100.9".parse()?;
/// assert_eq!(identity.client(Some(untrusted), &headers).ip(), Some(untrusted));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # How a header is read
///
/// If the peer is trusted, the one [chosen header](Identity::header) is walked from the right, its
/// last line first. Trusted addresses are skipped; the first untrusted one is the client. A hop
/// that is not an address (`unknown`, `_hidden`, an empty or malformed one) ends the walk, and the
/// client is the last trusted hop: skipping it would mean trusting the hops to its left, which any
/// client may have written. The walk also ends at the end of the header, after 32 hops, and after 2
/// KiB.
///
/// Trust only the addresses of your own proxies, and only if they append to the header or overwrite
/// it.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    trusted: TrustedPeers,
    header: Forwarding,
    hints: IdentityHints,
    warnings: Arc<WarningState>,
}

/// The advice in an [`Identity`]'s warnings, in the words of the program that configures it.
///
/// The default names the methods of [`Identity`]. A program with a configuration file should name
/// its settings instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityHints {
    /// What to do if the peer that sent a forwarding header is one of your proxies.
    pub untrusted: &'static str,
    /// What to do if requests come without a peer address.
    pub no_peer: &'static str,
}

impl Default for IdentityHints {
    fn default() -> Self {
        Self {
            untrusted: "trust its address with Identity::trust",
            no_peer: "insert ratekeeper_tower::identity::PeerAddr into their extensions, or serve \
                      axum with into_make_service_with_connect_info::<SocketAddr>() and the \
                      feature \"axum\" of ratekeeper-tower; if a proxy sends them over a \
                      Unix socket, trust it with Identity::trust_unix",
        }
    }
}

/// The warnings that were logged, shared by clones: each is logged once.
#[derive(Debug, Default)]
struct WarningState {
    no_peer: AtomicBool,
    /// The number of forwarding headers from untrusted peers.
    untrusted: AtomicU64,
}

/// # Make one
impl Identity {
    /// Takes the peer of the connection as the client; no forwarding header is trusted.
    pub fn direct() -> Self {
        Self::default()
    }

    /// Also trusts proxies in this network. A network of IPv4-mapped addresses
    /// (`::ffff:10.0.0.0/104`) is read as the IPv4 network.
    #[must_use]
    pub fn trust(self, proxies: IpNet) -> Self {
        self.trust_all([proxies])
    }

    /// Also trusts proxies in any of these networks.
    #[must_use]
    pub fn trust_all(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted = self.trusted.networks(proxies);
        self
    }

    /// Also trusts peers without an address: a proxy that connects over a Unix socket. If it names
    /// no client, the client has no address.
    #[must_use]
    pub fn trust_unix(mut self) -> Self {
        self.trusted = self.trusted.unix();
        self
    }

    /// Sets the one forwarding header that is read; `X-Forwarded-For` by default.
    ///
    /// Choose the header that your proxies write. Any other passes through them as the client sent
    /// it.
    #[must_use]
    pub fn header(mut self, header: Forwarding) -> Self {
        self.header = header.canonical();
        self
    }

    /// Sets the advice that warnings give, for programs whose users do not see the code.
    #[must_use]
    pub fn hints(mut self, hints: IdentityHints) -> Self {
        self.hints = hints;
        self
    }
}

/// # Use it
impl Identity {
    /// Finds the client of a request with these headers from this peer.
    pub fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Client {
        let peer = peer.map(canonical);
        // Most requests come from untrusted peers and have no forwarding header.
        if let Some(untrusted) = peer
            && !self.trusted.contains(peer)
        {
            if let Some(header) = self.forwarding_header(headers) {
                self.count_untrusted(untrusted, header);
            }
            return Client {
                ip: peer,
                peer,
                via_proxy: false,
            };
        }
        self.client_via_proxy(peer, headers)
    }

    /// The canonical address of a peer, if no proxy is trusted: then the peer is always the client.
    #[inline(always)]
    pub(crate) fn untrusted_peer(&self, peer: IpAddr) -> Option<IpAddr> {
        self.trusted
            .as_networks()
            .is_empty()
            .then(|| canonical(peer))
    }

    /// Finds the client of a request from a trusted proxy, or from a peer without an address.
    fn client_via_proxy(&self, proxy: Option<IpAddr>, headers: &HeaderMap) -> Client {
        if proxy.is_none() && !self.trusted.has_unix() {
            self.warn_no_peer();
            return Client::unknown();
        }
        let mut last = proxy;
        for hop in Hops::new(&self.header, headers).take(MAX_HOPS) {
            let Some(ip) = node::address(&self.header, hop).map(canonical) else {
                break;
            };
            last = Some(ip);
            if !self.trusted.contains(last) {
                break;
            }
        }
        Client {
            ip: last,
            peer: proxy,
            via_proxy: true,
        }
    }

    /// How many requests with a forwarding header came from untrusted peers, so that the header was
    /// ignored. If these are nearly all requests, the peer is a proxy that should be
    /// [trusted](Identity::trust).
    pub fn untrusted(&self) -> u64 {
        self.warnings.untrusted.load(Ordering::Relaxed)
    }

    /// Whether peers without an address are trusted.
    pub fn trusts_unix(&self) -> bool {
        self.trusted.has_unix()
    }

    /// Whether this address is a trusted proxy.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.contains(Some(ip))
    }

    fn warn_no_peer(&self) {
        if warn_once(&self.warnings.no_peer) {
            tracing::warn!(
                "requests come without the address of their peer and share one bucket: {}",
                self.hints.no_peer
            );
        }
    }

    /// The forwarding header of a request from an untrusted peer, if it has one.
    pub(crate) fn forwarding_header<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderName> {
        find_header(headers.keys(), &KNOWN).or_else(|| match &self.header {
            Forwarding::Header(own) => find_header(headers.keys(), slice::from_ref(own)),
            // Both are among the known headers.
            Forwarding::XForwardedFor | Forwarding::Forwarded => None,
        })
    }

    fn count_untrusted(&self, peer: IpAddr, header: &HeaderName) {
        if self.warnings.untrusted.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                %peer,
                %header,
                "a forwarding header came from a peer that is not a trusted proxy and is ignored: \
                 if that peer is your proxy, {}; otherwise nothing is wrong",
                self.hints.untrusted
            );
        }
    }
}

/// Returns true the first time only.
fn warn_once(warned: &AtomicBool) -> bool {
    !warned.load(Ordering::Relaxed) && !warned.swap(true, Ordering::Relaxed)
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    ip: Option<IpAddr>,
    /// The peer of the connection: the client itself, or its proxy.
    peer: Option<IpAddr>,
    via_proxy: bool,
}

impl Client {
    /// The peer of the connection as the client; headers are ignored.
    pub(crate) fn of_connection(extensions: &http::Extensions) -> Self {
        let peer = peer(extensions).map(canonical);
        Self {
            ip: peer,
            peer,
            via_proxy: false,
        }
    }

    /// A client without an address.
    pub(crate) fn unknown() -> Self {
        Self {
            ip: None,
            peer: None,
            via_proxy: false,
        }
    }

    /// The canonical address: IPv4-mapped and NAT64 addresses are IPv4. IPv6 addresses are
    /// complete, not cut to a prefix.
    ///
    /// `None` if it is unknown. All requests without an address are one client, and none is exempt.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The peer of the connection: the client itself, or its proxy.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Whether the address comes from a trusted proxy.
    pub(crate) fn via_proxy(&self) -> bool {
        self.via_proxy
    }
}
