//! Clients that disconnect too early.

use crate::resources::stopped_within;
use crate::tally::Keys;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The pause between two connections, so that the other clients get processor time.
const PAUSE: Duration = Duration::from_millis(2);

/// A whole request, of which only a part is sent.
fn frame(protocol: &str) -> Vec<u8> {
    let body = r#"{"subject":{"user":"u0","path":"/check"}}"#;
    match protocol {
        "http" => format!(
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into(),
        "head" => b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        "resp" => {
            b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\nu0\r\n$2\r\n19\r\n$2\r\n20\r\n$5\r\n86400\r\n"
                .to_vec()
        }
        // The HTTP/2 preface and settings, and the first 20 bytes of a request head.
        _ => {
            let mut frame = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            frame.extend_from_slice(b"\0\0\xc8\x01\x04\0\0\0\x01");
            frame.extend_from_slice(&[0; 20]);
            frame
        }
    }
}

/// Disconnects in the middle of frames until stopped. Returns how often.
pub(crate) fn cut_off_frames(listeners: &[(&str, SocketAddr)], stopped: &AtomicBool) -> u64 {
    let mut keys = Keys::new(7);
    let mut times = 0;
    while !stopped_within(stopped, PAUSE) {
        for (protocol, address) in listeners {
            let frame = frame(protocol);
            let max = frame.len() as u64 - 1;
            let sent = 1 + keys.below(max) as usize;
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .write_all(&frame[..sent.min(frame.len() - 1)])
                .unwrap();
            times += 1;
        }
    }
    times
}

/// Sends requests and disconnects before the answers until stopped. Returns how often.
pub(crate) fn leave_before_answers(address: SocketAddr, stopped: &AtomicBool) -> u64 {
    let body = r#"{"subject":{"user":"gone","path":"/gone"}}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut times = 0;
    while !stopped_within(stopped, PAUSE) {
        TcpStream::connect(address)
            .unwrap()
            .write_all(request.as_bytes())
            .unwrap();
        times += 1;
    }
    times
}
