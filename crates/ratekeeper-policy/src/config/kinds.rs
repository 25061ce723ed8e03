//! The kinds of keys: how values of each type are read and shown.

use super::section::{Data, Form, KeyKind, KeySpec, KeyType, Place, ReadError, Section, Table};
use super::section::{MAX_INTEGER, Value, Writer};
use super::show::{list, text};
use super::time::{self, TimestampError, duration_text, timestamp_text};
use crate::attribute::Attribute;
use crate::matching::{PathCase, PathPattern};
use crate::pattern::HostPattern;
use crate::policy::{Count, DenialStatus, Missing, Reserve, Rollout, StatusRange};
use crate::policy_limit::{ParsePolicyLimitError, PolicyLimit};
use crate::preflight::Preflight;
use crate::trusted_peers::TrustedPeers;
use ipnet::IpNet;
use ratekeeper::adaptive::Class;
use ratekeeper::{Algorithm, Timestamp, limit::ParseLimitError, store::OnFailure};
use std::fmt::Display;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

type ReadResult<T> = Result<T, ReadError>;

/// The string of a value; an empty one is not valid.
pub fn str_of(value: &Value) -> ReadResult<&str> {
    match &value.data {
        Data::String(text) if !text.is_empty() => Ok(text),
        _ => Err(ReadError::WrongType),
    }
}

/// Implements a [`KeyKind`] for a type whose values are read by a function of the type of the key
/// and the value, and shown by a function.
#[doc(hidden)]
#[macro_export]
macro_rules! key_kind {
    ($kind:ty as $value:ty, $key_type:expr, $parse:expr, $show:expr $(, $secret:ident)?) => {
        impl $crate::config::section::KeyKind for $kind {
            type Value = $value;
            const TYPE: $crate::config::section::KeyType = $key_type;
            $($crate::key_kind!(@$secret);)?

            fn parse(
                key_type: &$crate::config::section::KeyType,
                value: &$crate::config::section::Value,
            ) -> Result<$value, $crate::config::section::ReadError> {
                $parse(key_type, value)
            }

            fn show(value: &$value, hide: bool) -> Option<String> {
                $show(value, hide)
            }
        }
    };
    (@secret) => { const SECRET: bool = true; };
    (@optional) => { const REQUIRED: bool = false; };
}

/// Implements a [`KeyKind`] for a type of which each value has a word.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($kind:ty { $($word:literal => $value:path),+ $(,)? })+) => {$(
        $crate::key_kind!(
            $kind as $kind,
            $crate::config::section::KeyType::OneOf(&[$($word),+]),
            |_: &_, value: &_| match $crate::config::section::str_of(value)? {
                $($word => Ok($value),)+
                _ => Err($crate::config::section::ReadError::WrongType),
            },
            |value: &$kind, _| Some($crate::config::section::text(match value {
                $($value => $word,)+
            }))
        );
    )+};
}

words! {
    PathCase { "sensitive" => PathCase::Sensitive, "insensitive" => PathCase::Insensitive }
    OnFailure {
        "local_share" => OnFailure::LocalShare,
        "open" => OnFailure::Open,
        "closed" => OnFailure::Closed,
    }
    Missing {
        "address" => Missing::Address,
        "skip" => Missing::Skip,
        "shared" => Missing::Shared,
        "deny" => Missing::Deny,
    }
    Count { "all" => Count::All, "failures" => Count::Failures, "successes" => Count::Successes }
    Class {
        "critical_plus" => Class::CriticalPlus,
        "critical" => Class::Critical,
        "sheddable_plus" => Class::SheddablePlus,
        "sheddable" => Class::Sheddable,
    }
}

/// One of the words of the type of the key.
impl KeyKind for &'static str {
    type Value = Self;
    const TYPE: KeyType = KeyType::OneOf(&[]);

    fn parse(key_type: &KeyType, value: &Value) -> ReadResult<Self> {
        let (Data::String(text), KeyType::OneOf(words)) = (&value.data, key_type) else {
            return Err(ReadError::WrongType);
        };
        let word = words.iter().copied().find(|word| word == text);
        word.ok_or(ReadError::WrongType)
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(text(value))
    }
}

impl KeyKind for bool {
    type Value = Self;
    const TYPE: KeyType = KeyType::Bool;

    fn parse(_: &KeyType, value: &Value) -> ReadResult<Self> {
        match value.data {
            Data::Bool(value) => Ok(value),
            _ => Err(ReadError::WrongType),
        }
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(value.to_string())
    }
}

/// Reads a number that fits the type of its key.
pub(super) fn number<T: TryFrom<u64>>(key_type: &KeyType, value: &Value) -> ReadResult<T> {
    let (min, max) = match key_type {
        KeyType::Number { min, max } => (*min, *max),
        KeyType::Either(KeyType::Number { min, max }, _) => (*min, *max),
        _ => (0, MAX_INTEGER),
    };
    let Data::Integer(number) = value.data else {
        return Err(ReadError::WrongType);
    };
    u64::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .and_then(|number| number.try_into().ok())
        .ok_or(ReadError::WrongType)
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        key_kind!(
            $number as $number,
            KeyType::number(0, MAX_INTEGER),
            number,
            |number: &$number, _| Some(number.to_string())
        );
        /// 0 means that there is none.
        impl KeyKind for NonZero<$number> {
            type Value = Option<Self>;
            const TYPE: KeyType = <$number>::TYPE;

            fn parse(key_type: &KeyType, value: &Value) -> ReadResult<Option<Self>> {
                number(key_type, value).map(Self::new)
            }

            fn show(value: &Option<Self>, _: bool) -> Option<String> {
                Some(value.map_or(0, Self::get).to_string())
            }
        }
    )+};
}
numbers!(u8, u32, u64, usize);

/// A number with or without a fraction.
fn float(value: &Value) -> ReadResult<f64> {
    match value.data {
        Data::Integer(number) => Ok(number as f64),
        Data::Float(number) => Ok(number),
        _ => Err(ReadError::WrongType),
    }
}

key_kind!(
    Rollout as Self,
    KeyType::Percent,
    |_: &_, value| Self::percent(float(value)?).ok_or(ReadError::WrongType),
    |share: &Self, _| Some(share.as_percent().to_string())
);

/// A number above 0 and up to 1.
impl KeyKind for f64 {
    type Value = Self;
    const TYPE: KeyType = KeyType::Share;

    fn parse(_: &KeyType, value: &Value) -> ReadResult<Self> {
        let share = float(value)?;
        let is_share = share > 0.0 && share <= 1.0;
        is_share.then_some(share).ok_or(ReadError::WrongType)
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(value.to_string())
    }
}

/// Implements a [`KeyKind`] for text: what it must be, a pattern for the JSON Schema, and how it is
/// parsed if not by `FromStr`.
#[doc(hidden)]
#[macro_export]
macro_rules! text_kind {
    ($kind:ty, $expected:expr, $pattern:literal) => {
        $crate::text_kind!($kind as $kind, $expected, $pattern, |text: &str| text
            .parse()
            .map_err(|_| $crate::config::section::ReadError::WrongType));
    };
    ($kind:ty as $value:ty, $expected:expr, $pattern:literal, $parse:expr) => {
        $crate::key_kind!(
            $kind as $value,
            $crate::config::section::KeyType::text($expected, $pattern),
            |_: &_, value| $crate::config::section::str_of(value).and_then($parse),
            |value: &$value, _| Some($crate::config::section::text(value))
        );
    };
}

pub(super) const ANY_TEXT: &str = "a string that is not empty";

text_kind!(String, ANY_TEXT, "");

/// A string that is hidden.
pub(crate) struct SecretText;

key_kind!(
    SecretText as String,
    String::TYPE,
    |_: &_, value| str_of(value).map(ToOwned::to_owned),
    |value: &String, hide| Some(text(if hide { super::show::HIDDEN } else { value })),
    secret
);

key_kind!(
    PathBuf as Self,
    String::TYPE,
    |_: &_, value| str_of(value).map(Into::into),
    |path: &Self, _| Some(text(path.display()))
);

/// Whether it is a token of RFC 9110, as names of headers and methods are.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn token(text: &str) -> ReadResult<&str> {
    is_token(text).then_some(text).ok_or(ReadError::WrongType)
}

/// The name of a header, in lower case.
pub struct HeaderName;

text_kind!(
    HeaderName as String,
    "the name of a header, such as \"x-user-id\"",
    "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$",
    |text| token(text).map(str::to_ascii_lowercase)
);

/// A method, in upper case.
pub(crate) struct Method;

text_kind!(
    Method as String,
    "an HTTP method, such as \"POST\"",
    "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$",
    |text| token(text).map(str::to_ascii_uppercase)
);

/// The message about text that is not a valid `what`.
fn invalid(what: &str, text: &str, error: impl Display) -> ReadError {
    let text = text.escape_debug();
    ReadError::message(format!("\"{text}\" is not a valid {what}: {error}"))
}

text_kind!(
    PathPattern as Self,
    "a path, such as \"/api/**\"",
    "^/[^?#]*$",
    |text| text.parse().map_err(|error| invalid("path", text, error))
);

text_kind!(
    HostPattern as Self,
    "a host, such as \"api.example.com\"",
    "",
    |text| text.parse().map_err(|error| invalid("host", text, error))
);

/// Reads the name of an attribute, whether it is known or not.
pub fn attribute(value: &Value) -> ReadResult<Attribute> {
    match Attribute::named(str_of(value)?) {
        Attribute::Header(name) if !is_token(&name) => Err(ReadError::message(format!(
            "`header:{}` is not a valid header name; use one such as \"header:x-tenant\"",
            name.escape_debug()
        ))),
        attribute => Ok(attribute),
    }
}

/// An attribute that is known.
impl KeyKind for Attribute {
    type Value = Self;
    const TYPE: KeyType = KeyType::text(
        "the name of an attribute, such as \"ip\", \"user\" or \"header:x-tenant\"",
        "",
    );

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self> {
        let known = attribute(value).and_then(|attribute| place.reader.known(attribute));
        place.check(value, known)
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(text(value))
    }
}

key_kind!(
    Algorithm as Self,
    KeyType::Algorithm,
    |_: &_, value| Self::from_name(str_of(value)?).ok_or(ReadError::WrongType),
    |algorithm: &Self, _| Some(text(algorithm))
);

/// A limit, with the `algorithm` beside it if it names none.
impl KeyKind for PolicyLimit {
    type Value = Self;
    const TYPE: KeyType = KeyType::text("a limit, such as \"100/min burst 20\"", "");

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self> {
        let algorithm = place
            .section
            .text("algorithm")
            .and_then(Algorithm::from_name);
        let limit = str_of(value).and_then(|text| {
            Self::parse(text, algorithm).map_err(|error| match &error {
                ParsePolicyLimitError::Limit(limit) => ReadError::Message {
                    // The default algorithm is not in the text.
                    at: if limit.at() <= text.len() {
                        limit.at()
                    } else {
                        0
                    },
                    message: limit.to_string(),
                },
                other => {
                    ReadError::message(format!("`{}` is not a limit: {other}", text.escape_debug()))
                }
            })
        });
        place.check(value, limit)
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(text(value))
    }
}

text_kind!(
    Preflight as Self,
    "a limit such as \"600/min burst 100\", \"count\" or \"exempt\"",
    "",
    |text: &str| text
        .parse()
        .map_err(|error: ParseLimitError| ReadError::Message {
            at: error.at().min(text.len()),
            message: error.to_string(),
        })
);

key_kind!(
    Duration as Self,
    KeyType::Duration,
    |key_type: &KeyType, value| {
        let text = str_of(value)?;
        let time = match key_type {
            KeyType::DurationWithin { min, max } => {
                let time = if min.is_zero() {
                    time::duration_or_zero(text)
                } else {
                    time::duration(text)
                };
                time.filter(|time| (min..=max).contains(&time))
            }
            _ => time::duration(text),
        };
        time.ok_or(ReadError::WrongType)
    },
    |time: &Self, _| Some(text(duration_text(*time)))
);

key_kind!(
    Timestamp as Self,
    KeyType::Time,
    |_: &_, value: &Value| {
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
    },
    |time: &Self, _| Some(timestamp_text(*time))
);

/// Reads an address or a network, and warns of bits after its prefix.
fn network(place: &Place<'_, '_>, value: &Value) -> Option<IpNet> {
    let net = str_of(value).and_then(|text| match text.parse::<IpAddr>() {
        Ok(address) => Ok(IpNet::from(address)),
        Err(_) => text.parse::<IpNet>().map_err(|_| ReadError::WrongType),
    });
    let net = place.check(value, net)?;
    // Client addresses are canonical, IPv4 instead of mapped IPv6, so networks must be too.
    let canonical = match crate::address::canonical(net.addr()) {
        address @ IpAddr::V4(_) if net.prefix_len() >= 96 && net.addr().is_ipv6() => {
            IpNet::new(address, net.prefix_len() - 96).unwrap_or(net)
        }
        _ => net,
    };
    let truncated = canonical.trunc();
    if canonical != truncated {
        let shown = value.describe();
        let message = format!("{shown} has bits set after its prefix; write {truncated}");
        place.reader.warn(value.at, message);
    }
    Some(truncated)
}

impl KeyKind for IpNet {
    type Value = Self;
    const TYPE: KeyType = KeyType::text(
        "an address, or a network such as \"10.0.0.0/8\"",
        "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$",
    );

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self> {
        network(place, value)
    }

    fn show(value: &Self, _: bool) -> Option<String> {
        Some(text(value))
    }
}

/// One of several peers: a network, or `None` for Unix sockets.
struct Peer;

impl KeyKind for Peer {
    type Value = Option<IpNet>;
    const TYPE: KeyType = KeyType::text(
        "an address, a network such as \"10.0.0.0/8\", or \"unix\" for Unix sockets",
        "^(unix|[0-9A-Fa-f:.]+(/[0-9]{1,3})?)$",
    );

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Option<IpNet>> {
        match &value.data {
            Data::String(unix) if unix == "unix" => Some(None),
            _ => network(place, value).map(Some),
        }
    }

    fn show(value: &Option<IpNet>, _: bool) -> Option<String> {
        Some(value.map_or(text("unix"), text))
    }
}

impl KeyKind for TrustedPeers {
    type Value = Self;
    const TYPE: KeyType = Vec::<Peer>::TYPE;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self> {
        let peers = Vec::<Peer>::read(place, value)?;
        let has_unix = peers.contains(&None);
        let peers = peers.into_iter().flatten().collect::<Self>();
        Some(if has_unix { peers.unix() } else { peers })
    }

    fn show(value: &Self, hide: bool) -> Option<String> {
        let networks = value.as_networks().iter().copied().map(Some);
        let peers = networks.chain(value.has_unix().then_some(None));
        Vec::<Peer>::show(&peers.collect(), hide)
    }
}

key_kind!(
    StatusRange as Self,
    KeyType::Status,
    |_: &_, value: &Value| {
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| ReadError::WrongType);
        let (first, last) = match &value.data {
            Data::Integer(number) => {
                let status = u16::try_from(*number).map_err(|_| ReadError::WrongType)?;
                (status, status)
            }
            Data::String(text) => match (text.strip_suffix("xx"), text.split_once('-')) {
                (Some(digit), _) if digit.len() == 1 => {
                    (number(digit)? * 100, number(digit)? * 100 + 99)
                }
                (_, Some((first, last))) => (number(first)?, number(last)?),
                _ => (number(text)?, number(text)?),
            },
            _ => return Err(ReadError::WrongType),
        };
        let is_valid = first >= 100 && first <= last && last <= 999;
        is_valid
            .then_some(Self { first, last })
            .ok_or(ReadError::WrongType)
    },
    |range: &Self, _| Some(if range.first == range.last {
        range.first.to_string()
    } else {
        format!("\"{}-{}\"", range.first, range.last)
    })
);

key_kind!(
    DenialStatus as Self,
    KeyType::OneOfNumbers(&[429, 503]),
    |_: &_, value: &Value| match value.data {
        Data::Integer(429) => Ok(Self::TooManyRequests),
        Data::Integer(503) => Ok(Self::ServiceUnavailable),
        _ => Err(ReadError::WrongType),
    },
    |status: &Self, _| Some(status.code().to_string())
);

key_kind!(
    Reserve as Self,
    KeyType::Reserve,
    |key_type: &KeyType, value: &Value| {
        let Data::String(text) = &value.data else {
            return number(key_type, value).map(Self::Units);
        };
        let percent = text
            .strip_suffix('%')
            .and_then(|text| text.trim().parse::<f64>().ok());
        percent
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(Self::Percent)
            .ok_or(ReadError::WrongType)
    },
    |reserve: &Self, _| Some(match reserve {
        Self::Units(units) => units.to_string(),
        Self::Percent(percent) => format!("\"{percent}%\""),
    })
);

/// A key that may be left out.
impl<K: KeyKind> KeyKind for Option<K> {
    type Value = Option<K::Value>;
    const TYPE: KeyType = K::TYPE;
    const REQUIRED: bool = false;
    const SECRET: bool = K::SECRET;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        K::read(place, value).map(Some)
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(None)
    }

    fn show(value: &Self::Value, hide: bool) -> Option<String> {
        value.as_ref().and_then(|value| K::show(value, hide))
    }
}

/// A list; a single value counts as a list of one.
impl<K: KeyKind> KeyKind for Vec<K> {
    type Value = Vec<K::Value>;
    const TYPE: KeyType = KeyType::OneOrMany(&K::TYPE);
    const SECRET: bool = K::SECRET;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        let inner = match place.key_type {
            KeyType::OneOrMany(inner) => inner,
            other => other,
        };
        let Data::Array(values) = &value.data else {
            // The message is about the whole key, because a list would have been valid too.
            return K::read(place, value).map(|one| vec![one]);
        };
        let place = place.part(format!("each of {}", place.description), inner);
        let read = values
            .iter()
            .map(|one| K::read(&place, one))
            .collect::<Vec<_>>();
        read.into_iter().collect()
    }

    fn show(values: &Self::Value, hide: bool) -> Option<String> {
        Some(list(values.iter().filter_map(|value| K::show(value, hide))))
    }
}

/// A list that is left out if it is empty.
pub(crate) struct OrEmpty<K>(PhantomData<K>);

impl<K: KeyKind> KeyKind for OrEmpty<K> {
    type Value = Vec<K::Value>;
    const TYPE: KeyType = Vec::<K>::TYPE;
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        Vec::<K>::read(place, value)
    }

    fn absent(_: &Place<'_, '_>) -> Option<Self::Value> {
        Some(Vec::new())
    }

    fn show(values: &Self::Value, hide: bool) -> Option<String> {
        Vec::<K>::show(values, hide).filter(|_| !values.is_empty())
    }
}

/// The keys of another table in the same one.
pub struct Flatten<T>(PhantomData<T>);

impl<T: Table> KeyKind for Flatten<T> {
    type Value = T;
    const TYPE: KeyType = KeyType::Flatten(&T::SPEC);

    fn get(section: &Section<'_>, _: &'static KeySpec) -> Option<T> {
        T::read_fields(section)
    }

    fn show(_: &T, _: bool) -> Option<String> {
        None
    }

    fn write(value: &T, writer: &mut Writer<'_>, _: &'static KeySpec) {
        value.write_fields(writer);
    }
}

/// The keys of a table that is read into another type, in the table around it.
pub struct FlatForm<T>(PhantomData<T>);

impl<T: Form> KeyKind for FlatForm<T> {
    type Value = <T as Form>::Value;
    const TYPE: KeyType = KeyType::Flatten(&T::SPEC);

    fn get(section: &Section<'_>, _: &'static KeySpec) -> Option<<T as Form>::Value> {
        T::read_fields(section).map(T::into_value)
    }

    fn show(_: &<T as Form>::Value, _: bool) -> Option<String> {
        None
    }

    fn write(value: &<T as Form>::Value, writer: &mut Writer<'_>, _: &'static KeySpec) {
        if let Some(table) = T::of(value) {
            table.write_fields(writer);
        }
    }
}

/// A table that is read into another type.
pub struct TableForm<T>(PhantomData<T>);

impl<T: Form + KeyKind<Value = T>> KeyKind for TableForm<T> {
    type Value = <T as Form>::Value;
    const TYPE: KeyType = T::TYPE;
    const REQUIRED: bool = false;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<<T as Form>::Value> {
        T::read(place, value).map(T::into_value)
    }

    fn absent(place: &Place<'_, '_>) -> Option<<T as Form>::Value> {
        T::absent(place).map(T::into_value)
    }

    fn show(value: &<T as Form>::Value, hide: bool) -> Option<String> {
        T::of(value).map(|table| Writer::inline(&table, hide))
    }
}
