//! `[identity]` and `[stats]`: how callers are identified, and statistics about them.

use super::kinds::ANY_TEXT;
use super::section::{
    Form, HeaderName, KeyKind, KeyType, Place, ReadError, Section, TableForm, Value,
};
use crate::attribute::Attribute;
use crate::trusted_peers::TrustedPeers;

crate::section! {
    /// `[identity]`: how callers are identified. A header is trusted only if it is named here.
    pub struct IdentityConfig, check = check_identity {
        /// Proxies whose forwarding header is trusted: addresses, networks, or "unix" for peers on
        /// a Unix socket.
        trusted_proxies: TrustedPeers = [] => ["10.0.0.0/8"];
        /// Forwarding header that the trusted proxies set.
        header: String as HeaderName = "x-forwarded-for" => "x-forwarded-for";
        /// Number of leading bits of an IPv6 address that identify a client.
        ipv6_prefix: u8 [KeyType::number(32, 128)] = 56 => 56;
        /// Header that names the user, and the peers that may set it.
        user: Option<UserHeader> => { header = "x-user-id", from = ["10.0.0.0/8"] };
        /// Header with the API key.
        api_key: Option<String> as Option<TableForm<HeaderTable>>
            => { header = "authorization" };
        /// Names of your own attributes, which callers of the APIs send. A policy that uses an
        /// undeclared name is an error.
        attributes: Vec<String> as OwnAttributes = [] => ["region", "tokens"], quiet;
    }
    also {
        /// The header in which trusted proxies set the priority class, in lower case: `header` of
        /// `[shed]`.
        class: Option<String>;
        /// The header in which they set the start time of a request, in lower case: `start_header`
        /// of `[shed]`.
        start: Option<String>;
    }
}

crate::section! {
    /// The header that names the user, and the peers from which it is trusted.
    pub struct UserHeader {
        /// Name of the header.
        header: String as HeaderName => "x-user-id";
        /// Peers that set the header: addresses, networks, or "unix" for peers on a Unix socket.
        /// From other peers the header is ignored and removed.
        from: TrustedPeers as UserPeers => ["10.0.0.0/8"];
    }
}

crate::section! {
    /// A header of the request.
    struct HeaderTable {
        /// Name of the header.
        header: String as HeaderName => "x-user-id";
    }
}

crate::section! {
    /// `[stats]`: statistics of the heaviest callers.
    pub struct StatsConfig {
        /// How keys are shown to operators: "fingerprint" shows a hash, "plain" the key itself,
        /// except for secrets.
        keys: KeyDisplay = "fingerprint" => "fingerprint";
        /// Number of keys that are counted.
        top: usize [KeyType::number(64, 1 << 20)] = 1024 => 1024;
    }
}

/// How keys are shown to operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyDisplay {
    /// `fingerprint`: a hash, the same for the same key, which reveals no more than that.
    Fingerprint,
    /// `plain`: the key itself.
    Plain,
}

crate::words! {
    KeyDisplay { "fingerprint" => KeyDisplay::Fingerprint, "plain" => KeyDisplay::Plain }
}

fn check_identity(section: &Section<'_>, identity: Option<&IdentityConfig>) {
    if let Some(identity) = identity {
        warn_of_everyone(
            section,
            ("trusted_proxies", &identity.trusted_proxies),
            "claim any address; list only your proxies",
        );
    }
}

/// Warns if every peer is trusted, because then clients are too.
fn warn_of_everyone(section: &Section<'_>, (key, peers): (&str, &TrustedPeers), consequence: &str) {
    let mut networks = peers.as_networks().iter();
    if let Some(all) = networks.find(|network| network.prefix_len() == 0) {
        let message = format!("{all} trusts every peer, so any client can {consequence}");
        section.warn(key, &message);
    }
}

/// The peers that may name the user. They have no default, because without them any client could
/// claim to be any user.
struct UserPeers;

impl UserPeers {
    fn report(place: &Place<'_, '_>, problem: &str) {
        let header = place.section.text("header").unwrap_or("x-user-id");
        let header = header.to_ascii_lowercase();
        let message = format!(
            "{{key}} {problem} {{in}}: a client could send {header} itself and claim to be any \
             user; list the peers that set it, for example user = {{ header = \"{header}\", from = \
             [\"10.0.0.0/8\"] }}"
        );
        place.section.error("from", &message);
    }
}

impl KeyKind for UserPeers {
    type Value = TrustedPeers;
    const TYPE: KeyType = TrustedPeers::TYPE;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<TrustedPeers> {
        let peers = TrustedPeers::read(place, value)?;
        if peers.is_empty() {
            Self::report(place, "is empty");
            return None;
        }
        warn_of_everyone(
            place.section,
            ("from", &peers),
            "claim to be any user; list only the peers that set the header",
        );
        Some(peers)
    }

    fn absent(place: &Place<'_, '_>) -> Option<TrustedPeers> {
        Self::report(place, "is missing");
        None
    }

    fn show(value: &TrustedPeers, hide: bool) -> Option<String> {
        TrustedPeers::show(value, hide)
    }
}

impl Form for HeaderTable {
    type Value = String;

    fn into_value(self) -> String {
        self.header
    }

    fn of(header: &String) -> Option<Self> {
        let header = header.clone();
        Some(Self { header })
    }
}

/// The attributes that policies may use from here on.
struct OwnAttributes;

impl KeyKind for OwnAttributes {
    type Value = Vec<String>;
    const TYPE: KeyType = Vec::<OwnAttribute>::TYPE;

    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Vec<String>> {
        let names = Vec::<OwnAttribute>::read(place, value);
        place.reader.declared.replace(names.clone());
        names
    }

    fn show(names: &Vec<String>, hide: bool) -> Option<String> {
        Vec::<OwnAttribute>::show(names, hide)
    }
}

/// The name of an attribute that is not built in.
struct OwnAttribute;

crate::text_kind!(OwnAttribute as String, ANY_TEXT, "", |name: &str| {
    if Attribute::named(name).is_built_in() {
        let name = name.escape_debug();
        let message = format!("`{name}` is a built-in attribute; remove it");
        return Err(ReadError::message(message));
    }
    Ok(name.to_owned())
});
