//! Bounds of the gRPC listener; those of the others have their tests where they are.

use crate::support::{directory, for_envoy};
use crate::{ENVOY, Place, Started, curl};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

fn grpc() -> (Started, String) {
    let server = Started::run(for_envoy(&directory(&[("a.yaml", ENVOY)])));
    let at = server.behind("service: grpc://");
    (server, at)
}

/// What it lets a client do is in its first frame.
#[test]
fn a_client_of_grpc_is_told_its_bounds() {
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
fn a_message_that_is_too_large_is_refused() {
    let (_server, at) = grpc();
    let place = Place::new("message");
    let file = place.file("message");
    // It says that two million bytes follow: nobody waits for them.
    let mut message = vec![0];
    message.extend(2_000_000u32.to_be_bytes());
    fs::write(&file, message).unwrap();
    let url = format!("http://{at}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let (_, said) = curl(&[
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
    assert!(said.contains("grpc-status: 11"), "{said}");
}
