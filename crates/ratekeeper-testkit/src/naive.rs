//! A deliberately broken limiter in Redis: read, compare, write. Two clients that read the same
//! count are both allowed.
//!
//! A test for races is only useful if it fails on this.

use crate::resp::{Connection, Reply};

/// Counts one more if the count of `key` is below `limit`; returns whether it was.
///
/// # Panics
///
/// If Redis does not answer, or `key` holds something else.
pub fn take(connection: &mut Connection, key: &str, limit: u64) -> bool {
    let count = match connection.command(&["GET", key]).expect("Redis answers") {
        Reply::Nil => 0,
        count => count
            .int()
            .and_then(|count| u64::try_from(count).ok())
            .expect("a count"),
    };
    if count >= limit {
        return false;
    }
    let set = connection
        .command(&["SET", key, &(count + 1).to_string()])
        .expect("Redis answers");
    assert_eq!(set, Reply::Simple("OK".into()));
    true
}
