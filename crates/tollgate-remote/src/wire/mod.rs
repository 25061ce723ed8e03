//! What a client and the service say to each other: `POST /v1/store`, bytes both ways.
//!
//! Numbers are LEB128: seven bits a byte, the lowest first. Texts, keys and names are *bytes*: their length, then they.
//!
//! ```text
//! call    = version, how many limits, { limit }, { job }
//! limit   = number, name, since, on_failure, rule      the number is the client's own: jobs name limits by it
//! rule    = 0, text | 1, how many in flight            the text is that of a configuration: 100/min burst 20
//! job     = 1, name, how many asks, { ask }            decide; the name may be empty
//!         | 2, name, how many costs, { cost }          settle: one cost an ask, what it really was
//!         | 3, how many, { name }                      give up
//!         | 4, how many, { name }                      renew
//!         | 5, limit, key, tokens                      grant, for operators
//!         | 6, limit, key                              reset, for operators
//! ask     = limit, key, mode, cost, reserve, wait      the wait in nanoseconds and one more; 0 is none
//! answer  = version, { of each job: 0 | 1, told | 2, refusal }
//! told    = source, kept, how many, { five words of a decision }
//! ```
//!
//! `since` is when the client learnt of the limit, in microseconds of the Unix epoch. Clients that say different things of a
//! limit are agreed by it: the latest holds for all.
//!
//! A *name* is given by the client to a verdict that it may settle or whose permits it holds. The service keeps that verdict
//! until it is settled or given up, or not renewed for [`VERDICTS_LIVE`].

mod answer;
mod call;

pub use answer::{Answer, Answers, Refusal, Told};
pub use call::{AskLine, Call, Decide, Job, LimitLine, Rule};

use std::time::Duration;

/// Where the service takes calls.
pub const PATH: &str = "/v1/store";
/// What calls and answers are. No form of a web page can send it.
pub const MEDIA_TYPE: &str = "application/vnd.tollgate.store";
/// The first number of each.
pub const VERSION: u64 = 1;
/// How long verdicts are kept for a client that does not renew them.
pub const VERDICTS_LIVE: Duration = Duration::from_secs(10);
/// The largest call.
pub const LARGEST: usize = 1 << 20;

/// What a client calls a verdict: something of its own, and a number.
pub type Name = [u8; 16];

/// Bytes that are no call, or no answer to the one that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Unreadable)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(Unreadable);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Unreadable)
    }

    /// A number of things of which each takes a byte at least, so that nobody makes room for more than can come.
    fn count(&mut self) -> Result<usize, Unreadable> {
        let count = self.number()?;
        usize::try_from(count).ok().filter(|count| *count <= self.0.len()).ok_or(Unreadable)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, Unreadable> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable)
    }

    fn version(&mut self) -> Result<(), Unreadable> {
        if self.number()? == VERSION { Ok(()) } else { Err(Unreadable) }
    }
}

#[cfg(test)]
mod tests;
