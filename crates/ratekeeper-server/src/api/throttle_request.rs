//! The body of `POST /v1/throttle`.

use super::json::{Fields, invalid};
use super::problem::{Code, Problem, quoted};
use crate::api::throttle_buckets::Bucket;
use ratekeeper::{Algorithm, Limit};

const EXAMPLE: &str = r#"{"key":"user-42","limit":"5/min"}"#;

const FIELDS: [&str; 5] = ["key", "limit", "algorithm", "cost", "peek"];

const LONGEST_KEY: usize = 512;

/// Longer than any limit that says something; an error need not repeat kilobytes.
const LONGEST_LIMIT: usize = 128;

/// A request that makes sense.
#[derive(PartialEq, Debug)]
pub(super) struct ThrottleRequest {
    pub(super) bucket: Bucket,
    pub(super) cost: u64,
    pub(super) peek: bool,
}

impl ThrottleRequest {
    pub(super) fn from_json(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::from_body(body, &FIELDS, EXAMPLE)?;
        let key = fields.required_text("key", EXAMPLE)?;
        let limit = fields.required_text("limit", EXAMPLE)?;
        let algorithm = fields.text("algorithm")?;
        let cost = fields.whole_number("cost")?.unwrap_or(1);
        let peek = fields.yes_or_no("peek")?.unwrap_or(false);
        match key.len() {
            1..=LONGEST_KEY => {}
            0 => {
                return Err(invalid(
                    "`key` is empty; it must have 1 to 512 bytes".to_owned(),
                ));
            }
            bytes => {
                return Err(invalid(format!(
                    "`key` has {bytes} bytes; it may have at most {LONGEST_KEY}"
                )));
            }
        }
        let limit = read_limit(&limit, algorithm.as_deref())?;
        Ok(Self {
            bucket: Bucket { key, limit },
            cost,
            peek,
        })
    }
}

/// The limit as text, and the algorithm that may be in the text, beside it, or in neither.
fn read_limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    if text.len() > LONGEST_LIMIT {
        let detail = format!(
            "`limit` has {} bytes; write one as `100/min burst 20`",
            text.len()
        );
        return Err(Problem::new(Code::InvalidLimit, detail));
    }
    let beside = algorithm.map(read_algorithm).transpose()?;
    let words = || text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_'));
    let inside = words().find_map(Algorithm::from_name);
    let written = match (beside, inside) {
        (Some(beside), Some(inside)) if beside != inside => {
            let detail = format!(
                "`limit` says {inside} and `algorithm` says {beside}; say it once, or the same"
            );
            return Err(Problem::new(Code::AlgorithmConflict, detail));
        }
        // As if it had been written in the text: the rules of what goes together are the same.
        (Some(beside), None) if text.trim() != "unlimited" => format!("{text} {beside}"),
        _ => text.to_owned(),
    };
    written
        .parse()
        .map_err(|error| Problem::new(Code::InvalidLimit, format!("`limit`: {error}")))
}

fn read_algorithm(name: &str) -> Result<Algorithm, Problem> {
    Algorithm::from_name(name).ok_or_else(|| {
        let names = Algorithm::ALL
            .map(|algorithm| format!("`{algorithm}`"))
            .join(", ");
        let detail = format!(
            "{} is not an algorithm; write one of {names} or the alias `gcra`",
            quoted(name)
        );
        Problem::new(Code::UnknownAlgorithm, detail)
    })
}
