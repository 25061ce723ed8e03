//! How long a process has had the processor.

use std::fs;
use std::time::Duration;

/// How long its threads have had a core, and how long they have waited for one. taskset becomes
/// what it starts.
pub(crate) fn times(process: u32) -> Result<[Duration; 2], String> {
    let path = format!("/proc/{process}/task");
    let threads = fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut times = [Duration::ZERO; 2];
    for thread in threads.map_while(Result::ok) {
        // One that has ended is not there.
        let said = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let nanos = said
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
