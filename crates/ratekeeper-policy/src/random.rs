//! Random bytes for secrets.

/// Bytes from the random source of the operating system, for secrets. Not from std's `RandomState`,
/// which promises no more than different hashes.
///
/// # Panics
/// If the operating system has no random source.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
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

    /// Its values are different, and may be predicted.
    #[test]
    fn no_secret_comes_from_the_seeds_of_hash_maps() {
        assert!(!include_str!("fingerprint.rs").contains("RandomState"));
    }

    /// Each byte changes: with this many tries a byte that does not would be no accident.
    #[test]
    fn all_of_the_bytes_are_random() {
        let first = random_bytes::<32>();
        let mut has_changed = [false; 32];
        for _ in 0..16 {
            for (at, byte) in random_bytes::<32>().iter().enumerate() {
                has_changed[at] |= *byte != first[at];
            }
        }
        assert_eq!(has_changed, [true; 32]);
    }
}
