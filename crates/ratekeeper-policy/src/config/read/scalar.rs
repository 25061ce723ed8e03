//! Reading of single values, a function for each type of key.

use super::ReadError;
use crate::attribute::Attribute;
use crate::config::gateway::Upstream;
use crate::config::key_type::KeyType;
use crate::config::listen::Listen;
use crate::config::redis::{RedisUrl, Secret};
use crate::config::time::{self, TimestampError};
use crate::config::value::{Data, Value};
use crate::pattern::{HostPattern, PathPattern};
use crate::policy::{Reserve, Rollout, StatusRange};
use crate::policy_limit::{ParsePolicyLimitError, PolicyLimit};
use crate::preflight::Preflight;
use ipnet::IpNet;
use ratekeeper::{Algorithm, Timestamp, limit::ParseLimitError, store::OnFailure};
use std::net::IpAddr;
use std::time::Duration;

type ReadResult<T> = Result<T, ReadError>;

pub(super) fn bool(_: &KeyType, value: &Value) -> ReadResult<bool> {
    match value.data {
        Data::Bool(value) => Ok(value),
        _ => Err(ReadError::WrongType),
    }
}

pub(super) fn number(key_type: &KeyType, value: &Value) -> ReadResult<u64> {
    let (min, max) = match key_type {
        KeyType::Number { min, max } => (*min, *max),
        KeyType::Either(KeyType::Number { min, max }, _) => (*min, *max),
        _ => (0, crate::config::key_type::MAX_INTEGER),
    };
    let Data::Integer(number) = value.data else {
        return Err(ReadError::WrongType);
    };
    u64::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or(ReadError::WrongType)
}

fn str(value: &Value) -> ReadResult<&str> {
    match &value.data {
        Data::String(text) if !text.is_empty() => Ok(text),
        _ => Err(ReadError::WrongType),
    }
}

pub(super) fn text(_: &KeyType, value: &Value) -> ReadResult<String> {
    str(value).map(ToOwned::to_owned)
}

pub(super) fn word(key_type: &KeyType, value: &Value) -> ReadResult<&'static str> {
    let (Data::String(text), KeyType::OneOf(words)) = (&value.data, key_type) else {
        return Err(ReadError::WrongType);
    };
    words
        .iter()
        .copied()
        .find(|word| word == text)
        .ok_or(ReadError::WrongType)
}

pub(super) fn one_of_numbers(key_type: &KeyType, value: &Value) -> ReadResult<u16> {
    let (Data::Integer(number), KeyType::OneOfNumbers(numbers)) = (&value.data, key_type) else {
        return Err(ReadError::WrongType);
    };
    numbers
        .iter()
        .copied()
        .find(|known| i128::from(*known) == *number)
        .ok_or(ReadError::WrongType)
}

pub(super) fn listener(_: &KeyType, value: &Value) -> ReadResult<Option<Listen>> {
    match str(value)? {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ReadError::WrongType),
    }
}

/// Reads a network, and whether it has bits set after its prefix.
pub(super) fn network(_: &KeyType, value: &Value) -> ReadResult<(IpNet, bool)> {
    let text = str(value)?;
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| ReadError::WrongType)?,
    };
    // Client addresses are canonical, IPv4 instead of mapped IPv6, so networks must be too.
    let canonical = match crate::address::canonical(net.addr()) {
        address @ IpAddr::V4(_) if net.prefix_len() >= 96 && net.addr().is_ipv6() => {
            IpNet::new(address, net.prefix_len() - 96).unwrap_or(net)
        }
        _ => net,
    };
    Ok((canonical.trunc(), canonical != canonical.trunc()))
}

/// Whether it is a token of RFC 9110, as names of headers and methods are.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

pub(super) fn header_name(_: &KeyType, value: &Value) -> ReadResult<String> {
    let text = str(value)?;
    if is_token(text) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(ReadError::WrongType)
    }
}

pub(in crate::config) fn is_header_name(name: &str) -> bool {
    is_token(name)
}

pub(super) fn method(_: &KeyType, value: &Value) -> ReadResult<String> {
    let text = str(value)?;
    if is_token(text) {
        Ok(text.to_owned())
    } else {
        Err(ReadError::WrongType)
    }
}

pub(super) fn path(_: &KeyType, value: &Value) -> ReadResult<PathPattern> {
    let text = str(value)?;
    text.parse().map_err(|error| {
        ReadError::message(format!(
            "\"{}\" is not a valid path: {error}",
            text.escape_debug()
        ))
    })
}

pub(super) fn host(_: &KeyType, value: &Value) -> ReadResult<HostPattern> {
    let text = str(value)?;
    text.parse().map_err(|error| {
        ReadError::message(format!(
            "\"{}\" is not a valid host: {error}",
            text.escape_debug()
        ))
    })
}

pub(super) fn attribute(_: &KeyType, value: &Value) -> ReadResult<Attribute> {
    match Attribute::named(str(value)?) {
        Attribute::Header(name) if !is_token(&name) => Err(ReadError::message(format!(
            "`header:{}` is not a valid header name; use one such as \"header:x-tenant\"",
            name.escape_debug()
        ))),
        attribute => Ok(attribute),
    }
}

pub(super) fn algorithm(_: &KeyType, value: &Value) -> ReadResult<Algorithm> {
    Algorithm::from_name(str(value)?).ok_or(ReadError::WrongType)
}

pub(super) fn limit(
    default_algorithm: Option<Algorithm>,
) -> impl Fn(&KeyType, &Value) -> ReadResult<PolicyLimit> {
    move |_, value| {
        let text = str(value)?;
        PolicyLimit::parse(text, default_algorithm).map_err(|error| {
            let message = match &error {
                ParsePolicyLimitError::Limit(error) => error.to_string(),
                other => format!("`{}` is not a limit: {other}", text.escape_debug()),
            };
            let at = match &error {
                // The default algorithm is not in the text.
                ParsePolicyLimitError::Limit(error) if error.at() <= text.len() => error.at(),
                _ => 0,
            };
            ReadError::Message { at, message }
        })
    }
}

pub(super) fn duration(key_type: &KeyType, value: &Value) -> ReadResult<Duration> {
    let within = |time: &Duration| match key_type {
        KeyType::DurationWithin { min, max } => (*min..=*max).contains(time),
        _ => true,
    };
    let read = match key_type {
        KeyType::DurationWithin {
            min: Duration::ZERO,
            ..
        } => time::duration_or_zero,
        _ => time::duration,
    };
    read(str(value)?).filter(within).ok_or(ReadError::WrongType)
}

pub(super) fn on_failure(key_type: &KeyType, value: &Value) -> ReadResult<OnFailure> {
    OnFailure::from_name(word(key_type, value)?).ok_or(ReadError::WrongType)
}

/// Reads the URL of Redis. The message repeats no part of it, because it may contain a password.
pub(super) fn redis_url(_: &KeyType, value: &Value) -> ReadResult<RedisUrl> {
    str(value)?
        .parse()
        .map_err(|error| ReadError::message(format!("`url` in [store] is invalid: {error}")))
}

pub(super) fn upstream(_: &KeyType, value: &Value) -> ReadResult<Upstream> {
    str(value)?.parse().map_err(|_| ReadError::WrongType)
}

pub(super) fn preflight(_: &KeyType, value: &Value) -> ReadResult<Preflight> {
    let text = str(value)?;
    let limit_error = |error: ParseLimitError| ReadError::Message {
        at: error.at().min(text.len()),
        message: error.to_string(),
    };
    text.parse().map_err(limit_error)
}

pub(super) fn secret(key_type: &KeyType, value: &Value) -> ReadResult<Secret> {
    let KeyType::LongText { bytes } = key_type else {
        return Err(ReadError::WrongType);
    };
    str(value)
        .ok()
        .filter(|text| text.len() >= *bytes)
        .map(Secret::new)
        .ok_or(ReadError::WrongType)
}

pub(super) fn prefix(_: &KeyType, value: &Value) -> ReadResult<String> {
    const MAX_LEN: usize = 64;
    let text = str(value)?;
    // Redis Cluster hashes only the part of a key name in braces.
    let is_good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    if text.len() <= MAX_LEN && text.bytes().all(is_good) {
        Ok(text.to_owned())
    } else {
        Err(ReadError::WrongType)
    }
}

pub(super) fn time(_: &KeyType, value: &Value) -> ReadResult<Timestamp> {
    let Data::Datetime(time) = &value.data else {
        return Err(ReadError::WrongType);
    };
    time::timestamp(time).map_err(|error| match error {
        TimestampError::NotDatetime => ReadError::WrongType,
        TimestampError::MissingOffset => ReadError::message(format!(
            "{time} has no offset from UTC; add one, for example Z for UTC: {time}Z"
        )),
        TimestampError::OutOfRange => ReadError::message(format!(
            "{time} is out of range; use a time from 1970 to 2554"
        )),
    })
}

pub(super) fn status(_: &KeyType, value: &Value) -> ReadResult<StatusRange> {
    const VALID: std::ops::RangeInclusive<u16> = 100..=999;
    let (first, last) = match &value.data {
        Data::Integer(number) => {
            let status = u16::try_from(*number).map_err(|_| ReadError::WrongType)?;
            (status, status)
        }
        Data::String(text) => match (text.strip_suffix("xx"), text.split_once('-')) {
            (Some(hundreds), _) => {
                let first = hundreds
                    .parse::<u8>()
                    .ok()
                    .filter(|digit| *digit < 10)
                    .ok_or(ReadError::WrongType)?;
                (u16::from(first) * 100, u16::from(first) * 100 + 99)
            }
            (None, Some((first, last))) => (
                first.trim().parse().map_err(|_| ReadError::WrongType)?,
                last.trim().parse().map_err(|_| ReadError::WrongType)?,
            ),
            (None, None) => {
                let status = text.parse().map_err(|_| ReadError::WrongType)?;
                (status, status)
            }
        },
        _ => return Err(ReadError::WrongType),
    };
    let is_valid = VALID.contains(&first) && VALID.contains(&last) && first <= last;
    if is_valid {
        Ok(StatusRange { first, last })
    } else {
        Err(ReadError::WrongType)
    }
}

pub(super) fn percent(_: &KeyType, value: &Value) -> ReadResult<Rollout> {
    let percent = match value.data {
        Data::Integer(number) => number as f64,
        Data::Float(number) => number,
        _ => return Err(ReadError::WrongType),
    };
    Rollout::percent(percent).ok_or(ReadError::WrongType)
}

pub(super) fn reserve(key_type: &KeyType, value: &Value) -> ReadResult<Reserve> {
    let Data::String(text) = &value.data else {
        return number(key_type, value).map(Reserve::Units);
    };
    let percent = text
        .strip_suffix('%')
        .and_then(|text| text.trim().parse::<f64>().ok());
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(Reserve::Percent)
        .ok_or(ReadError::WrongType)
}
