//! What Linux says of this process, under the names that Prometheus's own client libraries use.
//! Elsewhere nothing is told.

use super::text::{Kind, Page};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kernel tells times to programs in ticks of a hundredth of a second, whatever it counts by
/// itself.
const TICKS: f64 = 100.0;

/// Adds them to `page`; `started` is when the process began to serve.
pub(super) fn figures(page: &mut Page, started: SystemTime) {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let mut gauge = |name, help, value: Option<f64>| {
        if let Some(value) = value {
            page.family(name, help, Kind::Gauge).sample(&[], value);
        }
    };
    let seconds = started
        .duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_millis() as f64 / 1e3);
    gauge(
        "process_start_time_seconds",
        "When the process began to serve, in seconds since 1970.",
        seconds,
    );
    let memory = memory(&read("status"));
    gauge(
        "process_resident_memory_bytes",
        "Memory of the process that is in RAM.",
        memory.map(|bytes| bytes as f64),
    );
    // One of them is that of the directory that is read.
    let open = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|files| files.count().saturating_sub(1) as f64);
    gauge("process_open_fds", "File descriptors that are open.", open);
    let most = most_files(&read("limits"));
    gauge(
        "process_max_fds",
        "File descriptors that may be open.",
        most.map(|most| most as f64),
    );
    if let Some(ticks) = processor_ticks(&read("stat")) {
        let help = "Processor time of the process.";
        page.family("process_cpu_seconds_total", help, Kind::Counter)
            .sample(&[], ticks as f64 / TICKS);
    }
}

fn memory(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn most_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// In the process and in the kernel for it: the 14th and 15th figure. The second is a name in
/// brackets, which may have spaces and brackets in it.
fn processor_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut rest = rest.split(' ').skip(11);
    let (user, kernel): (u64, u64) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    user.checked_add(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read_and_anything_else_is_left_out() {
        assert_eq!(
            memory("VmHWM:\t  9 kB\nVmRSS:\t    5120 kB\n"),
            Some(5 << 20)
        );
        assert_eq!(
            most_files(
                "Max open files            1024                 4096                 files     \n"
            ),
            Some(1024)
        );
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(processor_ticks(stat), Some(300));
        for wrong in [
            "",
            "VmRSS: x kB",
            "Max open files unlimited",
            "7 (a) S 1 2",
            ") ) )",
        ] {
            assert_eq!(
                (memory(wrong), most_files(wrong), processor_ticks(wrong)),
                (None, None, None),
                "{wrong}"
            );
        }
    }

    #[test]
    fn this_process_has_figures() {
        let mut page = Page::new();
        figures(&mut page, SystemTime::now());
        let text = page.into_text();
        assert!(text.contains("\nprocess_start_time_seconds "), "{text}");
        #[cfg(target_os = "linux")]
        assert_eq!(text.matches("\nprocess_").count(), 5, "{text}");
    }
}
