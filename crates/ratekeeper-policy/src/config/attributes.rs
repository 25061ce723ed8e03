//! Known attribute names: the built-in ones, and those declared by `attributes` in `[identity]`.

use super::kinds::is_token;
use super::suggest::did_you_mean;
use crate::attribute::{Attribute, HANDLING, KNOWN};
use std::fmt;

/// The attribute of that name, if it is built in or declared.
///
/// ```
/// use ratekeeper_policy::Attribute;
/// use ratekeeper_policy::config::known_attribute;
///
/// assert_eq!(known_attribute("api_key", &[]), Ok(Attribute::ApiKey));
/// assert_eq!(known_attribute("apikey", &[]).unwrap_err().suggestion(), Some("api_key"));
/// assert_eq!(known_attribute("region", &["region".to_owned()]), Ok(Attribute::named("region")));
/// ```
pub fn known_attribute(
    name: &str,
    declared: &[String],
) -> Result<Attribute, UnknownAttributeError> {
    let attribute = Attribute::named(name);
    if attribute.is_built_in() || declared.iter().any(|known| known == name) {
        return Ok(attribute);
    }
    Err(UnknownAttributeError {
        name: name.to_owned(),
        suggestion: suggestion(name, declared),
    })
}

/// The error for an attribute name that is neither built in nor declared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownAttributeError {
    name: String,
    suggestion: Option<String>,
}

impl UnknownAttributeError {
    /// The known name that was probably meant.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }
}

impl fmt::Display for UnknownAttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_debug();
        write!(f, "unknown attribute `{name}`; ")?;
        let declare = format!("add attributes = [\"{name}\"] in [identity]");
        match &self.suggestion {
            Some(suggestion) => write!(
                f,
                "did you mean `{}`? If it is one of your own, {declare}",
                suggestion.escape_debug()
            ),
            None => write!(f, "if it is one of your own, {declare}"),
        }
    }
}

impl std::error::Error for UnknownAttributeError {}

/// The known name that is closest to an unknown one.
fn suggestion(name: &str, declared: &[String]) -> Option<String> {
    let plain = |name: &str| {
        name.to_lowercase()
            .replace(['-', '_'], "")
            .trim_end_matches('s')
            .to_owned()
    };
    let built_in = || KNOWN.iter().map(Attribute::name).chain(HANDLING);
    let names = || built_in().chain(declared.iter().map(String::as_str));
    if let Some(known) = names().find(|known| plain(known) == plain(name)) {
        return Some(known.to_owned());
    }
    // Of all names, only those of headers have hyphens.
    if name.contains('-') && is_token(name) {
        return Some(format!("header:{name}"));
    }
    did_you_mean(name, names()).map(ToOwned::to_owned)
}
