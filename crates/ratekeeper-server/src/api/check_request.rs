//! The body of `POST /v1/check`: a request, or a list of them.

use super::json::{self, Fields, Json, MOST_FIELDS, invalid, missing, too_many};
use super::problem::{Code, Problem, quoted};
use axum::http::Extensions;
use ratekeeper_policy::config::{IdentityConfig, UserHeader};
use ratekeeper_policy::{Attribute, Subject, request::credentials};
use std::borrow::Cow;
use std::net::IpAddr;

const EXAMPLE: &str = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;

/// What stands before the name of a header where attributes and headers are in one list.
pub(crate) const HEADER: &str = "header:";

const FIELDS: [&str; 3] = ["subject", "cost", "peek"];

/// As many requests as one body has.
pub(super) const MOST_REQUESTS: usize = 100;

/// A request that makes sense.
#[derive(PartialEq, Debug)]
pub(super) struct CheckRequest<'a> {
    pub(super) who: CheckSubject<'a>,
    pub(super) cost: u64,
    pub(super) peek: bool,
}

impl<'a> CheckRequest<'a> {
    pub(super) fn from_json(body: &'a [u8]) -> Result<Self, Problem> {
        Self::read(Fields::from_body(body, &FIELDS, EXAMPLE)?)
    }

    /// Several of them, all of which make sense.
    pub(super) fn list_from_json(body: &'a [u8]) -> Result<Vec<Self>, Problem> {
        let list = match json::parse(body, EXAMPLE)? {
            Json::List(list) => list,
            other => vec![other],
        };
        if list.is_empty() || list.len() > MOST_REQUESTS {
            let detail = format!(
                "the list has {} requests; send 1 to {MOST_REQUESTS} of them at a time",
                list.len()
            );
            return Err(Problem::new(Code::BatchSize, detail));
        }
        let read = |request| Self::read(Fields::of(request, &FIELDS, EXAMPLE)?);
        let numbered = |(at, request)| read(request).map_err(|problem| problem.in_request(at));
        list.into_iter().enumerate().map(numbered).collect()
    }

    fn read(mut fields: Fields<'a>) -> Result<Self, Problem> {
        let who = CheckSubject::read(&mut fields)?;
        let cost = fields.whole_number("cost")?.unwrap_or(1);
        let peek = fields.yes_or_no("peek")?.unwrap_or(false);
        Ok(Self { who, cost, peek })
    }
}

/// Who asks: the field `subject`.
#[derive(PartialEq, Debug)]
pub(crate) struct CheckSubject<'a> {
    ip: Option<IpAddr>,
    headers: Vec<(String, String)>,
    /// Everything else by its name.
    attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> CheckSubject<'a> {
    pub(crate) fn read(fields: &mut Fields<'a>) -> Result<Self, Problem> {
        Self::read_but(fields, |_, _| Ok(false))
    }

    /// The same without the texts that `takes` says it takes instead.
    pub(crate) fn read_but(
        fields: &mut Fields<'a>,
        mut takes: impl FnMut(Attribute, &str) -> Result<bool, Problem>,
    ) -> Result<Self, Problem> {
        let subject = match fields.take("subject") {
            None => return Err(missing("subject", EXAMPLE)),
            Some(Json::Object(subject)) => subject,
            Some(other) => {
                return Err(invalid(format!(
                    "`subject` must be an object, as in {EXAMPLE}, not {}",
                    other.told()
                )));
            }
        };
        let mut subject = Fields::new(subject, "subject.")?;
        let ip = match subject.take("ip") {
            None => None,
            Some(Json::Text(text)) if takes(Attribute::Ip, &text)? => None,
            Some(Json::Text(text)) => Some(read_ip(&text)?),
            Some(other) => {
                return Err(invalid(format!(
                    "`subject.ip` must be text, not {}",
                    other.told()
                )));
            }
        };
        let headers = match subject.take("headers") {
            None => Vec::new(),
            Some(Json::Object(headers)) => read_headers(headers, &mut takes)?,
            Some(other) => {
                return Err(invalid(format!(
                    "`subject.headers` must be an object of texts, not {}",
                    other.told()
                )));
            }
        };
        let rest = subject.rest();
        let mut attributes = Vec::with_capacity(rest.len());
        for (name, value) in rest {
            let is_own = |name: &str| matches!(Attribute::named(name), Attribute::Custom(_));
            // As an attribute of somebody's own no policy would look at it, and everything would
            // pass.
            if is_own(&name) && !is_own(&name.to_lowercase()) {
                let (name, known) = (
                    quoted(&format!("subject.{name}")),
                    quoted(&name.to_lowercase()),
                );
                return Err(invalid(format!(
                    "{name} is not known, and case matters; write {known}"
                )));
            }
            match value {
                // `explain` is told headers so; here it would be a name of its own that no policy
                // asks for.
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
                Json::Text(text) if takes(Attribute::named(&name), &text)? => {}
                Json::Text(text) => attributes.push((name, text)),
                Json::Number(Ok(number)) => attributes.push((name, number.to_string().into())),
                Json::Bool(yes) => attributes.push((name, yes.to_string().into())),
                other => {
                    let name = quoted(&format!("subject.{name}"));
                    return Err(invalid(format!(
                        "{name} must be text, a whole number, true or false, not {}",
                        other.told()
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

    /// What is said of it, by the attributes that a policy may count by.
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

    /// The names of what is neither its address nor a header.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|(name, _)| &**name)
    }

    /// Adds an attribute in the form that keys have it in; false if there is no such value.
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

    /// Adds the address, or its network as keys have it; an error with the other one that it has.
    pub(crate) fn add_address(&mut self, address: IpAddr) -> Result<(), IpAddr> {
        match self.ip {
            Some(other) if other != address => Err(other),
            _ => {
                self.ip = Some(address);
                Ok(())
            }
        }
    }

    /// Who asks. A user or an API key that is not named is taken from the header that the
    /// configuration names; the user only if `from` may set it.
    pub(crate) fn subject<'s>(&'s self, identity: &'s IdentityConfig, from: Source) -> Subject<'s> {
        let mut subject = identified(&self.headers, identity, from);
        if let Some(ip) = self.ip {
            subject = subject.ip(ip);
        }
        for (name, value) in &self.attributes {
            subject.set(name, value.as_ref());
        }
        subject
    }
}

/// Where the headers of a subject come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// An operator, who asks what would happen.
    Operator,
    /// A peer of the HTTP API; None is one on a Unix socket.
    Peer(Option<IpAddr>),
}

impl Source {
    /// The peer of a request to the HTTP API.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        Self::Peer(ratekeeper_tower::identity::peer(extensions))
    }
}

/// Who the headers say is asking, by those of them that are believed.
pub(crate) fn identified<'a>(
    headers: &'a Vec<(String, String)>,
    identity: &'a IdentityConfig,
    from: Source,
) -> Subject<'a> {
    let mut subject = Subject::new().headers(headers);
    let is_believed = |user: &&UserHeader| match from {
        Source::Operator => true,
        Source::Peer(peer) => user.from.contains(peer),
    };
    let user = identity
        .user
        .as_ref()
        .filter(is_believed)
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
        match header.eq_ignore_ascii_case("authorization") {
            true => subject.set(name, credentials(value)),
            false => subject.set(name, value),
        }
    }
    subject
}

fn read_ip(text: &str) -> Result<IpAddr, Problem> {
    text.parse().map_err(|_| {
        invalid(format!(
            "`subject.ip` is {}, which is no address; write one as \"203.0.113.7\" or \"2001:db8::7\"",
            quoted(text)
        ))
    })
}

/// A header may be there several times: then its value is a list.
fn read_headers<'a>(
    headers: Vec<(Cow<'a, str>, Json<'a>)>,
    takes: &mut impl FnMut(Attribute, &str) -> Result<bool, Problem>,
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
                Json::Text(text) if takes(Attribute::header(&name), &text)? => {}
                Json::Text(text) => read.push((name.clone().into_owned(), text.into_owned())),
                other => {
                    let name = quoted(&format!("subject.headers.{name}"));
                    return Err(invalid(format!(
                        "{name} must be text or a list of texts, not {}",
                        other.told()
                    )));
                }
            }
        }
    }
    // A list may be long.
    if read.len() > MOST_FIELDS {
        Err(too_many("subject.headers"))
    } else {
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_text_is_the_same_text_and_no_other_is_copied() {
        let plain = br#"{"subject":{"ip":"203.0.113.7","user":"ann","plan":"pro"}}"#;
        let escaped = br#"{"\u0073ubject":{"\u0069p":"203.0.113.\u0037","us\u0065r":"\u0061nn","plan":"pro"}}"#;
        let (plain, escaped) = (
            CheckRequest::from_json(plain).unwrap(),
            CheckRequest::from_json(escaped).unwrap(),
        );
        assert_eq!(plain, escaped);
        let is_copied = |text: &Cow<'_, str>| matches!(text, Cow::Owned(_));
        assert!(
            plain
                .who
                .attributes
                .iter()
                .all(|(name, value)| !is_copied(name) && !is_copied(value))
        );
        assert!(
            escaped
                .who
                .attributes
                .iter()
                .any(|(name, value)| is_copied(name) && is_copied(value))
        );
    }
}
