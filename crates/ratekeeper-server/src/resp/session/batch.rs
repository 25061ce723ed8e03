//! Fast path for pipelined calls of `CL.THROTTLE`: they are parsed together, so that the memory of
//! all their keys can be prefetched.

use ratekeeper::keyed::GcraParams;

/// Number of calls in a batch.
pub(super) const MAX_BATCH: usize = 16;

/// A parsed call.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) key: &'a [u8],
    pub(super) limit: u64,
    pub(super) quantity: u64,
    pub(super) params: GcraParams,
}

/// The calls at the start of some bytes, and their length. An unusual or invalid call ends the
/// batch and is left to the parser: a name in mixed case, a key of 100 bytes, a number of ten
/// digits or with a sign.
pub(super) struct Batch<'a> {
    calls: [Option<Call<'a>>; MAX_BATCH],
    pub(super) len: usize,
    pub(super) length: usize,
}

impl<'a> Batch<'a> {
    #[inline]
    pub(super) fn read(input: &'a [u8]) -> Self {
        let mut batch = Self {
            calls: [None; MAX_BATCH],
            len: 0,
            length: 0,
        };
        let mut rest = input;
        // Pipelined calls often have the same numbers.
        let mut last = ([0; 3], None);
        for slot in &mut batch.calls {
            let Some((call, after)) = call(rest, &mut last) else {
                break;
            };
            *slot = Some(call);
            batch.len += 1;
            rest = after;
        }
        batch.length = input.len() - rest.len();
        batch
    }

    #[inline]
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call<'a>> {
        self.calls[..self.len].iter().flatten()
    }
}

#[inline]
fn call<'a>(
    input: &'a [u8],
    last: &mut ([u64; 3], Option<GcraParams>),
) -> Option<(Call<'a>, &'a [u8])> {
    let (has_quantity, rest) = match input {
        [b'*', b'6', b'\r', b'\n', rest @ ..] => (true, rest),
        [b'*', b'5', b'\r', b'\n', rest @ ..] => (false, rest),
        _ => return None,
    };
    let (name, rest) = rest.split_first_chunk::<18>()?;
    if name != b"$11\r\nCL.THROTTLE\r\n" && name != b"$11\r\ncl.throttle\r\n" {
        return None;
    }
    let (key, rest) = text(rest)?;
    let (max_burst, rest) = number(rest)?;
    let (count, rest) = number(rest)?;
    let (period, rest) = number(rest)?;
    let (quantity, rest) = if has_quantity {
        number(rest)?
    } else {
        (1, rest)
    };
    let numbers = [max_burst, count, period];
    if last.0 != numbers || last.1.is_none() {
        *last = (
            numbers,
            super::throttle::params(max_burst + 1, count, period).ok(),
        );
    }
    Some((
        Call {
            key,
            limit: max_burst + 1,
            quantity,
            params: last.1?,
        },
        rest,
    ))
}

/// A bulk string of up to 99 bytes.
#[inline]
fn text(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let digit = |byte: &u8| usize::from(byte - b'0');
    let (length, rest) = match input {
        [
            b'$',
            tens @ b'0'..=b'9',
            ones @ b'0'..=b'9',
            b'\r',
            b'\n',
            rest @ ..,
        ] => (10 * digit(tens) + digit(ones), rest),
        [b'$', ones @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => (digit(ones), rest),
        _ => return None,
    };
    let (text, rest) = rest.split_at_checked(length)?;
    Some((text, rest.strip_prefix(b"\r\n")?))
}

/// A bulk string that is a number of one to nine digits.
#[inline]
fn number(input: &[u8]) -> Option<(u64, &[u8])> {
    let [b'$', length @ b'1'..=b'9', b'\r', b'\n', rest @ ..] = input else {
        return None;
    };
    let (digits, rest) = rest.split_at_checked(usize::from(length - b'0'))?;
    let mut number = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some((number, rest.strip_prefix(b"\r\n")?))
}
