//! JSON bodies, read strictly: what is not understood is an error, never a guess.

use super::problem::{Code, Problem, quoted};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::ops::RangeInclusive;

/// A value as it was sent: the fields of objects in their order, those that are there twice included.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// A whole number from 0 on, or any other.
    Number(Result<u64, f64>),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// A value of the wrong type, told back in a few words.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(yes) => yes.to_string(),
            Self::Number(Ok(number)) => number.to_string(),
            Self::Number(Err(number)) => number.to_string(),
            Self::Text(_) => "text".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// What a body says.
pub(crate) fn parse(body: &[u8], example: &str) -> Result<Json, Problem> {
    if body.trim_ascii().is_empty() {
        return Err(Problem::new(Code::InvalidJson, format!("the body is empty; send JSON, as in {example}")));
    }
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(Code::InvalidJson, format!("the body is not JSON: {error}; send it as in {example}"))
    })
}

/// More than any request has. What is in a request is compared with each other, and costs the square of this.
pub(crate) const MOST_FIELDS: usize = 128;

/// The fields of an object, each there once.
pub(crate) struct Fields(Vec<(String, Json)>);

impl Fields {
    /// The object that a body is. Its fields are among `known`; `example` shows what would be right.
    pub(crate) fn from_body(body: &[u8], known: &[&str], example: &str) -> Result<Self, Problem> {
        Self::of(parse(body, example)?, known, example)
    }

    /// The same of what was in a body.
    pub(crate) fn of(json: Json, known: &[&str], example: &str) -> Result<Self, Problem> {
        let Json::Object(fields) = json else {
            return Err(Problem::new(Code::NotAnObject, format!("the body is not a JSON object, as in {example}")));
        };
        if let Some((name, _)) = fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let detail = format!("{} is not a field; those known are {}", quoted(name), known.join(", "));
            return Err(Problem::new(Code::UnknownField, detail));
        }
        Self::new(fields, "")
    }

    /// The fields of an object within, which is called `of`.
    pub(crate) fn new(fields: Vec<(String, Json)>, of: &str) -> Result<Self, Problem> {
        if fields.len() > MOST_FIELDS {
            return Err(too_many(of.trim_end_matches('.')));
        }
        let twice = |at: usize| fields[..at].iter().any(|(earlier, _)| *earlier == fields[at].0);
        if let Some(at) = (0..fields.len()).find(|at| twice(*at)) {
            let name = quoted(&format!("{of}{}", fields[at].0));
            return Err(Problem::new(Code::DuplicateField, format!("{name} is there twice; send it once")));
        }
        Ok(Self(fields))
    }

    /// Takes a field out; null says the same as leaving it out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| *value != Json::Null)
    }

    /// What has not been taken out.
    pub(crate) fn rest(self) -> Vec<(String, Json)> {
        self.0
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(invalid(format!("`{name}` must be text, not {}", other.told()))),
        }
    }

    pub(crate) fn required_text(&mut self, name: &str, example: &str) -> Result<String, Problem> {
        self.text(name)?.ok_or_else(|| missing(name, example))
    }

    pub(crate) fn whole_number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(Ok(number))) => Ok(Some(number)),
            Some(other) => {
                let told = other.told();
                Err(invalid(format!("`{name}` must be a whole number from 0 to {}, not {told}", u64::MAX)))
            }
        }
    }

    pub(crate) fn whole_number_within(
        &mut self,
        name: &str,
        within: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(Ok(number))) if within.contains(&number) => Ok(Some(number)),
            Some(other) => {
                let (first, last, told) = (within.start(), within.end(), other.told());
                Err(invalid(format!("`{name}` must be a whole number from {first} to {last}, not {told}")))
            }
        }
    }

    pub(crate) fn yes_or_no(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(yes)) => Ok(Some(yes)),
            Some(other) => Err(invalid(format!("`{name}` must be true or false, not {}", other.told()))),
        }
    }
}

pub(crate) fn missing(name: &str, example: &str) -> Problem {
    Problem::new(Code::MissingField, format!("`{name}` is missing; a request has at least {example}"))
}

pub(crate) fn too_many(of: &str) -> Problem {
    let of = if of.is_empty() { "the body".to_owned() } else { quoted(of) };
    invalid(format!("{of} has more than {MOST_FIELDS} values; send those that policies ask for"))
}

pub(crate) fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidField, detail)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<Json, E> {
        Ok(Json::Bool(yes))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(Ok(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(u64::try_from(number).map_err(|_| number as f64)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Number(Err(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}
