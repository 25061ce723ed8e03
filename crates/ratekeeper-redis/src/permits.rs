//! Permits that verdicts of this node hold: renewed while they do, given up when they are dropped.

use crate::script::PermitName;
use crate::script::amend::{Amend, Amendment};
use ratekeeper::limit::MicrosLimit;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of one node.
pub(crate) struct Permits {
    node: u64,
    next: AtomicU64,
    held: Mutex<HeldPermits>,
    /// Given up while the server was in trouble, so to be given up once more.
    again: Mutex<Vec<Amendment>>,
}

/// Of so many it is remembered; more end by themselves.
const MOST_AGAIN: usize = 4_096;

/// By the key they are of.
type HeldPermits = HashMap<Arc<[u8]>, (MicrosLimit, Vec<PermitName>), foldhash::fast::RandomState>;

impl Permits {
    pub(crate) fn new(node: u64) -> Self {
        Self {
            node,
            next: AtomicU64::new(0),
            held: Mutex::default(),
            again: Mutex::default(),
        }
    }

    /// A name nobody else gives: the node's, and a number.
    pub(crate) fn name(&self) -> PermitName {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.node.to_be_bytes());
        name[8..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        name
    }

    pub(crate) fn hold(&self, key: &Arc<[u8]>, limit: MicrosLimit, names: &[PermitName]) {
        let mut held = self.lock();
        held.entry(Arc::clone(key))
            .or_insert_with(|| (limit, Vec::new()))
            .1
            .extend_from_slice(names);
    }

    /// Forgets them; what tells the server so.
    pub(crate) fn give_up(
        &self,
        key: &Arc<[u8]>,
        limit: MicrosLimit,
        names: Vec<PermitName>,
    ) -> Amendment {
        self.forget(key, &names);
        Amendment {
            key: Arc::clone(key),
            limit,
            what: Amend::Permits { live: 0, names },
        }
    }

    /// Renews them no more; what tells the server how long they live all the same, in microseconds.
    pub(crate) fn let_go(
        &self,
        key: &Arc<[u8]>,
        limit: MicrosLimit,
        names: Vec<PermitName>,
        live: u64,
    ) -> Amendment {
        self.forget(key, &names);
        Amendment {
            key: Arc::clone(key),
            limit,
            what: Amend::LetGo { live, names },
        }
    }

    fn forget(&self, key: &Arc<[u8]>, names: &[PermitName]) {
        let mut held = self.lock();
        if let Some((_, known)) = held.get_mut(key) {
            known.retain(|name| !names.contains(name));
            if known.is_empty() {
                held.remove(key);
            }
        }
    }

    /// Says this once more when the server is well: it may have been told before it had given them,
    /// by a connection that was faster, or not have been told.
    pub(crate) fn give_up_again(&self, amendment: Amendment) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        if again.len() < MOST_AGAIN {
            again.push(amendment);
        }
    }

    /// What renews all that are held, and gives up what is not.
    pub(crate) fn renewals(&self, live: u64) -> Vec<Amendment> {
        let renewal =
            |(key, (limit, names)): (&Arc<[u8]>, &(MicrosLimit, Vec<PermitName>))| Amendment {
                key: Arc::clone(key),
                limit: *limit,
                what: Amend::Permits {
                    live,
                    names: names.clone(),
                },
            };
        let mut all: Vec<Amendment> = self.lock().iter().map(renewal).collect();
        all.append(&mut self.again.lock().unwrap_or_else(PoisonError::into_inner));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HeldPermits> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
