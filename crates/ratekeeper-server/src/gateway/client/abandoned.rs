//! Upstream exchanges of clients that left. An upstream may go on with a request whose client has
//! hung up, so what holds a permit of a concurrency limit is kept until the upstream has answered,
//! for `abandoned_timeout` at most: else clients that hang up would have more requests run at once
//! than the limit allows.

use super::service::LimitedFuture;
use super::state::Client;
use crate::gateway::GatewayDecider;
use crate::gateway::body::Reply;
use crate::gateway::drain::Stage;
use axum::http::Response;
use http_body::Body;
use ratekeeper_tower::{ResponseBody, rate_limit::Pending};
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The most exchanges that one connection may have left behind; with more, its next requests are
/// refused. Over HTTP/1 a connection leaves one at most.
pub(super) const MAX_ABANDONED: usize = 128;

/// What is left of a request that holds a permit.
pub(super) enum Exchange {
    /// The upstream has not answered yet.
    Unanswered(LimitedFuture),
    /// The rest of its answer.
    Body(ResponseBody<Reply, Pending<GatewayDecider>>),
    /// The exchange broke off because of the client. Nobody hears of the end of the work: the
    /// permit waits for the timeout.
    Permit(Pending<GatewayDecider>),
}

/// The exchanges that a connection has left behind.
#[derive(Default)]
pub(crate) struct AbandonedExchanges {
    timeout: Duration,
    count: AtomicUsize,
}

impl AbandonedExchanges {
    /// Keeps exchanges for so long; not at all if that is zero.
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

    /// Whether the connection has left so many behind that it may not begin others.
    pub(super) fn is_full(&self) -> bool {
        self.count.load(Relaxed) >= MAX_ABANDONED
    }
}

/// Keeps an exchange in a task of its own. Without a runtime it ends now.
pub(super) fn keep(client: &Arc<Client>, exchange: Exchange) {
    if let (true, Ok(runtime)) = (client.abandoned.is_on(), Handle::try_current()) {
        client.abandoned.count.fetch_add(1, Relaxed);
        runtime.spawn(run(Counted(Arc::clone(client)), exchange));
    }
}

/// One of those that are counted.
struct Counted(Arc<Client>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.abandoned.count.fetch_sub(1, Relaxed);
    }
}

/// Ends an exchange when the upstream has answered, after the timeout, or when the gateway stops.
/// To end it early is to drop it, which closes the connection to the upstream, or resets its
/// stream.
async fn run(client: Counted, exchange: Exchange) {
    let client = &*client.0;
    let ended = pin!(timeout(client.abandoned.timeout, finished(exchange)));
    tokio::select! {
        _ = ended => {}
        () = stopping(client) => {}
    }
}

/// Waits for the end of an exchange; what comes of the response is discarded.
async fn finished(exchange: Exchange) {
    let mut body = match exchange {
        Exchange::Body(body) => body,
        Exchange::Permit(permit) => return hold(permit).await,
        Exchange::Unanswered(future) => {
            let Ok(mut response) = future.await;
            if let Some(permit) = permit_of_broken(&mut response) {
                return hold(permit).await;
            }
            response.into_body()
        }
    };
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}

/// Until it is dropped.
async fn hold(permit: Pending<GatewayDecider>) {
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

/// A response says with this that the request broke off because of its client, while an upstream
/// was at it.
#[derive(Clone, Copy)]
pub(crate) struct BrokenByClient;

/// The permit of a request that broke off because of its client, out of the response to it.
pub(super) fn permit_of_broken(
    response: &mut Response<ResponseBody<Reply, Pending<GatewayDecider>>>,
) -> Option<Pending<GatewayDecider>> {
    response.extensions_mut().remove::<BrokenByClient>()?;
    response.body_mut().take_guard()
}
