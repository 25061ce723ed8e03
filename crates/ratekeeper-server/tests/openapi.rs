//! The description that is served, held against what is served: every route, every field, every
//! answer.

mod support;

use ratekeeper_testkit::RedisServer;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use support::{Answer, Server};

const CONFIG: &str = "\
    [server]\nhttp = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"3/d\"\n\
    [[policy]]\nname = \"busy\"\nmatch = { path = \"/busy\" }\nstatus = 503\nlimit = \"1/d\"\n\
    [[policy]]\nname = \"slow\"\nmatch = { path = \"/slow\" }\naction = \"delay\"\nmax_delay = \"1h\"\nlimit = \"1/min\"\n\
    [[policy]]\nname = \"free\"\nmatch = { path = \"/free\" }\nlimit = \"unlimited\"\n\
    [[policy]]\nname = \"slots\"\nmatch = { path = \"/slots\" }\nlimit = \"1 concurrent\"\n";

struct Described {
    node: Server,
    document: Value,
}

impl Described {
    fn start(config: &str) -> Self {
        let node = Server::with_config(config);
        let answer = node.request("GET", "/openapi.json", "");
        assert_eq!(
            (answer.status(), answer.header("content-type")),
            (200, Some("application/json"))
        );
        let document = answer.json();
        Self { node, document }
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(name) => {
                let found = self.document.pointer(name.strip_prefix('#').unwrap());
                found.unwrap_or_else(|| panic!("{name} is not there"))
            }
            None => schema,
        }
    }

    /// What a value has that its schema does not let it have.
    fn wrong(&self, schema: &Value, value: &Value) -> Option<String> {
        let schema = self.resolve(schema);
        for keyword in schema.as_object().unwrap().keys() {
            const KNOWN: [&str; 15] = [
                "type",
                "properties",
                "required",
                "additionalProperties",
                "items",
                "enum",
                "const",
                "minimum",
                "maximum",
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "oneOf",
                "description",
            ];
            assert!(
                KNOWN.contains(&&**keyword),
                "this test does not know {keyword}"
            );
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let fits = choices
                .iter()
                .filter(|choice| self.wrong(choice, value).is_none())
                .count();
            return (fits != 1).then(|| format!("{value} fits {fits} of {}", choices.len()));
        }
        let types = match &schema["type"] {
            Value::String(one) => vec![one.as_str()],
            Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
            other => panic!("{other} is no type"),
        };
        let is = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        if !types.contains(&is) {
            return Some(format!("{value} is {is}, not {types:?}"));
        }
        let among = schema["enum"]
            .as_array()
            .is_none_or(|all| all.contains(value));
        if !among || schema.get("const").is_some_and(|only| only != value) {
            return Some(format!("{value} is none of those in {schema}"));
        }
        let within = |size: u64, least: &str, most: &str| {
            schema[least].as_u64().is_none_or(|least| size >= least)
                && schema[most].as_u64().is_none_or(|most| size <= most)
        };
        let fits = match value {
            Value::Number(number) => within(number.as_u64().unwrap_or(0), "minimum", "maximum"),
            Value::String(text) => within(text.len() as u64, "minLength", "maxLength"),
            Value::Array(list) => within(list.len() as u64, "minItems", "maxItems"),
            _ => true,
        };
        if !fits {
            return Some(format!("{value} is out of the bounds of {schema}"));
        }
        match value {
            Value::Array(list) => list
                .iter()
                .find_map(|one| self.wrong(&schema["items"], one)),
            Value::Object(fields) => self.wrong_fields(schema, fields),
            _ => None,
        }
    }

    fn wrong_fields(&self, schema: &Value, fields: &Map<String, Value>) -> Option<String> {
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                return Some(format!("{name} is missing in {fields:?}"));
            }
        }
        fields.iter().find_map(|(name, value)| {
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => Some(format!("{name} is not described")),
                (Value::Null, Value::Null) => None,
                (Value::Null, any) => self.wrong(any, value),
                (known, _) => self.wrong(known, value),
            }
        })
    }

    fn operations(&self) -> Vec<(&str, &str, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        let each = paths.iter().flat_map(|(path, methods)| {
            methods
                .as_object()
                .unwrap()
                .iter()
                .map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        });
        each.collect()
    }

    /// An answer is one of those that are described for it.
    #[track_caller]
    fn is_described(&self, method: &str, path: &str, answer: &Answer) {
        let status = answer.status().to_string();
        let response = &self.document["paths"][path][method]["responses"][&status];
        assert!(
            response.is_object(),
            "{method} {path} answers {status}, which is not described: {answer:?}"
        );
        let Some(content) = response["content"].as_object() else {
            return;
        };
        let media = answer
            .header("content-type")
            .unwrap()
            .split(';')
            .next()
            .unwrap();
        let schema = &content
            .get(media)
            .unwrap_or_else(|| panic!("{path} {status}: {media} is not described"))["schema"];
        let value = if media.ends_with("json") {
            answer.json()
        } else {
            json!(answer.body)
        };
        assert_eq!(
            self.wrong(schema, &value),
            None,
            "{method} {path}: {answer:?}"
        );
        if answer.header("retry-after").is_some() {
            assert!(
                response["headers"]["Retry-After"].is_object(),
                "{path} {status}"
            );
        }
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Answer {
        let answer = self.node.request("POST", path, &body.to_string());
        self.is_described("post", path, &answer);
        answer
    }
}

#[test]
fn what_is_described_is_served_and_what_is_served_is_described() {
    let described = Described::start(CONFIG);
    let operations = described.operations();
    for (path, method, operation) in &operations {
        let answer = described.node.request(&method.to_uppercase(), path, "");
        assert!(
            ![404, 405].contains(&answer.status()),
            "{method} {path}: {answer:?}"
        );
        described.is_described(method, path, &answer);
        assert!(
            operation["summary"].is_string() && operation["operationId"].is_string(),
            "{path}"
        );
    }
    // Who asks for something else is told all that is there.
    let told = described
        .node
        .request("GET", "/nothing", "")
        .problem(404, "not_found");
    let words = told.split([' ', ',']).filter(|word| word.starts_with('/'));
    let served: BTreeSet<&str> = words.collect();
    let paths: BTreeSet<&str> = operations.iter().map(|(path, ..)| *path).collect();
    assert_eq!(served, paths, "{told}");
}

#[test]
fn the_fields_of_requests_are_those_that_are_read() {
    let described = Described::start(CONFIG);
    let schemas = &described.document["components"]["schemas"];
    for (path, schema) in [
        ("/v1/check", "CheckRequest"),
        ("/v1/reserve", "ReserveRequest"),
        ("/v1/settle", "SettleRequest"),
        ("/v1/cancel", "CancelRequest"),
        ("/v1/throttle", "ThrottleRequest"),
    ] {
        let told = described
            .post(path, &json!({"?": 1}))
            .problem(400, "unknown_field");
        let read: BTreeSet<&str> = told
            .split_once("those known are ")
            .unwrap()
            .1
            .split(", ")
            .collect();
        let fields: BTreeSet<&str> = schemas[schema]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(|name| &**name)
            .collect();
        assert_eq!(read, fields, "{path}");
        // What must be there is missed, and nothing else.
        let missed = described
            .post(path, &json!({}))
            .problem(400, "missing_field");
        let required = schemas[schema]["required"].as_array().unwrap();
        assert!(
            missed.starts_with(&format!("`{}`", required[0].as_str().unwrap())),
            "{missed}"
        );
    }
}

#[test]
fn examples_are_as_they_are_described_and_are_understood() {
    let wide =
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"wide\"\nlimit = \"1000000/d\"\n";
    let described = Described::start(wide);
    let mut seen = 0;
    for (path, _, operation) in described.operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        for (name, example) in content["examples"].as_object().into_iter().flatten() {
            assert_eq!(
                described.wrong(&content["schema"], &example["value"]),
                None,
                "{path} {name}"
            );
            let answer = described.post(path, &example["value"]);
            // An id that nobody was given is the only thing wrong with any.
            if answer.status() != 200 {
                assert_eq!(
                    answer.json()["code"],
                    "invalid_id",
                    "{path} {name}: {answer:?}"
                );
            }
            seen += 1;
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            for content in response["content"]
                .as_object()
                .into_iter()
                .flat_map(|content| content.values())
            {
                for example in content["examples"].as_object().into_iter().flatten() {
                    assert_eq!(
                        described.wrong(&content["schema"], &example.1["value"]),
                        None,
                        "{path} {status}"
                    );
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 12, "{seen} examples");
}

#[test]
fn answers_are_as_they_are_described() {
    let redis = RedisServer::start();
    let store = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\non_failure = \"closed\"\n",
        redis.url()
    );
    for config in [
        CONFIG,
        &CONFIG.replacen("[[policy]]", &format!("{store}[[policy]]"), 1),
    ] {
        let described = Described::start(config);
        let subject = |path: &str| json!({"user": "ann", "path": path, "headers": {"x": ["a", "b"]}, "n": 1, "b": true});
        for path in ["/", "/busy", "/slow", "/free", "/slots"] {
            let request = json!({"subject": subject(path)});
            for _ in 0..3 {
                described.post(
                    "/v1/check",
                    &json!({"subject": subject(path), "peek": true}),
                );
                described.post("/v1/check", &request);
                described.post("/v1/check", &json!([request, {"subject": {}, "cost": 99}]));
                let reserved = described.post("/v1/reserve", &request).json();
                let Some(id) = reserved["id"].as_str() else {
                    continue;
                };
                described.post("/v1/settle", &json!({"id": id, "cost": 0, "failed": false}));
                assert_eq!(
                    described
                        .post("/v1/settle", &json!({"id": id, "status": 200}))
                        .status(),
                    409
                );
                assert_eq!(
                    described.post("/v1/cancel", &json!({"id": id})).status(),
                    409
                );
                assert_eq!(
                    described
                        .post("/v1/cancel", &json!({"id": &id[..40]}))
                        .status(),
                    403
                );
                described.post("/v1/settle", &json!({"id": "no"}));
            }
        }
        for limit in [
            "3/min",
            "1/s wait 1s",
            "unlimited",
            "0",
            "2/h sliding_log",
            "?",
        ] {
            for cost in [0, 1, 1, 9] {
                described.post(
                    "/v1/throttle",
                    &json!({"key": "a", "limit": limit, "cost": cost}),
                );
            }
        }
        for (path, body) in [
            ("/v1/check", "["),
            ("/v1/reserve", ""),
            ("/v1/settle", "1"),
            ("/v1/cancel", "{"),
        ] {
            described.is_described("post", path, &described.node.request("POST", path, body));
        }
        if config.contains("redis") {
            let id = described
                .post("/v1/reserve", &json!({"subject": {"user": "bob"}}))
                .json()["id"]
                .clone();
            redis.kill();
            assert_eq!(
                described.post("/v1/settle", &json!({"id": id})).status(),
                503
            );
            assert_eq!(
                described
                    .post("/v1/reserve", &json!({"subject": {"user": "bob"}}))
                    .status(),
                503
            );
            assert_eq!(
                described
                    .post("/v1/check", &json!({"subject": {"user": "bob"}}))
                    .status(),
                503
            );
            described.is_described(
                "get",
                "/readyz",
                &described.node.request("GET", "/readyz", ""),
            );
        }
    }
}
