//! `[shed]`, and `adaptive` of a policy.

use super::section::{FlatForm, Form, HeaderName, KeyType, Section};
use crate::overload::{AdaptiveLimit, Shed};
use ratekeeper::adaptive::{Class, Control, QueueConfig};
use std::time::Duration;

/// The wait in a queue, bounded because the queue is there to avoid long waits.
const WAIT: KeyType = KeyType::millis(1, 60_000);
const PERMITS: KeyType = KeyType::number(1, 1_000_000);

crate::section! {
    /// `[shed]`, which is on if it is written.
    pub struct ShedTable, check = check_shed {
        /// Class of requests for which nothing else sets one.
        default: Class = "critical" => "critical";
        /// Header in which trusted proxies set the class. Ignored from other peers.
        header: Option<String> as Option<HeaderName> => "x-priority";
        /// Share of the processors in use, from 0 to 1, above which requests are shed. If not set,
        /// processors are not considered.
        cpu: Option<f64> => 0.9;
        /// Share of the memory in use, from 0 to 1, above which requests are shed. If not set,
        /// memory is not considered.
        memory: Option<f64> => 0.9;
        /// How long shedding does not decrease after it has increased.
        rest: Duration [KeyType::millis(1_000, 600_000)] = "5s" => "5s";
        /// Class that is never shed, nor are more important ones. If not set, every class may be.
        spare: Option<Class> => "critical_plus";
        /// Header in which trusted proxies set the start time of a request.
        start_header: Option<String> as Option<HeaderName> => "x-request-start";
        /// How long callers wait for a response: a request that began longer ago is denied. Without
        /// `start_header` it begins when it arrives. If not set, there is no maximum age.
        patience: Option<Duration> [KeyType::millis(1, 86_400_000)] => "2s";
    }
}

crate::section! {
    /// An adaptive limit on the requests of a policy in flight: it follows how well they are served.
    pub(super) struct AdaptiveTable {
        /// Smallest limit.
        min: u64 [PERMITS] = 5 => 5;
        /// Largest limit.
        max: u64 [PERMITS] = 200 => 200;
        /// Limit at the start. If not set, 20, or the nearest value within `min` and `max`.
        start: Option<u64> [PERMITS] => 20;
        /// The control algorithm.
        control: Control as FlatForm<ControlTable> => ();
        /// The queue.
        queue: QueueConfig as FlatForm<QueueTable> => ();
    }
}

crate::section! {
    /// The control algorithm of an adaptive limit.
    struct ControlTable {
        /// Control algorithm: "gradient2" reacts to latency and drops, "aimd" to drops and timeouts.
        control: &'static str [KeyType::OneOf(&["gradient2", "aimd"])] = "gradient2" => "gradient2";
        /// A request that takes longer counts as dropped. If not set, 5 s with "aimd", no timeout
        /// with "gradient2".
        timeout: Option<Duration> => "2s";
    }
}

crate::section! {
    /// The queue of an adaptive limit.
    struct QueueTable, check = check_queue {
        /// Maximum number of requests that wait for a permit. If not set, there is no queue.
        queue: Option<usize> [PERMITS] => 100;
        /// Maximum wait in a queue that was empty within this time.
        queue_interval: Duration [WAIT] = "100ms" => "100ms";
        /// Maximum wait in a queue that was not empty within `queue_interval`.
        queue_target: Duration [WAIT] = "5ms" => "5ms";
    }
}

fn check_shed(section: &Section<'_>, _: Option<&ShedTable>) {
    match (section.has("start_header"), section.has("patience")) {
        (false, true) => section.warn(
            "patience",
            "without `start_header`, {key} is measured from the arrival of a request here; set \
             `start_header` to the header in which your proxy sends its start",
        ),
        (true, false) => section.warn(
            "start_header",
            "{key} has no effect without `patience`; set `patience`, or remove {key}",
        ),
        _ => {}
    }
}

fn check_queue(section: &Section<'_>, _: Option<&QueueTable>) {
    for name in ["queue_interval", "queue_target"] {
        if section.has(name) && !section.has("queue") {
            let message = "{key} has no effect without a queue; set `queue`, or remove {key}";
            section.warn(name, message);
        }
    }
}

impl From<&ShedTable> for Shed {
    fn from(table: &ShedTable) -> Self {
        Self {
            default: table.default,
            cpu: table.cpu,
            memory: table.memory,
            rest: table.rest,
            spare: table.spare,
            patience: table.patience,
        }
    }
}

impl ShedTable {
    /// The table of these settings, with the headers of class and start time.
    pub(super) fn of(shed: &Shed, header: Option<String>, start_header: Option<String>) -> Self {
        Self {
            default: shed.default,
            header,
            cpu: shed.cpu,
            memory: shed.memory,
            rest: shed.rest,
            spare: shed.spare,
            start_header,
            patience: shed.patience,
        }
    }
}

impl Form for ControlTable {
    type Value = Control;

    fn into_value(self) -> Control {
        match (self.control, self.timeout) {
            ("aimd", None) => Control::aimd().into(),
            ("aimd", Some(after)) => Control::aimd().timeout(after).into(),
            (_, None) => Control::gradient2().into(),
            (_, Some(after)) => Control::gradient2().timeout(after).into(),
        }
    }

    fn of(value: &Control) -> Option<Self> {
        let (control, timeout) = (value.name(), value.drops_after());
        Some(Self { control, timeout })
    }
}

impl Form for QueueTable {
    type Value = QueueConfig;

    fn into_value(self) -> QueueConfig {
        let queue = |max_waiting| {
            QueueConfig::of(max_waiting)
                .interval(self.queue_interval)
                .target(self.queue_target)
        };
        self.queue.map_or(QueueConfig::of(0), queue)
    }

    fn of(value: &QueueConfig) -> Option<Self> {
        (value.max_waiting > 0).then_some(Self {
            queue: Some(value.max_waiting),
            queue_interval: value.interval,
            queue_target: value.target,
        })
    }
}

impl Form for AdaptiveTable {
    type Value = AdaptiveLimit;

    fn into_value(self) -> AdaptiveLimit {
        let limit = AdaptiveLimit::new()
            .between(self.min, self.max)
            .control(self.control)
            .queue(self.queue);
        self.start.map_or(limit, |start| limit.start(start))
    }

    fn of(limit: &AdaptiveLimit) -> Option<Self> {
        Some(Self {
            min: limit.min,
            max: limit.max,
            start: Some(limit.start),
            control: limit.control,
            queue: limit.queue,
        })
    }
}
