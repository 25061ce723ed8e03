//! Random messages are read alike by our code and by the code of all of Envoy's API, both ways.
//!
//! Messages are made with every field of Envoy's and copied field by field, so that a field that we
//! lack, or name otherwise, does not compile.

use envoy_types::pb as theirs;
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use proto::envoy as ours;
use std::fmt::Debug;
use theirs::envoy::config::core::v3::HeaderValue;
use theirs::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use theirs::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use theirs::envoy::service::ratelimit::v3::rate_limit_response::quota::ExpirationSpecifier;
use theirs::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, Quota, RateLimit, rate_limit::Unit,
};
use theirs::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use theirs::envoy::r#type::v3::RateLimitUnit;
use theirs::google::protobuf::value::Kind;
use theirs::google::protobuf::{Duration, ListValue, Struct, Timestamp, UInt64Value, Value};

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,6}"
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..6)
}

/// Known and unknown numbers of an enum.
fn number() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..10, 1 => any::<i32>()]
}

fn requests() -> impl Strategy<Value = RateLimitRequest> {
    let entry = (text(), text()).prop_map(|(key, value)| Entry { key, value });
    let limit = (any::<u32>(), number()).prop_map(|(requests_per_unit, unit)| RateLimitOverride {
        requests_per_unit,
        unit,
    });
    let hits = any::<u64>().prop_map(|value| UInt64Value { value });
    let descriptor = (
        vec(entry, 0..4),
        prop::option::of(limit),
        prop::option::of(hits),
        any::<bool>(),
    )
        .prop_map(
            |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            },
        );
    (text(), vec(descriptor, 0..4), any::<u32>()).prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        }
    })
}

fn structs() -> impl Strategy<Value = Struct> {
    let leaf = prop_oneof![
        Just(Kind::NullValue(0)),
        any::<bool>().prop_map(Kind::BoolValue),
        (-1e9..1e9).prop_map(Kind::NumberValue),
        text().prop_map(Kind::StringValue),
    ];
    let value = |kind: Kind| Value { kind: Some(kind) };
    let fields = |value| hash_map(text(), value, 0..3).prop_map(|fields| Struct { fields });
    let values = leaf.prop_map(value).prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3)
                .prop_map(move |values| value(Kind::ListValue(ListValue { values }))),
            fields(inner).prop_map(move |fields| value(Kind::StructValue(fields))),
        ]
    });
    hash_map(text(), values, 0..3).prop_map(|fields| Struct { fields })
}

fn quotas() -> impl Strategy<Value = Quota> {
    let until = (any::<i64>(), any::<i32>())
        .prop_map(|(seconds, nanos)| ExpirationSpecifier::ValidUntil(Timestamp { seconds, nanos }));
    (any::<u32>(), text(), prop::option::of(until)).prop_map(
        |(requests, id, expiration_specifier)| Quota {
            requests,
            id,
            expiration_specifier,
        },
    )
}

fn responses() -> impl Strategy<Value = RateLimitResponse> {
    let limit =
        (any::<u32>(), number(), text()).prop_map(|(requests_per_unit, unit, name)| RateLimit {
            name,
            requests_per_unit,
            unit,
        });
    let reset =
        (any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Duration { seconds, nanos });
    let status = (
        number(),
        prop::option::of(limit),
        any::<u32>(),
        prop::option::of(reset),
        prop::option::of(quotas()),
    )
        .prop_map(
            |(code, current_limit, limit_remaining, duration_until_reset, quota)| {
                DescriptorStatus {
                    code,
                    current_limit,
                    limit_remaining,
                    duration_until_reset,
                    quota,
                }
            },
        );
    let headers = || {
        let header = (text(), text(), bytes()).prop_map(|(key, value, raw_value)| HeaderValue {
            key,
            value,
            raw_value,
        });
        vec(header, 0..3)
    };
    (
        number(),
        vec(status, 0..4),
        headers(),
        headers(),
        bytes(),
        prop::option::of(structs()),
        prop::option::of(quotas()),
    )
        .prop_map(
            |(
                overall_code,
                statuses,
                response_headers,
                request_headers,
                raw_body,
                metadata,
                quota,
            )| {
                RateLimitResponse {
                    overall_code,
                    statuses,
                    response_headers_to_add: response_headers,
                    request_headers_to_add: request_headers,
                    raw_body,
                    dynamic_metadata: metadata,
                    quota,
                }
            },
        )
}

/// Our messages with the same fields.
trait Copied {
    type Ours: Message + Default + PartialEq;

    fn copied(&self) -> Self::Ours;
}

fn all<T: Copied>(messages: &[T]) -> Vec<T::Ours> {
    messages.iter().map(T::copied).collect()
}

impl Copied for RateLimitRequest {
    type Ours = ours::service::ratelimit::v3::RateLimitRequest;

    fn copied(&self) -> Self::Ours {
        Self::Ours {
            domain: self.domain.clone(),
            descriptors: all(&self.descriptors),
            hits_addend: self.hits_addend,
        }
    }
}

impl Copied for RateLimitDescriptor {
    type Ours = ours::extensions::common::ratelimit::v3::RateLimitDescriptor;

    fn copied(&self) -> Self::Ours {
        use ours::extensions::common::ratelimit::v3::rate_limit_descriptor as to;
        let entries = self.entries.iter().cloned();
        Self::Ours {
            entries: entries
                .map(|Entry { key, value }| to::Entry { key, value })
                .collect(),
            limit: self.limit.map(|limit| to::RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            hits_addend: self.hits_addend.map(|hits| hits.value),
            is_negative_hits: self.is_negative_hits,
        }
    }
}

impl Copied for RateLimitResponse {
    type Ours = ours::service::ratelimit::v3::RateLimitResponse;

    fn copied(&self) -> Self::Ours {
        Self::Ours {
            overall_code: self.overall_code,
            statuses: all(&self.statuses),
            response_headers_to_add: all(&self.response_headers_to_add),
            request_headers_to_add: all(&self.request_headers_to_add),
            raw_body: self.raw_body.clone(),
            dynamic_metadata: self.dynamic_metadata.as_ref().map(Struct::copied),
            quota: self.quota.as_ref().map(Quota::copied),
        }
    }
}

impl Copied for DescriptorStatus {
    type Ours = ours::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

    fn copied(&self) -> Self::Ours {
        use ours::service::ratelimit::v3::rate_limit_response as to;
        Self::Ours {
            code: self.code,
            current_limit: self.current_limit.clone().map(|limit| to::RateLimit {
                name: limit.name,
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            limit_remaining: self.limit_remaining,
            duration_until_reset: self
                .duration_until_reset
                .map(|reset| prost_types::Duration {
                    seconds: reset.seconds,
                    nanos: reset.nanos,
                }),
            quota: self.quota.as_ref().map(Quota::copied),
        }
    }
}

impl Copied for Quota {
    type Ours = ours::service::ratelimit::v3::rate_limit_response::Quota;

    fn copied(&self) -> Self::Ours {
        use ours::service::ratelimit::v3::rate_limit_response::quota as to;
        let until = |ExpirationSpecifier::ValidUntil(until): &_| {
            to::ExpirationSpecifier::ValidUntil(prost_types::Timestamp {
                seconds: until.seconds,
                nanos: until.nanos,
            })
        };
        Self::Ours {
            requests: self.requests,
            id: self.id.clone(),
            expiration_specifier: self.expiration_specifier.as_ref().map(until),
        }
    }
}

impl Copied for HeaderValue {
    type Ours = ours::config::core::v3::HeaderValue;

    fn copied(&self) -> Self::Ours {
        Self::Ours {
            key: self.key.clone(),
            value: self.value.clone(),
            raw_value: self.raw_value.clone(),
        }
    }
}

impl Copied for Struct {
    type Ours = prost_types::Struct;

    fn copied(&self) -> Self::Ours {
        let fields = self.fields.iter();
        Self::Ours {
            fields: fields
                .map(|(name, value)| (name.clone(), value.copied()))
                .collect(),
        }
    }
}

impl Copied for Value {
    type Ours = prost_types::Value;

    fn copied(&self) -> Self::Ours {
        use prost_types::value::Kind as To;
        let kind = self.kind.as_ref().map(|kind| match kind {
            Kind::NullValue(null) => To::NullValue(*null),
            Kind::NumberValue(number) => To::NumberValue(*number),
            Kind::StringValue(text) => To::StringValue(text.clone()),
            Kind::BoolValue(yes) => To::BoolValue(*yes),
            Kind::StructValue(fields) => To::StructValue(fields.copied()),
            Kind::ListValue(list) => To::ListValue(prost_types::ListValue {
                values: all(&list.values),
            }),
        });
        Self::Ours { kind }
    }
}

/// Both read what the other writes, also when it is followed by a field of a later version.
fn assert_alike<T>(message: &T) -> Result<(), TestCaseError>
where
    T: Copied + Message + Default + PartialEq + Debug,
    T::Ours: Debug,
{
    let mut bytes = message.encode_to_vec();
    prop_assert_eq!(&T::Ours::decode(&*bytes).unwrap(), &message.copied());
    encode_key(1000, WireType::Varint, &mut bytes);
    encode_varint(u64::MAX, &mut bytes);
    let ours = T::Ours::decode(&*bytes).unwrap();
    prop_assert_eq!(&ours, &message.copied());
    prop_assert_eq!(&T::decode(&*ours.encode_to_vec()).unwrap(), message);
    Ok(())
}

proptest! {
    #[test]
    fn requests_are_read_alike(request in requests()) {
        assert_alike(&request)?;
    }

    #[test]
    fn responses_are_read_alike(response in responses()) {
        assert_alike(&response)?;
    }
}

#[test]
fn enums_have_the_same_names() {
    use ours::service::ratelimit::v3::rate_limit_response as to;
    for number in -1..100 {
        assert_eq!(
            Code::try_from(number).ok().map(|code| code.as_str_name()),
            to::Code::try_from(number)
                .ok()
                .map(|code| code.as_str_name()),
        );
        assert_eq!(
            Unit::try_from(number).ok().map(|unit| unit.as_str_name()),
            to::rate_limit::Unit::try_from(number)
                .ok()
                .map(|unit| unit.as_str_name()),
        );
        let ours = ours::r#type::v3::RateLimitUnit::try_from(number);
        assert_eq!(
            RateLimitUnit::try_from(number)
                .ok()
                .map(|unit| unit.as_str_name()),
            ours.ok().map(|unit| unit.as_str_name()),
        );
    }
}
