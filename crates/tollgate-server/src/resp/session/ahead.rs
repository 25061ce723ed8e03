//! A look ahead at the keys that a batch will ask for, so that memory is asked for all of them at once.

/// The keys of the calls of `CL.THROTTLE` at the start of some bytes, as far as they are written as nearly all are: no
/// argument of 100 bytes or more. A guess that costs nothing if it is wrong.
pub(super) struct Keys<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let &[b'*', many @ (b'5' | b'6'), b'\r', b'\n', ref rest @ ..] = self.0 else { return None };
        let (name, rest) = bulk(rest)?;
        if !name.eq_ignore_ascii_case(b"cl.throttle") {
            return None;
        }
        let (key, mut rest) = bulk(rest)?;
        for _ in 2..many - b'0' {
            rest = bulk(rest)?.1;
        }
        self.0 = rest;
        Some(key)
    }
}

#[inline]
fn bulk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    let (length, rest) = match *bytes {
        [b'$', one, b'\r', b'\n', ref rest @ ..] => (digit(one), rest),
        [b'$', ten, one, b'\r', b'\n', ref rest @ ..] => (10 * digit(ten) + digit(one), rest),
        _ => return None,
    };
    Some((rest.get(..length)?, rest.get(length + 2..)?))
}
