//! Bounds of the gRPC listener; those of other listeners are tested next to them.

use crate::support::{directory, for_envoy};
use crate::{ENVOY, RunningServer, TempDir, curl};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

fn grpc() -> (RunningServer, String) {
    let server = RunningServer::run(for_envoy(&directory(&[("a.yaml", ENVOY)])));
    let at = server.text_after("service: grpc://");
    (server, at)
}

/// The first frame of the server has its limits.
#[test]
fn a_grpc_client_receives_the_limits() {
    let (_server, at) = grpc();
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "SETTINGS come first");
    let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut body).unwrap();
    let setting = |id: u8| {
        let found = body.chunks(6).find(|setting| setting[..2] == [0, id])?;
        Some(u32::from_be_bytes([found[2], found[3], found[4], found[5]]))
    };
    const MAX_CONCURRENT_STREAMS: u8 = 3;
    const MAX_HEADER_LIST_SIZE: u8 = 6;
    assert_eq!(
        (
            setting(MAX_CONCURRENT_STREAMS),
            setting(MAX_HEADER_LIST_SIZE)
        ),
        (Some(1024), Some(16 * 1024))
    );
}

#[test]
fn a_message_that_is_too_large_is_rejected() {
    let (_server, at) = grpc();
    let dir = TempDir::new("message");
    let file = dir.file("message");
    // The header announces two million bytes; the server does not wait for them.
    let mut message = vec![0];
    message.extend(2_000_000u32.to_be_bytes());
    fs::write(&file, message).unwrap();
    let url = format!("http://{at}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let (_, output) = curl(&[
        "--http2-prior-knowledge",
        "-D",
        "-",
        "-H",
        "content-type: application/grpc",
        "--data-binary",
        &format!("@{file}"),
        &url,
    ]);
    // OUT_OF_RANGE
    assert!(output.contains("grpc-status: 11"), "{output}");
}
