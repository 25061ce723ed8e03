//! Reading of adaptive limits, priority classes and `[shed]`.

use super::settings::settings;
use super::{ReadError, Reader, Section, scalar};
use crate::config::IdentityConfig;
use crate::config::key_type::KeyType;
use crate::config::value::{Data, Value};
use crate::overload::{AdaptiveLimit, Shed};
use ratekeeper::adaptive::Class;
use ratekeeper::adaptive::{Control, QueueConfig};
use std::time::Duration;

/// Reads a priority class.
pub(super) fn class(_: &KeyType, value: &Value) -> Result<Class, ReadError> {
    let Data::String(text) = &value.data else {
        return Err(ReadError::WrongType);
    };
    Class::ALL
        .into_iter()
        .find(|class| class.name() == text)
        .ok_or(ReadError::WrongType)
}

/// Reads a number above 0 and up to 1.
fn share(_: &KeyType, value: &Value) -> Result<f64, ReadError> {
    let share = match value.data {
        Data::Integer(number) => number as f64,
        Data::Float(number) => number,
        _ => return Err(ReadError::WrongType),
    };
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(ReadError::WrongType)
    }
}

/// Reads `adaptive` of a policy.
pub(super) fn adaptive(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
) -> Option<AdaptiveLimit> {
    let mut inner = section.table(reader, "adaptive")?;
    let min = inner.get(reader, "min", scalar::number);
    let max = inner.get(reader, "max", scalar::number);
    let start = inner.get(reader, "start", scalar::number);
    let control = inner.get(reader, "control", scalar::word);
    let timeout = inner.get(reader, "timeout", scalar::duration);
    let queue = queue(reader, &mut inner);
    inner.close();
    let limit = AdaptiveLimit::new()
        .between(min?, max?)
        .control(self::control(control?, timeout))
        .queue(queue?);
    Some(start.map_or(limit, |start| limit.start(start)))
}

/// Reads the queue of an adaptive limit.
fn queue(reader: &mut Reader<'_>, adaptive: &mut Section<'_>) -> Option<QueueConfig> {
    let is_written = adaptive.has("queue");
    let max_len = adaptive.get(reader, "queue", scalar::number);
    let [interval, target] = ["queue_interval", "queue_target"].map(|name| {
        if adaptive.has(name) && !is_written {
            let message =
                format!("`{name}` has no effect without a queue; set `queue`, or remove `{name}`");
            reader.warn(adaptive.position(name), message);
        }
        adaptive.get(reader, name, scalar::duration)
    });
    match max_len {
        Some(max_len) => Some(
            QueueConfig::of(usize::try_from(max_len).ok()?)
                .interval(interval?)
                .target(target?),
        ),
        None => Some(QueueConfig::of(0)),
    }
}

/// The control algorithm of this name.
fn control(name: &str, timeout: Option<Duration>) -> Control {
    match (name, timeout) {
        ("aimd", None) => Control::aimd().into(),
        ("aimd", Some(after)) => Control::aimd().timeout(after).into(),
        (_, None) => Control::gradient2().into(),
        (_, Some(after)) => Control::gradient2().timeout(after).into(),
    }
}

/// `[shed]`: the settings if it is written, and the headers of class and start time.
pub(super) struct ShedSection {
    pub(super) shed: Option<Shed>,
    pub(super) header: Option<String>,
    pub(super) start_header: Option<String>,
}

/// Adds the headers of `[shed]` to those that are trusted.
pub(super) fn with_shed_headers(identity: IdentityConfig, shed: &ShedSection) -> IdentityConfig {
    IdentityConfig {
        class: shed.header.clone(),
        start: shed.start_header.clone(),
        ..identity
    }
}

/// Reads `[shed]`, which is on if it is written.
pub(super) fn shed(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<ShedSection> {
    let is_written = file.has("shed");
    let mut section = settings(reader, file, "shed")?;
    let default = section.get(reader, "default", class);
    let header = section.get(reader, "header", scalar::header_name);
    let cpu = section.get(reader, "cpu", share);
    let memory = section.get(reader, "memory", share);
    let rest = section.get(reader, "rest", scalar::duration);
    let spare = section.get(reader, "spare", class);
    let start_header = section.get(reader, "start_header", scalar::header_name);
    let patience = section.get(reader, "patience", scalar::duration);
    let (has_header, has_patience) = (section.has("start_header"), section.has("patience"));
    if has_patience && !has_header {
        let message = "without `start_header`, `patience` is measured from the arrival of a \
                       request here; set `start_header` to the header in which your proxy sends \
                       its start";
        reader.warn(section.position("patience"), message);
    }
    if has_header && !has_patience {
        let message = "`start_header` has no effect without `patience`; set `patience`, or remove \
                       `start_header`";
        reader.warn(section.position("start_header"), message);
    }
    section.close();
    let shed = Shed {
        default: default?,
        cpu,
        memory,
        rest: rest?,
        spare,
        patience,
    };
    Some(ShedSection {
        shed: is_written.then_some(shed),
        header,
        start_header,
    })
}
