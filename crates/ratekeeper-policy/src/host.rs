//! Host names: the form that policies compare, and the check of hosts in requests.

use crate::request_check::RequestError;

/// The name in a host as sent by clients: without user information, port and trailing dot. The case
/// is preserved; comparisons ignore it.
pub fn host_name(host: &[u8]) -> &[u8] {
    let after_user = host
        .iter()
        .rposition(|byte| *byte == b'@')
        .map_or(host, |at| &host[at + 1..]);
    let name = without_port(after_user);
    name.strip_suffix(b".").unwrap_or(name)
}

/// The host without its port.
fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|byte| *byte == b':') {
        // An IPv6 address has colons of its own, and brackets round it where a port follows.
        Some(colon) if host[..colon].ends_with(b"]") || !host[..colon].contains(&b':') => {
            &host[..colon]
        }
        _ => host,
    }
}

/// Rejects a malformed host, in which services may find different names. An empty host is valid in
/// HTTP/1.
pub(crate) fn check_host(host: &[u8]) -> Result<(), RequestError> {
    if host.contains(&b'@') {
        return Err(RequestError::UserInfo);
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let (name, port) = match host.strip_prefix(b"[") {
        Some(rest) => {
            let end = rest
                .iter()
                .position(|byte| *byte == b']')
                .ok_or(RequestError::Host)?;
            (&rest[..end], &rest[end + 1..])
        }
        None => host.split_at(
            host.iter()
                .position(|byte| *byte == b':')
                .unwrap_or(host.len()),
        ),
    };
    let is_bracketed = host.starts_with(b"[");
    // A zone of IPv6 follows a percent sign.
    let is_well_formed = if is_bracketed {
        !name.is_empty()
            && name
                .iter()
                .all(|byte| is_name(byte) || b":%".contains(byte))
    } else {
        name.iter().all(is_name)
    };
    let is_port = port.is_empty() || port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit);
    if is_well_formed && is_port {
        Ok(())
    } else {
        Err(RequestError::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host() {
        for (host, name) in [
            ("api.example.com", "api.example.com"),
            ("api.example.com:8080", "api.example.com"),
            ("api.example.com.:8080", "api.example.com"),
            ("u:p@api.example.com:80", "api.example.com"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            (":80", ""),
            ("", ""),
            (".", ""),
        ] {
            assert_eq!(host_name(host.as_bytes()), name.as_bytes(), "{host}");
        }
    }
}
