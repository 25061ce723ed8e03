//! hyper without a framework: the layer around a function, with the peer address of each connection
//! as a request extension.
//!
//!     cargo run --release --example hyper_plain
//!
//! Each line says what to expect; a range in brackets makes curl repeat the request:
//!
//!     curl -i 'http://127.0.0.1:3000/?n=[1-4]'                         # 200 200 200 429
//!     curl -i http://127.0.0.1:3000/healthz                            # 200
//!     curl -i http://127.0.0.1:3000/ -H 'x-forwarded-for: 1.2.3.4'     # 429
//!     curl -i --interface 127.0.0.2 http://127.0.0.1:3000/             # 200

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use ratekeeper::Limit;
use ratekeeper_tower::{RateLimitLayer, identity::PeerAddr};
use std::convert::Infallible;
use tower::{Layer, ServiceExt};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let layer = RateLimitLayer::per_ip(Limit::per_hour(3)).skip_paths(["/healthz"]);
    let service = layer.layer(tower::service_fn(hello));

    let port = std::env::args().nth(1).unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let at = listener.local_addr()?;
    println!("curl -i 'http://{at}/?n=[1-4]'                         # 200 200 200 429");
    println!("curl -i http://{at}/healthz                            # 200");
    println!("curl -i http://{at}/ -H 'x-forwarded-for: 1.2.3.4'     # 429");
    println!("curl -i --interface 127.0.0.2 http://{at}/             # 200");
    println!("Ctrl-C ends it.");
    loop {
        let (stream, peer) = listener.accept().await?;
        // All clones of the service share its buckets.
        let service = service.clone();
        let with_peer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddr(peer));
            service.clone().oneshot(request)
        });
        tokio::spawn(async move {
            if let Err(error) = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), with_peer)
                .await
            {
                eprintln!("{peer}: {error}");
            }
        });
    }
}
