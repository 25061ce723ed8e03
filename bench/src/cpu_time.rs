//! Processor time of a process.

use std::fs;
use std::time::Duration;

/// Returns how long its threads have run on a core, and how long they have waited for one. taskset
/// replaces itself with the program it starts, so the id is that of the program.
pub(crate) fn times(process: u32) -> Result<[Duration; 2], String> {
    let path = format!("/proc/{process}/task");
    let threads = fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut times = [Duration::ZERO; 2];
    for thread in threads.map_while(Result::ok) {
        // A thread that has ended is not listed.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let nanos = text
            .split_whitespace()
            .filter_map(|nanos| nanos.parse().ok())
            .map(Duration::from_nanos);
        times
            .iter_mut()
            .zip(nanos)
            .for_each(|(time, nanos)| *time += nanos);
    }
    Ok(times)
}
