//! Client identity: attacks, real proxy chains, a reference implementation, allocations.

mod allocations;
mod chains;
mod last_hop;
mod peers;
mod reference;

use http::{HeaderMap, HeaderName, HeaderValue};
use ratekeeper_tower::{Identity, identity::Forwarding};
use std::net::IpAddr;

/// An identity that trusts these networks and reads this header.
fn trusting(header: &str, networks: &[&str]) -> Identity {
    let networks = networks.iter().map(|network| network.parse().unwrap());
    Identity::direct()
        .trust_all(networks)
        .header(Forwarding::named(header).unwrap())
}

/// Headers of these lines, in order.
fn lines<'a>(lines: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
