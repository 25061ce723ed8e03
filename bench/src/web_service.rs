//! Serves one of the web services on a free port, which it prints, until its input ends. A separate
//! program, like those of users: unused code would lie between the code that runs.

#[allow(unreachable_pub, dead_code, reason = "shared with another program")]
mod web;

use axum::body::{Body, Bytes};
use axum::serve::IncomingStream;
use axum::{Router, ServiceExt};
use ratekeeper::{Clock, clock::SystemClock};
use ratekeeper_tower::{RateLimit, decider::LimitDecider, rate_limit::AxumBody};
use std::convert::Infallible;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use tokio::net::TcpListener;
use tower_service::Service;
use web::{AppVisitor, Competitor, Web};

fn main() -> ExitCode {
    let service = std::env::args().nth(1).unwrap_or_default();
    let competitor = Competitor::named(&service);
    if competitor.is_none() && service != CHUNKS {
        return ExitCode::from(2);
    }
    // The parent's exit closes it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match competitor.map_or_else(serve_chunks, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The name of the service whose answers are 64 KB in chunks of 1 KB, for the group `gateway`.
const CHUNKS: &str = "chunks";

fn serve_chunks() -> Result<(), String> {
    const CHUNK: &[u8] = &[b'x'; 1024];
    let chunks = || async {
        Body::from_stream(tokio_stream::iter(
            (0..64).map(|_| Ok::<_, Infallible>(Bytes::from_static(CHUNK))),
        ))
    };
    on_a_free_port(Router::new().fallback(chunks).into_make_service())
}

fn serve(competitor: Competitor) -> Result<(), String> {
    competitor.app(SystemClock, ServeForever)?
}

/// Serves an application on a free port until the process is killed.
struct ServeForever;

impl AppVisitor for ServeForever {
    type Into = Result<(), String>;

    fn put<S: Web>(self, app: S) -> Self::Into {
        on_a_free_port(app.into_make_service_with_connect_info::<SocketAddr>())
    }

    fn put_around<C: Clock>(self, app: RateLimit<Router, LimitDecider<C>, AxumBody>) -> Self::Into {
        on_a_free_port(app)
    }
}

fn on_a_free_port<M, S>(app: M) -> Result<(), String>
where
    M: for<'a> Service<
            IncomingStream<'a, TcpListener>,
            Response = S,
            Error = Infallible,
            Future: Send,
        >,
    M: Send + 'static,
    S: Web,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        axum::serve(listener, app).await
    });
    served.map_err(|error| error.to_string())
}
