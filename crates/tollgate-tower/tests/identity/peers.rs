//! The peer, as servers tell it.

use super::ip;
use http::Extensions;
use std::net::SocketAddr;
use tollgate_tower::{PeerAddr, peer};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_server_tells_by_an_extension() {
    let mut extensions = Extensions::new();
    assert_eq!(peer(&extensions), None);
    extensions.insert(PeerAddr(socket("[2001:db8::7]:80")));
    assert_eq!(peer(&extensions), Some(ip("2001:db8::7")));
}

#[cfg(feature = "axum")]
#[test]
fn axum_tells_by_its_own_and_ours_goes_first() {
    let mut extensions = Extensions::new();
    extensions.insert(axum::extract::ConnectInfo(socket("203.0.113.7:80")));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.7")));
    extensions.insert(PeerAddr(socket("203.0.113.8:80")));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.8")));
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_tells_by_its_own() {
    let mut extensions = Extensions::new();
    let told = |remote_addr| tonic::transport::server::TcpConnectInfo { local_addr: None, remote_addr };
    extensions.insert(told(None));
    assert_eq!(peer(&extensions), None);
    extensions.insert(told(Some(socket("203.0.113.7:80"))));
    assert_eq!(peer(&extensions), Some(ip("203.0.113.7")));
}
