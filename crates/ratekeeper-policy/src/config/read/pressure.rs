//! Adaptive limits, and what is shed.

use super::settings::settings;
use super::{Reader, Section, Wrong, scalar};
use crate::config::Identity;
use crate::config::kind::Kind;
use crate::config::tree::{Data, Value};
use crate::overload::{AdaptiveLimit, Shed};
use ratekeeper::adaptive::Class;
use ratekeeper::adaptive::{Control, QueueConfig};
use std::time::Duration;

/// How important requests are.
pub(super) fn class(_: &Kind, value: &Value) -> Result<Class, Wrong> {
    let Data::Text(text) = &value.data else {
        return Err(Wrong::Kind);
    };
    Class::ALL
        .into_iter()
        .find(|class| class.name() == text)
        .ok_or(Wrong::Kind)
}

fn share(_: &Kind, value: &Value) -> Result<f64, Wrong> {
    let share = match value.data {
        Data::Whole(number) => number as f64,
        Data::Fraction(number) => number,
        _ => return Err(Wrong::Kind),
    };
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(Wrong::Kind)
    }
}

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

/// Who waits for a place, and for how long.
fn queue(reader: &mut Reader<'_>, adaptive: &mut Section<'_>) -> Option<QueueConfig> {
    let is_written = adaptive.has("queue");
    let room = adaptive.get(reader, "queue", scalar::number);
    let [interval, target] = ["queue_interval", "queue_target"].map(|name| {
        if adaptive.has(name) && !is_written {
            let message = format!(
                "`{name}` says how long to wait, but nobody waits; set `queue`, or leave it out"
            );
            reader.warn(adaptive.spot(name), message);
        }
        adaptive.get(reader, name, scalar::duration)
    });
    match room {
        Some(room) => Some(
            QueueConfig::of(usize::try_from(room).ok()?)
                .interval(interval?)
                .target(target?),
        ),
        None => Some(QueueConfig::of(0)),
    }
}

fn control(name: &str, timeout: Option<Duration>) -> Control {
    match (name, timeout) {
        ("aimd", None) => Control::aimd().into(),
        ("aimd", Some(after)) => Control::aimd().timeout(after).into(),
        (_, None) => Control::gradient2().into(),
        (_, Some(after)) => Control::gradient2().timeout(after).into(),
    }
}

/// What is shed, if anything is, and the headers that say how important a request is and when it
/// began.
pub(super) struct Shedding {
    pub(super) shed: Option<Shed>,
    pub(super) header: Option<String>,
    pub(super) start_header: Option<String>,
}

/// Whom is believed about more than who is calling.
pub(super) fn believed(identity: Identity, shedding: &Shedding) -> Identity {
    Identity {
        class: shedding.header.clone(),
        start: shedding.start_header.clone(),
        ..identity
    }
}

/// `[shed]` is on when it is written.
pub(super) fn shed(reader: &mut Reader<'_>, file: &mut Section<'_>) -> Option<Shedding> {
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
        let message = "`patience` counts from when a request began, which nothing says; set `start_header` to the header in \
                       which your proxy does";
        reader.warn(section.spot("patience"), message);
    }
    if has_header && !has_patience {
        let message = "`start_header` says when a request began, but nothing goes by it; set `patience`, or leave it out";
        reader.warn(section.spot("start_header"), message);
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
    Some(Shedding {
        shed: is_written.then_some(shed),
        header,
        start_header,
    })
}
