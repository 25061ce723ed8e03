//! A client that respects rate limits, against a gateway with a limit: all requests are allowed,
//! and none is denied.
//!
//!     cargo run --release -- proxy --upstream http://127.0.0.1:3000 --limit "10/s burst 5"    # in another terminal
//!     cargo run --release --example client [http://127.0.0.1:8080 [plain]]
//!
//! Four tasks send 25 requests as fast as they may. The layer reads the rate limit headers of each
//! response and waits before the limit is exceeded. `plain` sends without the layer, for
//! comparison.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response, body::Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratekeeper_tower::client::{ClientLayer, Retries};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use tower::{Layer, Service, ServiceExt};

const TASKS: usize = 4;
const REQUESTS: usize = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    let http = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let sent = match arguments.next().as_deref() {
        Some("plain") => send(&url, http).await,
        _ => {
            // A request that failed half-way may have been served; one that was never sent may be
            // sent again.
            let retries = Retries::default().unsent(|error| {
                error
                    .downcast_ref::<hyper_util::client::legacy::Error>()
                    .is_some_and(|error| error.is_connect())
            });
            send(&url, ClientLayer::new().retry(retries).layer(http)).await
        }
    };
    match sent {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{url}: {error}; is the gateway running?");
            ExitCode::FAILURE
        }
    }
}

/// Sends all requests through any client.
async fn send<S>(url: &str, client: S) -> Result<(), Box<dyn Error>>
where
    S: Service<Request<Full<Bytes>>, Response = Response<Incoming>> + Clone + 'static,
    S::Error: Error + 'static,
{
    let (started, tasks) = (Instant::now(), tokio::task::LocalSet::new());
    let mut handles = Vec::new();
    for task in 0..TASKS {
        let (client, url) = (client.clone(), url.to_owned());
        handles.push(tasks.spawn_local(async move {
            let mut denied = 0;
            for number in (task..REQUESTS).step_by(TASKS) {
                let request = Request::get(&url)
                    .body(Full::default())
                    .map_err(|error| error.to_string())?;
                let response = client
                    .clone()
                    .oneshot(request)
                    .await
                    .map_err(|error| error.to_string())?;
                println!(
                    "{:5.1?} request {number:2}: {}",
                    started.elapsed(),
                    response.status()
                );
                denied += usize::from(response.status() == 429);
            }
            Ok::<_, String>(denied)
        }));
    }
    tasks.await;
    let mut denied = 0;
    for handle in handles {
        denied += handle.await??;
    }
    println!(
        "{REQUESTS} requests in {:.1?}, {denied} denied",
        started.elapsed()
    );
    Ok(())
}
