//! A primary with two replicas, and three sentinels that watch them.

use super::{RedisServer, until};
use std::thread;

/// How long a server may be silent before a sentinel considers it dead, in ms. Short, so that tests
/// are; long enough for a busy machine.
const DOWN_AFTER: u32 = 1_000;
/// How many sentinels must agree.
const QUORUM: u32 = 2;
/// The name of the primary.
const NAME: &str = "mymaster";

/// Three servers and three sentinels on 127.0.0.1. They end when the value is dropped.
#[derive(Debug)]
pub struct RedisSentinels {
    // The sentinels first: they would only promote others when the servers end.
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
    passwords: Option<(String, String)>,
}

impl RedisSentinels {
    /// Starts them and waits until every sentinel knows the others and both replicas.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or they do not find each other.
    pub fn start() -> Self {
        Self::with(None)
    }

    /// Starts them with passwords: of the servers, and of the sentinels.
    pub fn with_passwords(servers: &str, sentinels: &str) -> Self {
        Self::with(Some((servers.to_owned(), sentinels.to_owned())))
    }

    fn with(passwords: Option<(String, String)>) -> Self {
        let plain = || match &passwords {
            // A primary that becomes a replica needs it too.
            Some((password, _)) => RedisServer::builder()
                .password(password)
                .arg("masterauth", password),
            None => RedisServer::builder(),
        };
        let primary = plain().start();
        let replicas = [0, 1].map(|_| plain().replica_of(&primary).start());
        let start = |_| {
            let mut builder = RedisServer::builder().sentinel();
            builder = builder.arg(
                "sentinel monitor",
                &format!("{NAME} 127.0.0.1 {} {QUORUM}", primary.port),
            );
            builder = builder.arg(
                "sentinel down-after-milliseconds",
                &format!("{NAME} {DOWN_AFTER}"),
            );
            builder = builder.arg("sentinel failover-timeout", &format!("{NAME} 5000"));
            if let Some((of_servers, of_sentinels)) = &passwords {
                builder = builder.arg("sentinel auth-pass", &format!("{NAME} {of_servers}"));
                builder = builder.password(of_sentinels);
                builder = builder.arg("sentinel sentinel-pass", of_sentinels);
            }
            thread::spawn(move || builder.start())
        };
        let starting: Vec<_> = (0..3).map(start).collect();
        let sentinels = starting
            .into_iter()
            .map(|sentinel| sentinel.join().expect("a sentinel starts"))
            .collect();
        let servers = std::iter::once(primary).chain(replicas).collect();
        let all = Self {
            sentinels,
            servers,
            passwords,
        };
        all.await_all_known();
        all
    }

    fn await_all_known(&self) {
        until("every sentinel knows the others and the replicas", || {
            self.sentinels.iter().all(|sentinel| {
                let known = |what: &str| sentinel.command(&["SENTINEL", what, NAME]).items().len();
                known("sentinels") == 2 && known("replicas") == 2
            })
        });
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The servers; the first one starts as the primary.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The URL for clients: `redis+sentinel://127.0.0.1:PORT,…/mymaster`, with the password of the
    /// servers if there is one.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        let password = self
            .passwords
            .as_ref()
            .map(|(servers, _)| format!(":{servers}@"))
            .unwrap_or_default();
        format!("redis+sentinel://{password}{}/{NAME}", hosts.join(","))
    }

    /// Waits until a sentinel names another primary, and that one accepts writes; returns it.
    pub fn await_other_primary(&self, than: u16) -> &RedisServer {
        let mut found = None;
        until("there is another primary", || {
            let named = self.sentinels.iter().find_map(|sentinel| {
                let answer = sentinel
                    .try_command(&["SENTINEL", "get-master-addr-by-name", NAME])
                    .ok()?;
                answer
                    .items()
                    .get(1)?
                    .int()
                    .filter(|port| *port != i64::from(than))
            });
            found = self
                .servers
                .iter()
                .find(|server| Some(i64::from(server.port)) == named)
                .filter(|server| {
                    server
                        .try_command(&["SET", "probe", "1", "PX", "1"])
                        .is_ok_and(|answer| !answer.is_error())
                });
            found.is_some()
        });
        found.expect("until returns only once it is found")
    }
}
