//! Random bytes, for secrets and for numbers that must be unique in a fleet.

/// Random bytes from the operating system. Not from `fastrand`, whose seed is 64 bits of a clock
/// and a thread number, and not from std's `RandomState`, which promises no more than different
/// hashes.
///
/// # Panics
/// If the operating system has no random source.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!(
            "the operating system gave no random bytes ({error}); allow the system call getrandom, or mount /dev/urandom"
        );
    }
    bytes
}
