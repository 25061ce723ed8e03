//! Times as the traces write them: `60 s`, `600 µs`, `1.5 s`, `1 h`.

use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("µs", 1_000),
];

pub(crate) fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_once(' ')?;
    let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // In whole nanoseconds: the traces are exact.
    let digits = format!("{whole}{fraction}").parse::<u64>().ok()?;
    Some(Duration::from_nanos(
        digits.checked_mul(nanos)? / 10u64.checked_pow(fraction.len() as u32)?,
    ))
}

/// Formats a time in the largest unit of which it is a whole number.
pub(crate) fn text(time: Duration) -> String {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let unit = UNITS
        .into_iter()
        .find(|(_, unit)| nanos >= *unit && nanos.is_multiple_of(*unit));
    unit.map_or(format!("{nanos} ns"), |(name, unit)| {
        format!("{} {name}", nanos / unit)
    })
}
