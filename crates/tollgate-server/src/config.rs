//! The configuration file: where to listen.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(serde::Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: Server,
}

/// `[server]`: one address a protocol.
#[derive(serde::Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    pub(crate) http: Address,
    grpc: Option<Address>,
    resp: Option<Address>,
    admin: Option<Address>,
}

impl Default for Server {
    fn default() -> Self {
        Self { http: Address(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))), grpc: None, resp: None, admin: None }
    }
}

impl Server {
    /// The listeners that the file asks for and this version does not have.
    pub(crate) fn not_served(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        [("grpc", self.grpc), ("resp", self.resp), ("admin", self.admin)]
            .into_iter()
            .filter_map(|(key, address)| Some((key, address?.0)))
    }
}

/// An address to listen on: IP and port, no names that a resolver would have to be asked about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Address(pub(crate) SocketAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(AddressText)
    }
}

struct AddressText;

impl Visitor<'_> for AddressText {
    type Value = Address;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address as text, as in \"127.0.0.1:8080\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Address, E> {
        text.parse().map(Address).map_err(|_| {
            E::custom(format_args!(
                "{text:?} is not an address; write an IP address and a port, as in \"127.0.0.1:8080\" or \"[::1]:8080\""
            ))
        })
    }
}

impl Config {
    /// Reads the file; without one, everything has its default.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(file) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(file)
            .map_err(|error| ConfigError::Unreadable { file: file.to_owned(), error: error.to_string() })?;
        Self::parse(&text).map_err(|(line, problem)| ConfigError::Wrong { file: file.to_owned(), line, problem })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error| {
            let line = line_of(text, error.span());
            // In a file they are keys; and an error is one sentence, wherever the parser breaks its lines.
            let problem = error.message().replace("unknown field", "unknown key").replace('\n', ", ");
            (line, problem)
        })
    }
}

fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start).min(text.len());
    1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count()
}

/// Why there is no configuration.
#[derive(Debug)]
pub(crate) enum ConfigError {
    Unreadable { file: PathBuf, error: String },
    Wrong { file: PathBuf, line: usize, problem: String },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, error } => {
                write!(f, "cannot read the config file {}: {error}; give --config a readable TOML file", file.display())
            }
            Self::Wrong { file, line, problem } => write!(f, "{}, line {line}: {problem}", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(text: &str) -> String {
        let (line, problem) = Config::parse(text).unwrap_err();
        format!("line {line}: {problem}")
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        for text in ["", "[server]\n", "# nothing\n"] {
            assert_eq!(Config::parse(text).unwrap(), Config::default());
        }
        assert_eq!(Config::default().server.http.0.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn every_protocol_has_an_address() {
        let text = "[server]\nhttp = \"[::1]:80\"\ngrpc = \"0.0.0.0:0\"\nresp = \"127.0.0.1:6380\"\n";
        let server = Config::parse(text).unwrap().server;
        assert_eq!(server.http.0.to_string(), "[::1]:80");
        let later: Vec<_> = server.not_served().map(|(key, address)| format!("{key} {address}")).collect();
        assert_eq!(later, ["grpc 0.0.0.0:0", "resp 127.0.0.1:6380"]);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line_and_the_known_ones() {
        assert_eq!(
            wrong("[server]\nhttp = \"127.0.0.1:1\"\nhtpp = \"127.0.0.1:1\"\n"),
            "line 3: unknown key `htpp`, expected one of `http`, `grpc`, `resp`, `admin`"
        );
        assert_eq!(wrong("\n[sever]\n"), "line 2: unknown key `sever`, expected `server`");
    }

    #[test]
    fn what_is_no_address_is_an_error_with_its_line() {
        assert_eq!(
            wrong("[server]\n\nadmin = \"localhost\""),
            "line 3: \"localhost\" is not an address; write an IP address and a port, as in \"127.0.0.1:8080\" or \
             \"[::1]:8080\""
        );
        assert_eq!(
            wrong("[server]\nhttp = 8080"),
            "line 2: invalid type: integer `8080`, expected an address as text, as in \"127.0.0.1:8080\""
        );
    }

    #[test]
    fn what_is_no_toml_is_an_error_in_one_line() {
        for text in ["[server", "[server]\nhttp = ", "[server]\nhttp", "= 1", "[server]\n[server]", "\u{0}"] {
            assert!(!wrong(text).contains('\n'), "{:?}", wrong(text));
        }
    }
}
