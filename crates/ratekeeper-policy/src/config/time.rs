//! Durations and timestamps: parsing and formatting.

use ratekeeper::{Limit, Timestamp};
use std::fmt::Write as _;
use std::time::Duration;
use toml::value::{Datetime, Offset};

/// Parses a duration such as `500ms`, `2s` or `15min`: a number with one of the units of a limit.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_policy::config::duration;
///
/// assert_eq!(duration("15min"), Some(Duration::from_secs(900)));
/// assert_eq!(duration("0s"), None);
/// ```
pub fn duration(text: &str) -> Option<Duration> {
    let is_one_word = text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric());
    let limit = is_one_word.then(|| format!("1/{text}").parse::<Limit>().ok())??;
    limit.rate().map(|rate| rate.period())
}

/// Parses a duration, or zero: `0s`.
pub(crate) fn duration_or_zero(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches('0');
    if unit.len() < text.len() && unit.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return duration(&format!("1{unit}")).map(|_| Duration::ZERO);
    }
    duration(text)
}

/// Formats a duration so that it parses back to the same.
pub fn duration_text(time: Duration) -> String {
    if time.is_zero() {
        return "0s".to_owned();
    }
    let rate = Limit::of(1, time)
        .rate()
        .map(|rate| rate.to_string())
        .unwrap_or_default();
    match rate.strip_prefix("1/") {
        Some(text) if text.starts_with(|c: char| c.is_ascii_digit()) => text.to_owned(),
        Some(unit) => format!("1{unit}"),
        None => rate,
    }
}

/// The error for a date and time that is not a timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimestampError {
    /// It has no offset from UTC.
    MissingOffset,
    /// It is before 1970 or after 2554.
    OutOfRange,
    /// It is only a date, or only a time.
    NotDatetime,
}

const SECONDS_PER_DAY: i64 = 86_400;

/// The timestamp of a date and time with offset.
pub(crate) fn timestamp(time: &Datetime) -> Result<Timestamp, TimestampError> {
    let (Some(date), Some(clock)) = (time.date, time.time) else {
        return Err(TimestampError::NotDatetime);
    };
    let offset = match time.offset {
        None => return Err(TimestampError::MissingOffset),
        Some(Offset::Z) => 0,
        Some(Offset::Custom { minutes }) => i64::from(minutes) * 60,
    };
    let days = days_from_civil(
        i64::from(date.year),
        i64::from(date.month),
        i64::from(date.day),
    );
    let of_day = i64::from(clock.hour) * 3600
        + i64::from(clock.minute) * 60
        + i64::from(clock.second.unwrap_or(0));
    let seconds = u64::try_from(days * SECONDS_PER_DAY + of_day - offset)
        .map_err(|_| TimestampError::OutOfRange)?;
    let nanos = seconds
        .checked_mul(1_000_000_000)
        .and_then(|all| all.checked_add(clock.nanosecond.unwrap_or(0).into()));
    nanos
        .map(Timestamp::from_unix_nanos)
        .ok_or(TimestampError::OutOfRange)
}

/// Formats a timestamp as TOML does, in UTC: `2026-01-31T12:00:00Z`.
pub fn timestamp_text(timestamp: Timestamp) -> String {
    let nanos = timestamp.as_unix_nanos();
    let (seconds, fraction) = ((nanos / 1_000_000_000) as i64, nanos % 1_000_000_000);
    let (year, month, day) = civil_from_days(seconds / SECONDS_PER_DAY);
    let of_day = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction > 0 {
        let _ = write!(text, ".{}", format!("{fraction:09}").trim_end_matches('0'));
    }
    text + "Z"
}

/// The number of days since 1970-01-01 of a Gregorian date, computed in eras of 400 years that
/// begin in March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The year, month and day of a number of days since 1970-01-01.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reads_back() {
        for (text, nanos) in [
            ("500ms", 500_000_000),
            ("2s", 2_000_000_000),
            ("1min", 60_000_000_000),
            ("7ns", 7),
        ] {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanos)));
            assert_eq!(duration_text(Duration::from_nanos(nanos)), text);
        }
        assert_eq!(duration("1m"), duration("60s"));
        assert_eq!(duration("90m"), Some(Duration::from_secs(5400)));
        for text in [
            "",
            "s",
            "0s",
            "2",
            "2s burst 3",
            "-2s",
            "2 s",
            "1.5s",
            "99999999999w",
            "2fortnights",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_date_reads_back() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:34:56Z", 951_827_696),
            ("2030-01-01T00:00:00Z", 1_893_456_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            let read = timestamp(&text.parse().unwrap()).unwrap();
            assert_eq!(
                read,
                Timestamp::from_unix(Duration::from_secs(seconds)),
                "{text}"
            );
            assert_eq!(timestamp_text(read), text);
        }
        let nanos = Timestamp::from_unix_nanos(1_500_000_000_120_000_000);
        assert_eq!(
            timestamp(&timestamp_text(nanos).parse().unwrap()),
            Ok(nanos)
        );
        assert_eq!(
            timestamp(&"2030-01-01T02:00:00+02:00".parse().unwrap()),
            timestamp(&"2030-01-01T00:00:00Z".parse().unwrap())
        );
        assert_eq!(
            timestamp(&"2030-01-01T00:00:00".parse().unwrap()),
            Err(TimestampError::MissingOffset)
        );
        assert_eq!(
            timestamp(&"2030-01-01".parse().unwrap()),
            Err(TimestampError::NotDatetime)
        );
        assert_eq!(
            timestamp(&"1969-12-31T23:59:59Z".parse().unwrap()),
            Err(TimestampError::OutOfRange)
        );
        assert_eq!(
            timestamp(&"9999-01-01T00:00:00Z".parse().unwrap()),
            Err(TimestampError::OutOfRange)
        );
    }
}
