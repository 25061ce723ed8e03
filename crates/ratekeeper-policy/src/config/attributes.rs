//! Names of attributes: those that are built in, and those that `attributes` in `[identity]`
//! declares.

use super::nearest::nearest;
use super::read::is_header_name;
use crate::attribute::{Attribute, HANDLING, KNOWN};
use std::fmt;

/// The attribute of that name, if it is built in or declared.
///
/// ```
/// use ratekeeper_policy::Attribute;
/// use ratekeeper_policy::config::known_attribute;
///
/// assert_eq!(known_attribute("api_key", &[]), Ok(Attribute::ApiKey));
/// assert_eq!(known_attribute("apikey", &[]).unwrap_err().meant(), Some("api_key"));
/// assert_eq!(known_attribute("region", &["region".to_owned()]), Ok(Attribute::named("region")));
/// ```
pub fn known_attribute(
    name: &str,
    declared: &[String],
) -> Result<Attribute, UnknownAttributeError> {
    let attribute = Attribute::named(name);
    match attribute.is_built_in() || declared.iter().any(|known| known == name) {
        true => Ok(attribute),
        false => Err(UnknownAttributeError {
            name: name.to_owned(),
            meant: meant(name, declared),
        }),
    }
}

/// The name of an attribute that is neither built in nor declared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownAttributeError {
    name: String,
    meant: Option<String>,
}

impl UnknownAttributeError {
    /// The name that was probably meant.
    pub fn meant(&self) -> Option<&str> {
        self.meant.as_deref()
    }
}

impl fmt::Display for UnknownAttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_debug();
        write!(f, "`{name}` is not a known attribute; ")?;
        let declare = format!("add attributes = [\"{name}\"] in [identity]");
        match &self.meant {
            Some(meant) => write!(
                f,
                "did you mean `{}`? (If it is one of your own, {declare}.)",
                meant.escape_debug()
            ),
            None => write!(f, "if it is one of your own, {declare}"),
        }
    }
}

impl std::error::Error for UnknownAttributeError {}

fn meant(name: &str, declared: &[String]) -> Option<String> {
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
    // Only headers have hyphens.
    if name.contains('-') && is_header_name(name) {
        return Some(format!("header:{name}"));
    }
    nearest(name, names()).map(ToOwned::to_owned)
}
