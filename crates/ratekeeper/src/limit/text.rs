//! Parsing and display of limits: `N/[k]UNIT [burst B] [wait D | queue Q] [ALGORITHM]
//! [refundable]`, `unlimited`, `0`.

use super::{Algorithm, BurstSpec, Limit, Rate};
use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Units of time from the longest, with their names in text: the first name is the one printed.
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

/// Writes a time in the largest unit that divides it: `15min`; a count of 1 is written as `one`,
/// which may be empty.
fn write_time(f: &mut fmt::Formatter<'_>, nanos: u64, one: &str) -> fmt::Result {
    let fits = UNITS
        .into_iter()
        .find(|(unit, _)| nanos > 0 && nanos.is_multiple_of(*unit));
    let (unit, names) = fits.unwrap_or(UNITS[4]);
    match nanos / unit {
        1 => write!(f, "{one}{}", names[0]),
        many => write!(f, "{many}{}", names[0]),
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.count)?;
        write_time(f, self.period, "")
    }
}

/// The text that parses back to the same limit.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate() {
            None => return f.write_str("unlimited"),
            Some(_) if *self == Limit::deny_all().algorithm(self.algorithm) => f.write_str("0")?,
            Some(rate) => write!(f, "{rate}")?,
        }
        match self.burst_spec() {
            BurstSpec::Burst(burst) if burst != self.count => write!(f, " burst {burst}")?,
            BurstSpec::Queue(max_queue) if max_queue != self.count => {
                return write!(f, " queue {max_queue}");
            }
            BurstSpec::Wait(max_wait) => {
                f.write_str(" wait ")?;
                return write_time(f, max_wait, "1");
            }
            _ => {}
        }
        match self.algorithm {
            Algorithm::TokenBucket => {}
            other => write!(f, " {other}")?,
        }
        if self.is_refundable() {
            f.write_str(" refundable")
        } else {
            Ok(())
        }
    }
}

/// Error: a text that is not a limit. It tells where the text is wrong and what would be right
/// there.
///
/// ```
/// use ratekeeper::Limit;
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
    problem: ParseLimitErrorKind,
}

/// What is wrong with the text of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseLimitErrorKind {
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
    /// A word that is neither `burst`, `wait`, `queue` nor an algorithm.
    Word,
    /// `burst` together with an algorithm that has none.
    Burst,
    /// `wait` or `queue` together with an algorithm other than pacing, or both of them.
    Pacing,
    /// `refundable` together with an algorithm other than the token bucket's.
    Refundable,
    /// The same part twice.
    Twice,
    /// More text follows where the limit should end.
    Trailing,
    /// A full bucket would take more than 142 years to fill.
    Fill,
}

impl ParseLimitError {
    /// The byte position of the mistake.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What is wrong there.
    pub fn kind(&self) -> ParseLimitErrorKind {
        self.problem
    }

    /// The word at the mistake.
    fn word(&self) -> &str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        rest.split_ascii_whitespace().next().unwrap_or_default()
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.text.get(..self.at).unwrap_or_default().chars().count() + 1;
        write!(
            f,
            "`{}` is not a limit: at character {column}, ",
            self.text.escape_debug()
        )?;
        let word = format_args!("`{}`", self.word().escape_debug());
        let missing = self.word().is_empty();
        match self.problem {
            ParseLimitErrorKind::Number if missing => {
                f.write_str("a whole number is missing; write a limit as `100/min burst 20`")
            }
            ParseLimitErrorKind::Unit if missing => {
                f.write_str("a unit of time is missing; write s, min, h, d or w, as in `10/min`")
            }
            ParseLimitErrorKind::Number => write!(
                f,
                "{word} is not a whole number; write a limit as `100/min burst 20`"
            ),
            ParseLimitErrorKind::TooLarge => write!(f, "{word} is more than {}", u64::MAX),
            ParseLimitErrorKind::Slash => {
                write!(f, "a `/` and a unit must follow the count, as in `100/min`")
            }
            ParseLimitErrorKind::Unit => write!(
                f,
                "{word} is not a unit of time; write s, min, h, d or w, as in `10/min`"
            ),
            ParseLimitErrorKind::Period => {
                write!(f, "a period must be more than zero and at most 584 years")
            }
            ParseLimitErrorKind::Word => {
                write!(
                    f,
                    "{word} is not known here; write `burst N`, `wait 2s`, `queue N`, `refundable` or an algorithm ("
                )?;
                for algorithm in Algorithm::ALL {
                    write!(f, "{algorithm}, ")?;
                }
                f.write_str("gcra)")
            }
            ParseLimitErrorKind::Burst => write!(
                f,
                "only token_bucket and leaky_bucket have a burst; leave it out"
            ),
            ParseLimitErrorKind::Pacing => write!(
                f,
                "`wait D` or `queue N` belong to pacing, one of them, without burst"
            ),
            ParseLimitErrorKind::Refundable => {
                write!(
                    f,
                    "only token_bucket and leaky_bucket can be refundable; the others give back in full without it"
                )
            }
            ParseLimitErrorKind::Twice => {
                write!(f, "{word} is given twice; give it once")
            }
            ParseLimitErrorKind::Trailing => {
                write!(f, "{word} is not expected after the limit; remove it")
            }
            ParseLimitErrorKind::Fill => {
                write!(
                    f,
                    "this much would take over 142 years to fill; lower the burst or raise the rate"
                )
            }
        }
    }
}

impl core::error::Error for ParseLimitError {}

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        Parser { text, at: 0 }
            .limit()
            .map_err(|(at, problem)| ParseLimitError {
                text: text.to_owned(),
                at,
                problem,
            })
    }
}

type ParseResult<T> = Result<T, (usize, ParseLimitErrorKind)>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn limit(mut self) -> ParseResult<Limit> {
        self.space();
        if self.rest().starts_with("unlimited") && self.peek_word() == "unlimited" {
            self.word();
            self.end()?;
            return Ok(Limit::unlimited());
        }
        let start = self.at;
        let count = self.number()?;
        self.space();
        let limit = if self.rest().starts_with('/') {
            self.at += 1;
            let period = self.period()?;
            Limit::of_nanos(count, period)
        } else if count == 0 {
            // `0` alone is a limit; any other number needs a period.
            Limit::deny_all()
        } else {
            return Err((self.at, ParseLimitErrorKind::Slash));
        };
        self.options(limit, start)
    }

    /// The options after the rate, each at most once and in any order.
    fn options(mut self, mut limit: Limit, start: usize) -> ParseResult<Limit> {
        let (mut burst, mut algorithm, mut refundable) = (None, None, None);
        loop {
            self.space();
            let at = self.at;
            let word = self.word();
            match word {
                "" if self.rest().is_empty() => break,
                "burst" | "wait" | "queue" => {
                    self.space();
                    let (amount_at, read) = (self.at, self.burst_spec(word)?);
                    match burst {
                        Some((_, BurstSpec::Burst(_))) if word == "burst" => {
                            return Err((at, ParseLimitErrorKind::Twice));
                        }
                        Some(_) => return Err((at, ParseLimitErrorKind::Pacing)),
                        None => burst = Some((amount_at, read)),
                    }
                }
                "refundable" if refundable.is_some() => {
                    return Err((at, ParseLimitErrorKind::Twice));
                }
                "refundable" => refundable = Some(at),
                name => match Algorithm::from_name(name) {
                    None => return Err((at, ParseLimitErrorKind::Word)),
                    Some(_) if algorithm.is_some() => return Err((at, ParseLimitErrorKind::Twice)),
                    Some(found) => algorithm = Some((at, found)),
                },
            }
        }
        if let Some((_, algorithm)) = algorithm {
            limit = limit.algorithm(algorithm);
        }
        let amount_at = burst.map_or(start, |(at, _)| at);
        match (burst, algorithm) {
            (Some((_, BurstSpec::Burst(_))), Some((at, algorithm))) if !algorithm.has_burst() => {
                return Err((amount_at.min(at), ParseLimitErrorKind::Burst));
            }
            (Some((_, BurstSpec::Burst(burst))), _) => limit = limit.burst(burst),
            (Some(_), Some((at, algorithm))) if algorithm != Algorithm::Pacing => {
                return Err((at, ParseLimitErrorKind::Pacing));
            }
            (Some((_, burst)), _) => {
                limit = Limit::build(limit.count, limit.period, burst, Algorithm::Pacing, false);
            }
            (None, _) => {}
        }
        match refundable {
            Some(at) if !limit.algorithm.has_burst() => {
                return Err((at, ParseLimitErrorKind::Refundable));
            }
            Some(_) => limit = limit.refundable(),
            None => {}
        }
        // A rate of zero never fills, and is written on purpose.
        if limit.count > 0 && limit.is_clipped() {
            Err((amount_at, ParseLimitErrorKind::Fill))
        } else {
            Ok(limit)
        }
    }

    fn burst_spec(&mut self, word: &str) -> ParseResult<BurstSpec> {
        if word == "wait" {
            return self.time().map(BurstSpec::Wait);
        }
        let at = self.at;
        let number = self.number()?;
        if !self.peek_word().is_empty() {
            return Err((at, ParseLimitErrorKind::Number));
        }
        Ok(if word == "burst" {
            BurstSpec::Burst(number)
        } else {
            BurstSpec::Queue(number)
        })
    }

    /// The time after the slash: a unit, or a number of units; not zero.
    fn period(&mut self) -> ParseResult<u64> {
        self.space();
        let start = self.at;
        match self.time()? {
            0 => Err((start, ParseLimitErrorKind::Period)),
            period => Ok(period),
        }
    }

    fn time(&mut self) -> ParseResult<u64> {
        let start = self.at;
        let many = if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            self.number()?
        } else {
            1
        };
        self.space();
        let at = self.at;
        let name = self.word();
        let (unit, _) = UNITS
            .into_iter()
            .find(|(_, names)| names.contains(&name))
            .ok_or((at, ParseLimitErrorKind::Unit))?;
        many.checked_mul(unit)
            .ok_or((start, ParseLimitErrorKind::Period))
    }

    fn number(&mut self) -> ParseResult<u64> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let (start, number) = (self.at, &self.rest()[..digits]);
        if digits == 0 {
            return Err((start, ParseLimitErrorKind::Number));
        }
        self.at += digits;
        number
            .parse()
            .map_err(|_| (start, ParseLimitErrorKind::TooLarge))
    }

    fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        &rest[..end]
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_ascii_start().len();
    }

    fn end(&mut self) -> ParseResult<()> {
        self.space();
        if self.rest().is_empty() {
            Ok(())
        } else {
            Err((self.at, ParseLimitErrorKind::Trailing))
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}
