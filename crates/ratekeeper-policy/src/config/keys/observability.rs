//! The keys of `[log]` and `[traces]`.

use super::{DefaultValue, KeyType, TableSpec, key};

pub(super) static LOG: TableSpec = TableSpec {
    doc: "The log on standard error.",
    keys: &[
        key(
            "format",
            KeyType::OneOf(&["text", "json"]),
            "Format of lines: \"text\" for people, \"json\" for programs, one object per line.",
            "\"text\"",
        )
        .or(DefaultValue::Text("text")),
        key(
            "level",
            KeyType::OneOf(&["error", "warn", "info", "debug", "trace"]),
            "Lowest level that is logged. The variable RUST_LOG takes precedence.",
            "\"info\"",
        )
        .or(DefaultValue::Text("info")),
        key(
            "sample",
            KeyType::Bool,
            "Whether repeated lines are sampled: of each line of code ten, then one a minute with \
             the number left out.",
            "true",
        )
        .or(DefaultValue::Bool(true)),
    ],
    extends: None,
};

pub(super) static TRACES: TableSpec = TableSpec {
    doc: "Traces of requests, sent to an OpenTelemetry collector.",
    keys: &[
        key(
            "endpoint",
            KeyType::Upstream,
            "OTLP/HTTP address of the collector. If not set, nothing is traced.",
            "\"http://127.0.0.1:4318\"",
        ),
        key(
            "percent",
            KeyType::Percent,
            "Percentage of requests that are traced, of those whose caller has made no sampling \
             decision.",
            "1",
        )
        .or(DefaultValue::Number(1)),
    ],
    extends: None,
};
