//! Adaptive limits, and what is shed.

use super::settings::settings;
use super::{Reader, Section, Wrong, scalar};
use crate::config::kind::Kind;
use crate::config::tree::{Data, Value};
use crate::pressure::{AdaptiveLimit, Shed};
use std::time::Duration;
use tollgate::Class;
use tollgate::adaptive::Control;

/// How important requests are.
pub(super) fn class(_: &Kind, value: &Value) -> Result<Class, Wrong> {
    let Data::Text(text) = &value.data else { return Err(Wrong::Kind) };
    Class::ALL.into_iter().find(|class| class.name() == text).ok_or(Wrong::Kind)
}

fn share(_: &Kind, value: &Value) -> Result<f64, Wrong> {
    let share = match value.data {
        Data::Whole(number) => number as f64,
        Data::Fraction(number) => number,
        _ => return Err(Wrong::Kind),
    };
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err(Wrong::Kind) }
}

pub(super) fn adaptive(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<AdaptiveLimit> {
    let mut inner = section.table(reader, "adaptive")?;
    let min = inner.get(reader, "min", scalar::number);
    let max = inner.get(reader, "max", scalar::number);
    let start = inner.get(reader, "start", scalar::number);
    let control = inner.get(reader, "control", scalar::word);
    let timeout = inner.get(reader, "timeout", scalar::duration);
    inner.close();
    let limit = AdaptiveLimit::new().between(min?, max?).control(self::control(control?, timeout));
    Some(start.map_or(limit, |start| limit.start(start)))
}

fn control(name: &str, timeout: Option<Duration>) -> Control {
    match (name, timeout) {
        ("aimd", None) => Control::aimd().into(),
        ("aimd", Some(after)) => Control::aimd().timeout(after).into(),
        ("vegas", None) => Control::vegas().into(),
        ("vegas", Some(after)) => Control::vegas().timeout(after).into(),
        (_, None) => Control::gradient2().into(),
        (_, Some(after)) => Control::gradient2().timeout(after).into(),
    }
}

/// What is shed, if anything is, and the header that says how important a request is.
pub(super) struct Shedding {
    pub(super) shed: Option<Shed>,
    pub(super) header: Option<String>,
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
    section.close();
    let shed = Shed { default: default?, cpu, memory, rest: rest?, spare };
    Some(Shedding { shed: is_written.then_some(shed), header })
}
