//! What a file says for when there is too much.

use super::key;
use crate::config::kind::{Default, Kind, Table};
use std::time::Duration;

/// How important requests are.
pub(super) const PRIORITY: Kind =
    Kind::OneOf(&["critical_plus", "critical", "sheddable_plus", "sheddable"]);

const PERMITS: Kind = Kind::Number {
    min: 1,
    max: 1_000_000,
};

/// Long waits are what a short queue is to spare everybody.
const WAIT: Kind = Kind::DurationWithin {
    min: Duration::from_millis(1),
    max: Duration::from_secs(60),
};

pub(super) static ADAPTIVE: Table = Table {
    doc: "How many requests of a policy may be in flight, found out by how they are served.",
    keys: &[
        key("min", PERMITS, "Never fewer.", "5").or(Default::Number(5)),
        key("max", PERMITS, "Never more.", "200").or(Default::Number(200)),
        key(
            "start",
            PERMITS,
            "How many at first; 20 if nothing is said, or what is nearest.",
            "20",
        ),
        key(
            "control",
            Kind::OneOf(&["gradient2", "aimd"]),
            "What it goes by.",
            "\"gradient2\"",
        )
        .or(Default::Text("gradient2")),
        key(
            "timeout",
            Kind::Duration,
            "A request that takes longer counts as dropped; with aimd 5 seconds if nothing is said.",
            "\"2s\"",
        ),
        key(
            "queue",
            PERMITS,
            "How many may wait for a place, briefly; nobody waits if nothing is said.",
            "100",
        ),
        key(
            "queue_interval",
            WAIT,
            "How long one may wait in a queue that was empty within that time.",
            "\"100ms\"",
        )
        .or(Default::Text("100ms")),
        key(
            "queue_target",
            WAIT,
            "How long one may wait in a queue that was not.",
            "\"5ms\"",
        )
        .or(Default::Text("5ms")),
    ],
    also: None,
};

pub(super) static SHED: Table = Table {
    doc: "When there is too much, the least important requests are turned away first.",
    keys: &[
        key(
            "default",
            PRIORITY,
            "How important requests are of which nothing says it.",
            "\"critical\"",
        )
        .or(Default::Text("critical")),
        key(
            "header",
            Kind::HeaderName,
            "The header in which trusted proxies say it.",
            "\"x-priority\"",
        ),
        key(
            "cpu",
            Kind::Share,
            "More of the processors in use is too much.",
            "0.9",
        ),
        key(
            "memory",
            Kind::Share,
            "More of the memory in use is too much.",
            "0.9",
        ),
        key(
            "rest",
            Kind::DurationWithin {
                min: Duration::from_secs(1),
                max: Duration::from_secs(600),
            },
            "How long no less is shed after more was.",
            "\"5s\"",
        )
        .or(Default::Text("5s")),
        key(
            "spare",
            PRIORITY,
            "This class is never shed, nor is what is more important.",
            "\"critical_plus\"",
        ),
        key(
            "start_header",
            Kind::HeaderName,
            "The header in which trusted proxies say when a request began.",
            "\"x-request-start\"",
        ),
        key(
            "patience",
            Kind::DurationWithin {
                min: Duration::from_millis(1),
                max: Duration::from_secs(86_400),
            },
            "How long callers wait for an answer: what began longer ago is turned away.",
            "\"2s\"",
        ),
    ],
    also: None,
};
