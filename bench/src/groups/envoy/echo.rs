//! The bare service: decodes the request, answers one full status, without limits.

use super::proto::{
    Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, Unit,
};
use crate::bare_server;
use prost_types::Duration;
use std::process::ExitCode;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The argument that makes the binary the service.
pub(crate) const CHILD: &str = "--bare-rate-limit-service";

struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let limit = RateLimit {
            name: String::new(),
            requests_per_unit: 1_000_000_000,
            unit: Unit::Second.into(),
        };
        let statuses = request
            .get_ref()
            .descriptors
            .iter()
            .map(|_| DescriptorStatus {
                code: Code::Ok.into(),
                current_limit: Some(limit.clone()),
                limit_remaining: 999_999_999,
                duration_until_reset: Some(Duration {
                    seconds: 1,
                    nanos: 0,
                }),
                ..DescriptorStatus::default()
            });
        let statuses = statuses.collect();
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses,
            ..Default::default()
        }))
    }
}

/// Runs the child.
pub(crate) fn run() -> ExitCode {
    bare_server::run(|listener| {
        let service = RateLimitServiceServer::new(Echo);
        let server = Server::builder().tcp_nodelay(true).add_service(service);
        server.serve_with_incoming(TcpListenerStream::new(listener))
    })
}
