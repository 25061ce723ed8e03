//! Limits password guessing: only failed logins count, so users who know their password are not
//! limited.
//!
//!     cargo run --release --example login
//!
//! Each line says what to expect; a range in brackets makes curl repeat the request:
//!
//!     curl -i 'http://127.0.0.1:3000/login?n=[1-5]' -d 'ann:secret'               # 200 200 200 200 200
//!     curl -i 'http://127.0.0.1:3000/login?n=[1-4]' -d 'ann:guess'                # 401 401 401 429
//!     curl -i http://127.0.0.1:3000/login -d 'ann:secret'                         # 429
//!     curl -i --interface 127.0.0.2 http://127.0.0.1:3000/login -d 'ann:secret'   # 200
//!
//! A login is charged before the password is checked, and refunded if it was right: of a thousand
//! guesses at once only three are checked. So many right ones at once may be denied as well.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use ratekeeper::{Algorithm, Limit};
use ratekeeper_tower::{Count, RateLimitLayer};
use std::net::SocketAddr;

async fn login(body: String) -> StatusCode {
    if body == "ann:secret" {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    // A sliding log: never more than three failures within any hour.
    let three_an_hour = Limit::per_hour(3).algorithm(Algorithm::SlidingLog);
    let layer = RateLimitLayer::per_ip(three_an_hour)
        .count(Count::Failures)
        .name("login")
        .for_axum();
    let app = Router::new().route("/login", post(login).layer(layer));

    let port = std::env::args().nth(1).unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let at = listener.local_addr()?;
    println!(
        "curl -i 'http://{at}/login?n=[1-5]' -d 'ann:secret'               # 200 200 200 200 200"
    );
    println!("curl -i 'http://{at}/login?n=[1-4]' -d 'ann:guess'                # 401 401 401 429");
    println!("curl -i http://{at}/login -d 'ann:secret'                         # 429");
    println!("curl -i --interface 127.0.0.2 http://{at}/login -d 'ann:secret'   # 200");
    println!("Ctrl-C ends it.");
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await
}
