//! Strict JSON bodies: unknown and duplicate fields are errors.

use super::problem::{Code, Problem, quoted};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

/// A JSON value. Objects keep the order of their fields and duplicates; text is borrowed from the
/// body unless it has escapes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// A whole number from 0 on (`Ok`), or any other (`Err`).
    Number(Result<u64, f64>),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
    /// The value for an error message; text, lists and objects by their type only.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(Ok(number)) => number.to_string(),
            Self::Number(Err(number)) => number.to_string(),
            Self::Text(_) => "text".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// Parses a body; errors show `example`.
pub(crate) fn parse<'a>(body: &'a [u8], example: &str) -> Result<Json<'a>, Problem> {
    if body.trim_ascii().is_empty() {
        return Err(Problem::new(
            Code::InvalidJson,
            format!("the body is empty; send JSON such as {example}"),
        ));
    }
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(
            Code::InvalidJson,
            format!("the body is not JSON: {error}; send JSON such as {example}"),
        )
    })
}

/// Number of fields that an object may have. More than any request needs: they are compared with
/// each other, which takes quadratic time.
pub(crate) const MAX_FIELDS: usize = 128;

/// The fields of an object, without duplicates.
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Fields<'a> {
    /// Parses a body that is an object with fields among `known`; errors show `example`.
    pub(crate) fn from_body(
        body: &'a [u8],
        known: &[&str],
        example: &str,
    ) -> Result<Self, Problem> {
        Self::of(parse(body, example)?, known, example)
    }

    /// The fields of a value of a body, which must be an object with fields among `known`.
    pub(crate) fn of(json: Json<'a>, known: &[&str], example: &str) -> Result<Self, Problem> {
        let Json::Object(fields) = json else {
            return Err(Problem::new(
                Code::NotAnObject,
                format!("the body is not a JSON object; send one such as {example}"),
            ));
        };
        if let Some((name, _)) = fields.iter().find(|(name, _)| !known.contains(&&**name)) {
            let detail = format!(
                "unknown field {}; known: {}",
                quoted(name),
                known.join(", ")
            );
            return Err(Problem::new(Code::UnknownField, detail));
        }
        Self::new(fields, "")
    }

    /// The fields of a nested object; `of` is the prefix of their names in errors.
    pub(crate) fn new(fields: Vec<(Cow<'a, str>, Json<'a>)>, of: &str) -> Result<Self, Problem> {
        if fields.len() > MAX_FIELDS {
            return Err(too_many(of.trim_end_matches('.')));
        }
        let is_duplicate = |at: usize| {
            fields[..at]
                .iter()
                .any(|(earlier, _)| *earlier == fields[at].0)
        };
        if let Some(at) = (0..fields.len()).find(|at| is_duplicate(*at)) {
            let name = quoted(&format!("{of}{}", fields[at].0));
            return Err(Problem::new(
                Code::DuplicateField,
                format!("{name} is given twice; send it once"),
            ));
        }
        Ok(Self(fields))
    }

    /// Removes and returns a field; null equals omitting it.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json<'a>> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| *value != Json::Null)
    }

    /// The fields that are left.
    pub(crate) fn rest(self) -> Vec<(Cow<'a, str>, Json<'a>)> {
        self.0
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text.into_owned())),
            Some(other) => Err(invalid(format!(
                "`{name}` must be text, not {}",
                other.shown()
            ))),
        }
    }

    pub(crate) fn required_text(&mut self, name: &str, example: &str) -> Result<String, Problem> {
        self.text(name)?.ok_or_else(|| missing(name, example))
    }

    pub(crate) fn whole_number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(Ok(number))) => Ok(Some(number)),
            Some(other) => Err(invalid(format!(
                "`{name}` must be a whole number from 0 to {}, not {}",
                u64::MAX,
                other.shown()
            ))),
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
            Some(other) => Err(invalid(format!(
                "`{name}` must be a whole number from {} to {}, not {}",
                within.start(),
                within.end(),
                other.shown()
            ))),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(invalid(format!(
                "`{name}` must be true or false, not {}",
                other.shown()
            ))),
        }
    }
}

pub(crate) fn missing(name: &str, example: &str) -> Problem {
    Problem::new(
        Code::MissingField,
        format!("`{name}` is missing; the minimum is {example}"),
    )
}

pub(crate) fn too_many(of: &str) -> Problem {
    let of = if of.is_empty() {
        "the body".to_owned()
    } else {
        quoted(of)
    };
    invalid(format!(
        "{of} has more than {MAX_FIELDS} values; send only those that policies use"
    ))
}

pub(crate) fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidField, detail)
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(Ok(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(
            u64::try_from(number).map_err(|_| number as f64),
        ))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number(Err(number)))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Json::Object(fields))
    }
}

/// The name of a field. (Without this attribute serde always reads a `Cow` as a copy.)
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
