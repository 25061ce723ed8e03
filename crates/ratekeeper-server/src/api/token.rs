//! Secrets: those that clients send are compared, those of this process are made.

use subtle::ConstantTimeEq;

/// Whether `given` is the token `expected`. The time this takes depends on the length of `given`
/// only, so a client cannot find out a token byte by byte.
pub(crate) fn matches(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

/// A secret of this process, from the random source of the operating system.
///
/// # Panics
/// If the operating system has no random source.
pub(crate) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!(
            "the operating system gave no random bytes ({error}); allow the system call getrandom, or mount /dev/urandom"
        );
    }
    bytes
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
