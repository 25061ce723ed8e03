//! Trusted peers: networks, and Unix sockets.

use crate::address::{canonical, canonical_network};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::IpAddr;

/// A set of trusted peers: networks, and peers over a Unix socket, which have no address.
///
/// ```
/// use ratekeeper_policy::request::TrustedPeers;
///
/// let peers = TrustedPeers::none().network("10.0.0.0/8".parse()?);
/// assert!(peers.contains(Some("10.1.2.3".parse()?)));
/// assert!(!peers.contains(Some("203.0.113.7".parse()?)));
/// assert!(!peers.contains(None));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustedPeers {
    networks: Vec<IpNet>,
    unix: bool,
}

impl TrustedPeers {
    /// An empty set.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every peer: for listeners that only trusted programs can reach.
    pub fn everyone() -> Self {
        Self {
            networks: vec![Ipv4Net::default().into(), Ipv6Net::default().into()],
            unix: true,
        }
    }

    /// Adds a network. One of IPv4 in IPv6 (`::ffff:10.0.0.0/104`) is that of IPv4.
    #[must_use]
    pub fn network(self, network: IpNet) -> Self {
        self.networks([network])
    }

    /// Adds networks.
    #[must_use]
    pub fn networks(mut self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        self.networks
            .extend(networks.into_iter().map(canonical_network));
        self
    }

    /// Adds the peers that have no address: those on a Unix socket.
    #[must_use]
    pub fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Whether a peer is in the set; `None` is a peer without an address.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer.map(canonical) {
            Some(ip) => self.networks.iter().any(|network| network.contains(&ip)),
            None => self.unix,
        }
    }

    /// Whether no peer is in the set.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// The networks of the set, as they were added.
    pub fn as_networks(&self) -> &[IpNet] {
        &self.networks
    }

    /// Whether peers without an address are in the set.
    pub fn has_unix(&self) -> bool {
        self.unix
    }
}

impl From<IpNet> for TrustedPeers {
    fn from(network: IpNet) -> Self {
        Self::none().network(network)
    }
}

impl FromIterator<IpNet> for TrustedPeers {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self::none().networks(networks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_match_in_any_address_form_and_unix_is_separate() {
        let peers = TrustedPeers::from("10.0.0.0/8".parse::<IpNet>().unwrap());
        for ip in ["10.9.9.9", "::ffff:10.9.9.9", "64:ff9b::10.9.9.9"] {
            assert!(peers.contains(Some(ip.parse().unwrap())), "{ip}");
        }
        for ip in ["11.0.0.1", "::1", "::10.0.0.1"] {
            assert!(!peers.contains(Some(ip.parse().unwrap())), "{ip}");
        }
        assert!(!peers.contains(None) && peers.clone().unix().contains(None));
        assert!(TrustedPeers::none().is_empty() && !TrustedPeers::none().unix().is_empty());
        for peer in [None, Some("10.0.0.1"), Some("::1"), Some("::ffff:10.0.0.1")] {
            assert!(
                TrustedPeers::everyone().contains(peer.map(|ip| ip.parse().unwrap())),
                "{peer:?}"
            );
        }
        assert!(
            !TrustedPeers::none().contains(None)
                && !TrustedPeers::none().contains(Some([127, 0, 0, 1].into()))
        );
    }
}
