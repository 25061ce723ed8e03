//! Asking Redis for a lease: one flight a key, made by the store's own thread, so that no caller
//! who is not polled holds it up.

use super::node::LeaseDemand;
use super::table::LeasedLimit;
use crate::script::decide::{Answer, BucketInfo, Question};
use crate::store::Inner;
use crate::store_error::StoreError;
use ratekeeper::{Clock, Mode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{Notify, mpsc};

/// A lease that is being asked for.
pub(crate) struct LeaseRequest {
    is_over: AtomicBool,
    over: Notify,
    trouble: Mutex<Option<StoreError>>,
}

impl LeaseRequest {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_over: AtomicBool::new(false),
            over: Notify::new(),
            trouble: Mutex::default(),
        })
    }

    /// Ready when it has ended; it does within the store's timeout.
    pub(crate) async fn ended(&self) -> Result<(), StoreError> {
        let mut over = std::pin::pin!(self.over.notified());
        over.as_mut().enable();
        if !self.is_over.load(Ordering::Acquire) {
            over.await;
        }
        let trouble = self
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        trouble.map_or(Ok(()), Err)
    }

    fn end(&self, trouble: Option<StoreError>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.is_over.store(true, Ordering::Release);
        self.over.notify_waiters();
    }
}

/// What is to be asked for.
pub(crate) struct LeaseCall {
    pub(crate) hash: u64,
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Arc<LeasedLimit>,
    pub(crate) wish: LeaseDemand,
    /// When, by the clock of this node, before anything was sent.
    pub(crate) sent: u64,
    pub(crate) flight: Arc<LeaseRequest>,
}

impl Drop for LeaseCall {
    /// Whoever waits for it is told, whatever became of it.
    fn drop(&mut self) {
        if !self.flight.is_over.load(Ordering::Acquire) {
            self.flight.end(Some(StoreError::Broken));
        }
    }
}

/// Makes the flights, until the store is gone.
pub(crate) async fn run(mut fetches: mpsc::UnboundedReceiver<LeaseCall>, inner: Weak<Inner>) {
    while let Some(fetch) = fetches.recv().await {
        let Some(inner) = inner.upgrade() else { return };
        tokio::spawn(async move { fly(fetch, &inner).await });
    }
}

async fn fly(fetch: LeaseCall, inner: &Inner) {
    let answer = ask(&fetch, inner).await;
    let now = inner.fallback.clock().now().as_unix_nanos();
    let trouble = answer.as_ref().err().cloned();
    inner.leases.landed(&fetch, now, answer.ok());
    fetch.flight.end(trouble);
}

async fn ask(fetch: &LeaseCall, inner: &Inner) -> Result<BucketInfo, StoreError> {
    let secret = inner.secret.get().ok_or(StoreError::NoSecret)?;
    let key = secret.name(&fetch.limit.stem, &fetch.key);
    let lane = &inner.lanes[inner.lane_of(&key)];
    let question = Question {
        key,
        limit: fetch.limit.form,
        cost: fetch.wish.least,
        reserve: 0,
        mode: Mode::Enforce,
        wait: None,
        permits: Vec::new(),
        lease: Some(fetch.wish),
    };
    match lane.decide(Arc::new([question]), inner.timeout).await? {
        Answer::ReplyReceiver { figures, .. } => figures.first().copied().ok_or(StoreError::Broken),
        Answer::BadKey(_) => Err(StoreError::BadKey(
            String::from_utf8_lossy(&secret.name(&fetch.limit.stem, &fetch.key)).into_owned(),
        )),
    }
}
