//! The keys of overload handling: `adaptive` of a policy, `[shed]`, and priority classes.

use super::key;
use crate::config::key_type::{DefaultValue, KeyType, TableSpec};
use std::time::Duration;

/// A priority class.
pub(super) const PRIORITY: KeyType =
    KeyType::OneOf(&["critical_plus", "critical", "sheddable_plus", "sheddable"]);

const PERMITS: KeyType = KeyType::Number {
    min: 1,
    max: 1_000_000,
};

/// The wait in a queue, bounded because the queue is there to avoid long waits.
const WAIT: KeyType = KeyType::DurationWithin {
    min: Duration::from_millis(1),
    max: Duration::from_secs(60),
};

pub(super) static ADAPTIVE: TableSpec = TableSpec {
    doc: "Adaptive limit on the requests of a policy in flight: it follows how well they are \
          served.",
    keys: &[
        key("min", PERMITS, "Smallest limit.", "5").or(DefaultValue::Number(5)),
        key("max", PERMITS, "Largest limit.", "200").or(DefaultValue::Number(200)),
        key(
            "start",
            PERMITS,
            "Limit at the start. If not set, 20, or the nearest value within `min` and `max`.",
            "20",
        ),
        key(
            "control",
            KeyType::OneOf(&["gradient2", "aimd"]),
            "Control algorithm: \"gradient2\" reacts to latency and drops, \"aimd\" to drops and \
             timeouts.",
            "\"gradient2\"",
        )
        .or(DefaultValue::Text("gradient2")),
        key(
            "timeout",
            KeyType::Duration,
            "A request that takes longer counts as dropped. If not set, 5 s with \"aimd\", no \
             timeout with \"gradient2\".",
            "\"2s\"",
        ),
        key(
            "queue",
            PERMITS,
            "Maximum number of requests that wait for a permit. If not set, there is no queue.",
            "100",
        ),
        key(
            "queue_interval",
            WAIT,
            "Maximum wait in a queue that was empty within this time.",
            "\"100ms\"",
        )
        .or(DefaultValue::Text("100ms")),
        key(
            "queue_target",
            WAIT,
            "Maximum wait in a queue that was not empty within `queue_interval`.",
            "\"5ms\"",
        )
        .or(DefaultValue::Text("5ms")),
    ],
    extends: None,
};

pub(super) static SHED: TableSpec = TableSpec {
    doc: "Load shedding: under overload, the least important requests are denied first. Off unless \
          this table is written.",
    keys: &[
        key(
            "default",
            PRIORITY,
            "Class of requests for which nothing else sets one.",
            "\"critical\"",
        )
        .or(DefaultValue::Text("critical")),
        key(
            "header",
            KeyType::HeaderName,
            "Header in which trusted proxies set the class. Ignored from other peers.",
            "\"x-priority\"",
        ),
        key(
            "cpu",
            KeyType::Share,
            "Share of the processors in use, from 0 to 1, above which requests are shed. If not \
             set, processors are not considered.",
            "0.9",
        ),
        key(
            "memory",
            KeyType::Share,
            "Share of the memory in use, from 0 to 1, above which requests are shed. If not set, \
             memory is not considered.",
            "0.9",
        ),
        key(
            "rest",
            KeyType::DurationWithin {
                min: Duration::from_secs(1),
                max: Duration::from_secs(600),
            },
            "How long shedding does not decrease after it has increased.",
            "\"5s\"",
        )
        .or(DefaultValue::Text("5s")),
        key(
            "spare",
            PRIORITY,
            "Class that is never shed, nor are more important ones. If not set, every class may \
             be.",
            "\"critical_plus\"",
        ),
        key(
            "start_header",
            KeyType::HeaderName,
            "Header in which trusted proxies set the start time of a request.",
            "\"x-request-start\"",
        ),
        key(
            "patience",
            KeyType::DurationWithin {
                min: Duration::from_millis(1),
                max: Duration::from_secs(86_400),
            },
            "How long callers wait for a response: a request that began longer ago is denied. \
             Without `start_header` it begins when it arrives. If not set, there is no maximum \
             age.",
            "\"2s\"",
        ),
    ],
    extends: None,
};
