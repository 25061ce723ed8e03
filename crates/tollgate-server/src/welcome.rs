//! What is printed at the start: where it listens, and three lines to try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The text for a server that listens on `address`. The lines run as they are in any shell with curl.
pub(crate) fn welcome(address: SocketAddr) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let url = format!("http://{}/v1/throttle", reachable(address));
    format!(
        r#"tollgate {version} serves HTTP on http://{address}

Three lines to try: a first call, six more at once, and where that leaves you.
  curl -s {url} -d '{{"key":"you","limit":"5/min"}}'
  for i in 1 2 3 4 5 6; do curl -s {url} -d '{{"key":"you","limit":"5/min"}}'; done
  curl -si {url} -d '{{"key":"you","limit":"5/min","peek":true}}'
"#
    )
}

/// Where a client on this machine finds a server that listens on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_tried_on_loopback() {
        for (address, url) in [
            ("0.0.0.0:80", " http://127.0.0.1:80/v1/throttle "),
            ("[::]:81", " http://[::1]:81/v1/throttle "),
            ("192.0.2.1:82", " http://192.0.2.1:82/v1/throttle "),
        ] {
            let text = welcome(address.parse().unwrap());
            assert!(text.contains(&format!("serves HTTP on http://{address}\n")), "{text}");
            assert_eq!(text.matches(url).count(), 3, "{text}");
        }
    }
}
