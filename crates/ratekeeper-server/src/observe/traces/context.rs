//! The `traceparent` header of W3C Trace Context: trace and parent span of a request, and whether
//! it is sampled.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace context of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ParentContext {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) sampled: bool,
}

impl ParentContext {
    /// Parses the header. Returns `None` if it is absent, invalid or repeated.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (first, None) = (values.next()?, values.next()) else {
            return None;
        };
        Self::parse(first.to_str().ok()?)
    }

    /// Parses `00-`, 32 digits, `-`, 16 digits, `-`, two digits of flags. Later versions may append
    /// more.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let [version] = hex::<1>(parts.next()?)?;
        let trace = hex::<16>(parts.next()?)?;
        let span = hex::<8>(parts.next()?)?;
        let [flags] = hex::<1>(parts.next()?)?;
        let is_valid = version == 0 && parts.next().is_none() || (1..u8::MAX).contains(&version);
        (is_valid && trace != [0; 16] && span != [0; 8]).then_some(Self {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }

    /// The value of the header for the upstream.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let digits = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let flags = u8::from(self.sampled);
        HeaderValue::try_from(format!(
            "00-{}-{}-{flags:02x}",
            digits(&self.trace),
            digits(&self.span)
        ))
        .ok()
    }
}

/// Parses exactly `N` bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if text.len() != 2 * N || !text.as_bytes().iter().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parsed_header_is_written_unchanged() {
        let parent = ParentContext::parse(GOOD).unwrap();
        assert!(parent.sampled && parent.trace[0] == 0x0a && parent.span[7] == 0x31);
        assert_eq!(parent.header().unwrap(), GOOD);
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(
            ParentContext::parse(&unsampled).unwrap().header().unwrap(),
            unsampled
        );
        // A later version appends more.
        assert_eq!(
            ParentContext::parse(&format!("cc{}-more", &GOOD[2..])),
            Some(parent)
        );
    }

    #[test]
    fn invalid_headers_are_ignored() {
        for invalid in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333é-01",
        ] {
            assert_eq!(ParentContext::parse(invalid), None, "{invalid}");
        }
        let mut twice = HeaderMap::new();
        twice.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(ParentContext::of(&twice).is_some());
        twice.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(ParentContext::of(&twice), None);
    }
}
