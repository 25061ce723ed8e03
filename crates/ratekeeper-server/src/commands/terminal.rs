//! Text for a terminal. Text from a client or a server may contain control characters that a
//! terminal executes, or that change the direction of text; they are shown as escapes.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Escapes text into one line: line breaks are escaped too. Escaped text stays the same.
pub(crate) fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if is_control(c) {
                c.escape_debug().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// Escapes all text in a value.
pub(crate) fn escaped<T: Serialize + DeserializeOwned>(value: &T) -> Result<T, serde_json::Error> {
    serde_json::from_value(escape_value(serde_json::to_value(value)?))
}

fn escape_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(escape_value).collect()),
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (escape(&name), escape_value(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// A value as JSON for a terminal or a program: control characters are JSON escapes.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Structs of text and numbers, and parsed JSON, always serialize.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let escape = |c: char| {
        if c != '\n' && is_control(c) {
            format!("\\u{:04x}", u32::from(c))
        } else {
            c.to_string()
        }
    };
    text.chars().map(escape).collect::<String>() + "\n"
}

/// Whether a terminal does not just display this character: control characters, and those that
/// change the direction of text.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn control_characters_are_escaped() {
        let escaped = escape("user=\u{1b}[2Jann\n\u{9b}é\u{202e}");
        assert_eq!(escaped, "user=\\u{1b}[2Jann\\n\\u{9b}é\\u{202e}");
        assert_eq!(escape(&escaped), escaped);
    }

    #[test]
    fn values_and_names_are_escaped_at_any_depth() {
        let value = json!({"a\u{1b}": [{"b": "\u{7f}"}, 1, null]});
        assert_eq!(
            super::escaped(&value).unwrap(),
            json!({"a\\u{1b}": [{"b": "\\u{7f}"}, 1, null]})
        );
    }

    #[test]
    fn json_keeps_its_values() {
        let value = json!({"key": "\u{1b}\u{7f}\u{9b}\u{202e}é\n"});
        let text = super::json(&value);
        assert!(text.contains(r"\u001b\u007f\u009b\u202eé\n"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
