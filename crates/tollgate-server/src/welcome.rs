//! What is printed at the start: where it listens, what applies, and three lines to try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tollgate_policy::{Policies, config};

/// Where it listens.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) resp: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
}

/// The text for a server that listens there. The lines run as they are in any shell with curl.
pub(crate) fn welcome(listeners: &Listeners, gateway: Option<&config::Gateway>, policies: &Policies) -> String {
    let Listeners { http, grpc, resp, admin } = *listeners;
    let version = env!("CARGO_PKG_VERSION");
    let mut text = match http {
        Some(http) if gateway.is_some_and(|gateway| gateway.tls.is_some()) => {
            format!("tollgate {version} is a gateway on https://{http}\n")
        }
        Some(http) if gateway.is_some() => format!("tollgate {version} is a gateway on http://{http}\n"),
        Some(http) => format!("tollgate {version} serves HTTP on http://{http}\n"),
        None => format!("tollgate {version} serves no HTTP\n"),
    };
    if let Some(grpc) = grpc {
        text.push_str(&format!("Envoy's rate limit service: grpc://{grpc}\n"));
    }
    if let Some(resp) = resp {
        let (at, port) = (reachable(resp), resp.port());
        text.push_str(&format!("RESP: {resp}, as in redis-cli -h {} -p {port} CL.THROTTLE you 15 30 60\n", at.ip()));
    }
    if let Some(admin) = admin {
        text.push_str(&format!("Metrics: http://{}/metrics\n", reachable(admin)));
    }
    let names: Vec<&str> = policies.iter().map(|policy| policy.name()).collect();
    let applies = match policies.is_enabled() {
        true if policies.iter().eq(Policies::built_in().iter()) => {
            "100 a minute for each address, 20 at once (no policies are configured)".to_owned()
        }
        true => names.join(", "),
        false => "switched off, everything passes".to_owned(),
    };
    text.push_str(&format!("Policies: {applies}\n"));
    if let Some(gateway) = gateway {
        let upstreams: Vec<String> = gateway.upstreams.iter().map(ToString::to_string).collect();
        text.push_str(&format!("Upstream: {}\n", upstreams.join(", ")));
    } else if let Some(http) = http {
        let url = format!("http://{}", reachable(http));
        let subject = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;
        text.push_str(&format!(
            r#"
Three lines to try: a request by the policies, thirty at once, and a limit of your own.
  curl -s {url}/v1/check -d '{subject}'
  for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/v1/check -d '{subject}'; done; echo
  curl -s {url}/v1/throttle -d '{{"key":"you","limit":"5/min"}}'
"#
        ));
    }
    text
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
    fn limits_that_are_off_are_said_to_be() {
        let off = Policies::built_in().enabled(false);
        assert!(welcome(&Listeners::default(), None, &off).ends_with("Policies: switched off, everything passes\n"));
    }

    #[test]
    fn a_server_on_every_address_is_tried_on_loopback() {
        for (address, url) in [
            ("0.0.0.0:80", " http://127.0.0.1:80/v1/"),
            ("[::]:81", " http://[::1]:81/v1/"),
            ("192.0.2.1:82", " http://192.0.2.1:82/v1/"),
        ] {
            let text = welcome(
                &Listeners { http: Some(address.parse().unwrap()), ..Listeners::default() },
                None,
                &Policies::built_in(),
            );
            assert!(text.contains(&format!("serves HTTP on http://{address}\n")), "{text}");
            assert_eq!(text.matches(url).count(), 3, "{text}");
        }
    }
}
