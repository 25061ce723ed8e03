//! Requests for leases: one in flight for a key, made by the store's own thread, so that a caller
//! that is not polled delays no other.

use super::node::LeaseDemand;
use super::table::LeasedLimit;
use crate::script::decide::{Answer, Question, QuestionResult};
use crate::store::Inner;
use crate::store_error::StoreError;
use ratekeeper::{Clock, Mode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{Notify, mpsc};

/// A lease request in flight.
pub(crate) struct LeaseRequest {
    is_done: AtomicBool,
    done: Notify,
    error: Mutex<Option<StoreError>>,
}

impl LeaseRequest {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_done: AtomicBool::new(false),
            done: Notify::new(),
            error: Mutex::default(),
        })
    }

    /// Completes when the request has ended, which it does within the store's timeout.
    pub(crate) async fn ended(&self) -> Result<(), StoreError> {
        let mut done = std::pin::pin!(self.done.notified());
        done.as_mut().enable();
        if !self.is_done.load(Ordering::Acquire) {
            done.await;
        }
        let error = self
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        error.map_or(Ok(()), Err)
    }

    fn end(&self, error: Option<StoreError>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.is_done.store(true, Ordering::Release);
        self.done.notify_waiters();
    }
}

/// A lease request to be sent.
pub(crate) struct LeaseCall {
    pub(crate) hash: u64,
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Arc<LeasedLimit>,
    pub(crate) demand: LeaseDemand,
    /// When it was made, by the clock of this node, before anything was sent.
    pub(crate) sent: u64,
    pub(crate) request: Arc<LeaseRequest>,
}

impl Drop for LeaseCall {
    /// Wakes the waiters, whatever became of the request.
    fn drop(&mut self) {
        if !self.request.is_done.load(Ordering::Acquire) {
            self.request.end(Some(StoreError::Broken));
        }
    }
}

/// Sends lease requests until the store is dropped.
pub(crate) async fn run(mut calls: mpsc::UnboundedReceiver<LeaseCall>, inner: Weak<Inner>) {
    while let Some(call) = calls.recv().await {
        let Some(inner) = inner.upgrade() else { return };
        tokio::spawn(async move { request_lease(call, &inner).await });
    }
}

async fn request_lease(call: LeaseCall, inner: &Inner) {
    let answer = ask(&call, inner).await;
    let now = inner.fallback.clock().now().as_unix_nanos();
    let error = answer.as_ref().err().cloned();
    inner.leases.complete(&call, now, answer.ok());
    call.request.end(error);
}

async fn ask(call: &LeaseCall, inner: &Inner) -> Result<QuestionResult, StoreError> {
    let secret = inner.secret.get().ok_or(StoreError::NoSecret)?;
    let key = secret.name(&call.limit.key_prefix, &call.key);
    let connection = &inner.connections[inner.connection_index(&key)];
    let question = Question {
        key,
        limit: call.limit.form,
        cost: call.demand.min,
        reserve: 0,
        mode: Mode::Enforce,
        wait: None,
        permits: Vec::new(),
        lease: Some(call.demand),
    };
    match connection
        .decide(Arc::new([question]), inner.timeout)
        .await?
    {
        Answer::Decided { results, .. } => results.first().copied().ok_or(StoreError::Broken),
        Answer::BadKey(_) => Err(StoreError::BadKey(
            String::from_utf8_lossy(&secret.name(&call.limit.key_prefix, &call.key)).into_owned(),
        )),
    }
}
