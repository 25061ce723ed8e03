//! Upstream exchanges of clients that disconnected. An upstream may go on with a request whose
//! client has hung up, so a concurrency permit is held until the upstream has answered, for
//! `abandoned_timeout` at most. Otherwise clients that hang up could have more requests running at
//! once than the limit allows.

use super::service::LimitedFuture;
use super::state::Client;
use crate::gateway::GatewayDecider;
use crate::gateway::body::{BodyError, ProxyBody};
use crate::gateway::drain::Stage;
use axum::http::Response;
use ratekeeper_tower::{ResponseBody, rate_limit::Pending};
use std::error::Error;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The most abandoned exchanges of one connection; beyond them, its next requests are rejected. An
/// HTTP/1 connection abandons one at most.
pub(super) const MAX_ABANDONED: usize = 128;

/// The remainder of a request that holds a permit.
pub(super) enum Exchange {
    /// The upstream has not answered yet.
    Unanswered(LimitedFuture),
    /// The rest of the response body.
    Body(ResponseBody<ProxyBody, Pending<GatewayDecider>>),
    /// The client broke the exchange off. The end of the upstream's work is unknown: the permit is
    /// held until the timeout.
    Permit(Pending<GatewayDecider>),
}

/// The abandoned exchanges of one connection.
#[derive(Default)]
pub(crate) struct AbandonedExchanges {
    timeout: Duration,
    count: AtomicUsize,
}

impl AbandonedExchanges {
    /// Exchanges are kept for `timeout`; zero turns this off.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            count: AtomicUsize::new(0),
        }
    }

    /// Whether exchanges are kept.
    pub(super) fn is_on(&self) -> bool {
        !self.timeout.is_zero()
    }

    /// Whether the connection has abandoned too many exchanges to begin another.
    pub(super) fn is_full(&self) -> bool {
        self.count.load(Relaxed) >= MAX_ABANDONED
    }
}

/// Keeps an exchange in a separate task. Without a runtime it is dropped at once.
pub(super) fn keep(client: &Arc<Client>, exchange: Exchange) {
    if let (true, Ok(runtime)) = (client.abandoned.is_on(), Handle::try_current()) {
        client.abandoned.count.fetch_add(1, Relaxed);
        runtime.spawn(run(AbandonedExchange(Arc::clone(client)), exchange));
    }
}

/// A counted exchange: dropping this lowers the count.
struct AbandonedExchange(Arc<Client>);

impl Drop for AbandonedExchange {
    fn drop(&mut self) {
        self.0.abandoned.count.fetch_sub(1, Relaxed);
    }
}

/// Ends an exchange when the upstream has answered, after the timeout, or when the gateway stops.
/// Ending it early drops it, which closes the connection to the upstream or resets its stream.
async fn run(client: AbandonedExchange, exchange: Exchange) {
    let client = &*client.0;
    let finished = pin!(timeout(client.abandoned.timeout, finish(exchange)));
    tokio::select! {
        _ = finished => {}
        () = stopping(client) => {}
    }
}

/// Waits for the end of an exchange, and discards the response.
async fn finish(exchange: Exchange) {
    let mut body = match exchange {
        Exchange::Body(body) => body,
        Exchange::Permit(permit) => return hold_permit(permit).await,
        Exchange::Unanswered(future) => {
            let Ok(mut response) = future.await;
            if let Some(permit) = take_permit_if_broken(&mut response) {
                return hold_permit(permit).await;
            }
            response.into_body()
        }
    };
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame_keeping_guard(cx)).await {
        if let Err(error) = frame {
            if let Some(permit) = take_permit_if_upload_failed(&mut body, &*error) {
                hold_permit(permit).await;
            }
            return;
        }
    }
}

/// Holds a permit until the future is dropped.
async fn hold_permit(permit: Pending<GatewayDecider>) {
    let _permit = permit;
    pending::<()>().await;
}

async fn stopping(client: &Client) {
    let Some(drain) = client.drain() else {
        return pending().await;
    };
    loop {
        let changed = drain.changed();
        if drain.stage() == Stage::Stopping {
            return;
        }
        changed.await;
    }
}

/// Response extension: the client broke the request off while an upstream worked on it.
#[derive(Clone, Copy)]
pub(crate) struct BrokenByClient;

/// Takes the permit of a request that its client broke off out of the response.
pub(super) fn take_permit_if_broken(
    response: &mut Response<ResponseBody<ProxyBody, Pending<GatewayDecider>>>,
) -> Option<Pending<GatewayDecider>> {
    response.extensions_mut().remove::<BrokenByClient>()?;
    response.body_mut().take_guard()
}

/// Takes the permit of a response that was cut off because the upload of its request failed: the
/// upstream may go on with the part of the request that it has.
pub(super) fn take_permit_if_upload_failed(
    body: &mut ResponseBody<ProxyBody, Pending<GatewayDecider>>,
    error: &(dyn Error + Send + Sync + 'static),
) -> Option<Pending<GatewayDecider>> {
    if error.is::<BodyError>() {
        body.take_guard()
    } else {
        None
    }
}
