//! The state of all hosts, in bounded memory.

use super::host::Host;
use ratekeeper::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At most this many hosts are remembered; idle ones are evicted first.
const MAX_HOSTS: usize = 1_024;

#[derive(Default)]
pub(super) struct Hosts(Mutex<HashMap<Box<str>, Arc<SharedHost>>>);

pub(super) struct SharedHost(Mutex<Host>);

impl SharedHost {
    pub(super) fn lock(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hosts {
    pub(super) fn of(
        &self,
        name: &str,
        now: Timestamp,
        new: impl FnOnce() -> Host,
    ) -> Arc<SharedHost> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hosts.get(name) {
            return Arc::clone(known);
        }
        if hosts.len() >= MAX_HOSTS {
            hosts.retain(|_, cell| Arc::strong_count(cell) > 1 || !cell.lock().is_idle(now));
        }
        if hosts.len() >= MAX_HOSTS
            && let Some(any) = hosts.keys().next().cloned()
        {
            hosts.remove(&any);
        }
        let cell = Arc::new(SharedHost(Mutex::new(new())));
        hosts.insert(name.into(), Arc::clone(&cell));
        cell
    }
}
