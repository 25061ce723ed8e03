//! Limits as text, both ways: `N/[k]UNIT [burst B] [ALGORITHM]`, `unlimited`, `0`.

use super::normal::LONGEST_FILL;
use super::{Algorithm, Limit, Rate};
use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Units from the longest, with their names in text: the first is how they are printed.
const UNITS: [(u64, &[&str]); 8] = [
    (604_800_000_000_000, &["w", "week", "weeks"]),
    (86_400_000_000_000, &["d", "day", "days"]),
    (3_600_000_000_000, &["h", "hour", "hours", "hr"]),
    (60_000_000_000, &["min", "m", "minute", "minutes"]),
    (1_000_000_000, &["s", "sec", "second", "seconds"]),
    (1_000_000, &["ms", "millisecond", "milliseconds"]),
    (1_000, &["us", "microsecond", "microseconds"]),
    (1, &["ns", "nanosecond", "nanoseconds"]),
];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, names) =
            UNITS.into_iter().find(|(unit, _)| self.period.is_multiple_of(*unit)).unwrap_or(UNITS[UNITS.len() - 1]);
        match self.period / unit {
            1 => write!(f, "{}/{}", self.count, names[0]),
            many => write!(f, "{}/{many}{}", self.count, names[0]),
        }
    }
}

/// The text that parses back to the same limit.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate() {
            None => f.write_str("unlimited")?,
            Some(_) if *self == Limit::none().algorithm(self.algorithm) => f.write_str("0")?,
            Some(rate) => {
                write!(f, "{rate}")?;
                if self.burst != self.count {
                    write!(f, " burst {}", self.burst)?;
                }
            }
        }
        match self.algorithm {
            Algorithm::TokenBucket => Ok(()),
            other => write!(f, " {other}"),
        }
    }
}

/// Why a text is not a limit: where it stops making sense and what would be right there.
///
/// ```
/// use tollgate::Limit;
///
/// let error = "10/fortnight".parse::<Limit>().unwrap_err();
/// assert_eq!(error.at(), 3);
/// assert_eq!(
///     error.to_string(),
///     "`10/fortnight` is not a limit: at character 4, `fortnight` is not a unit of time; \
///      write s, min, h, d or w, as in `10/min`"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseLimitError {
    text: String,
    at: usize,
    problem: Problem,
}

/// What is wrong with the text of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A whole number was expected.
    Number,
    /// The number does not fit 64 bits.
    TooLarge,
    /// The slash between count and unit is missing.
    Slash,
    /// The unit is not one of s, min, h, d, w.
    Unit,
    /// The period is zero, or longer than 64 bits of nanoseconds.
    Period,
    /// A word that is neither `burst` nor an algorithm.
    Word,
    /// The same part twice.
    Twice,
    /// More follows where the limit should end.
    Trailing,
    /// A full bucket would take more than 142 years to fill.
    Fill,
}

impl ParseLimitError {
    /// The byte at which the text stops making sense.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What is wrong there.
    pub fn problem(&self) -> Problem {
        self.problem
    }

    /// The word that starts where it stops making sense.
    fn word(&self) -> &str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        rest.split_ascii_whitespace().next().unwrap_or_default()
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.text.get(..self.at).unwrap_or_default().chars().count() + 1;
        write!(f, "`{}` is not a limit: at character {column}, ", self.text.escape_debug())?;
        let word = format_args!("`{}`", self.word().escape_debug());
        let missing = self.word().is_empty();
        match self.problem {
            Problem::Number if missing => f.write_str("a whole number is missing; write a limit as `100/min burst 20`"),
            Problem::Unit if missing => {
                f.write_str("a unit of time is missing; write s, min, h, d or w, as in `10/min`")
            }
            Problem::Number => write!(f, "{word} is not a whole number; write a limit as `100/min burst 20`"),
            Problem::TooLarge => write!(f, "{word} is more than {}", u64::MAX),
            Problem::Slash => write!(f, "a `/` and a unit must follow the count, as in `100/min`"),
            Problem::Unit => write!(f, "{word} is not a unit of time; write s, min, h, d or w, as in `10/min`"),
            Problem::Period => write!(f, "a period must be more than zero and at most 584 years"),
            Problem::Word => {
                write!(f, "{word} is not known here; write `burst N` or an algorithm (")?;
                for algorithm in Algorithm::ALL {
                    write!(f, "{algorithm}, ")?;
                }
                f.write_str("gcra)")
            }
            Problem::Twice => write!(f, "{word} says again what was said before; say it once"),
            Problem::Trailing => write!(f, "nothing may follow, but {word} does"),
            Problem::Fill => {
                write!(f, "this much would take over 142 years to fill; lower the burst or raise the rate")
            }
        }
    }
}

impl core::error::Error for ParseLimitError {}

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        Parser { text, at: 0 }.limit().map_err(|(at, problem)| ParseLimitError { text: text.to_owned(), at, problem })
    }
}

type Parsed<T> = Result<T, (usize, Problem)>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn limit(mut self) -> Parsed<Limit> {
        self.space();
        if self.rest().starts_with("unlimited") && self.peek_word() == "unlimited" {
            self.word();
            self.end()?;
            return Ok(Limit::unlimited());
        }
        let start = self.at;
        let count = self.number()?;
        self.space();
        let limit = match self.rest().starts_with('/') {
            true => {
                self.at += 1;
                let period = self.period()?;
                Limit::of_nanos(count, period)
            }
            // `0` alone is a limit; any other number wants a period.
            false if count == 0 => Limit::none(),
            false => return Err((self.at, Problem::Slash)),
        };
        self.options(limit, start)
    }

    /// What may follow the rate, each at most once and in any order.
    fn options(mut self, limit: Limit, start: usize) -> Parsed<Limit> {
        let (mut burst, mut algorithm, mut amount_at) = (None, None, start);
        loop {
            self.space();
            let at = self.at;
            match self.word() {
                "" if self.rest().is_empty() => break,
                "burst" if burst.is_some() => return Err((at, Problem::Twice)),
                "burst" => {
                    self.space();
                    amount_at = self.at;
                    burst = Some(self.number()?);
                    if !self.peek_word().is_empty() {
                        return Err((amount_at, Problem::Number));
                    }
                }
                name => match Algorithm::from_name(name) {
                    None => return Err((at, Problem::Word)),
                    Some(_) if algorithm.is_some() => return Err((at, Problem::Twice)),
                    found => algorithm = found,
                },
            }
        }
        let limit = burst.map_or(limit, |burst| limit.burst(burst)).algorithm(algorithm.unwrap_or_default());
        match u128::from(limit.burst) * u128::from(limit.period) > u128::from(limit.count) * u128::from(LONGEST_FILL) {
            // A rate of zero never fills, and is written on purpose.
            true if limit.count > 0 => Err((amount_at, Problem::Fill)),
            _ => Ok(limit),
        }
    }

    fn period(&mut self) -> Parsed<u64> {
        self.space();
        let start = self.at;
        let many = if self.rest().starts_with(|c: char| c.is_ascii_digit()) { self.number()? } else { 1 };
        self.space();
        let at = self.at;
        let name = self.word();
        let (unit, _) = UNITS.into_iter().find(|(_, names)| names.contains(&name)).ok_or((at, Problem::Unit))?;
        many.checked_mul(unit).filter(|period| *period > 0).ok_or((start, Problem::Period))
    }

    fn number(&mut self) -> Parsed<u64> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let (start, number) = (self.at, &self.rest()[..digits]);
        if digits == 0 {
            return Err((start, Problem::Number));
        }
        self.at += digits;
        number.parse().map_err(|_| (start, Problem::TooLarge))
    }

    fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        &rest[..end]
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_ascii_start().len();
    }

    fn end(&mut self) -> Parsed<()> {
        self.space();
        if self.rest().is_empty() { Ok(()) } else { Err((self.at, Problem::Trailing)) }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}
