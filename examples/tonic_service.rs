//! tonic: a gRPC service behind the layer. Calls over the limit get RESOURCE_EXHAUSTED with the
//! time to retry.
//!
//!     cargo run --release --example tonic_service
//!
//! It calls itself four times, of which three are allowed. With curl a denial is a gRPC status in
//! an HTTP 200:
//!
//!     curl -i -s --http2-prior-knowledge -X POST http://127.0.0.1:3000/grpc.health.v1.Health/Check -H 'content-type: application/grpc'   # grpc-status: 8
//!
//! (curl sends no message: the call is denied before one is read.)
//!
//! Shorter with grpcurl: `grpcurl -plaintext 127.0.0.1:3000 grpc.health.v1.Health/Check` prints
//! `Code: ResourceExhausted`.

use ratekeeper::Limit;
use ratekeeper_tower::RateLimitLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let at = listener.local_addr()?;

    // With the feature "tonic" the layer finds the client's address.
    let layer = RateLimitLayer::per_ip(Limit::per_hour(3));
    // Any service will do: this one needs no .proto file.
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    let server = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = HealthClient::new(
        Channel::from_shared(format!("http://{at}"))?
            .connect()
            .await?,
    );
    for call in 1..=4 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => println!("{call}: {}", answer.into_inner().status().as_str_name()),
            Err(status) => {
                let after = status
                    .metadata()
                    .get("retry-after")
                    .and_then(|after| after.to_str().ok());
                println!(
                    "{call}: {:?}, retry after {} s",
                    status.code(),
                    after.unwrap_or("?")
                );
                println!("   {}", status.message());
            }
        }
    }
    println!(
        "curl -i -s --http2-prior-knowledge -X POST http://{at}/grpc.health.v1.Health/Check -H 'content-type: application/grpc'   # grpc-status: 8"
    );
    println!("Ctrl-C ends it.");
    server.await??;
    Ok(())
}
