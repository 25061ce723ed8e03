//! What a client asks: limits, and jobs about them.

use super::{Name, Reader, Unreadable, VERSION, put_bytes, put_number};
use std::time::Duration;
use tollgate::{Ask, Mode, OnFailure};

/// A call as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The limits that the jobs are about.
    pub limits: Vec<LimitLine<'a>>,
    /// What to do.
    pub jobs: Vec<Job<'a>>,
}

/// A limit as a client knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitLine<'a> {
    /// What jobs call it.
    pub number: u64,
    /// What all clients call it.
    pub name: &'a str,
    /// Since when it says what it says, in microseconds of the Unix epoch.
    pub since: u64,
    /// What becomes of its asks while the service cannot reach its own store.
    pub on_failure: OnFailure,
    /// What it says.
    pub rule: Rule<'a>,
}

/// What a limit says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule<'a> {
    /// A rate, in words.
    Rate(&'a str),
    /// So many in flight.
    InFlight(u64),
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job<'a> {
    /// Charge every ask, or none of them.
    Decide(Decide<'a>),
    /// Correct what was charged.
    Settle {
        /// Which verdict.
        name: Name,
        /// What each ask really cost.
        actual: Vec<u64>,
    },
    /// Forget verdicts; their permits go back.
    GiveUp(Vec<Name>),
    /// Keep verdicts for longer.
    Renew(Vec<Name>),
    /// Give a key up to so many tokens.
    Grant {
        /// The limit.
        limit: u64,
        /// Whose bucket.
        key: &'a [u8],
        /// How many.
        tokens: u64,
    },
    /// Make a key fresh.
    Reset {
        /// The limit.
        limit: u64,
        /// Whose bucket.
        key: &'a [u8],
    },
}

/// A request to decide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decide<'a> {
    /// Under which name to keep the verdict; none if nobody will come back to it.
    pub keep: Option<Name>,
    /// What it is about.
    pub asks: Vec<AskLine<'a>>,
}

/// An [`Ask`] that names its limit by a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskLine<'a> {
    /// The limit.
    pub limit: u64,
    /// Whose bucket.
    pub key: &'a [u8],
    /// See [`Ask::mode`].
    pub mode: Mode,
    /// See [`Ask::cost`].
    pub cost: u64,
    /// See [`Ask::reserve`].
    pub reserve: u64,
    /// See [`Ask::max_wait`].
    pub max_wait: Option<Duration>,
}

const DECIDE: u64 = 1;
const SETTLE: u64 = 2;
const GIVE_UP: u64 = 3;
const RENEW: u64 = 4;
const GRANT: u64 = 5;
const RESET: u64 = 6;

impl<'a> Call<'a> {
    /// Reads a call.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let mut from = Reader(bytes);
        from.version()?;
        let limits = (0..from.count()?).map(|_| LimitLine::read(&mut from)).collect::<Result<_, _>>()?;
        let mut jobs = Vec::new();
        while !from.is_empty() {
            jobs.push(Job::read(&mut from)?);
        }
        Ok(Self { limits, jobs })
    }

    /// Writes a call of these limits; its jobs follow.
    pub fn begin<'b>(limits: impl ExactSizeIterator<Item = LimitLine<'b>>) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        put_number(&mut out, VERSION);
        put_number(&mut out, limits.len() as u64);
        limits.for_each(|limit| limit.write(&mut out));
        out
    }
}

impl<'a> LimitLine<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        put_number(out, self.number);
        put_bytes(out, self.name.as_bytes());
        put_number(out, self.since);
        let choice = OnFailure::ALL.iter().position(|choice| *choice == self.on_failure);
        put_number(out, choice.unwrap_or(0) as u64);
        match self.rule {
            Rule::Rate(text) => {
                put_number(out, 0);
                put_bytes(out, text.as_bytes());
            }
            Rule::InFlight(most) => {
                put_number(out, 1);
                put_number(out, most);
            }
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Unreadable> {
        let (number, name, since) = (from.number()?, from.text()?, from.number()?);
        let choice = usize::try_from(from.number()?).ok().and_then(|choice| OnFailure::ALL.get(choice).copied());
        let on_failure = choice.ok_or(Unreadable)?;
        let rule = match from.number()? {
            0 => Rule::Rate(from.text()?),
            1 => Rule::InFlight(from.number()?),
            _ => return Err(Unreadable),
        };
        Ok(Self { number, name, since, on_failure, rule })
    }
}

impl<'a> Job<'a> {
    /// Writes a job that decides.
    pub fn decide(asks: &[Ask<'_>], keep: Option<Name>) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + asks.iter().map(|ask| 16 + ask.key.len()).sum::<usize>());
        put_number(&mut out, DECIDE);
        put_bytes(&mut out, keep.as_ref().map_or(&[], |name| &name[..]));
        put_number(&mut out, asks.len() as u64);
        for ask in asks {
            put_number(&mut out, ask.limit.number());
            put_bytes(&mut out, ask.key);
            put_number(&mut out, mode_number(ask.mode));
            put_number(&mut out, ask.cost);
            put_number(&mut out, ask.reserve);
            let nanos = |wait: Duration| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
            put_number(&mut out, ask.max_wait.map_or(0, nanos));
        }
        out
    }

    /// Writes any job but one that decides.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Decide(_) => {}
            Self::Settle { name, actual } => {
                put_number(out, SETTLE);
                put_bytes(out, name);
                put_number(out, actual.len() as u64);
                actual.iter().for_each(|cost| put_number(out, *cost));
            }
            Self::GiveUp(names) | Self::Renew(names) => {
                put_number(out, if matches!(self, Self::GiveUp(_)) { GIVE_UP } else { RENEW });
                put_number(out, names.len() as u64);
                names.iter().for_each(|name| put_bytes(out, name));
            }
            Self::Grant { limit, key, tokens } => {
                put_number(out, GRANT);
                put_number(out, *limit);
                put_bytes(out, key);
                put_number(out, *tokens);
            }
            Self::Reset { limit, key } => {
                put_number(out, RESET);
                put_number(out, *limit);
                put_bytes(out, key);
            }
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Unreadable> {
        let name = |from: &mut Reader<'a>| Name::try_from(from.bytes()?).map_err(|_| Unreadable);
        let names = |from: &mut Reader<'a>| (0..from.count()?).map(|_| name(from)).collect::<Result<_, _>>();
        Ok(match from.number()? {
            DECIDE => {
                let keep = match from.bytes()? {
                    [] => None,
                    name => Some(Name::try_from(name).map_err(|_| Unreadable)?),
                };
                let asks = (0..from.count()?).map(|_| AskLine::read(from)).collect::<Result<_, _>>()?;
                Self::Decide(Decide { keep, asks })
            }
            SETTLE => {
                let name = name(from)?;
                let actual = (0..from.count()?).map(|_| from.number()).collect::<Result<_, _>>()?;
                Self::Settle { name, actual }
            }
            GIVE_UP => Self::GiveUp(names(from)?),
            RENEW => Self::Renew(names(from)?),
            GRANT => Self::Grant { limit: from.number()?, key: from.bytes()?, tokens: from.number()? },
            RESET => Self::Reset { limit: from.number()?, key: from.bytes()? },
            _ => return Err(Unreadable),
        })
    }
}

impl<'a> AskLine<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Unreadable> {
        let (limit, key, mode) = (from.number()?, from.bytes()?, from.number()?);
        let mode = MODES.into_iter().find(|known| mode_number(*known) == mode).ok_or(Unreadable)?;
        let (cost, reserve, wait) = (from.number()?, from.number()?, from.number()?);
        let max_wait = wait.checked_sub(1).map(Duration::from_nanos);
        Ok(Self { limit, key, mode, cost, reserve, max_wait })
    }
}

const MODES: [Mode; 3] = [Mode::Enforce, Mode::Shadow, Mode::Peek];

fn mode_number(mode: Mode) -> u64 {
    match mode {
        Mode::Enforce => 0,
        Mode::Shadow => 1,
        Mode::Peek => 2,
    }
}
