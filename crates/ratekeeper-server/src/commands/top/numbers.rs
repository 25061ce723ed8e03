//! Formats of numbers for people.

use std::time::Duration;

/// A count, such as 12,345.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate, such as 12,345, 12.3 or 0.4.
pub(super) fn rate(a_second: f64) -> String {
    match a_second {
        rate if rate >= 99.95 => count(rate.round() as u64),
        rate => format!("{rate:.1}"),
    }
}

/// A share, such as 12.3%, or a dash if the whole is 0.
pub(super) fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1}%", 100.0 * part / whole)
    } else {
        "–".to_owned()
    }
}

/// A time in its two largest units, such as 3 d 4 h, 12 min 5 s or 0 s.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units
        .iter()
        .position(|(unit, _)| seconds >= *unit)
        .unwrap_or(units.len() - 1);
    let parts = units[first..]
        .iter()
        .take(2)
        .scan(seconds, |left, (unit, name)| {
            let count = *left / unit;
            *left %= unit;
            Some((count, name))
        });
    let parts: Vec<String> = parts
        .enumerate()
        .filter(|(at, (count, _))| *at == 0 || *count > 0)
        .map(|(_, (count, name))| format!("{count} {name}"))
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.0, 0.44, 99.94, 99.96, 12_345.6].map(rate),
            ["0.0", "0.4", "99.9", "100", "12,346"]
        );
        assert_eq!([share(1.0, 3.0), share(0.0, 0.0)], ["33.3%", "–"]);
        let times = [0, 59, 60, 3_725, 90_000, 86_400 * 400]
            .map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(
            times,
            ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h", "400 d"]
        );
    }
}
