//! The peer address of a connection, as servers provide it.

use http::Extensions;
use std::net::{IpAddr, SocketAddr};

/// The peer address of the connection: a request extension that a server inserts.
///
/// ```
/// use ratekeeper_tower::identity::PeerAddr;
///
/// # let stream_peer = "203.0.113.7:4711".parse()?;
/// # let mut request = http::Request::new(());
/// // In the loop that accepts connections: let (stream, stream_peer) = listener.accept().await?;
/// request.extensions_mut().insert(PeerAddr(stream_peer));
/// assert_eq!(ratekeeper_tower::identity::peer(request.extensions()), Some(stream_peer.ip()));
/// # Ok::<_, std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(
    /// Address and port of the socket.
    pub SocketAddr,
);

/// The peer address of a request: [`PeerAddr`], else with the feature `axum` its
/// `ConnectInfo<SocketAddr>`, else with the feature `tonic` its `TcpConnectInfo`, which tonic's own
/// server inserts.
pub fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let own = extensions.get::<PeerAddr>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let own = own.or_else(|| {
        extensions
            .get::<axum::extract::ConnectInfo<SocketAddr>>()
            .map(|info| info.0)
    });
    #[cfg(feature = "tonic")]
    let own = own.or_else(|| {
        extensions
            .get::<tonic::transport::server::TcpConnectInfo>()?
            .remote_addr()
    });
    own.map(|peer| peer.ip())
}
