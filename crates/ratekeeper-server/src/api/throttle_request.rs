//! The body of `POST /v1/throttle`.

use super::json::{Fields, invalid};
use super::problem::{Code, Problem, quoted};
use crate::api::throttle_buckets::Bucket;
use ratekeeper::{Algorithm, Limit};

const EXAMPLE: &str = r#"{"key":"user-42","limit":"5/min"}"#;

const FIELDS: [&str; 5] = ["key", "limit", "algorithm", "cost", "peek"];

const MAX_KEY_BYTES: usize = 512;

/// Length limit of `limit`, more than any limit needs. It also bounds error messages.
const MAX_LIMIT_BYTES: usize = 128;

/// A valid request.
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
        let peek = fields.boolean("peek")?.unwrap_or(false);
        match key.len() {
            1..=MAX_KEY_BYTES => {}
            0 => {
                return Err(invalid("`key` is empty; send 1 to 512 bytes".to_owned()));
            }
            bytes => {
                return Err(invalid(format!(
                    "`key` has {bytes} bytes; send at most {MAX_KEY_BYTES}"
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

/// Parses a limit, whose algorithm may be in the text, in the field `algorithm`, or in neither.
fn read_limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    if text.len() > MAX_LIMIT_BYTES {
        let detail = format!(
            "`limit` has {} bytes; send one such as `100/min burst 20`",
            text.len()
        );
        return Err(Problem::new(Code::InvalidLimit, detail));
    }
    let in_field = algorithm.map(read_algorithm).transpose()?;
    let words = || text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_'));
    let in_text = words().find_map(Algorithm::from_name);
    let full_text = match (in_field, in_text) {
        (Some(in_field), Some(in_text)) if in_field != in_text => {
            let detail =
                format!("`limit` and `algorithm` disagree ({in_text}, {in_field}); give one");
            return Err(Problem::new(Code::AlgorithmConflict, detail));
        }
        // Parsed as part of the text, by the same rules of what can be combined.
        (Some(in_field), None) if text.trim() != "unlimited" => format!("{text} {in_field}"),
        _ => text.to_owned(),
    };
    full_text
        .parse()
        .map_err(|error| Problem::new(Code::InvalidLimit, format!("`limit`: {error}")))
}

fn read_algorithm(name: &str) -> Result<Algorithm, Problem> {
    Algorithm::from_name(name).ok_or_else(|| {
        let names = Algorithm::ALL
            .map(|algorithm| format!("`{algorithm}`"))
            .join(", ");
        let detail = format!(
            "unknown algorithm {}; use one of {names} or the alias `gcra`",
            quoted(name)
        );
        Problem::new(Code::UnknownAlgorithm, detail)
    })
}
