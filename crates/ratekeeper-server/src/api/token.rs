//! Comparison of tokens in constant time.

use subtle::ConstantTimeEq;

/// Whether `given` is the token `expected`. The time this takes depends only on the length of
/// `given`, so a client cannot guess a token byte by byte.
pub(crate) fn matches(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_matches() {
        assert!(matches(b"a token", b"a token"));
        for other in [
            "", "a", "a toke", "a tokem", "b token", "a token ", "A token",
        ] {
            assert!(!matches(b"a token", other.as_bytes()), "{other:?}");
            assert!(!matches(other.as_bytes(), b"a token"), "{other:?}");
        }
    }
}
