//! Single values: what each kind of key takes, and what is said of what it does not take.

use super::Wrong;
use crate::attribute::Attribute;
use crate::config::gateway::Upstream;
use crate::config::kind::Kind;
use crate::config::listen::Listen;
use crate::config::redis::{RedisUrl, Secret};
use crate::config::time::{self, NoInstant};
use crate::config::tree::{Data, Value};
use crate::pattern::{HostPattern, PathPattern};
use crate::policy::{Reserve, Rollout, StatusRange};
use crate::policy_limit::{ParsePolicyLimitError, PolicyLimit};
use crate::preflight::Preflight;
use ipnet::IpNet;
use ratekeeper::{Algorithm, Timestamp, limit::ParseLimitError, store::OnFailure};
use std::net::IpAddr;
use std::time::Duration;

type Read<T> = Result<T, Wrong>;

pub(super) fn bool(_: &Kind, value: &Value) -> Read<bool> {
    match value.data {
        Data::Bool(value) => Ok(value),
        _ => Err(Wrong::Kind),
    }
}

pub(super) fn number(kind: &Kind, value: &Value) -> Read<u64> {
    let (min, max) = match kind {
        Kind::Number { min, max } => (*min, *max),
        Kind::Either(Kind::Number { min, max }, _) => (*min, *max),
        _ => (0, crate::config::kind::MOST),
    };
    let Data::Whole(number) = value.data else {
        return Err(Wrong::Kind);
    };
    u64::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or(Wrong::Kind)
}

fn str(value: &Value) -> Read<&str> {
    match &value.data {
        Data::Text(text) if !text.is_empty() => Ok(text),
        _ => Err(Wrong::Kind),
    }
}

pub(super) fn text(_: &Kind, value: &Value) -> Read<String> {
    str(value).map(ToOwned::to_owned)
}

pub(super) fn word(kind: &Kind, value: &Value) -> Read<&'static str> {
    let (Data::Text(text), Kind::OneOf(words)) = (&value.data, kind) else {
        return Err(Wrong::Kind);
    };
    words
        .iter()
        .copied()
        .find(|word| word == text)
        .ok_or(Wrong::Kind)
}

pub(super) fn one_of_numbers(kind: &Kind, value: &Value) -> Read<u16> {
    let (Data::Whole(number), Kind::OneOfNumbers(numbers)) = (&value.data, kind) else {
        return Err(Wrong::Kind);
    };
    numbers
        .iter()
        .copied()
        .find(|known| i128::from(*known) == *number)
        .ok_or(Wrong::Kind)
}

pub(super) fn listener(_: &Kind, value: &Value) -> Read<Option<Listen>> {
    match str(value)? {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| Wrong::Kind),
    }
}

/// A network, and whether it was written with more bits than its prefix has.
pub(super) fn network(_: &Kind, value: &Value) -> Read<(IpNet, bool)> {
    let text = str(value)?;
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| Wrong::Kind)?,
    };
    // Clients have their IPv4 address, however it was written: so must what they are compared with.
    let canonical = match crate::address::canonical(net.addr()) {
        address @ IpAddr::V4(_) if net.prefix_len() >= 96 && net.addr().is_ipv6() => {
            IpNet::new(address, net.prefix_len() - 96).unwrap_or(net)
        }
        _ => net,
    };
    Ok((canonical.trunc(), canonical != canonical.trunc()))
}

/// What RFC 9110 calls a token: names of headers and methods.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

pub(super) fn header_name(_: &Kind, value: &Value) -> Read<String> {
    let text = str(value)?;
    if is_token(text) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(Wrong::Kind)
    }
}

pub(in crate::config) fn is_header_name(name: &str) -> bool {
    is_token(name)
}

pub(super) fn method(_: &Kind, value: &Value) -> Read<String> {
    let text = str(value)?;
    if is_token(text) {
        Ok(text.to_owned())
    } else {
        Err(Wrong::Kind)
    }
}

pub(super) fn path(_: &Kind, value: &Value) -> Read<PathPattern> {
    let text = str(value)?;
    text.parse()
        .map_err(|error| Wrong::says(format!("\"{}\" is no path: {error}", text.escape_debug())))
}

pub(super) fn host(_: &Kind, value: &Value) -> Read<HostPattern> {
    let text = str(value)?;
    text.parse()
        .map_err(|error| Wrong::says(format!("\"{}\" is no host: {error}", text.escape_debug())))
}

pub(super) fn attribute(_: &Kind, value: &Value) -> Read<Attribute> {
    match Attribute::named(str(value)?) {
        Attribute::Header(name) if !is_token(&name) => Err(Wrong::says(format!(
            "`header:{}` names no header; write one as \"header:x-tenant\"",
            name.escape_debug()
        ))),
        attribute => Ok(attribute),
    }
}

pub(super) fn algorithm(_: &Kind, value: &Value) -> Read<Algorithm> {
    Algorithm::from_name(str(value)?).ok_or(Wrong::Kind)
}

pub(super) fn limit(beside: Option<Algorithm>) -> impl Fn(&Kind, &Value) -> Read<PolicyLimit> {
    move |_, value| {
        let text = str(value)?;
        PolicyLimit::parse(text, beside).map_err(|error| {
            let message = match &error {
                ParsePolicyLimitError::Limit(error) => error.to_string(),
                other => format!("`{}` is not a limit: {other}", text.escape_debug()),
            };
            let at = match &error {
                // What is beside it is not in the text.
                ParsePolicyLimitError::Limit(error) if error.at() <= text.len() => error.at(),
                _ => 0,
            };
            Wrong::Says { at, message }
        })
    }
}

pub(super) fn duration(kind: &Kind, value: &Value) -> Read<Duration> {
    let within = |time: &Duration| match kind {
        Kind::DurationWithin { min, max } => (*min..=*max).contains(time),
        _ => true,
    };
    let read = match kind {
        Kind::DurationWithin {
            min: Duration::ZERO,
            ..
        } => time::duration_or_zero,
        _ => time::duration,
    };
    read(str(value)?).filter(within).ok_or(Wrong::Kind)
}

pub(super) fn on_failure(kind: &Kind, value: &Value) -> Read<OnFailure> {
    OnFailure::from_name(word(kind, value)?).ok_or(Wrong::Kind)
}

/// Nothing of it is in the message: it may have a password.
pub(super) fn redis_url(_: &Kind, value: &Value) -> Read<RedisUrl> {
    str(value)?.parse().map_err(|error| {
        Wrong::says(format!(
            "`url` in [store] is not that of a Redis server: {error}"
        ))
    })
}

pub(super) fn upstream(_: &Kind, value: &Value) -> Read<Upstream> {
    str(value)?.parse().map_err(|_| Wrong::Kind)
}

pub(super) fn preflight(_: &Kind, value: &Value) -> Read<Preflight> {
    let text = str(value)?;
    let wrong = |error: ParseLimitError| Wrong::Says {
        at: error.at().min(text.len()),
        message: error.to_string(),
    };
    text.parse().map_err(wrong)
}

pub(super) fn secret(kind: &Kind, value: &Value) -> Read<Secret> {
    let Kind::LongText { bytes } = kind else {
        return Err(Wrong::Kind);
    };
    str(value)
        .ok()
        .filter(|text| text.len() >= *bytes)
        .map(Secret::new)
        .ok_or(Wrong::Kind)
}

pub(super) fn prefix(_: &Kind, value: &Value) -> Read<String> {
    const LONGEST: usize = 64;
    let text = str(value)?;
    // Braces say to Redis Cluster which part of a name to go by.
    let is_good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    if text.len() <= LONGEST && text.bytes().all(is_good) {
        Ok(text.to_owned())
    } else {
        Err(Wrong::Kind)
    }
}

pub(super) fn time(_: &Kind, value: &Value) -> Read<Timestamp> {
    let Data::Time(time) = &value.data else {
        return Err(Wrong::Kind);
    };
    time::instant(time).map_err(|error| match error {
        NoInstant::Part => Wrong::Kind,
        NoInstant::NoOffset => Wrong::says(format!(
            "{time} is another time in every place; say where: add Z for UTC, as {time}Z"
        )),
        NoInstant::OutOfRange => Wrong::says(format!(
            "{time} is out of range; an end is from 1970 to 2554"
        )),
    })
}

pub(super) fn status(_: &Kind, value: &Value) -> Read<StatusRange> {
    const VALID: std::ops::RangeInclusive<u16> = 100..=999;
    let (first, last) = match &value.data {
        Data::Whole(number) => {
            let status = u16::try_from(*number).map_err(|_| Wrong::Kind)?;
            (status, status)
        }
        Data::Text(text) => match (text.strip_suffix("xx"), text.split_once('-')) {
            (Some(hundreds), _) => {
                let first = hundreds
                    .parse::<u8>()
                    .ok()
                    .filter(|digit| *digit < 10)
                    .ok_or(Wrong::Kind)?;
                (u16::from(first) * 100, u16::from(first) * 100 + 99)
            }
            (None, Some((first, last))) => (
                first.trim().parse().map_err(|_| Wrong::Kind)?,
                last.trim().parse().map_err(|_| Wrong::Kind)?,
            ),
            (None, None) => {
                let status = text.parse().map_err(|_| Wrong::Kind)?;
                (status, status)
            }
        },
        _ => return Err(Wrong::Kind),
    };
    let holds = VALID.contains(&first) && VALID.contains(&last) && first <= last;
    if holds {
        Ok(StatusRange { first, last })
    } else {
        Err(Wrong::Kind)
    }
}

pub(super) fn percent(_: &Kind, value: &Value) -> Read<Rollout> {
    let percent = match value.data {
        Data::Whole(number) => number as f64,
        Data::Fraction(number) => number,
        _ => return Err(Wrong::Kind),
    };
    Rollout::percent(percent).ok_or(Wrong::Kind)
}

pub(super) fn reserve(kind: &Kind, value: &Value) -> Read<Reserve> {
    let Data::Text(text) = &value.data else {
        return number(kind, value).map(Reserve::Units);
    };
    let percent = text
        .strip_suffix('%')
        .and_then(|text| text.trim().parse::<f64>().ok());
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(Reserve::Percent)
        .ok_or(Wrong::Kind)
}
