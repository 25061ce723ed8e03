//! The fuzz targets of the gateway: bytes of a client, and of the PROXY protocol. The one for bytes
//! of an upstream is in [`response`].

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

/// The guard decides the same whether the bytes come at once or one by one, and the parser and a
/// naive reader of bodies agree on all accepted bytes.
pub fn gateway(data: &[u8]) {
    let accepted = is_accepted(data, data.len().max(1));
    assert_eq!(accepted, is_accepted(data, 1));
    assert_eq!(accepted, is_accepted(data, 7));
    if accepted {
        read(data);
    }
    if let ParsedHeader::Complete(length, _) = proxy_protocol::parse(data) {
        assert!(length <= data.len());
        assert!(
            (0..length).all(|end| proxy_protocol::parse(&data[..end]) == ParsedHeader::Partial)
        );
    }
}

fn is_accepted(data: &[u8], chunk_size: usize) -> bool {
    let mut guard = SmugglingGuard::new(MAX_HEAD_BYTES);
    data.chunks(chunk_size)
        .all(|chunk| guard.feed(chunk).is_ok())
}

/// Reads all complete requests as the parser does.
fn read(mut data: &[u8]) {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        // Requests that the parser rejects are not forwarded, even if the guard accepts them.
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
        assert!(
            lengths.len() + codings.len() <= 1,
            "two lengths were accepted"
        );
        data = &data[length..];
        if let [one] = lengths[..] {
            let length: usize = std::str::from_utf8(one.value)
                .unwrap()
                .trim()
                .parse()
                .expect("an invalid length was accepted");
            let Some(rest) = data.get(length..) else {
                return;
            };
            data = rest;
        }
        if let [one] = codings[..] {
            assert_eq!(request.version, Some(1));
            assert!(one.value.to_ascii_lowercase().ends_with(b"chunked"));
            let Some(rest) = after_chunks(data) else {
                return;
            };
            data = rest;
        }
    }
}

/// The bytes after a chunked body; `None` if it has not ended. Accepted bytes must be well formed.
fn after_chunks(mut data: &[u8]) -> Option<&[u8]> {
    loop {
        let end = data.iter().position(|byte| *byte == b'\n')?;
        let line = data[..end]
            .strip_suffix(b"\r")
            .expect("a line without CR was accepted");
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let size = size.expect("an invalid size was accepted");
        data = &data[end + 1..];
        if size == 0 {
            break;
        }
        let rest = data.get(size..)?;
        let ended = rest.get(..2)?;
        assert_eq!(ended, b"\r\n", "a chunk of another size was accepted");
        data = &rest[2..];
    }
    loop {
        let end = data.iter().position(|byte| *byte == b'\n')?;
        let line = data[..end]
            .strip_suffix(b"\r")
            .expect("a trailer without CR was accepted");
        data = &data[end + 1..];
        if line.is_empty() {
            return Some(data);
        }
        assert!(
            !line.to_ascii_lowercase().starts_with(b"content-length:"),
            "a length among trailers was accepted"
        );
    }
}
