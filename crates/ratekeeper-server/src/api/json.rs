//! JSON bodies, read strictly: what is not understood is an error, never a guess.

use super::problem::{Code, Problem, quoted};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

/// A value as it was sent: the fields of objects in their order, those that are there twice
/// included. Texts are where they were sent, but for those with escapes in them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// A whole number from 0 on, or any other.
    Number(Result<u64, f64>),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
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
pub(crate) fn parse<'a>(body: &'a [u8], example: &str) -> Result<Json<'a>, Problem> {
    if body.trim_ascii().is_empty() {
        return Err(Problem::new(
            Code::InvalidJson,
            format!("the body is empty; send JSON, as in {example}"),
        ));
    }
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(
            Code::InvalidJson,
            format!("the body is not JSON: {error}; send it as in {example}"),
        )
    })
}

/// More than any request has. What is in a request is compared with each other, and costs the
/// square of this.
pub(crate) const MOST_FIELDS: usize = 128;

/// The fields of an object, each there once.
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Fields<'a> {
    /// The object that a body is. Its fields are among `known`; `example` shows what would be
    /// right.
    pub(crate) fn from_body(
        body: &'a [u8],
        known: &[&str],
        example: &str,
    ) -> Result<Self, Problem> {
        Self::of(parse(body, example)?, known, example)
    }

    /// The same of what was in a body.
    pub(crate) fn of(json: Json<'a>, known: &[&str], example: &str) -> Result<Self, Problem> {
        let Json::Object(fields) = json else {
            return Err(Problem::new(
                Code::NotAnObject,
                format!("the body is not a JSON object, as in {example}"),
            ));
        };
        if let Some((name, _)) = fields.iter().find(|(name, _)| !known.contains(&&**name)) {
            let detail = format!(
                "{} is not a field; those known are {}",
                quoted(name),
                known.join(", ")
            );
            return Err(Problem::new(Code::UnknownField, detail));
        }
        Self::new(fields, "")
    }

    /// The fields of an object within, which is called `of`.
    pub(crate) fn new(fields: Vec<(Cow<'a, str>, Json<'a>)>, of: &str) -> Result<Self, Problem> {
        if fields.len() > MOST_FIELDS {
            return Err(too_many(of.trim_end_matches('.')));
        }
        let twice = |at: usize| {
            fields[..at]
                .iter()
                .any(|(earlier, _)| *earlier == fields[at].0)
        };
        if let Some(at) = (0..fields.len()).find(|at| twice(*at)) {
            let name = quoted(&format!("{of}{}", fields[at].0));
            return Err(Problem::new(
                Code::DuplicateField,
                format!("{name} is there twice; send it once"),
            ));
        }
        Ok(Self(fields))
    }

    /// Takes a field out; null says the same as leaving it out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json<'a>> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| *value != Json::Null)
    }

    /// What has not been taken out.
    pub(crate) fn rest(self) -> Vec<(Cow<'a, str>, Json<'a>)> {
        self.0
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text.into_owned())),
            Some(other) => Err(invalid(format!(
                "`{name}` must be text, not {}",
                other.told()
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
            Some(other) => {
                let told = other.told();
                Err(invalid(format!(
                    "`{name}` must be a whole number from 0 to {}, not {told}",
                    u64::MAX
                )))
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
                Err(invalid(format!(
                    "`{name}` must be a whole number from {first} to {last}, not {told}"
                )))
            }
        }
    }

    pub(crate) fn yes_or_no(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(yes)) => Ok(Some(yes)),
            Some(other) => Err(invalid(format!(
                "`{name}` must be true or false, not {}",
                other.told()
            ))),
        }
    }
}

pub(crate) fn missing(name: &str, example: &str) -> Problem {
    Problem::new(
        Code::MissingField,
        format!("`{name}` is missing; a request has at least {example}"),
    )
}

pub(crate) fn too_many(of: &str) -> Problem {
    let of = if of.is_empty() {
        "the body".to_owned()
    } else {
        quoted(of)
    };
    invalid(format!(
        "{of} has more than {MOST_FIELDS} values; send those that policies ask for"
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

    fn visit_bool<E>(self, yes: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(yes))
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

/// The name of a field. (A `Cow` that is not told to borrow is always read as a copy.)
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
