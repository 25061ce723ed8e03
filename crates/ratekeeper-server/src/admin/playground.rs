//! `POST /admin/playground`: what limits would make of traffic that somebody drew, decided by the
//! limiter itself on a clock of its own.

use super::told;
use crate::api::json::{Fields, Json, invalid, missing};
use crate::api::{Code, Problem, body, quoted};
use axum::body::Body;
use axum::response::Response;
use ratekeeper::{Clock, Limit, Limiter, ManualClock};
use serde::Serialize;
use std::time::Duration;

const EXAMPLE: &str = r#"{"limits":["10/s burst 20"],"bin_ms":100,"arrivals":[0,3,12]}"#;

const FIELDS: [&str; 3] = ["limits", "bin_ms", "arrivals"];

const MOST_LIMITS: usize = 8;
const MOST_BINS: usize = 600;

/// Of all bins together: eight limits decide on them within some milliseconds.
const MOST_ARRIVALS: u64 = 20_000;

/// A day: 600 of them are nearly two years, and no clock runs out.
const LONGEST_BIN: u64 = 86_400_000;

/// Longer than any limit that says something; an error need not repeat kilobytes.
const LONGEST_LIMIT: usize = 128;

/// What was drawn.
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

/// What a limit made of it.
#[derive(Serialize, PartialEq, Debug)]
struct LimitResult {
    limit: String,
    /// How many act in each bin: those whom pacing tells to wait do so in a later one.
    admitted: Vec<u64>,
    total: Total,
}

#[derive(Serialize, PartialEq, Debug)]
struct Total {
    offered: u64,
    admitted: u64,
    /// Those of the admitted who act after the last bin.
    later: u64,
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
    Ok(told(&PlaygroundResult { bin_ms, limits }))
}

/// Arrivals of a bin are spread over it evenly, the first at its beginning.
fn play(text: String, limit: Limit, bin_ms: u64, arrivals: &[u64]) -> LimitResult {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let bin = bin_ms * 1_000_000;
    let mut admitted = vec![0; arrivals.len()];
    let mut total = Total {
        offered: 0,
        admitted: 0,
        later: 0,
    };
    for (at, &many) in arrivals.iter().enumerate() {
        for one in 0..many {
            // Both factors are bounded, so 64 bits hold their product.
            let nanos = at as u64 * bin + one * bin / many;
            clock.set(start + Duration::from_nanos(nanos));
            let decision = limiter.check();
            total.offered += 1;
            if decision.is_allowed() {
                total.admitted += 1;
                let acts = u128::from(nanos) + decision.delay().as_nanos();
                let place = usize::try_from(acts / u128::from(bin))
                    .ok()
                    .and_then(|at| admitted.get_mut(at));
                *place.unwrap_or(&mut total.later) += 1;
            }
        }
    }
    LimitResult {
        limit: text,
        admitted,
        total,
    }
}

impl PlaygroundRequest {
    fn from_json(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::from_body(body, &FIELDS, EXAMPLE)?;
        let limits = list(&mut fields, "limits", MOST_LIMITS)?;
        let limits = limits
            .into_iter()
            .map(read_limit)
            .collect::<Result<_, _>>()?;
        let bin_ms = fields
            .whole_number_within("bin_ms", 1..=LONGEST_BIN)?
            .ok_or_else(|| missing("bin_ms", EXAMPLE))?;
        let arrivals = list(&mut fields, "arrivals", MOST_BINS)?;
        let arrivals: Vec<u64> = arrivals
            .into_iter()
            .map(read_arrivals)
            .collect::<Result<_, _>>()?;
        let total = arrivals
            .iter()
            .fold(0, |sum: u64, many| sum.saturating_add(*many));
        if total > MOST_ARRIVALS {
            let detail =
                format!("`arrivals` has {total} requests; draw at most {MOST_ARRIVALS} in all");
            return Err(invalid(detail));
        }
        Ok(Self {
            limits,
            bin_ms,
            arrivals,
        })
    }
}

/// A list that is there and not too long.
fn list<'a>(fields: &mut Fields<'a>, name: &str, most: usize) -> Result<Vec<Json<'a>>, Problem> {
    match fields.take(name) {
        None => Err(missing(name, EXAMPLE)),
        Some(Json::List(list)) if (1..=most).contains(&list.len()) => Ok(list),
        Some(Json::List(list)) => Err(invalid(format!(
            "`{name}` has {} values; send 1 to {most} of them",
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
        Json::Text(text) if text.len() <= LONGEST_LIMIT => text.into_owned(),
        Json::Text(text) => {
            let detail = format!(
                "{} is too long for a limit; write one as `100/min burst 20`",
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
        Json::Number(Ok(many)) => Ok(many),
        other => Err(invalid(format!(
            "`arrivals` must be whole numbers from 0 on, not {}",
            other.shown()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(limit: &str, bin_ms: u64, arrivals: &[u64]) -> LimitResult {
        play(limit.to_owned(), limit.parse().unwrap(), bin_ms, arrivals)
    }

    #[test]
    fn a_window_lets_twice_its_limit_through_at_its_edge_and_a_log_does_not() {
        // Ten just before the second window begins and ten just after.
        let arrivals = [0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 0];
        let total = |limit| played(limit, 100, &arrivals).total.admitted;
        assert_eq!(total("10/s fixed_window"), 20);
        assert_eq!(total("10/s sliding_log"), 10);
        assert_eq!(
            played("10/s sliding_log", 100, &arrivals).admitted[9..],
            [10, 0, 0]
        );
        assert_eq!(
            total("10/s burst 12"),
            13,
            "twelve at once and one that came back meanwhile"
        );
    }

    #[test]
    fn those_whom_pacing_tells_to_wait_act_later() {
        let paced = played("10/s pacing", 100, &[5, 0, 0]);
        assert_eq!(paced.admitted, [1, 1, 1]);
        assert_eq!(
            paced.total,
            Total {
                offered: 5,
                admitted: 5,
                later: 2
            }
        );
    }

    #[test]
    fn nothing_that_is_let_in_is_counted_twice_or_lost() {
        for limit in [
            "unlimited",
            "0",
            "7/s",
            "7/s burst 20",
            "7/s queue 3",
            "7/s wait 1s",
            "7/250ms sliding_window_strict",
        ] {
            let LimitResult {
                admitted, total, ..
            } = played(limit, 30, &[1, 0, 44, 3, 0, 0, 2, 9, 9, 9]);
            assert_eq!(
                admitted.iter().sum::<u64>() + total.later,
                total.admitted,
                "{limit}"
            );
            assert_eq!(total.offered, 77);
        }
        assert_eq!(played("unlimited", 1, &[3, 4]).admitted, [3, 4]);
    }

    #[test]
    fn the_largest_that_is_taken_ends_and_what_is_larger_is_refused_in_a_sentence() {
        let largest = [LONGEST_BIN; 1]
            .map(|bin| played("18446744073709551615/ns sliding_log", bin, &[33; MOST_BINS]));
        assert_eq!(largest[0].total.admitted, 33 * MOST_BINS as u64);
        let refused = |body: String| {
            PlaygroundRequest::from_json(body.as_bytes())
                .unwrap_err()
                .detail()
                .to_owned()
        };
        let many = |text: &str, many: usize| vec![text; many].join(",");
        let drawn = |limits: &str, bin: &str, arrivals: &str| {
            format!(r#"{{"limits":[{limits}],"bin_ms":{bin},"arrivals":[{arrivals}]}}"#)
        };
        for (body, sentence) in [
            (
                drawn(&many(r#""1/s""#, 9), "1", "1"),
                "`limits` has 9 values; send 1 to 8 of them",
            ),
            (
                drawn("", "1", "1"),
                "`limits` has 0 values; send 1 to 8 of them",
            ),
            (
                drawn(r#""1/s""#, "1", &many("0", 601)),
                "`arrivals` has 601 values; send 1 to 600 of them",
            ),
            (
                drawn(r#""1/s""#, "1", "20001"),
                "`arrivals` has 20001 requests; draw at most 20000 in all",
            ),
            (
                drawn(r#""1/s""#, "1", "18446744073709551615,1"),
                "draw at most 20000 in all",
            ),
            (
                drawn(r#""1/s""#, "0", "1"),
                "`bin_ms` must be a whole number from 1 to 86400000, not 0",
            ),
            (
                drawn(r#""1/s""#, "1", "-1"),
                "`arrivals` must be whole numbers from 0 on, not -1",
            ),
            (
                drawn("7", "1", "1"),
                "`limits` must be a list of texts, not of 7",
            ),
            (
                drawn(r#""10/fortnight""#, "1", "1"),
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
            let detail = refused(body);
            assert!(detail.contains(sentence), "{detail}");
        }
    }
}
