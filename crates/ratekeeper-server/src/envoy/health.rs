//! `grpc.health.v1.Health`, computed for each request.

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

/// Interval at which watched services are checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct HealthService<C: Clock> {
    pub(super) app: Arc<App<C>>,
    /// True once the server stops.
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
    /// Not serving while the server stops, while a worker is stalled, and while the store is
    /// unavailable and `on_failure` is `closed`.
    fn status(&self) -> ServingStatus {
        if *self.stopped.borrow() || self.app.health.stalled().is_some() || self.app.is_closed() {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        }
    }
}

/// Whether a name is empty (the whole server) or of a service here.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == super::service::RATE_LIMIT
}

fn response(status: ServingStatus) -> HealthCheckResponse {
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
        if is_known(&request.get_ref().service) {
            Ok(Response::new(response(self.status())))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (send, receive) = mpsc::channel(1);
        let mut health = self.clone();
        let is_known = is_known(&request.get_ref().service);
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let status = if is_known {
                    health.status()
                } else {
                    ServingStatus::ServiceUnknown
                };
                if last != Some(status) && send.send(Ok(response(status))).await.is_err() {
                    return;
                }
                last = Some(status);
                if *health.stopped.borrow() {
                    return;
                }
                tokio::select! {
                    () = send.closed() => return,
                    _ = health.stopped.changed() => {}
                    () = tokio::time::sleep(WATCH_INTERVAL) => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}
