//! The gRPC form of a denial: a status, a message, and when to retry.

use std::fmt::Write as _;
use std::time::Duration;

/// The gRPC status codes of denials.
pub(super) const DEADLINE_EXCEEDED: u8 = 4;
pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
pub(super) const UNAVAILABLE: u8 = 14;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// The value of `grpc-message`: text that is percent-encoded except for printable ASCII.
pub(super) fn message(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte.into()),
            // Writing to a string does not fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// The value of `grpc-status-details-bin`: a google.rpc.Status, with a RetryInfo if there is a time
/// to retry.
pub(super) fn details(code: u8, message: &str, wait: Option<Duration>) -> String {
    let mut status = Vec::new();
    number(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        let mut delay = Vec::new();
        // Protobuf's seconds are signed.
        number(&mut delay, 1, wait.as_secs().min(i64::MAX as u64));
        number(&mut delay, 2, wait.subsec_nanos().into());
        let mut retry_info = Vec::new();
        bytes(&mut retry_info, 1, &delay);
        let mut any = Vec::new();
        bytes(&mut any, 1, RETRY_INFO.as_bytes());
        bytes(&mut any, 2, &retry_info);
        bytes(&mut status, 3, &any);
    }
    base64(&status)
}

/// Writes a Protobuf varint field; zero is omitted.
fn number(message: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        message.push(field << 3);
        varint(message, value);
    }
}

/// Writes a Protobuf length-delimited field: text or a message.
fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    const LENGTH_DELIMITED: u8 = 2;
    message.push(field << 3 | LENGTH_DELIMITED);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Writes a varint: seven bits a byte, the lowest first; the eighth bit is set if more follow.
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// Base64 without padding, as gRPC requires in headers.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .zip([16, 8, 0])
            .fold(0, |word, (byte, shift)| word | u32::from(*byte) << shift);
        // One byte takes two digits, two take three.
        for shift in [18, 12, 6, 0].into_iter().take(group.len() + 1) {
            text.push(DIGITS[(word >> shift & 0x3f) as usize].into());
        }
    }
    text
}
