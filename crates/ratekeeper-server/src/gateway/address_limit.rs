//! Limit on open connections per client address, so that one address cannot use up all connections.

use super::client::now;
use ratekeeper_policy::{address::canonical, address::client};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interval between two log lines about rejected connections, in milliseconds.
const LOG_INTERVAL_MS: u64 = 60_000;

/// Counts the open connections of each address.
pub(crate) struct AddressLimit {
    max_connections: NonZero<usize>,
    /// The prefix length by which IPv6 addresses are grouped.
    ipv6_prefix: u8,
    open: Mutex<HashMap<IpAddr, usize>>,
    refused: AtomicU64,
    /// When a rejection was logged last; 0 for never.
    logged: AtomicU64,
}

/// A connection counted for its address until this is dropped.
pub(crate) struct AddressSlot {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    pub(crate) fn new(max_connections: NonZero<usize>, ipv6_prefix: u8) -> Self {
        Self {
            max_connections,
            ipv6_prefix,
            open: Mutex::default(),
            refused: AtomicU64::new(0),
            logged: AtomicU64::new(0),
        }
    }

    /// Admits a connection from this address, or `None` if the address has reached its maximum.
    pub(crate) fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<AddressSlot> {
        let address = client(canonical(ip), self.ipv6_prefix);
        let mut open = self.lock();
        let connections = open.entry(address).or_default();
        if *connections < self.max_connections.get() {
            *connections += 1;
            return Some(AddressSlot {
                limit: Arc::clone(self),
                address,
            });
        }
        drop(open);
        self.refuse();
        None
    }

    #[cold]
    fn refuse(&self) {
        let (refused, now) = (self.refused.fetch_add(1, Relaxed) + 1, now());
        let last = self.logged.load(Relaxed);
        let is_due = last == 0 || now.saturating_sub(last) >= LOG_INTERVAL_MS;
        if is_due
            && self
                .logged
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok()
        {
            let max = self.max_connections;
            tracing::warn!(
                "{refused} connections refused so far: their address had {max} open already; raise \
                 max_connections_per_address under [gateway], or add the address to trusted_proxies if it is your proxy"
            );
        }
    }

    /// The number of rejected connections.
    pub(crate) fn rejected(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.limit.lock();
        if let Entry::Occupied(mut connections) = open.entry(self.address) {
            *connections.get_mut() -= 1;
            // Addresses without a connection take no memory.
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(max: usize) -> Arc<AddressLimit> {
        Arc::new(AddressLimit::new(NonZero::new(max).unwrap(), 56))
    }

    #[test]
    fn the_limit_holds_per_address() {
        let limit = limit(2);
        let admit = |text: &str| limit.admit(text.parse().unwrap());
        let (first, _second) = (admit("192.0.2.1"), admit("::ffff:192.0.2.1"));
        assert!(first.is_some() && admit("192.0.2.1").is_none());
        let _other = admit("192.0.2.2").expect("another address");
        drop(first);
        assert!(admit("192.0.2.1").is_some());
        assert_eq!(limit.rejected(), 1);
    }

    #[test]
    fn ipv6_addresses_are_grouped_by_prefix() {
        let limit = limit(1);
        let admit = |text: &str| limit.admit(text.parse().unwrap());
        let _first = admit("2001:db8:0:1::1").expect("the first");
        assert!(admit("2001:db8:0:2::9").is_none(), "in the same /56");
        assert!(admit("2001:db8:1::1").is_some());
    }

    #[test]
    fn an_address_without_a_connection_is_removed() {
        let limit = limit(3);
        let slots: Vec<_> = (0..100u8)
            .map(|last| limit.admit([192, 0, 2, last].into()))
            .collect();
        assert_eq!(limit.lock().len(), 100);
        drop(slots);
        assert_eq!(limit.lock().len(), 0);
    }
}
