//! Exact contents of rate limit headers and denials.

mod denial;
mod denial_format;
mod headers;
mod properties;

use super::{Dialects, write_headers};
use http::HeaderMap;
use ratekeeper::{Clock, ManualClock, MemoryStore};
use ratekeeper_policy::{Engine, Policies, PolicyVerdict};
use std::time::Duration;

type ManualEngine = Engine<MemoryStore<ManualClock>>;

fn engine(policies: Policies) -> (ManualEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

/// All lines of a header, joined as a recipient does.
fn joined(headers: &HeaderMap, name: &str) -> String {
    headers
        .get_all(name)
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Every header as a line, sorted by name.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

/// The headers of a verdict at an easily readable Unix time.
fn written(
    dialects: impl Into<Dialects>,
    verdict: &PolicyVerdict,
    retry_after: Option<u64>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    write_headers(
        dialects.into(),
        &mut headers,
        verdict,
        retry_after,
        Duration::from_millis(1_640_000_000_200),
    );
    headers
}

fn unix(clock: &ManualClock) -> Duration {
    clock.now().since_unix()
}
