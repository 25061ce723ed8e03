//! The fuzz targets of the gateway: the PROXY protocol of a client, and the bytes of an upstream in
//! [`response`].

mod headers;
mod response;
mod upstream;

#[allow(dead_code, unreachable_pub, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/proxy_protocol.rs"]
mod proxy_protocol;

pub use response::response;

use proxy_protocol::ParsedHeader;

/// A header of the PROXY protocol is complete with its last byte, and not before.
pub fn gateway(data: &[u8]) {
    if let ParsedHeader::Complete(length, _) = proxy_protocol::parse(data) {
        assert!(length <= data.len());
        assert!(
            (0..length).all(|end| proxy_protocol::parse(&data[..end]) == ParsedHeader::Partial)
        );
    }
}
