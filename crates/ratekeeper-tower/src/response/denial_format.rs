//! In what form a client wants to read that it is turned away.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

/// What every kind of gRPC request says of its content, the narrowest first.
const GRPC: [&str; 3] = [
    "application/grpc-web-text",
    "application/grpc-web",
    "application/grpc",
];

/// What a client can read, captured before its request moves on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum DenialFormat {
    /// RFC 9457, for whoever does not prefer something else.
    #[default]
    Problem,
    Plain,
    Html,
    /// With the content type to answer in: clients of gRPC-Web refuse that of gRPC.
    Grpc(&'static str),
}

impl DenialFormat {
    /// By the headers of a request.
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

    /// The same without gRPC.
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
            // Of equals the first.
            if offer.quality > best.quality {
                best = offer;
            }
        }
        best.format
    }
}

/// The forms there are, the best first, each with the ranges that cover it, the narrowest first.
/// Who wants JSON can read a problem.
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

/// How much a form is wanted, by the narrowest range that covers it.
struct Offer {
    format: DenialFormat,
    names: &'static [&'static str],
    /// How narrow that range is; 0 if there is none.
    narrow: usize,
    quality: f32,
}

/// Reads one range with its parameters, such as `text/*;q=0.5`. One that makes no sense is as good
/// as none.
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
