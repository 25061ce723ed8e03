//! `GET /openapi.json`: the OpenAPI document.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;

/// Written by hand; tests/openapi.rs compares it with real responses.
const DESCRIPTION: &str = include_str!("../../openapi.json");

pub(super) async fn description() -> Response {
    let mut response = Response::new(Body::from(DESCRIPTION));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ids::{IdError, Ids};
    use crate::api::problem::Code;
    use crate::store::AnyStore;
    use ratekeeper::{MemoryStore, store::AskOutcome, store::Source};
    use ratekeeper_policy::Reason;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Codes that only the gateway and the admin listener use.
    const OTHER_CODES: [Code; 10] = [
        Code::BadRequest,
        Code::HeadTooLarge,
        Code::TargetTooLong,
        Code::Unauthorized,
        Code::InvalidConfig,
        Code::BadHost,
        Code::WrongHost,
        Code::UnknownCoding,
        Code::BadUpstream,
        Code::SlowUpstream,
    ];

    fn document() -> Value {
        serde_json::from_str(DESCRIPTION).unwrap()
    }

    #[test]
    fn enums_match_the_code() {
        let document = document();
        let of_schema = |schema: &str, field: &str| -> BTreeSet<String> {
            let of = &document["components"]["schemas"][schema]["properties"][field]["enum"];
            let names = of.as_array().unwrap().iter();
            names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        let set = |names: Vec<&str>| -> BTreeSet<String> {
            names.into_iter().map(ToOwned::to_owned).collect()
        };
        for answer in ["Answer", "OneAnswer", "Reserved"] {
            assert_eq!(of_schema(answer, "reason"), set(Reason::NAMES.to_vec()));
            let sources = Source::ALL.iter().map(|source| source.name()).collect();
            assert_eq!(of_schema(answer, "source"), set(sources));
        }
        let outcomes = AskOutcome::ALL
            .iter()
            .map(|outcome| outcome.name())
            .collect();
        assert_eq!(of_schema("Limit", "outcome"), set(outcomes));
        let codes = Code::ALL.iter().filter(|code| !OTHER_CODES.contains(code));
        let codes = codes.map(|code| code.name()).collect();
        assert_eq!(of_schema("Problem", "code"), set(codes));
    }

    #[test]
    fn ids_in_examples_are_well_formed() {
        let document = document();
        let (store, ids) = (AnyStore::Memory(MemoryStore::new()), Ids::new(None));
        let mut seen = 0;
        let mut look = vec![&document];
        while let Some(value) = look.pop() {
            match value {
                Value::Array(list) => look.extend(list),
                Value::Object(fields) => {
                    if let Some(Value::String(id)) = fields.get("id") {
                        assert_eq!(ids.open(&store, id), Err(IdError::Forged), "{id}");
                        seen += 1;
                    }
                    look.extend(fields.values());
                }
                _ => {}
            }
        }
        assert!(seen >= 4, "{seen}");
    }
}
