//! `POST /admin/playground`: runs limits on given traffic, with the limiter itself on a manual
//! clock.

use super::no_store_json;
use crate::api::json::{Fields, Json, invalid, missing};
use crate::api::{Code, Problem, body, quoted};
use axum::body::Body;
use axum::response::Response;
use ratekeeper::{Clock, Limit, Limiter, ManualClock};
use serde::Serialize;
use std::time::Duration;

const EXAMPLE: &str = r#"{"limits":["10/s burst 20"],"bin_ms":100,"arrivals":[0,3,12]}"#;

const FIELDS: [&str; 3] = ["limits", "bin_ms", "arrivals"];

const MAX_LIMITS: usize = 8;
const MAX_BINS: usize = 600;

/// Arrivals of all bins together; eight limits decide them within milliseconds.
const MAX_ARRIVALS: u64 = 20_000;

/// One day. 600 days do not overflow the clock.
const MAX_BIN_MS: u64 = 86_400_000;

/// Longest text of a limit, so that errors do not repeat kilobytes.
const MAX_LIMIT_BYTES: usize = 128;

/// The request: limits and traffic.
#[derive(Debug)]
struct PlaygroundRequest {
    limits: Vec<(String, Limit)>,
    bin_ms: u64,
    arrivals: Vec<u64>,
}

#[derive(Serialize)]
struct PlaygroundResult {
    bin_ms: u64,
    limits: Vec<LimitResult>,
}

/// The decisions of one limit.
#[derive(Serialize, PartialEq, Debug)]
struct LimitResult {
    limit: String,
    /// Requests that start in each bin; pacing moves delayed ones to a later bin.
    allowed: Vec<u64>,
    total: Total,
}

#[derive(Serialize, PartialEq, Debug)]
struct Total {
    offered: u64,
    allowed: u64,
    /// Allowed requests that start after the last bin.
    after_end: u64,
}

pub(super) async fn playground(body: Body) -> Result<Response, Problem> {
    let PlaygroundRequest {
        limits,
        bin_ms,
        arrivals,
    } = PlaygroundRequest::from_json(&body::read(body).await?)?;
    let limits = limits
        .into_iter()
        .map(|(text, limit)| play(text, limit, bin_ms, &arrivals))
        .collect();
    Ok(no_store_json(&PlaygroundResult { bin_ms, limits }))
}

/// Runs one limit. The arrivals of a bin are spread evenly over it, the first at its start.
fn play(text: String, limit: Limit, bin_ms: u64, arrivals: &[u64]) -> LimitResult {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let bin = bin_ms * 1_000_000;
    let mut allowed = vec![0; arrivals.len()];
    let mut total = Total {
        offered: 0,
        allowed: 0,
        after_end: 0,
    };
    for (index, &count) in arrivals.iter().enumerate() {
        for number in 0..count {
            // Both factors are bounded, so the products fit in 64 bits.
            let nanos = index as u64 * bin + number * bin / count;
            clock.set(start + Duration::from_nanos(nanos));
            let decision = limiter.check();
            total.offered += 1;
            if decision.is_allowed() {
                total.allowed += 1;
                let starts_at = u128::from(nanos) + decision.delay().as_nanos();
                let counter = usize::try_from(starts_at / u128::from(bin))
                    .ok()
                    .and_then(|index| allowed.get_mut(index));
                *counter.unwrap_or(&mut total.after_end) += 1;
            }
        }
    }
    LimitResult {
        limit: text,
        allowed,
        total,
    }
}

impl PlaygroundRequest {
    fn from_json(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::from_body(body, &FIELDS, EXAMPLE)?;
        let limits = list(&mut fields, "limits", MAX_LIMITS)?;
        let limits = limits
            .into_iter()
            .map(read_limit)
            .collect::<Result<_, _>>()?;
        let bin_ms = fields
            .whole_number_within("bin_ms", 1..=MAX_BIN_MS)?
            .ok_or_else(|| missing("bin_ms", EXAMPLE))?;
        let arrivals = list(&mut fields, "arrivals", MAX_BINS)?;
        let arrivals: Vec<u64> = arrivals
            .into_iter()
            .map(read_arrivals)
            .collect::<Result<_, _>>()?;
        let total = arrivals
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        if total > MAX_ARRIVALS {
            let detail =
                format!("`arrivals` has {total} requests; send at most {MAX_ARRIVALS} in all");
            return Err(invalid(detail));
        }
        Ok(Self {
            limits,
            bin_ms,
            arrivals,
        })
    }
}

/// Reads a required list of up to `max` values.
fn list<'a>(fields: &mut Fields<'a>, name: &str, max: usize) -> Result<Vec<Json<'a>>, Problem> {
    match fields.take(name) {
        None => Err(missing(name, EXAMPLE)),
        Some(Json::List(list)) if (1..=max).contains(&list.len()) => Ok(list),
        Some(Json::List(list)) => Err(invalid(format!(
            "`{name}` must have 1 to {max} values, not {}",
            list.len()
        ))),
        Some(other) => Err(invalid(format!(
            "`{name}` must be a list, as in {EXAMPLE}, not {}",
            other.shown()
        ))),
    }
}

fn read_limit(value: Json<'_>) -> Result<(String, Limit), Problem> {
    let text = match value {
        Json::Text(text) if text.len() <= MAX_LIMIT_BYTES => text.into_owned(),
        Json::Text(text) => {
            let detail = format!(
                "{} is too long for a limit; use the form `100/min burst 20`",
                quoted(&text)
            );
            return Err(Problem::new(Code::InvalidLimit, detail));
        }
        other => {
            return Err(invalid(format!(
                "`limits` must be a list of texts, not of {}",
                other.shown()
            )));
        }
    };
    let limit = text
        .parse()
        .map_err(|error| Problem::new(Code::InvalidLimit, format!("`limits`: {error}")))?;
    Ok((text, limit))
}

fn read_arrivals(value: Json<'_>) -> Result<u64, Problem> {
    match value {
        Json::Number(Ok(count)) => Ok(count),
        other => Err(invalid(format!(
            "`arrivals` must be whole numbers from 0 on, not {}",
            other.shown()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: &str, bin_ms: u64, arrivals: &[u64]) -> LimitResult {
        play(limit.to_owned(), limit.parse().unwrap(), bin_ms, arrivals)
    }

    #[test]
    fn a_fixed_window_allows_twice_its_limit_at_its_edge_and_a_log_does_not() {
        // Ten just before the second window begins and ten just after.
        let arrivals = [0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 0];
        let total = |limit| run(limit, 100, &arrivals).total.allowed;
        assert_eq!(total("10/s fixed_window"), 20);
        assert_eq!(total("10/s sliding_log"), 10);
        assert_eq!(
            run("10/s sliding_log", 100, &arrivals).allowed[9..],
            [10, 0, 0]
        );
        assert_eq!(
            total("10/s burst 12"),
            13,
            "twelve at once and one refilled meanwhile"
        );
    }

    #[test]
    fn requests_delayed_by_pacing_start_later() {
        let paced = run("10/s pacing", 100, &[5, 0, 0]);
        assert_eq!(paced.allowed, [1, 1, 1]);
        assert_eq!(
            paced.total,
            Total {
                offered: 5,
                allowed: 5,
                after_end: 2
            }
        );
    }

    #[test]
    fn each_allowed_request_is_counted_once() {
        for limit in [
            "unlimited",
            "0",
            "7/s",
            "7/s burst 20",
            "7/s queue 3",
            "7/s wait 1s",
            "7/250ms sliding_window_strict",
        ] {
            let LimitResult { allowed, total, .. } =
                run(limit, 30, &[1, 0, 44, 3, 0, 0, 2, 9, 9, 9]);
            assert_eq!(
                allowed.iter().sum::<u64>() + total.after_end,
                total.allowed,
                "{limit}"
            );
            assert_eq!(total.offered, 77);
        }
        assert_eq!(run("unlimited", 1, &[3, 4]).allowed, [3, 4]);
    }

    #[test]
    fn maximum_requests_finish_and_larger_ones_are_rejected() {
        let largest = [MAX_BIN_MS; 1]
            .map(|bin| run("18446744073709551615/ns sliding_log", bin, &[33; MAX_BINS]));
        assert_eq!(largest[0].total.allowed, 33 * MAX_BINS as u64);
        let problem = |body: String| {
            PlaygroundRequest::from_json(body.as_bytes())
                .unwrap_err()
                .detail()
                .to_owned()
        };
        let repeat = |text: &str, count: usize| vec![text; count].join(",");
        let request = |limits: &str, bin: &str, arrivals: &str| {
            format!(r#"{{"limits":[{limits}],"bin_ms":{bin},"arrivals":[{arrivals}]}}"#)
        };
        for (body, sentence) in [
            (
                request(&repeat(r#""1/s""#, 9), "1", "1"),
                "`limits` must have 1 to 8 values, not 9",
            ),
            (
                request("", "1", "1"),
                "`limits` must have 1 to 8 values, not 0",
            ),
            (
                request(r#""1/s""#, "1", &repeat("0", 601)),
                "`arrivals` must have 1 to 600 values, not 601",
            ),
            (
                request(r#""1/s""#, "1", "20001"),
                "`arrivals` has 20001 requests; send at most 20000 in all",
            ),
            (
                request(r#""1/s""#, "1", "18446744073709551615,1"),
                "send at most 20000 in all",
            ),
            (
                request(r#""1/s""#, "0", "1"),
                "`bin_ms` must be a whole number from 1 to 86400000, not 0",
            ),
            (
                request(r#""1/s""#, "1", "-1"),
                "`arrivals` must be whole numbers from 0 on, not -1",
            ),
            (
                request("7", "1", "1"),
                "`limits` must be a list of texts, not of 7",
            ),
            (
                request(r#""10/fortnight""#, "1", "1"),
                "`fortnight` is not a unit of time",
            ),
            (
                r#"{"limits":["1/s"],"arrivals":[1]}"#.to_owned(),
                "`bin_ms` is missing",
            ),
            (
                r#"{"limits":"1/s","bin_ms":1,"arrivals":[1]}"#.to_owned(),
                "`limits` must be a list, as in",
            ),
        ] {
            let detail = problem(body);
            assert!(detail.contains(sentence), "{detail}");
        }
    }
}
