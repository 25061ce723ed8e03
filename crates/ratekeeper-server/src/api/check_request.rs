//! The body of `POST /v1/check`: a request, or a list of them.

use super::json::{self, Fields, Json, MAX_FIELDS, invalid, missing, too_many};
use super::problem::{Code, Problem, quoted};
use crate::config::{IdentityConfig, UserHeader};
use axum::http::Extensions;
use ratekeeper_policy::{Attribute, Subject, request::credentials};
use std::borrow::Cow;
use std::net::IpAddr;

const EXAMPLE: &str = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;

/// Prefix of header names where attributes and headers are in one list.
pub(crate) const HEADER: &str = "header:";

const FIELDS: [&str; 3] = ["subject", "cost", "peek"];

/// Number of requests in one body.
pub(super) const MAX_REQUESTS: usize = 100;

/// A valid request.
#[derive(PartialEq, Debug)]
pub(super) struct CheckRequest<'a> {
    pub(super) subject: CheckSubject<'a>,
    pub(super) cost: u64,
    pub(super) peek: bool,
}

impl<'a> CheckRequest<'a> {
    pub(super) fn from_json(body: &'a [u8]) -> Result<Self, Problem> {
        Self::read(Fields::from_body(body, &FIELDS, EXAMPLE)?)
    }

    /// A list of requests, all of them valid.
    pub(super) fn list_from_json(body: &'a [u8]) -> Result<Vec<Self>, Problem> {
        let list = match json::parse(body, EXAMPLE)? {
            Json::List(list) => list,
            other => vec![other],
        };
        if list.is_empty() || list.len() > MAX_REQUESTS {
            let detail = format!(
                "the list has {} requests; send 1 to {MAX_REQUESTS}",
                list.len()
            );
            return Err(Problem::new(Code::BatchSize, detail));
        }
        let read = |request| Self::read(Fields::of(request, &FIELDS, EXAMPLE)?);
        let numbered =
            |(index, request)| read(request).map_err(|problem| problem.in_request(index));
        list.into_iter().enumerate().map(numbered).collect()
    }

    fn read(mut fields: Fields<'a>) -> Result<Self, Problem> {
        let subject = CheckSubject::read(&mut fields)?;
        let cost = fields.whole_number("cost")?.unwrap_or(1);
        let peek = fields.boolean("peek")?.unwrap_or(false);
        Ok(Self {
            subject,
            cost,
            peek,
        })
    }
}

/// The attributes of a request: the field `subject`.
#[derive(PartialEq, Debug)]
pub(crate) struct CheckSubject<'a> {
    ip: Option<IpAddr>,
    headers: Vec<(String, String)>,
    /// All other attributes by name.
    attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> CheckSubject<'a> {
    pub(crate) fn read(fields: &mut Fields<'a>) -> Result<Self, Problem> {
        Self::read_except(fields, |_, _| Ok(false))
    }

    /// Reads a subject without the values for which `is_taken` returns true.
    pub(crate) fn read_except(
        fields: &mut Fields<'a>,
        mut is_taken: impl FnMut(Attribute, &str) -> Result<bool, Problem>,
    ) -> Result<Self, Problem> {
        let subject = match fields.take("subject") {
            None => return Err(missing("subject", EXAMPLE)),
            Some(Json::Object(subject)) => subject,
            Some(other) => {
                return Err(invalid(format!(
                    "`subject` must be an object, as in {EXAMPLE}, not {}",
                    other.shown()
                )));
            }
        };
        let mut subject = Fields::new(subject, "subject.")?;
        let ip = match subject.take("ip") {
            None => None,
            Some(Json::Text(text)) if is_taken(Attribute::Ip, &text)? => None,
            Some(Json::Text(text)) => Some(read_ip(&text)?),
            Some(other) => {
                return Err(invalid(format!(
                    "`subject.ip` must be text, not {}",
                    other.shown()
                )));
            }
        };
        let headers = match subject.take("headers") {
            None => Vec::new(),
            Some(Json::Object(headers)) => read_headers(headers, &mut is_taken)?,
            Some(other) => {
                return Err(invalid(format!(
                    "`subject.headers` must be an object of texts, not {}",
                    other.shown()
                )));
            }
        };
        let rest = subject.rest();
        let mut attributes = Vec::with_capacity(rest.len());
        for (name, value) in rest {
            let is_own = |name: &str| matches!(Attribute::named(name), Attribute::Custom(_));
            // As a custom attribute no policy would use it, and every request would be allowed.
            if is_own(&name) && !is_own(&name.to_lowercase()) {
                let (name, known) = (
                    quoted(&format!("subject.{name}")),
                    quoted(&name.to_lowercase()),
                );
                return Err(invalid(format!(
                    "{name} is unknown (names are case-sensitive); use {known}"
                )));
            }
            match value {
                // The syntax of `explain`; here it would be a custom attribute that no policy
                // uses.
                _ if name.starts_with(HEADER) => {
                    let (name, header) = (
                        quoted(&format!("subject.{name}")),
                        quoted(&name[HEADER.len()..]),
                    );
                    return Err(invalid(format!(
                        "{name} is a header; send {header} in `subject.headers`"
                    )));
                }
                Json::Null => {}
                Json::Text(text) if is_taken(Attribute::named(&name), &text)? => {}
                Json::Text(text) => attributes.push((name, text)),
                Json::Number(Ok(number)) => attributes.push((name, number.to_string().into())),
                Json::Bool(yes) => attributes.push((name, yes.to_string().into())),
                other => {
                    let name = quoted(&format!("subject.{name}"));
                    return Err(invalid(format!(
                        "{name} must be text, a whole number, true or false, not {}",
                        other.shown()
                    )));
                }
            }
        }
        Ok(Self {
            ip,
            headers,
            attributes,
        })
    }

    /// The attributes that a policy may count by.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = Attribute> {
        let headers = self.headers.iter().map(|(name, _)| Attribute::header(name));
        let attributes = self
            .attributes
            .iter()
            .map(|(name, _)| Attribute::named(name));
        self.ip
            .map(|_| Attribute::Ip)
            .into_iter()
            .chain(attributes)
            .chain(headers)
    }

    /// The names of all attributes but the address and the headers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|(name, _)| &**name)
    }

    /// Adds an attribute from its encoding in keys; false if the value is invalid.
    pub(crate) fn add(&mut self, attribute: &Attribute, value: &[u8]) -> bool {
        let address = match attribute {
            Attribute::Ip => <[u8; 4]>::try_from(value)
                .map(IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
                .ok(),
            _ => None,
        };
        let text = std::str::from_utf8(value).map(ToOwned::to_owned);
        match (attribute, address, text) {
            (Attribute::Ip, address, _) => {
                self.ip = address;
                return address.is_some();
            }
            (Attribute::Header(name), _, Ok(text)) => {
                let text = if attribute.has_scheme() {
                    format!("Bearer {text}")
                } else {
                    text
                };
                self.headers.push((name.to_string(), text));
            }
            (Attribute::Endpoint, _, Ok(text)) => match text.split_once(' ') {
                Some((method, route)) => {
                    self.attributes
                        .push(("method".into(), method.to_owned().into()));
                    self.attributes
                        .push(("endpoint".into(), route.to_owned().into()));
                }
                None => self.attributes.push(("endpoint".into(), text.into())),
            },
            (attribute, _, Ok(text)) => self
                .attributes
                .push((attribute.to_string().into(), text.into())),
            (_, _, Err(_)) => return false,
        }
        true
    }

    /// Adds the address, or its network as in keys. The error is a different address that is there
    /// already.
    pub(crate) fn add_address(&mut self, address: IpAddr) -> Result<(), IpAddr> {
        match self.ip {
            Some(other) if other != address => Err(other),
            _ => {
                self.ip = Some(address);
                Ok(())
            }
        }
    }

    /// The subject for the engine. A missing user or API key is read from the configured header;
    /// the user only if `trust` allows it.
    pub(crate) fn subject<'s>(
        &'s self,
        identity: &'s IdentityConfig,
        trust: HeaderTrust,
    ) -> Subject<'s> {
        let mut subject = identified(&self.headers, identity, trust);
        if let Some(ip) = self.ip {
            subject = subject.ip(ip);
        }
        for (name, value) in &self.attributes {
            subject.set(name, value.as_ref());
        }
        subject
    }
}

/// The sender of a subject's headers, which decides whether the user header is trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeaderTrust {
    /// An operator, in admin calls and `explain`.
    Operator,
    /// A peer of the HTTP API; `None` is a peer on a Unix socket.
    Peer(Option<IpAddr>),
}

impl HeaderTrust {
    /// The peer of a request to the HTTP API.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        Self::Peer(ratekeeper_tower::identity::peer(extensions))
    }
}

/// The subject that trusted headers identify.
pub(crate) fn identified<'a>(
    headers: &'a Vec<(String, String)>,
    identity: &'a IdentityConfig,
    trust: HeaderTrust,
) -> Subject<'a> {
    let mut subject = Subject::new().headers(headers);
    let is_trusted = |user: &&UserHeader| match trust {
        HeaderTrust::Operator => true,
        HeaderTrust::Peer(peer) => user.from.contains(peer),
    };
    let user = identity
        .user
        .as_ref()
        .filter(is_trusted)
        .map(|user| &user.header);
    for (name, header) in [("user", user), ("api_key", identity.api_key.as_ref())] {
        let Some(header) = header else { continue };
        let Some((_, value)) = headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(header))
        else {
            continue;
        };
        let value = value.as_bytes();
        if header.eq_ignore_ascii_case("authorization") {
            subject.set(name, credentials(value));
        } else {
            subject.set(name, value);
        }
    }
    subject
}

fn read_ip(text: &str) -> Result<IpAddr, Problem> {
    text.parse().map_err(|_| {
        invalid(format!(
            "`subject.ip` {} is not an IP address; send one such as \"203.0.113.7\" or \"2001:db8::7\"",
            quoted(text)
        ))
    })
}

/// Reads the headers. The value of a repeated header is a list.
fn read_headers<'a>(
    headers: Vec<(Cow<'a, str>, Json<'a>)>,
    is_taken: &mut impl FnMut(Attribute, &str) -> Result<bool, Problem>,
) -> Result<Vec<(String, String)>, Problem> {
    let mut read = Vec::with_capacity(headers.len());
    for (name, value) in Fields::new(headers, "subject.headers.")?.rest() {
        let values = match value {
            Json::Null => continue,
            Json::List(values) => values,
            one => vec![one],
        };
        for value in values {
            match value {
                Json::Text(text) if is_taken(Attribute::header(&name), &text)? => {}
                Json::Text(text) => read.push((name.clone().into_owned(), text.into_owned())),
                other => {
                    let name = quoted(&format!("subject.headers.{name}"));
                    return Err(invalid(format!(
                        "{name} must be text or a list of texts, not {}",
                        other.shown()
                    )));
                }
            }
        }
    }
    // A list may have more values than the object has fields.
    if read.len() > MAX_FIELDS {
        Err(too_many("subject.headers"))
    } else {
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escaped_text_is_copied() {
        let plain = br#"{"subject":{"ip":"203.0.113.7","user":"ann","plan":"pro"}}"#;
        let escaped = br#"{"\u0073ubject":{"\u0069p":"203.0.113.\u0037","us\u0065r":"\u0061nn","plan":"pro"}}"#;
        let plain = CheckRequest::from_json(plain).unwrap();
        let escaped = CheckRequest::from_json(escaped).unwrap();
        assert_eq!(plain, escaped);
        let is_copied = |text: &Cow<'_, str>| matches!(text, Cow::Owned(_));
        assert!(
            plain
                .subject
                .attributes
                .iter()
                .all(|(name, value)| !is_copied(name) && !is_copied(value))
        );
        assert!(
            escaped
                .subject
                .attributes
                .iter()
                .any(|(name, value)| is_copied(name) && is_copied(value))
        );
    }
}
