//! How not to count in Redis: read, compare, write. Two clients that read the same count are both
//! admitted.
//!
//! A test for races is worth something only if it fails on this.

use crate::resp::{Connection, Reply};

/// Whether the count of `key` was below `limit`, and one more is counted.
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
