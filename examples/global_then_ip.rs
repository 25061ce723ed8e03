//! A limit for all clients together, which delays up to 500 ms and then answers 503, in front of a
//! limit for each address, which answers 429.
//!
//!     cargo run --release --example global_then_ip
//!
//! Each line says what to expect; a range in brackets makes curl repeat the request:
//!
//!     curl -i 'http://127.0.0.1:3000/?n=[1-7]'                            # 200 200 200 200 200 429 429
//!     curl -i --interface 127.0.0.2 'http://127.0.0.1:3000/?n=[1-5]'      # 200 200 200 200 200
//!
//! What the inner limit denies is refunded by the outer one: no client uses it up for the others.
//! Beyond 10 at once the outer limit allows 4 a second, so requests one after the other wait up to
//! 250 ms, and of many at once two wait and the others get a 503. With "1/h burst 10" the wait
//! would always be too long:
//!
//!     cargo run --release --example global_then_ip -- 3000 "1/h burst 10"
//!     curl -i --interface 127.0.0.3 http://127.0.0.1:3000/                # 503, after the two lines above

use axum::Router;
use axum::routing::get;
use ratekeeper::Limit;
use ratekeeper_tower::{DenialStatus, RateLimitLayer};
use std::net::SocketAddr;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all: Limit = std::env::args()
        .nth(2)
        .as_deref()
        .unwrap_or("4/s burst 10")
        .parse()?;
    let all = RateLimitLayer::global(all)
        .name("all")
        .delay(Duration::from_millis(500))
        .max_waiting(100)
        .status(DenialStatus::ServiceUnavailable);
    let each = RateLimitLayer::per_ip(Limit::per_hour(5))
        .name("each")
        .for_axum();
    // In axum the last layer is the outermost.
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(each)
        .layer(all);

    let port = std::env::args().nth(1).unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let at = listener.local_addr()?;
    println!(
        "curl -i 'http://{at}/?n=[1-7]'                            # 200 200 200 200 200 429 429"
    );
    println!("curl -i --interface 127.0.0.2 'http://{at}/?n=[1-5]'      # 200 200 200 200 200");
    println!("Ctrl-C ends it.");
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
