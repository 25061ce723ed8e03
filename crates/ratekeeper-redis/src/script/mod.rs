//! The scripts that run inside Redis, and the encoding of their calls.
//!
//! One call carries the requests of many callers: each limit once, each key once, and the requests
//! packed into one argument. The reply is a list of integers. Only [`decide`] and [`amend`] know
//! the two formats.

pub(crate) mod amend;
pub(crate) mod decide;

use crate::reply::MAX_SHORT_REPLY;
use ratekeeper::{store::backend::MicrosLimit, store::backend::WindowCounter};
use redis::Cmd;
use std::collections::HashMap;
use std::sync::Arc;

/// How long a permit lives unless it is renewed, in microseconds.
pub(crate) const PERMIT_TTL_MICROS: u64 = 10_000_000;

/// The name of one permit.
pub(crate) type PermitName = [u8; 16];

/// A script's text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(sources: [&str; 3]) -> Self {
        let text = sources.concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// The two scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) decide: Script,
    pub(crate) amend: Script,
}

/// Reads the server's clock once in a call, since it may advance during one, and returns the expiry
/// in ms of a key that is full again in a number of µs.
const SERVER_TIME: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ceil, format = math.ceil, string.format
local function expiry(micros) return format('%d', ceil(micros / 1000) + 1) end
";
/// For tests: takes the time from the call. It has no relation to the server's, so nothing expires.
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

/// A call of a script, by hash or, if the server does not know the hash, by text.
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

    /// How long the reply may be: a dozen integers for each question, which takes six bytes or
    /// more.
    pub(crate) fn max_reply(&self) -> usize {
        MAX_SHORT_REPLY + 64 * self.body.len()
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

/// Collects the keys and limits of a call, each once, and numbers them from 1.
#[derive(Default)]
struct CallBuilder {
    numbers: HashMap<Arc<[u8]>, u16, foldhash::fast::RandomState>,
    /// Keys of strings, which the script reads first, and of other types.
    texts: Vec<Arc<[u8]>>,
    others: Vec<Arc<[u8]>>,
    limits: Vec<MicrosLimit>,
}

/// Numbers of keys that are not strings count down from here; they are renumbered once the number
/// of strings is known.
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

    /// The final number of a key.
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

/// Encodes a limit for the scripts: a kind and three numbers.
fn packed(limit: &MicrosLimit) -> impl Iterator<Item = u8> {
    let (kind, numbers) = match *limit {
        // Unlimited limits are never sent.
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
            max_ahead,
        } => (1, [per_micro, token, max_ahead]),
        MicrosLimit::Window { count, window, max } => match count {
            WindowCounter::Fixed => (2, [window, max, 0]),
            WindowCounter::FirstHit => (3, [window, max, 0]),
            WindowCounter::Sliding { grain } => (4, [window, max, grain]),
            WindowCounter::Strict { steps } => (5, [window, max, steps]),
            WindowCounter::Log => (6, [window, max, 0]),
        },
        MicrosLimit::InFlight { max } => (7, [PERMIT_TTL_MICROS, max, 0]),
    };
    std::iter::once(kind).chain(
        numbers
            .into_iter()
            .flat_map(|number| (number as f64).to_be_bytes()),
    )
}

fn push_f64(body: &mut Vec<u8>, number: f64) {
    body.extend_from_slice(&number.to_be_bytes());
}

/// The error of a reply that our scripts do not make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InvalidReplyError;

/// Iterates over the integers of a reply.
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

    /// An integer that cannot be negative.
    fn count(&mut self) -> Result<u64, InvalidReplyError> {
        u64::try_from(self.next()?).map_err(|_| InvalidReplyError)
    }
}
