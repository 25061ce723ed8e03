//! The peer address, from each server's extension.

use super::ip;
use http::{Extensions, HeaderMap};
use ratekeeper_tower::{Identity, identity::PeerAddr, identity::peer};
use std::net::SocketAddr;

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn the_peer_is_an_extension() {
    let mut extensions = Extensions::new();
    assert_eq!(peer(&extensions), None);
    extensions.insert(PeerAddr(socket("[2001:db8::7]:80")));
    assert_eq!(peer(&extensions), Some(ip("2001:db8::7")));
}

#[cfg(feature = "axum")]
#[test]
fn axums_connect_info_is_used_and_peer_addr_goes_first() {
    let mut extensions = Extensions::new();
    extensions.insert(axum::extract::ConnectInfo(socket("203.0.113.7:80")));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.7")));
    extensions.insert(PeerAddr(socket("203.0.113.8:80")));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.8")));
}

#[cfg(feature = "tonic")]
#[test]
fn tonics_connect_info_is_used() {
    let mut extensions = Extensions::new();
    let tcp_connect_info = |remote_addr| tonic::transport::server::TcpConnectInfo {
        local_addr: None,
        remote_addr,
    };
    extensions.insert(tcp_connect_info(None));
    assert_eq!(peer(&extensions), None);
    extensions.insert(tcp_connect_info(Some(socket("203.0.113.7:80"))));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.7")));
}

/// On a Unix socket peers have no address: a trusted one names the client.
#[test]
fn a_proxy_on_a_unix_socket_is_believed_if_it_is_trusted() {
    let headers = HeaderMap::from_iter([(
        "x-forwarded-for".parse().unwrap(),
        "6.6.6.6, 203.0.113.7".parse().unwrap(),
    )]);
    let unix = Identity::direct().trust_unix();
    assert_eq!(
        unix.client(None, &headers).ip(),
        Some("203.0.113.7".parse().unwrap())
    );
    assert_eq!(
        unix.client(None, &HeaderMap::new()).ip(),
        None,
        "without a forwarded client there is no address"
    );
    assert_eq!(Identity::direct().client(None, &headers).ip(), None);
    let behind = Identity::direct()
        .trust_unix()
        .trust("203.0.113.7".parse::<std::net::IpAddr>().unwrap().into());
    assert_eq!(
        behind.client(None, &headers).ip(),
        Some("6.6.6.6".parse().unwrap())
    );
    // A peer with an address is not on a Unix socket.
    let untrusted = "198.51.100.9".parse().unwrap();
    assert_eq!(unix.client(Some(untrusted), &headers).ip(), Some(untrusted));
}

#[test]
fn forwarding_headers_of_untrusted_peers_are_counted_by_an_identity_and_its_clones() {
    let headers =
        HeaderMap::from_iter([("x-real-ip".parse().unwrap(), "6.6.6.6".parse().unwrap())]);
    let identity = Identity::direct();
    let clone = identity.clone().trust("10.0.0.0/8".parse().unwrap());
    for peer in ["198.51.100.9", "10.0.0.1", "198.51.100.9"] {
        clone.client(Some(peer.parse().unwrap()), &headers);
    }
    clone.client(Some("198.51.100.9".parse().unwrap()), &HeaderMap::new());
    assert_eq!(identity.untrusted(), 2);
}
