//! Process metrics from `/proc`, under the names of Prometheus client libraries. Linux only, except
//! the start time.

use super::text::{Kind, Page};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Clock ticks a second in `/proc`, a constant of the kernel interface (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Writes the metrics. `started` is when the process began to serve.
pub(super) fn write(page: &mut Page, started: SystemTime) {
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
        "When the process started to serve, in seconds since 1970.",
        seconds,
    );
    let memory = memory(&read("status"));
    gauge(
        "process_resident_memory_bytes",
        "Resident memory.",
        memory.map(|bytes| bytes as f64),
    );
    // Without the descriptor of the directory being read.
    let open = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|files| files.count().saturating_sub(1) as f64);
    gauge("process_open_fds", "Open file descriptors.", open);
    let max = max_files(&read("limits"));
    gauge(
        "process_max_fds",
        "Limit of open file descriptors.",
        max.map(|max| max as f64),
    );
    if let Some(ticks) = processor_ticks(&read("stat")) {
        let help = "Processor time.";
        page.family("process_cpu_seconds_total", help, Kind::Counter)
            .sample(&[], ticks as f64 / TICKS_PER_SECOND);
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

fn max_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time: fields 14 and 15. Field 2 is a name in parentheses, which may contain
/// spaces and parentheses.
fn processor_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut rest = rest.split(' ').skip(11);
    let user: u64 = rest.next()?.parse().ok()?;
    let kernel: u64 = rest.next()?.parse().ok()?;
    user.checked_add(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_files_are_parsed_and_others_ignored() {
        assert_eq!(
            memory("VmHWM:\t  9 kB\nVmRSS:\t    5120 kB\n"),
            Some(5 << 20)
        );
        assert_eq!(
            max_files(
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
                (memory(wrong), max_files(wrong), processor_ticks(wrong)),
                (None, None, None),
                "{wrong}"
            );
        }
    }

    #[test]
    fn this_process_has_metrics() {
        let mut page = Page::new();
        write(&mut page, SystemTime::now());
        let text = page.into_text();
        assert!(text.contains("\nprocess_start_time_seconds "), "{text}");
        #[cfg(target_os = "linux")]
        assert_eq!(text.matches("\nprocess_").count(), 5, "{text}");
    }
}
