//! Parsing and checking of requests: credentials, hosts, deadlines, preflights, trusted peers.

pub use crate::attribute::credentials;
pub use crate::deadline::{grpc_timeout, request_start};
pub use crate::host::host_name;
pub use crate::preflight::Preflight;
pub use crate::request_check::{
    RequestError, RequestParts, check_cookie, check_headers, check_hosts, check_path,
};
pub use crate::trusted_peers::TrustedPeers;
