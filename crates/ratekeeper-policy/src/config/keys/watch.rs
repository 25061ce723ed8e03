//! The keys of `[log]` and `[traces]`.

use super::{Default, Kind, Table, key};

pub(super) static LOG: Table = Table {
    doc: "What the service says on standard error.",
    keys: &[
        key("format", Kind::OneOf(&["text", "json"]), "Lines for people, or objects for programs.", "\"text\"")
            .or(Default::Text("text")),
        key(
            "level",
            Kind::OneOf(&["error", "warn", "info", "debug", "trace"]),
            "The least important that is said. RUST_LOG beats it.",
            "\"info\"",
        )
        .or(Default::Text("info")),
        key(
            "sample",
            Kind::Bool,
            "What is repeated is thinned out: of each line of code ten, then one a minute with how many were left out.",
            "true",
        )
        .or(Default::Bool(true)),
    ],
    also: None,
};

pub(super) static TRACES: Table = Table {
    doc: "Spans of requests, for a collector of OpenTelemetry.",
    keys: &[
        key(
            "endpoint",
            Kind::Upstream,
            "Where the collector takes OTLP over HTTP; without it nothing is traced.",
            "\"http://127.0.0.1:4318\"",
        ),
        key(
            "percent",
            Kind::Percent,
            "How many in a hundred requests are traced, of those whose caller does not say whether to.",
            "1",
        )
        .or(Default::Number(1)),
    ],
    also: None,
};
