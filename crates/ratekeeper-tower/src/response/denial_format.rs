//! The format of a denial, negotiated by the request's headers.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

/// The content types of gRPC requests; a prefix match, so the longest first.
const GRPC: [&str; 3] = [
    "application/grpc-web-text",
    "application/grpc-web",
    "application/grpc",
];

/// The format of a denial, determined before its request moves on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum DenialFormat {
    /// RFC 9457 problem details, unless the client prefers another format.
    #[default]
    Problem,
    Plain,
    Html,
    /// With the content type of the response: gRPC-Web clients reject that of gRPC.
    Grpc(&'static str),
}

impl DenialFormat {
    /// The format for a request with these headers.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let content_type = headers
            .get(CONTENT_TYPE)
            .map_or(&b""[..], |value| value.as_bytes());
        let is = |kind: &&str| {
            content_type
                .get(..kind.len())
                .is_some_and(|had| had.eq_ignore_ascii_case(kind.as_bytes()))
        };
        if let Some(kind) = GRPC.into_iter().find(is) {
            return Self::Grpc(kind);
        }
        Self::from_accept(headers)
    }

    /// The format for a plain HTTP client, by the Accept header.
    pub(crate) fn from_accept(headers: &HeaderMap) -> Self {
        let mut offers = OFFERS.map(|(format, names)| Offer {
            format,
            names,
            narrow: 0,
            quality: 0.0,
        });
        for line in headers.get_all(ACCEPT) {
            for range in line.to_str().unwrap_or_default().split(',') {
                read(range, &mut offers);
            }
        }
        let mut best = &offers[0];
        for offer in &offers[1..] {
            // The first one wins a tie.
            if offer.quality > best.quality {
                best = offer;
            }
        }
        best.format
    }
}

/// The formats in order of preference, each with the media ranges that cover it, the narrowest
/// first. A client that accepts JSON can read a problem.
const OFFERS: [(DenialFormat, &[&str]); 3] = [
    (
        DenialFormat::Problem,
        &[
            "application/problem+json",
            "application/json",
            "application/*",
            "*/*",
        ],
    ),
    (DenialFormat::Plain, &["text/plain", "text/*", "*/*"]),
    (DenialFormat::Html, &["text/html", "text/*", "*/*"]),
];

/// A format's quality value, by the narrowest range that covers it.
struct Offer {
    format: DenialFormat,
    names: &'static [&'static str],
    /// How narrow that range is; 0 if no range was found.
    narrow: usize,
    quality: f32,
}

/// Reads one range with its parameters, such as `text/*;q=0.5`. A malformed one is ignored.
fn read(range: &str, offers: &mut [Offer]) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality =
        parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let quality = match quality.map(str::parse::<f32>) {
        None => 1.0,
        Some(Ok(quality)) if (0.0..=1.0).contains(&quality) => quality,
        Some(_) => return,
    };
    for offer in offers {
        let Some(at) = offer
            .names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
        else {
            continue;
        };
        let narrow = offer.names.len() - at;
        if narrow > offer.narrow || narrow == offer.narrow && quality > offer.quality {
            (offer.narrow, offer.quality) = (narrow, quality);
        }
    }
}
