//! Free ports for servers and proxies.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Listens on a free port of 127.0.0.1. It is below those that the kernel assigns to clients (32768
/// and up on Linux), so that no connection takes it while a server is down, and none can connect to
/// itself.
pub(crate) fn listen() -> (TcpListener, u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test binaries run concurrently: each starts at another port.
    let begin = std::process::id().wrapping_mul(7919) % u32::from(PORTS);
    for _ in 0..PORTS {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % u32::from(PORTS);
        let port = FIRST + ((begin + step) % u32::from(PORTS)) as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return (listener, port);
        }
    }
    panic!("no port from {FIRST} to {} is free", FIRST + PORTS - 1);
}

/// A port of 127.0.0.1 that was free a moment ago, for a program that takes its port as an
/// argument.
pub fn free_port() -> u16 {
    listen().1
}
