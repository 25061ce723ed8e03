//! Access-Control-Expose-Headers: lets scripts in browsers read the rate limit headers.

use super::dialect::Dialects;
use http::HeaderMap;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue, RETRY_AFTER};

/// Appends the names of all headers of these dialects, and Retry-After, to
/// Access-Control-Expose-Headers.
pub(crate) fn expose_headers(headers: &mut HeaderMap, dialects: Dialects) {
    let mut list = String::from(RETRY_AFTER.as_str());
    for name in dialects.iter().flat_map(|dialect| dialect.names()) {
        list.push_str(", ");
        list.push_str(name.as_str());
    }
    // Header names and commas are a valid value.
    if let Ok(value) = HeaderValue::try_from(list) {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, value);
    }
}
