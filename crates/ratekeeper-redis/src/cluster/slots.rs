//! The hash slot of a key, and the reply of `CLUSTER SLOTS`.

use crate::address::Address;
use redis::Value;

/// The number of hash slots.
pub(crate) const SLOTS: u16 = 16_384;

/// The hash slot of a key: CRC-16 of its hash tag, the text between the first braces, or of the
/// whole key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter()
            .position(|byte| *byte == b'}')
            .filter(|length| *length > 0)
            .map(|length| &rest[..length])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let mut sum = (at as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 0x8000 == 0 {
                    sum << 1
                } else {
                    (sum << 1) ^ 0x1021
                };
                bit += 1;
            }
            table[at] = sum;
            at += 1;
        }
        table
    };
    bytes.iter().fold(0, |sum, byte| {
        (sum << 8) ^ TABLE[usize::from((sum >> 8) as u8 ^ byte)]
    })
}

/// A range of slots, both ends included, and their primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) primary: Address,
}

/// Parses a reply of `CLUSTER SLOTS`. The node that was `asked` may leave out its own host.
pub(crate) fn read(answer: &Value, answering_node: &Address) -> Option<Vec<Range>> {
    let Value::Array(ranges) = answer else {
        return None;
    };
    ranges
        .iter()
        .map(|range| read_range(range, answering_node))
        .collect()
}

fn read_range(range: &Value, answering_node: &Address) -> Option<Range> {
    let Value::Array(fields) = range else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(primary),
        ..,
    ] = &fields[..]
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &primary[..] else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::Nil => String::new(),
        _ => return None,
    };
    // A node that does not know its own name sends nothing, or a question mark.
    let host = if host.is_empty() || host == "?" {
        answering_node.host.clone()
    } else {
        host
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|number| *number < SLOTS);
    let primary = Address {
        host,
        port: u16::try_from(*port).ok()?,
    };
    Some(Range {
        first: slot(first)?,
        last: slot(last)?,
        primary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // As `CLUSTER KEYSLOT` returns them.
        for (key, expected) in [
            ("foo", 12182),
            ("123456789", 12739),
            ("{user1000}.following", 3443),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn an_invalid_slots_reply_is_none() {
        let answering_node = Address {
            host: "a".to_owned(),
            port: 1,
        };
        let host = Value::BulkString(b"b".to_vec());
        let range = |first, last, host: Value| {
            Value::Array(vec![
                Value::Int(first),
                Value::Int(last),
                Value::Array(vec![host, Value::Int(7)]),
            ])
        };
        let good = Value::Array(vec![range(0, 16_383, host.clone())]);
        assert_eq!(
            read(&good, &answering_node).unwrap()[0].primary,
            Address {
                host: "b".to_owned(),
                port: 7
            }
        );
        let nameless = Value::Array(vec![range(0, 1, Value::Nil)]);
        assert_eq!(
            read(&nameless, &answering_node).unwrap()[0].primary.host,
            "a"
        );
        for bad in [
            range(0, 16_384, host.clone()),
            range(-1, 5, host.clone()),
            Value::Int(1),
            range(0, 1, Value::Int(3)),
        ] {
            assert_eq!(read(&Value::Array(vec![bad]), &answering_node), None);
        }
        assert_eq!(read(&Value::Nil, &answering_node), None);
    }
}
