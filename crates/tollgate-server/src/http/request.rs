//! The body of `POST /v1/throttle`, read strictly: what is not understood is an error, never a guess.

use super::problem::{Code, Problem, quoted};
use crate::buckets::Bucket;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;
use tollgate::{Algorithm, Limit};

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
        let mut fields = Fields::from_json(body)?;
        let key = fields.required_text("key")?;
        let limit = fields.required_text("limit")?;
        let algorithm = fields.text("algorithm")?;
        let cost = fields.whole_number("cost")?.unwrap_or(1);
        let peek = fields.yes_or_no("peek")?.unwrap_or(false);
        match key.len() {
            1..=LONGEST_KEY => {}
            0 => return Err(invalid("`key` is empty; it must have 1 to 512 bytes".to_owned())),
            bytes => return Err(invalid(format!("`key` has {bytes} bytes; it may have at most {LONGEST_KEY}"))),
        }
        let limit = read_limit(&limit, algorithm.as_deref())?;
        Ok(Self { bucket: Bucket { key, limit }, cost, peek })
    }
}

/// The limit as text, and the algorithm that may be in the text, beside it, or in neither.
fn read_limit(text: &str, algorithm: Option<&str>) -> Result<Limit, Problem> {
    if text.len() > LONGEST_LIMIT {
        let detail = format!("`limit` has {} bytes; write one as `100/min burst 20`", text.len());
        return Err(Problem::new(Code::InvalidLimit, detail));
    }
    let beside = algorithm.map(read_algorithm).transpose()?;
    let words = || text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_'));
    let inside = words().find_map(Algorithm::from_name);
    let written = match (beside, inside) {
        (Some(beside), Some(inside)) if beside != inside => {
            let detail = format!("`limit` says {inside} and `algorithm` says {beside}; say it once, or the same");
            return Err(Problem::new(Code::AlgorithmConflict, detail));
        }
        // As if it had been written in the text: the rules of what goes together are the same.
        (Some(beside), None) if text.trim() != "unlimited" => format!("{text} {beside}"),
        _ => text.to_owned(),
    };
    written.parse().map_err(|error| Problem::new(Code::InvalidLimit, format!("`limit`: {error}")))
}

fn read_algorithm(name: &str) -> Result<Algorithm, Problem> {
    Algorithm::from_name(name).ok_or_else(|| {
        let names = Algorithm::ALL.map(|algorithm| format!("`{algorithm}`")).join(", ");
        let detail = format!("{} is not an algorithm; write one of {names} or the alias `gcra`", quoted(name));
        Problem::new(Code::UnknownAlgorithm, detail)
    })
}

fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidField, detail)
}

/// The fields of a JSON object, each known and there once.
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn from_json(body: &[u8]) -> Result<Self, Problem> {
        if body.trim_ascii().is_empty() {
            return Err(Problem::new(Code::InvalidJson, format!("the body is empty; send JSON, as in {EXAMPLE}")));
        }
        let Fields(fields) = serde_json::from_slice(body).map_err(|error| match error.is_data() {
            true => Problem::new(Code::NotAnObject, format!("the body is not a JSON object, as in {EXAMPLE}")),
            false => Problem::new(Code::InvalidJson, format!("the body is not JSON: {error}; send it as in {EXAMPLE}")),
        })?;
        for (at, (name, _)) in fields.iter().enumerate() {
            if !FIELDS.contains(&name.as_str()) {
                let detail = format!("{} is not a field; those known are {}", quoted(name), FIELDS.join(", "));
                return Err(Problem::new(Code::UnknownField, detail));
            }
            if fields[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(Problem::new(Code::DuplicateField, format!("`{name}` is there twice; send it once")));
            }
        }
        Ok(Self(fields))
    }

    /// Takes a field out; null says the same as leaving it out.
    fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(invalid(format!("`{name}` must be text, not {}", told(&other)))),
        }
    }

    fn required_text(&mut self, name: &str) -> Result<String, Problem> {
        self.text(name)?.ok_or_else(|| {
            Problem::new(Code::MissingField, format!("`{name}` is missing; a request has at least {EXAMPLE}"))
        })
    }

    fn whole_number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64();
        let wrong = || invalid(format!("`{name}` must be a whole number from 0 to {}, not {}", u64::MAX, told(&value)));
        number.ok_or_else(wrong).map(Some)
    }

    fn yes_or_no(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(yes)),
            Some(other) => Err(invalid(format!("`{name}` must be true or false, not {}", told(&other)))),
        }
    }
}

/// A value of the wrong type, told back in a few words.
fn told(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(yes) => yes.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsInOrder)
    }
}

struct FieldsInOrder;

impl<'de> Visitor<'de> for FieldsInOrder {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}
