//! axum: a limit for every route, a tighter one for a single route, and a quota by plan for an API.
//!
//!     cargo run --release --example axum_routes
//!
//! Each line says what to expect; a range in brackets makes curl repeat the request:
//!
//!     curl -i 'http://127.0.0.1:3000/search?n=[1-4]'                       # 200 200 200 429
//!     curl -i http://127.0.0.1:3000/                                       # 200
//!     curl -i 'http://127.0.0.1:3000/api/[1-3]' -H 'x-api-key: ann'        # 200 200 429
//!     curl -i 'http://127.0.0.1:3000/api/[1-6]' -H 'x-api-key: bob'        # 200 200 200 200 200 429
//!     curl -i 'http://127.0.0.1:3000/api/[1-2]' -H 'x-api-key: made-up'    # 200 429

use axum::Router;
use axum::http::HeaderName;
use axum::routing::get;
use ratekeeper::{Limit, MemoryStore};
use ratekeeper_policy::{Attribute, Engine, Match, Plan, Policies, Policy};
use ratekeeper_tower::{Head, RateLimitLayer};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The plan of a caller; a real service asks its database.
fn plan(head: &Head<'_>) -> &'static str {
    match head.headers.get(API_KEY).map(|key| key.as_bytes()) {
        Some(b"ann") => "free",
        Some(b"bob") => "pro",
        _ => "visitor",
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Customers are counted by their key, all others by address: a made-up key does not get a
    // bucket of its own.
    let visitor = Match::new().attribute(Attribute::Plan, "visitor");
    let policies = Policies::new()
        .plan(Plan::new("free").limit(Limit::per_hour(2)))
        .plan(Plan::new("pro").limit(Limit::per_hour(5)))
        .policy(
            Policy::new("visitors")
                .matching(visitor)
                .key(Attribute::Ip)
                .limit(Limit::per_hour(1)),
        )
        .policy(
            Policy::new("customers")
                .key(Attribute::ApiKey)
                .plan(Attribute::Plan, None),
        );
    let by_plan = RateLimitLayer::new(Engine::new(MemoryStore::new(), policies)?)
        .api_key_header(API_KEY)
        .attributes(|head, subject| subject.plan(plan(head)));

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route(
            "/search",
            get(async || "found\n")
                .layer(RateLimitLayer::per_ip(Limit::per_hour(3)).name("search")),
        )
        .route("/api/{id}", get(async || "data\n").layer(by_plan));
    // A limit for all routes costs least around the whole router.
    let app = RateLimitLayer::per_ip(Limit::per_hour(1_000)).around(app);

    let port = std::env::args().nth(1).unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let at = listener.local_addr()?;
    println!("curl -i 'http://{at}/search?n=[1-4]'                       # 200 200 200 429");
    println!("curl -i http://{at}/                                       # 200");
    println!("curl -i 'http://{at}/api/[1-3]' -H 'x-api-key: ann'        # 200 200 429");
    println!(
        "curl -i 'http://{at}/api/[1-6]' -H 'x-api-key: bob'        # 200 200 200 200 200 429"
    );
    println!("curl -i 'http://{at}/api/[1-2]' -H 'x-api-key: made-up'    # 200 429");
    println!("Ctrl-C ends it.");
    axum::serve(listener, app).await?;
    Ok(())
}
