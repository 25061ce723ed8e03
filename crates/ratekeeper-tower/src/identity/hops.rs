//! The hops of a forwarding header, from right to left: what the nearest proxy wrote comes first.

use super::Forwarding;
use http::header::{HeaderMap, HeaderValue, ValueIter};
use std::iter::Rev;

/// At most this much of a header is read, counted from its end.
const MAX_BYTES: usize = 2048;

/// Iterates over the hops: the last header line first, and each line from the right.
///
/// A line is never read from the left: a proxy appends, and nothing that a client wrote before may
/// change how the proxy's part is read. An open quote would: `for="` and then `, for=203.0.113.7`.
/// For the same reason a hop never spans two lines.
pub(super) struct Hops<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// The unread part of the current line.
    line: Option<&'a [u8]>,
    /// How many bytes may still be read, counting each hop with the comma before it.
    budget: usize,
    last_comma: fn(&[u8]) -> Option<usize>,
}

impl<'a> Hops<'a> {
    pub(super) fn new(header: &Forwarding, headers: &'a HeaderMap) -> Self {
        let last_comma = match header {
            Forwarding::Forwarded => last_comma_unquoted,
            Forwarding::XForwardedFor | Forwarding::Header(_) => last_comma,
        };
        // The leftmost hop has no comma before it.
        let budget = MAX_BYTES + 1;
        Self {
            lines: headers.get_all(header.name()).iter().rev(),
            line: None,
            budget,
            last_comma,
        }
    }
}

impl<'a> Iterator for Hops<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = match self.line.take() {
            Some(line) => line,
            None => self.lines.next()?.as_bytes(),
        };
        let seen = &line[line.len().saturating_sub(self.budget)..];
        let hop = match (self.last_comma)(seen) {
            Some(comma) => {
                let hop = &seen[comma + 1..];
                self.line = Some(&line[..line.len() - hop.len() - 1]);
                hop
            }
            None if line.len() < self.budget => line,
            None => return None,
        };
        self.budget -= hop.len() + 1;
        Some(hop)
    }
}

fn last_comma(text: &[u8]) -> Option<usize> {
    text.iter().rposition(|byte| *byte == b',')
}

/// The position of the last comma outside of quotes.
fn last_comma_unquoted(text: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in text.iter().enumerate().rev() {
        match byte {
            b',' if !quoted => return Some(at),
            // From the right, a quote closes a string, and the next one opens it unless it is
            // escaped.
            b'"' => quoted = !quoted || is_escaped(&text[..at]),
            _ => {}
        }
    }
    None
}

/// Whether the character after this text is escaped: an odd number of backslashes precedes it.
fn is_escaped(before: &[u8]) -> bool {
    before
        .iter()
        .rev()
        .take_while(|byte| **byte == b'\\')
        .count()
        % 2
        == 1
}
