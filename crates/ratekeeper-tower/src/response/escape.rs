//! Escaping for structured fields, JSON and HTML.

use std::fmt::{self, Display, Formatter, Write};

/// Replaces a character that a structured field string cannot contain.
const NOT_ASCII: char = '_';

/// A structured field string, quoted.
pub(super) struct SfString<T>(pub(super) T);

/// A JSON string, quoted.
pub(super) struct Json<T>(pub(super) T);

/// Text in HTML, between tags.
pub(super) struct Html<T>(pub(super) T);

impl<T: Display> Display for SfString<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\"",
            EscapeDisplay(&self.0, |f, character| match character {
                '"' | '\\' => write!(f, "\\{character}"),
                ' '..='~' => f.write_char(character),
                _ => f.write_char(NOT_ASCII),
            })
        )
    }
}

impl<T: Display> Display for Json<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\"",
            EscapeDisplay(&self.0, |f, character| match character {
                '"' | '\\' => write!(f, "\\{character}"),
                '\0'..='\u{1f}' => write!(f, "\\u{:04x}", u32::from(character)),
                _ => f.write_char(character),
            })
        )
    }
}

impl<T: Display> Display for Html<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        EscapeDisplay(&self.0, |f, character| match character {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            _ => f.write_char(character),
        })
        .fmt(f)
    }
}

type Rule = fn(&mut Formatter<'_>, char) -> fmt::Result;

/// Displays a value with each character escaped by a rule.
struct EscapeDisplay<'a, T>(&'a T, Rule);

impl<T: Display> Display for EscapeDisplay<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(EscapeWriter(f, self.1), "{}", self.0)
    }
}

struct EscapeWriter<'a, 'b>(&'a mut Formatter<'b>, Rule);

impl Write for EscapeWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars()
            .try_for_each(|character| self.1(self.0, character))
    }
}
