//! The response writer for HTTP/1 clients, without a connection.

#[allow(dead_code, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/client/http1/response.rs"]
mod response;

use super::http1::Framing;
use axum::http::{HeaderMap, Response, StatusCode};
use http_body::Body;

/// The part of the request module that the writer uses.
mod request {
    use axum::http::Version;

    #[derive(Clone, Copy)]
    pub(in super::super) struct RequestInfo {
        pub(in super::super) version: Version,
        pub(in super::super) is_head: bool,
        pub(in super::super) keep_alive: bool,
        #[allow(dead_code, reason = "read where the message is written")]
        pub(in super::super) trailers: bool,
    }
}

pub(super) use request::RequestInfo;

pub(super) fn write_head<B: Body>(
    head: &mut Vec<u8>,
    response: &Response<B>,
    asked: &mut RequestInfo,
) -> Framing {
    response::write_head(head, response, asked)
}

pub(super) fn write_informational(head: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    response::write_informational(head, status, headers);
}
