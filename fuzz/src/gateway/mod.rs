//! Bytes of a client of the gateway, and bytes in front of the PROXY protocol. Those of an upstream
//! are in [`response`].

mod client;
mod headers;
#[allow(dead_code, unused_imports, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/http1/mod.rs"]
mod http1;
mod response;
mod upstream;

#[allow(dead_code, unreachable_pub, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/smuggling_guard.rs"]
mod smuggling_guard;

#[allow(dead_code, unreachable_pub, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/proxy_protocol.rs"]
mod proxy_protocol;

pub use response::response;

use proxy_protocol::ParsedHeader;
use smuggling_guard::SmugglingGuard;

const MAX_HEAD_BYTES: usize = 4096;

/// The judgement is the same whether the bytes come at once or one by one; and what passes is
/// understood by the parser behind it, and by a naive reader of bodies, in one way only.
pub fn gateway(data: &[u8]) {
    let pass = passes(data, data.len().max(1));
    assert_eq!(pass, passes(data, 1));
    assert_eq!(pass, passes(data, 7));
    if pass {
        read(data);
    }
    if let ParsedHeader::Complete(length, _) = proxy_protocol::parse(data) {
        assert!(length <= data.len());
        assert!(
            (0..length).all(|end| proxy_protocol::parse(&data[..end]) == ParsedHeader::Partial)
        );
    }
}

fn passes(data: &[u8], piece: usize) -> bool {
    let mut guard = SmugglingGuard::new(MAX_HEAD_BYTES);
    data.chunks(piece).all(|piece| guard.feed(piece).is_ok())
}

/// Reads requests as the parser does, as far as they are whole.
fn read(mut data: &[u8]) {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        // What the parser refuses goes no further, whatever the guard thinks of it.
        let Ok(httparse::Status::Complete(length)) = request.parse(data) else {
            return;
        };
        let of = |name: &str| {
            request
                .headers
                .iter()
                .filter(|header| header.name.eq_ignore_ascii_case(name))
                .collect::<Vec<_>>()
        };
        let (lengths, codings) = (of("content-length"), of("transfer-encoding"));
        assert!(lengths.len() + codings.len() <= 1, "two lengths passed");
        data = &data[length..];
        if let [one] = lengths[..] {
            let length: usize = std::str::from_utf8(one.value)
                .unwrap()
                .trim()
                .parse()
                .expect("a length that is none passed");
            let Some(rest) = data.get(length..) else {
                return;
            };
            data = rest;
        }
        if let [one] = codings[..] {
            assert_eq!(request.version, Some(1));
            assert!(one.value.to_ascii_lowercase().ends_with(b"chunked"));
            let Some(rest) = behind_chunks(data) else {
                return;
            };
            data = rest;
        }
    }
}

/// What follows a body in chunks; none if it has not ended. Whatever passed is well formed as far
/// as it goes.
fn behind_chunks(mut data: &[u8]) -> Option<&[u8]> {
    loop {
        let end = data.iter().position(|byte| *byte == b'\n')?;
        let line = data[..end]
            .strip_suffix(b"\r")
            .expect("a line without CR passed");
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let size = size.expect("a size that is none passed");
        data = &data[end + 1..];
        if size == 0 {
            break;
        }
        let rest = data.get(size..)?;
        let ended = rest.get(..2)?;
        assert_eq!(ended, b"\r\n", "a chunk of another size passed");
        data = &rest[2..];
    }
    loop {
        let end = data.iter().position(|byte| *byte == b'\n')?;
        let line = data[..end]
            .strip_suffix(b"\r")
            .expect("a trailer without CR passed");
        data = &data[end + 1..];
        if line.is_empty() {
            return Some(data);
        }
        assert!(
            !line.to_ascii_lowercase().starts_with(b"content-length:"),
            "a length among trailers passed"
        );
    }
}
