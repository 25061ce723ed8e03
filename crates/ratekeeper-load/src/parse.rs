//! Parsers for the kernel's files. Unexpected content gives `None`, never a panic.

use super::Sample;

/// The path of the process's own cgroup below the mount: version 2 has the line `0::/path`.
pub(super) fn own_cgroup(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(|path| path.trim().trim_start_matches('/'))
}

/// The value of a line `name value`.
pub(super) fn field(text: &str, name: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// The cores of `quota period` in microseconds; `None` for `max`.
pub(super) fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let (quota, period): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// The first line of /proc/stat: user nice system idle iowait irq softirq steal …
pub(super) fn cpu_of_machine(text: &str) -> Option<Sample> {
    let numbers = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace();
    let ticks: Vec<f64> = numbers
        .map_while(|number| number.parse().ok())
        .take(8)
        .collect();
    let total: f64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0.0);
    Some(Sample {
        used: total - idle,
        total,
    })
}

/// The share of the machine's memory that is not available.
pub(super) fn memory_of_machine(text: &str) -> Option<f64> {
    let kilobytes = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
    };
    let (total, available) = (kilobytes("MemTotal:")?, kilobytes("MemAvailable:")?);
    (total > 0.0).then(|| (1.0 - available / total).clamp(0.0, 1.0))
}
