//! Client addresses in canonical form.

use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, Ipv6Addr};

/// The default prefix length in bits that identifies an IPv6 client: what a household or a customer
/// is assigned.
pub const IPV6_PREFIX: u8 = 56;

/// Converts an IPv4 address in IPv6 form, mapped or by NAT64, to IPv4.
#[inline]
pub fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => canonical_v6(ip),
    }
}

// Not inlined, so that the fast path above is.
#[inline(never)]
fn canonical_v6(ip: Ipv6Addr) -> IpAddr {
    let [.., a, b, c, d] = ip.octets();
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
            IpAddr::from([a, b, c, d])
        }
        _ => ip.into(),
    }
}

/// Converts a network of IPv4 addresses in IPv6 form to IPv4.
pub fn canonical_network(network: IpNet) -> IpNet {
    match (
        canonical(network.network()),
        network.prefix_len().checked_sub(96),
    ) {
        (IpAddr::V4(v4), Some(prefix)) if matches!(network, IpNet::V6(_)) => {
            Ipv4Net::new(v4, prefix).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

/// The part of an address that identifies a client: all of an IPv4 address, the prefix of an IPv6
/// one.
pub fn client(ip: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(ipv6_prefix.min(128)))
                .unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_has_one_form() {
        for text in ["1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::1.2.3.4"] {
            assert_eq!(
                canonical(text.parse().unwrap()).to_string(),
                "1.2.3.4",
                "{text}"
            );
        }
        for text in ["::1", "64:ff9b:1::1", "2001:db8::ffff:102:304"] {
            assert_eq!(canonical(text.parse().unwrap()).to_string(), text);
        }
    }

    #[test]
    fn networks_of_ipv4_have_one_form() {
        for (text, form) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("64:ff9b::10.1.0.0/112", "10.1.0.0/16"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(canonical_network(text.parse().unwrap()).to_string(), form);
        }
    }

    #[test]
    fn an_ipv6_prefix_is_one_client() {
        let masked = |prefix| client("2001:db8:1:23ff::9".parse().unwrap(), prefix).to_string();
        assert_eq!(masked(56), "2001:db8:1:2300::");
        assert_eq!(masked(128), "2001:db8:1:23ff::9");
        assert_eq!(masked(32), "2001:db8::");
        assert_eq!(masked(0), "::");
        assert_eq!(
            client("1.2.3.4".parse().unwrap(), 56).to_string(),
            "1.2.3.4"
        );
    }
}
