//! The scripts that decide inside Redis, and how they are spoken to.
//!
//! One call carries the requests of many callers: the limits once, the keys once, the requests
//! packed into one argument. It answers integers. [`decide`] and [`amend`] know the two formats;
//! nobody else does.

pub(crate) mod amend;
pub(crate) mod decide;

use crate::reply::SHORT;
use ratekeeper::{limit::MicrosLimit, limit::WindowCounter};
use redis::Cmd;
use std::collections::HashMap;
use std::sync::Arc;

/// How long a permit lives unless it is renewed.
pub(crate) const PERMIT_LIVES: u64 = 10_000_000;

/// The name of one permit.
pub(crate) type PermitName = [u8; 16];

/// A script, as it is loaded and as it is called.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(parts: [&str; 3]) -> Self {
        let text = parts.concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// Both scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) decide: Script,
    pub(crate) amend: Script,
}

/// The clock of the server, read once a call: it may move within one. And when a key expires that
/// is fresh after so many µs.
const SERVER_TIME: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ceil, format = math.ceil, string.format
local function expiry(micros) return format('%d', ceil(micros / 1000) + 1) end
";
/// A time that a test brings, to which the server's has no relation: nothing expires.
#[cfg(feature = "test-time")]
const GIVEN_TIME: &str = "\
local now = tonumber(ARGV[4])
local function expiry() return 3600000 end
";

impl Scripts {
    pub(crate) fn new() -> Self {
        Self::at(SERVER_TIME)
    }

    /// For tests, which bring the time.
    #[cfg(feature = "test-time")]
    pub(crate) fn with_given_time() -> Self {
        Self::at(GIVEN_TIME)
    }

    fn at(time: &str) -> Self {
        let states = include_str!("states.lua");
        Self {
            decide: Script::new([time, states, include_str!("decide.lua")]),
            amend: Script::new([time, states, include_str!("amend.lua")]),
        }
    }
}

/// A call of a script, by its hash or, where the server does not know that, by its text.
#[derive(Debug)]
pub(crate) struct Call {
    keys: Vec<Arc<[u8]>>,
    texts: usize,
    limits: Vec<u8>,
    body: Vec<u8>,
}

impl Call {
    pub(crate) fn by_hash(&self, script: &Script, time: Option<u64>) -> Cmd {
        self.command("EVALSHA", &script.hash, time)
    }

    /// How long an answer to it may be: a dozen integers for each question, which takes six bytes
    /// or more.
    pub(crate) fn max_reply(&self) -> usize {
        SHORT + 64 * self.body.len()
    }

    pub(crate) fn by_text(&self, script: &Script, time: Option<u64>) -> Cmd {
        self.command("EVAL", &script.text, time)
    }

    fn command(&self, verb: &str, script: &str, time: Option<u64>) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(&key[..]);
        }
        command
            .arg(&self.limits[..])
            .arg(self.texts)
            .arg(&self.body[..]);
        if let Some(time) = time {
            command.arg(time);
        }
        command
    }
}

/// Gathers the keys and limits of a call, each once, and numbers them from 1.
#[derive(Default)]
struct CallBuilder {
    numbers: HashMap<Arc<[u8]>, u16, foldhash::fast::RandomState>,
    /// Those that are strings, which the script reads first, and the others.
    texts: Vec<Arc<[u8]>>,
    others: Vec<Arc<[u8]>>,
    limits: Vec<MicrosLimit>,
}

/// The highest number of a key that is not a string; they are counted down, and up again once all
/// strings are known.
const OTHERS: u16 = u16::MAX;

impl CallBuilder {
    fn key(&mut self, name: &Arc<[u8]>, limit: &MicrosLimit) -> u16 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let is_text = !matches!(
            limit,
            MicrosLimit::Window {
                count: WindowCounter::Log,
                ..
            } | MicrosLimit::InFlight { .. }
        );
        let number = if is_text {
            self.texts.push(Arc::clone(name));
            self.texts.len() as u16
        } else {
            self.others.push(Arc::clone(name));
            OTHERS - self.others.len() as u16
        };
        self.numbers.insert(Arc::clone(name), number);
        number
    }

    fn limit(&mut self, limit: &MicrosLimit) -> u16 {
        let known = self.limits.iter().rposition(|known| known == limit);
        let at = known.unwrap_or_else(|| {
            self.limits.push(*limit);
            self.limits.len() - 1
        });
        at as u16 + 1
    }

    /// The number that a key has in the end.
    fn numbered(&self, number: u16) -> u16 {
        if usize::from(number) <= self.texts.len() {
            number
        } else {
            self.texts.len() as u16 + (OTHERS - number)
        }
    }

    fn into_call(mut self, body: Vec<u8>) -> Call {
        let limits = self.limits.iter().flat_map(packed).collect();
        let texts = self.texts.len();
        self.texts.append(&mut self.others);
        Call {
            keys: self.texts,
            texts,
            limits,
            body,
        }
    }
}

/// A limit as the scripts read it: a kind and three numbers.
fn packed(limit: &MicrosLimit) -> impl Iterator<Item = u8> {
    let (kind, numbers) = match *limit {
        // Of what is unlimited nobody asks.
        MicrosLimit::Unlimited => (0, [0, 1, 0]),
        MicrosLimit::Bucket {
            per_micro,
            token,
            capacity,
            refundable,
        } => (if refundable { 8 } else { 0 }, [per_micro, token, capacity]),
        MicrosLimit::Pacing {
            per_micro,
            token,
            longest,
        } => (1, [per_micro, token, longest]),
        MicrosLimit::Window {
            count,
            window,
            most,
        } => match count {
            WindowCounter::Fixed => (2, [window, most, 0]),
            WindowCounter::FirstHit => (3, [window, most, 0]),
            WindowCounter::Sliding { grain } => (4, [window, most, grain]),
            WindowCounter::Strict { steps } => (5, [window, most, steps]),
            WindowCounter::Log => (6, [window, most, 0]),
        },
        MicrosLimit::InFlight { most } => (7, [PERMIT_LIVES, most, 0]),
    };
    std::iter::once(kind).chain(
        numbers
            .into_iter()
            .flat_map(|number| (number as f64).to_be_bytes()),
    )
}

fn put(body: &mut Vec<u8>, number: f64) {
    body.extend_from_slice(&number.to_be_bytes());
}

/// A reply that no script of ours makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InvalidReplyError;

/// The integers of a reply.
struct Integers(std::vec::IntoIter<redis::Value>);

impl Integers {
    fn of(reply: redis::Value) -> Result<Self, InvalidReplyError> {
        match reply {
            redis::Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(InvalidReplyError),
        }
    }

    fn next(&mut self) -> Result<i64, InvalidReplyError> {
        self.maybe()?.ok_or(InvalidReplyError)
    }

    fn maybe(&mut self) -> Result<Option<i64>, InvalidReplyError> {
        match self.0.next() {
            None => Ok(None),
            Some(redis::Value::Int(number)) => Ok(Some(number)),
            Some(_) => Err(InvalidReplyError),
        }
    }

    /// One that cannot be negative.
    fn count(&mut self) -> Result<u64, InvalidReplyError> {
        u64::try_from(self.next()?).map_err(|_| InvalidReplyError)
    }
}
