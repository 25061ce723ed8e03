//! The OpenAPI document compared with the server: every route, field and response.

mod support;

use ratekeeper_testkit::RedisServer;
use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use support::{Answer, Server};

const CONFIG: &str = "\
    [server]\nhttp = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"3/d\"\n\
    [[policy]]\nname = \"busy\"\nmatch = { path = \"/busy\" }\nstatus = 503\nlimit = \"1/d\"\n\
    [[policy]]\nname = \"slow\"\nmatch = { path = \"/slow\" }\naction = \"delay\"\nmax_delay = \"1h\"\nlimit = \"1/min\"\n\
    [[policy]]\nname = \"free\"\nmatch = { path = \"/free\" }\nlimit = \"unlimited\"\n\
    [[policy]]\nname = \"slots\"\nmatch = { path = \"/slots\" }\nlimit = \"1 concurrent\"\n";

struct Document {
    node: Server,
    document: Value,
}

impl Document {
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

    /// The first violation of a schema by a value.
    fn violation(&self, schema: &Value, value: &Value) -> Option<String> {
        let schema = self.resolve(schema);
        for keyword in schema.as_object().unwrap().keys() {
            const KNOWN: [&str; 18] = [
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
                "format",
                "maxProperties",
                "propertyNames",
            ];
            assert!(
                KNOWN.contains(&&**keyword),
                "this test does not know {keyword}"
            );
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let fits = choices
                .iter()
                .filter(|choice| self.violation(choice, value).is_none())
                .count();
            return (fits != 1).then(|| format!("{value} fits {fits} of {}", choices.len()));
        }
        let Some(schema_type) = schema.get("type") else {
            panic!("{schema} has no type");
        };
        let types = match schema_type {
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
            Value::Number(number) => match number.as_u64() {
                Some(number) => within(number, "minimum", "maximum"),
                None => schema.get("minimum").is_none(),
            },
            Value::String(text) => {
                within(text.len() as u64, "minLength", "maxLength")
                    && has_format(text, schema["format"].as_str())
            }
            Value::Array(list) => within(list.len() as u64, "minItems", "maxItems"),
            Value::Object(fields) => within(fields.len() as u64, "minProperties", "maxProperties"),
            _ => true,
        };
        if !fits {
            return Some(format!("{value} is out of the bounds of {schema}"));
        }
        match value {
            Value::Array(list) => list
                .iter()
                .find_map(|one| self.violation(&schema["items"], one)),
            Value::Object(fields) => self.field_violation(schema, fields),
            _ => None,
        }
    }

    fn field_violation(&self, schema: &Value, fields: &Map<String, Value>) -> Option<String> {
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
        let names = &schema["propertyNames"]["not"];
        if let Some(name) = fields.keys().find(|name| matches(names, name)) {
            return Some(format!("{name} is not a name that {schema} lets it have"));
        }
        fields.iter().find_map(|(name, value)| {
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => Some(format!("{name} is not described")),
                (Value::Null, Value::Null) => None,
                (Value::Null, any) => self.violation(any, value),
                (known, _) => self.violation(known, value),
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

    /// Asserts that a response matches the document.
    #[track_caller]
    fn assert_described(&self, method: &str, path: &str, answer: &Answer) {
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
            self.violation(schema, &value),
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
        self.assert_described("post", path, &answer);
        answer
    }
}

fn has_format(text: &str, format: Option<&str>) -> bool {
    match format {
        None => true,
        Some("ipv4") => text.parse::<Ipv4Addr>().is_ok(),
        Some("ipv6") => text.parse::<Ipv6Addr>().is_ok(),
        Some(other) => panic!("this test does not know the format {other}"),
    }
}

/// Whether a name fits a schema of names.
fn matches(schema: &Value, name: &str) -> bool {
    let fits = |list: &Value| -> Vec<bool> {
        let list = list.as_array().unwrap().iter();
        list.map(|one| matches(one, name)).collect()
    };
    let Some(keywords) = schema.as_object() else {
        return false;
    };
    keywords.iter().all(|(keyword, value)| match &**keyword {
        "anyOf" => fits(value).contains(&true),
        "allOf" => !fits(value).contains(&false),
        "not" => !matches(value, name),
        "enum" => value.as_array().unwrap().contains(&json!(name)),
        "pattern" => Regex::new(value.as_str().unwrap()).unwrap().is_match(name),
        other => panic!("this test does not know {other} of names"),
    })
}

#[test]
fn the_document_and_the_server_have_the_same_paths() {
    let described = Document::start(CONFIG);
    let operations = described.operations();
    for (path, method, operation) in &operations {
        let answer = described.node.request(&method.to_uppercase(), path, "");
        assert!(
            ![404, 405].contains(&answer.status()),
            "{method} {path}: {answer:?}"
        );
        described.assert_described(method, path, &answer);
        assert!(
            operation["summary"].is_string() && operation["operationId"].is_string(),
            "{path}"
        );
    }
    // The error for an unknown path lists all paths.
    let detail = described
        .node
        .request("GET", "/nothing", "")
        .problem(404, "not_found");
    let words = detail
        .split([' ', ','])
        .filter(|word| word.starts_with('/'));
    let served: BTreeSet<&str> = words.collect();
    let paths: BTreeSet<&str> = operations.iter().map(|(path, ..)| *path).collect();
    assert_eq!(served, paths, "{detail}");
}

#[test]
fn fields_of_requests_are_those_of_the_server() {
    let described = Document::start(CONFIG);
    let schemas = &described.document["components"]["schemas"];
    for (path, schema) in [
        ("/v1/check", "CheckRequest"),
        ("/v1/reserve", "ReserveRequest"),
        ("/v1/settle", "SettleRequest"),
        ("/v1/cancel", "CancelRequest"),
        ("/v1/throttle", "ThrottleRequest"),
    ] {
        let detail = described
            .post(path, &json!({"?": 1}))
            .problem(400, "unknown_field");
        let read: BTreeSet<&str> = detail
            .split_once("known: ")
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
        // Required fields are reported as missing, others are not.
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
fn examples_match_their_schemas_and_are_accepted() {
    let wide =
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"wide\"\nlimit = \"1000000/d\"\n";
    let described = Document::start(wide);
    let mut seen = 0;
    for (path, _, operation) in described.operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        for (name, example) in content["examples"].as_object().into_iter().flatten() {
            assert_eq!(
                described.violation(&content["schema"], &example["value"]),
                None,
                "{path} {name}"
            );
            let answer = described.post(path, &example["value"]);
            // Ids in examples are signed with another secret.
            if answer.status() != 200 {
                assert_eq!(
                    answer.json()["code"],
                    "forged_id",
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
                        described.violation(&content["schema"], &example.1["value"]),
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

/// A generated client sends nothing that the server rejects, and may send all that it accepts.
#[test]
fn the_document_is_as_strict_as_the_server() {
    let described = Document::start(CONFIG);
    let many = |many: usize| -> Map<String, Value> {
        (0..many).map(|at| (format!("a{at}"), json!("x"))).collect()
    };
    let subjects = [
        json!({}),
        json!({"ip": "203.0.113.7"}),
        json!({"ip": "2001:db8::7", "headers": null}),
        json!({"ip": null, "user": "ann", "api_key": "k", "Tier": "gold"}),
        json!({"ip": "somewhere"}),
        json!({"ip": "203.0.113.7:80"}),
        json!({"ip": ""}),
        json!({"ip": 7}),
        json!({"User": "ann"}),
        json!({"IP": "203.0.113.7"}),
        json!({"Api_Key": "k"}),
        json!({"header:x-a": "b"}),
        json!({"Header:x-a": "b"}),
        json!({"n": 7, "b": false, "x": null}),
        json!({"n": -1}),
        json!({"n": 1.5}),
        json!({"n": ["a"]}),
        json!({"headers": {"x": "a", "y": ["a", "b"], "z": null}}),
        json!({"headers": {"x": 1}}),
        json!({"headers": {"x": [1]}}),
        json!({"headers": "x"}),
        json!({"headers": many(128)}),
        json!({"headers": many(129)}),
        json!({"headers": {"x": vec!["a"; 128]}}),
        json!({"headers": {"x": vec!["a"; 129]}}),
        json!(many(128)),
        json!(many(129)),
    ];
    let bodies = subjects
        .map(|subject| json!({"subject": subject}))
        .into_iter();
    let more = [
        json!({"subject": {}, "cost": 0}),
        json!({"subject": {}, "cost": -1}),
        json!({"subject": {}, "cost": "1"}),
        json!({"subject": {}, "peek": 1}),
        json!([]),
        json!(vec![json!({"subject": {}}); 100]),
        json!(vec![json!({"subject": {}}); 101]),
    ];
    let schema = &described.document["paths"]["/v1/check"]["post"]["requestBody"]["content"]["application/json"]
        ["schema"];
    for body in bodies.chain(more) {
        let wrong = described.violation(schema, &body);
        let answer = described.post("/v1/check", &body);
        assert_eq!(
            wrong.is_some(),
            answer.status() == 400,
            "{body}: by the description {wrong:?}, by the server {answer:?}"
        );
    }
}

#[test]
fn no_route_accepts_trace() {
    let described = Document::start(CONFIG);
    let paths: BTreeSet<&str> = described
        .operations()
        .iter()
        .map(|(path, ..)| *path)
        .collect();
    assert!(paths.contains("/auth/nginx"));
    for path in paths.iter().chain(&["/auth/envoy/", "/auth/envoy/a/b"]) {
        let answer = described.node.request("TRACE", path, "");
        answer.problem(405, "method_not_allowed");
        let allow = answer.header("allow").unwrap_or_default();
        assert!(
            !allow.is_empty() && !allow.contains("TRACE"),
            "{path}: {allow}"
        );
    }
}

#[test]
fn responses_match_the_document() {
    let redis = RedisServer::start();
    let store = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\non_failure = \"closed\"\n",
        redis.url()
    );
    for config in [
        CONFIG,
        &CONFIG.replacen("[[policy]]", &format!("{store}[[policy]]"), 1),
    ] {
        let described = Document::start(config);
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
        let late = json!({"subject": {"user": "late", "deadline": "t=1700000000"}});
        assert_eq!(described.post("/v1/check", &late).status(), 504);
        assert_eq!(described.post("/v1/reserve", &late).status(), 504);
        let both = json!([late, {"subject": {"user": "late"}}]);
        let both = described.post("/v1/check", &both).json();
        assert_eq!(
            (&both[0]["status"], &both[1]["status"]),
            (&json!(504), &json!(200))
        );
        for path in [
            "/v1/check",
            "/v1/reserve",
            "/v1/settle",
            "/v1/cancel",
            "/v1/throttle",
            "/json",
        ] {
            let mut connection = described.node.connect();
            connection.write(&format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://example.com\r\nContent-Length: 2\r\n\r\n{{}}"
            ));
            let answer = connection.answer();
            assert_eq!(answer.status(), 403);
            described.assert_described("post", path, &answer);
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
            described.assert_described("post", path, &described.node.request("POST", path, body));
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
            described.assert_described(
                "get",
                "/readyz",
                &described.node.request("GET", "/readyz", ""),
            );
        }
    }
}
