//! The bare service: decodes the request, answers one full status, without limits.

use super::proto::{
    Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, Unit,
};
use prost_types::Duration;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
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

/// Runs the child: prints its port, and serves until its input ends.
pub(crate) fn run() -> ExitCode {
    // The parent's exit closes it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> std::io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut workers = Vec::new();
    for _ in 0..cores {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(address)?;
            socket.listen(1024)?
        };
        address = listener.local_addr()?;
        workers.push(std::thread::spawn(move || {
            let service = Server::builder()
                .tcp_nodelay(true)
                .add_service(RateLimitServiceServer::new(Echo));
            runtime.block_on(service.serve_with_incoming(TcpListenerStream::new(listener)))
        }));
    }
    println!("{}", address.port());
    for worker in workers {
        if let Ok(Err(error)) = worker.join() {
            eprintln!("{error}");
        }
    }
    Ok(())
}
