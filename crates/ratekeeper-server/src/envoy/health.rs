//! `grpc.health.v1.Health`: whether this node answers, looked up when it is asked.

use crate::app::App;
use ratekeeper::Clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// How often whoever watches is told of a change.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct HealthService<C: Clock> {
    pub(super) app: Arc<App<C>>,
    /// True from when it stops.
    pub(super) stopped: watch::Receiver<bool>,
}

impl<C: Clock> Clone for HealthService<C> {
    fn clone(&self) -> Self {
        Self {
            app: Arc::clone(&self.app),
            stopped: self.stopped.clone(),
        }
    }
}

impl<C: Clock> HealthService<C> {
    /// Not while it stops, not while a worker is stuck, and not while the store is gone and nobody
    /// is let in then.
    fn now(&self) -> ServingStatus {
        match *self.stopped.borrow() || self.app.health.stalled().is_some() || self.app.is_closed()
        {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        }
    }
}

/// The server as a whole, and the services it has.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == super::service::RATE_LIMIT
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl<C: Clock> Health for HealthService<C> {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match is_known(&request.get_ref().service) {
            true => Ok(Response::new(told(self.now()))),
            false => Err(Status::not_found("no such service is served here")),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (send, receive) = mpsc::channel(1);
        let (mut truth, known) = (self.clone(), is_known(&request.get_ref().service));
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let now = if known {
                    truth.now()
                } else {
                    ServingStatus::ServiceUnknown
                };
                if last != Some(now) && send.send(Ok(told(now))).await.is_err() {
                    return;
                }
                last = Some(now);
                if *truth.stopped.borrow() {
                    return;
                }
                tokio::select! {
                    () = send.closed() => return,
                    _ = truth.stopped.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}
