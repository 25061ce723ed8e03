//! `RATEKEEPER.RESET`: authorization and audit.

use super::RespServer;
use super::session::{Arguments, QuotedBytes, Reply};
use crate::admin::audit::{AuditOutcome, Entry};
use crate::api::token;
use crate::config::{KeyDisplay, Secret};
use crate::store::AnyStore;
use ratekeeper::{Clock, Store};
use ratekeeper_policy::{engine::ByNameError, engine::PolicyKey};
use std::net::SocketAddr;
use std::sync::Arc;

/// Options of `RATEKEEPER.RESET`.
pub(crate) struct Options {
    /// The password for `AUTH`; without one only peers on this machine are operators.
    pub(crate) token: Option<Secret>,
    /// How keys are shown in the audit.
    pub(crate) keys: KeyDisplay,
}

impl Options {
    /// The check of `AUTH`; `None` without a token.
    pub(super) fn password(&self) -> Option<super::session::Password> {
        let token = self.token.clone()?;
        Some(Arc::new(move |given: &[u8]| {
            token::matches(token.reveal().as_bytes(), given)
        }))
    }

    /// Whether a peer may reset keys; the error is the reply.
    fn check(&self, peer: Option<SocketAddr>, is_authenticated: bool) -> Result<(), &'static str> {
        // A peer without an address is on a Unix socket.
        let is_local =
            peer.is_none_or(|peer| ratekeeper_policy::address::canonical(peer.ip()).is_loopback());
        match (&self.token, is_authenticated) {
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(
                "NOPERM RATEKEEPER.RESET needs the admin_token of [server]; send AUTH <admin_token> first",
            ),
            (None, _) if is_local => Ok(()),
            (None, _) => Err(
                "NOPERM without an admin_token RATEKEEPER.RESET is only for peers on the same machine; set admin_token \
                              under [server] and send AUTH <admin_token>",
            ),
        }
    }
}

/// Resets a key of a policy if the peer is an operator, and adds an audit entry.
pub(super) async fn reset<C: Clock>(
    server: &RespServer<C>,
    peer: Option<SocketAddr>,
    is_authenticated: bool,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
) {
    let name = arguments.get(1).unwrap_or_default();
    let key = arguments.get(2).unwrap_or_default();
    let mut entry = Entry {
        at_ms: server.app.engine.store().now().as_unix_nanos() / 1_000_000,
        who: peer.map_or_else(
            || "unix".to_owned(),
            |peer| ratekeeper_policy::address::canonical(peer.ip()).to_string(),
        ),
        action: "reset".to_owned(),
        policy: Some(String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]).into_owned()),
        key: None,
        detail: Some("RATEKEEPER.RESET".to_owned()),
        outcome: AuditOutcome::Done,
    };
    let set_outcome = |entry: &mut Entry, outcome: AuditOutcome, error: &str| {
        entry.outcome = outcome;
        entry.detail = Some(format!("RATEKEEPER.RESET: {error}"));
    };
    match server.operators.check(peer, is_authenticated) {
        Err(error) => {
            reply.error(error);
            set_outcome(&mut entry, AuditOutcome::Rejected, error);
        }
        Ok(()) => match reset_key(server, name, key).await {
            Ok(key) => {
                reply.ok();
                entry.key = Some(if server.operators.keys == KeyDisplay::Plain {
                    key.words
                } else {
                    key.fingerprint
                });
            }
            Err(ResetError::ByName(error)) => {
                reply.error(format_args!("ERR policy '{}': {error}", QuotedBytes(name)));
                set_outcome(&mut entry, AuditOutcome::Rejected, &error.to_string());
            }
            Err(ResetError::Store(error)) => {
                reply.error(format_args!("ERR {error}"));
                set_outcome(&mut entry, AuditOutcome::Failed, &error);
            }
        },
    }
    server.app.audit.add(entry);
}

/// Bytes of a client's policy name in the audit.
const MAX_NAME_BYTES: usize = 128;

enum ResetError {
    ByName(ByNameError),
    /// The message.
    Store(String),
}

async fn reset_key<C: Clock>(
    server: &RespServer<C>,
    name: &[u8],
    key: &[u8],
) -> Result<PolicyKey, ResetError> {
    let engine = &server.app.engine;
    let check_store = |effect: &str| match engine.store() {
        AnyStore::Memory(_) => Ok(()),
        AnyStore::Redis(redis) => match redis.status().error {
            None => Ok(()),
            Some((_, error)) => Err(ResetError::Store(format!(
                "{error}; {effect}; try again when Redis is available"
            ))),
        },
    };
    check_store("nothing was reset")?;
    // Names of policies are UTF-8.
    let policy = std::str::from_utf8(name).unwrap_or_default();
    let key = engine
        .operator()
        .reset_by(policy, key)
        .await
        .map_err(ResetError::ByName)?;
    check_store("the reset may be incomplete")?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_need_the_token_or_without_one_a_local_connection() {
        let operators = |token: Option<&str>| Options {
            token: token.map(Secret::new),
            keys: KeyDisplay::Plain,
        };
        let peers = [
            Some("127.0.0.1:1"),
            Some("[::1]:1"),
            Some("[::ffff:127.0.0.1]:1"),
            None,
            Some("10.0.0.1:1"),
            Some("[fd00::1]:1"),
        ];
        for (at, peer) in peers.into_iter().enumerate() {
            let peer = peer.map(|peer| peer.parse().unwrap());
            let check = |token, is_authenticated| operators(token).check(peer, is_authenticated);
            assert_eq!(check(None, false).is_ok(), at < 4, "{peer:?}");
            assert_eq!(
                check(None, false)
                    .err()
                    .is_some_and(|error| error.starts_with("NOPERM ")),
                at >= 4
            );
            assert_eq!(check(Some("0123456789abcdef"), true), Ok(()));
            assert!(
                check(Some("0123456789abcdef"), false)
                    .unwrap_err()
                    .starts_with("NOPERM ")
            );
        }
        let password = operators(Some("0123456789abcdef")).password().unwrap();
        assert!(password(b"0123456789abcdef") && !password(b"0123456789abcdeg") && !password(b""));
        assert!(operators(None).password().is_none());
    }
}
