//! Who is calling: the client's address, from the connection and from the proxies that are trusted
//! to tell it.

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

/// How many hops of a header are read at most.
const MAX_HOPS: usize = 32;

/// Who is believed about the client's address: nobody but the connection, unless proxies are
/// trusted.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use ratekeeper_tower::Identity;
///
/// let identity = Identity::direct().trust("10.0.0.0/8".parse()?);
/// let mut headers = HeaderMap::new();
/// // The client made up 1.1.1.1; the proxy at 10.0.0.1 wrote down who called it.
/// headers.insert("x-forwarded-for", HeaderValue::from_static("1.1.1.1, 203.0.113.7"));
///
/// let proxy = "10.0.0.1".parse()?;
/// assert_eq!(identity.client(Some(proxy), &headers).ip(), Some("203.0.113.7".parse()?));
///
/// // Who is not a trusted proxy speaks for itself only.
/// let stranger = "198.51.100.9".parse()?;
/// assert_eq!(identity.client(Some(stranger), &headers).ip(), Some(stranger));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # How a header is read
///
/// If the peer is trusted, and only then, the one [chosen header](Identity::header) is walked from
/// the right, its last line first. A trusted address is passed; the first that is not is the
/// client. Whatever is no address (`unknown`, `_hidden`, an empty place, garbage) ends the walk,
/// and the client is the last trusted hop: to skip it would be to believe what stands left of it,
/// which anybody may have written. So does the end of the header, 32 hops, or 2 KiB.
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

/// What the warnings of an [`Identity`] advise, in the words of whoever configures it.
///
/// The default names the methods of [`Identity`]. A program that has a configuration file names its
/// settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityHints {
    /// What to do if the peer that sent a forwarding header is a proxy of one's own.
    pub untrusted: &'static str,
    /// What to do if requests come without the address of their peer.
    pub no_peer: &'static str,
}

impl Default for IdentityHints {
    fn default() -> Self {
        Self {
            untrusted: "trust its address with Identity::trust",
            no_peer: "insert ratekeeper_tower::identity::PeerAddr into their extensions, or serve axum with \
                      into_make_service_with_connect_info::<SocketAddr>() and the feature \"axum\" of ratekeeper-tower; \
                      if a proxy sends them over a Unix socket, trust it with Identity::trust_unix",
        }
    }
}

/// What this identity or a clone of it has warnings; it warns of each once.
#[derive(Debug, Default)]
struct WarningState {
    no_peer: AtomicBool,
    /// Forwarding headers from peers that are not trusted.
    untrusted: AtomicU64,
}

/// # Make one
impl Identity {
    /// The client is who is connected; no header is believed.
    pub fn direct() -> Self {
        Self::default()
    }

    /// Also believes a proxy in this network. One of IPv4 in IPv6 (`::ffff:10.0.0.0/104`) is that
    /// of IPv4.
    #[must_use]
    pub fn trust(self, proxies: IpNet) -> Self {
        self.trust_all([proxies])
    }

    /// Also believes proxies in any of these networks.
    #[must_use]
    pub fn trust_all(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted = self.trusted.networks(proxies);
        self
    }

    /// Also believes peers that have no address: a proxy that comes over a Unix socket. Whom it
    /// does not name has none.
    #[must_use]
    pub fn trust_unix(mut self) -> Self {
        self.trusted = self.trusted.unix();
        self
    }

    /// The one header that is read, `X-Forwarded-For` unless said otherwise.
    ///
    /// Choose the one that your proxies write: any other passes through them as the client sent it.
    #[must_use]
    pub fn header(mut self, header: Forwarding) -> Self {
        self.header = header.canonical();
        self
    }

    /// What warnings advise, where the reader of the log does not see the code.
    #[must_use]
    pub fn hints(mut self, hints: IdentityHints) -> Self {
        self.hints = hints;
        self
    }
}

/// # Use it
impl Identity {
    /// Who sent a request with these headers over a connection from this peer.
    #[inline]
    pub fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Client {
        let peer = peer.map(canonical);
        // Most come from strangers, and say nothing of others.
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

    /// The address of a peer, where no proxy is trusted: whoever is connected speaks for itself.
    #[inline(always)]
    pub(crate) fn untrusted_peer(&self, peer: IpAddr) -> Option<IpAddr> {
        self.trusted
            .as_networks()
            .is_empty()
            .then(|| canonical(peer))
    }

    /// Who sent a request that comes from a proxy, or from nobody knows where.
    #[inline(never)]
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

    /// How many requests came with a forwarding header from a peer that is not trusted, whose word
    /// was ignored. If that is nearly all of them, the peer is a proxy that should be
    /// [trusted](Identity::trust).
    pub fn untrusted(&self) -> u64 {
        self.warnings.untrusted.load(Ordering::Relaxed)
    }

    /// Whether a peer that has no address is believed.
    pub fn trusts_unix(&self) -> bool {
        self.trusted.has_unix()
    }

    /// Whether that is a proxy whose word is believed.
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

    /// The forwarding header of who is not asked for one.
    #[inline]
    pub(crate) fn forwarding_header<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderName> {
        find_header(headers.keys(), &KNOWN).or_else(|| match &self.header {
            Forwarding::Header(own) => find_header(headers.keys(), slice::from_ref(own)),
            // They are among the known.
            Forwarding::XForwardedFor | Forwarding::Forwarded => None,
        })
    }

    #[inline(never)]
    fn count_untrusted(&self, peer: IpAddr, header: &HeaderName) {
        if self.warnings.untrusted.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                %peer,
                %header,
                "a forwarding header came from a peer that is not a trusted proxy and is ignored: if that peer is your \
                 proxy, {}; otherwise nothing is wrong",
                self.hints.untrusted
            );
        }
    }
}

/// Whether nobody was here before.
fn warn_once(warned: &AtomicBool) -> bool {
    !warned.load(Ordering::Relaxed) && !warned.swap(true, Ordering::Relaxed)
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    ip: Option<IpAddr>,
    /// Who is connected: the client, or the proxy that speaks for it.
    peer: Option<IpAddr>,
    via_proxy: bool,
}

impl Client {
    /// The client that is connected, whatever it says of others.
    pub(crate) fn of_connection(extensions: &http::Extensions) -> Self {
        let peer = peer(extensions).map(canonical);
        Self {
            ip: peer,
            peer,
            via_proxy: false,
        }
    }

    /// Nobody was asked.
    pub(crate) fn unknown() -> Self {
        Self {
            ip: None,
            peer: None,
            via_proxy: false,
        }
    }

    /// The address, in its one form: IPv4 in IPv6, mapped or by NAT64, is IPv4. IPv6 is whole, not
    /// cut to a prefix.
    ///
    /// `None` if the connection has none: all such requests are one client, and none of them is
    /// exempt.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The address of the connection's other end: the client's own, or that of a proxy.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Whether a trusted proxy speaks for it.
    pub(crate) fn via_proxy(&self) -> bool {
        self.via_proxy
    }
}
