//! The bare service: decodes the request and answers an object of the same size and form, as in a
//! usual axum service. It has no limits.

use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// The argument that makes the binary the service.
pub(crate) const CHILD: &str = "--bare-json-echo";

#[derive(Deserialize)]
struct Request {
    subject: Subject,
    cost: u64,
    peek: bool,
}

#[derive(Deserialize)]
struct Subject {
    ip: String,
    user: String,
    method: String,
    path: String,
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    source: &'static str,
    reason: &'static str,
    policy: Option<String>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    never: bool,
    limits: Vec<Limit>,
}

#[derive(Serialize)]
struct Limit {
    policy: &'static str,
    key: &'static str,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    outcome: &'static str,
}

async fn echo(Json(request): Json<Request>) -> Json<Answer> {
    let Request {
        subject,
        cost,
        peek,
    } = request;
    let text = [subject.ip, subject.user, subject.method, subject.path]
        .iter()
        .all(|text| !text.is_empty());
    let limit = Limit {
        policy: "everybody",
        key: "ip",
        limit: Some(1_000_000_000),
        remaining: Some(1_000_000_000 - cost),
        reset_after_ms: Some(1),
        retry_after_ms: None,
        outcome: "allowed",
    };
    Json(Answer {
        allowed: text,
        source: "memory",
        reason: "limits",
        policy: None,
        retry_after_ms: None,
        delay_ms: 0,
        never: peek,
        limits: vec![limit],
    })
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

/// A runtime and a listener per core, as the server has them.
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
            let app = Router::new().route("/v1/check", post(echo));
            // A connection that does not support it is served all the same.
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            runtime.block_on(async { axum::serve(listener, app).await })
        }));
    }
    println!("127.0.0.1:{}", address.port());
    for worker in workers {
        if let Ok(Err(error)) = worker.join() {
            eprintln!("{error}");
        }
    }
    Ok(())
}
