//! Clients that do not behave.

use crate::book::Keys;
use crate::watching::over_within;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Between two of them: enough to be a nuisance, and the others get to ask too.
const PAUSE: Duration = Duration::from_millis(2);

/// A whole request each, of which only a part is ever sent.
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
        // The preface of HTTP/2, its settings, and the head of a request of which the first 20
        // bytes come.
        _ => {
            let mut frame = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            frame.extend_from_slice(b"\0\0\xc8\x01\x04\0\0\0\x01");
            frame.extend_from_slice(&[0; 20]);
            frame
        }
    }
}

/// Hangs up in the middle of a frame, again and again; how often.
pub(crate) fn cut(listeners: &[(&str, SocketAddr)], over: &AtomicBool) -> u64 {
    let mut keys = Keys::new(7);
    let mut times = 0;
    while !over_within(over, PAUSE) {
        for (protocol, address) in listeners {
            let frame = frame(protocol);
            let most = frame.len() as u64 - 1;
            let sent = 1 + keys.below(most) as usize;
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .write_all(&frame[..sent.min(frame.len() - 1)])
                .unwrap();
            times += 1;
        }
    }
    times
}

/// Asks and is gone before the answer; how often.
pub(crate) fn go(address: SocketAddr, over: &AtomicBool) -> u64 {
    let body = r#"{"subject":{"user":"gone","path":"/gone"}}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut times = 0;
    while !over_within(over, PAUSE) {
        TcpStream::connect(address)
            .unwrap()
            .write_all(request.as_bytes())
            .unwrap();
        times += 1;
    }
    times
}
