//! The comparison of secrets that clients send.

use subtle::ConstantTimeEq;

/// Whether `given` is the token `expected`. The time this takes depends on the length of `given`
/// only, so a client cannot find out a token byte by byte.
pub(crate) fn matches(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_itself_alone() {
        assert!(matches(b"a token", b"a token"));
        for other in [
            "", "a", "a toke", "a tokem", "b token", "a token ", "A token",
        ] {
            assert!(!matches(b"a token", other.as_bytes()), "{other:?}");
            assert!(!matches(other.as_bytes(), b"a token"), "{other:?}");
        }
    }
}
