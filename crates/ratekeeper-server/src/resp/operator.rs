//! `RATEKEEPER.RESET`: who may reset a key of a policy, and the audit of it.

use super::Shared;
use super::session::{Arguments, QuotedBytes, Reply};
use crate::admin::audit::{AuditOutcome, Entry};
use crate::api::token;
use crate::store::AnyStore;
use ratekeeper::{Clock, Store};
use ratekeeper_policy::config::{KeyDisplay, Secret};
use ratekeeper_policy::{engine::ByNameError, engine::PolicyKey};
use std::net::SocketAddr;
use std::sync::Arc;

/// How a key is named in the audit, and what operators must have.
pub(crate) struct Options {
    /// What operators must send with `AUTH`; without one only peers on this machine are operators.
    pub(crate) token: Option<Secret>,
    /// How keys are shown.
    pub(crate) keys: KeyDisplay,
}

impl Options {
    /// Checks the password of `AUTH`; None where there is none to check.
    pub(super) fn password(&self) -> Option<super::session::Password> {
        let token = self.token.clone()?;
        Some(Arc::new(move |given: &[u8]| {
            token::matches(token.reveal().as_bytes(), given)
        }))
    }

    /// Whether a peer may reset keys; the error is what it is told.
    fn check(&self, peer: Option<SocketAddr>, is_authenticated: bool) -> Result<(), &'static str> {
        // A peer without an address is on a Unix socket.
        let is_local =
            peer.is_none_or(|peer| ratekeeper_policy::address::canonical(peer.ip()).is_loopback());
        match (&self.token, is_authenticated) {
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(
                "NOPERM RATEKEEPER.RESET needs the admin_token of [server]; send it first, as AUTH <admin_token>",
            ),
            (None, _) if is_local => Ok(()),
            (None, _) => Err(
                "NOPERM RATEKEEPER.RESET is for peers on the same machine only, as there is no admin_token; set \
                              admin_token under [server] and send AUTH <admin_token>",
            ),
        }
    }
}

/// Resets the key of a policy that the command names, if the peer may, and adds that to the audit.
pub(super) async fn reset<C: Clock>(
    shared: &Shared<C>,
    peer: Option<SocketAddr>,
    is_authenticated: bool,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
) {
    let (name, key) = (
        arguments.get(1).unwrap_or_default(),
        arguments.get(2).unwrap_or_default(),
    );
    let mut entry = Entry {
        at_ms: shared.app.engine.store().now().as_unix_nanos() / 1_000_000,
        who: peer.map_or_else(
            || "unix".to_owned(),
            |peer| ratekeeper_policy::address::canonical(peer.ip()).to_string(),
        ),
        action: "reset".to_owned(),
        policy: Some(String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]).into_owned()),
        key: None,
        detail: Some("RATEKEEPER.RESET".to_owned()),
        outcome: AuditOutcome::Done,
    };
    let refused = |entry: &mut Entry, outcome: AuditOutcome, error: &str| {
        entry.outcome = outcome;
        entry.detail = Some(format!("RATEKEEPER.RESET: {error}"));
    };
    match shared.operators.check(peer, is_authenticated) {
        Err(error) => {
            reply.error(error);
            refused(&mut entry, AuditOutcome::Rejected, error);
        }
        Ok(()) => match reset_key(shared, name, key).await {
            Ok(key) => {
                reply.ok();
                entry.key = Some(if shared.operators.keys == KeyDisplay::Plain {
                    key.words
                } else {
                    key.fingerprint
                });
            }
            Err(Failure::ByName(error)) => {
                reply.error(format_args!("ERR policy '{}': {error}", QuotedBytes(name)));
                refused(&mut entry, AuditOutcome::Rejected, &error.to_string());
            }
            Err(Failure::Store(error)) => {
                reply.error(format_args!("ERR {error}"));
                refused(&mut entry, AuditOutcome::Failed, &error);
            }
        },
    }
    shared.app.audit.add(entry);
}

/// So many bytes of a name that a client sends are kept in the audit.
const MAX_NAME: usize = 128;

enum Failure {
    ByName(ByNameError),
    /// A sentence.
    Store(String),
}

async fn reset_key<C: Clock>(
    shared: &Shared<C>,
    name: &[u8],
    key: &[u8],
) -> Result<PolicyKey, Failure> {
    let engine = &shared.app.engine;
    let reachable = |then: &str| match engine.store() {
        AnyStore::Memory(_) => Ok(()),
        AnyStore::Redis(redis) => match redis.status().error {
            None => Ok(()),
            Some((_, trouble)) => Err(Failure::Store(format!(
                "{trouble}; {then}; try again when Redis answers"
            ))),
        },
    };
    reachable("nothing was reset")?;
    // A name that is no text is that of no policy.
    let policy = std::str::from_utf8(name).unwrap_or_default();
    let key = engine
        .reset_by(policy, key)
        .await
        .map_err(Failure::ByName)?;
    reachable("not all of it may be reset")?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_the_token_or_where_there_is_none_are_on_this_machine() {
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
            let may = |token, is_authenticated| operators(token).check(peer, is_authenticated);
            assert_eq!(may(None, false).is_ok(), at < 4, "{peer:?}");
            assert_eq!(
                may(None, false)
                    .err()
                    .is_some_and(|error| error.starts_with("NOPERM ")),
                at >= 4
            );
            assert_eq!(may(Some("0123456789abcdef"), true), Ok(()));
            assert!(
                may(Some("0123456789abcdef"), false)
                    .unwrap_err()
                    .starts_with("NOPERM ")
            );
        }
        let password = operators(Some("0123456789abcdef")).password().unwrap();
        assert!(password(b"0123456789abcdef") && !password(b"0123456789abcdeg") && !password(b""));
        assert!(operators(None).password().is_none());
    }
}
