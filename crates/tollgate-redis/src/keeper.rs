//! What goes on beside the decisions: this node says that it is alive, renews its permits, and looks whether a server that was
//! in trouble is well again.

use crate::link::{Link, Server};
use crate::script::PERMIT_LIVES;
use crate::script::amend::{Amend, Amendment};
use crate::secret::Known;
use crate::store::Inner;
use crate::trouble::Trouble;
use redis::Value;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_secs(1);
/// A node that has not said so for this long, in microseconds, is not alive.
const ALIVE: u64 = 5_000_000;
const RENEWAL: Duration = Duration::from_secs(3);
/// How long a beat may take: longer than a decision, short enough to find a server within two seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at a server that is in trouble.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(1);
/// So many amendments go in one piece.
const PIECE: usize = 64;

pub(crate) struct Keeper {
    inner: Weak<Inner>,
    link: Link,
    node: u64,
    prefix: Box<str>,
    renewed: Instant,
    /// Whether it was told that a key of the fleet is spoilt.
    spoilt: AtomicBool,
}

impl Keeper {
    pub(crate) fn new(inner: &Arc<Inner>, server: Arc<Server>, node: u64, prefix: &str) -> Self {
        let (inner, link) = (Arc::downgrade(inner), Link::new(server));
        Self { inner, link, node, prefix: prefix.into(), renewed: Instant::now(), spoilt: AtomicBool::new(false) }
    }

    /// Runs until the store is gone.
    pub(crate) async fn run(mut self) {
        let mut pause = SOONEST;
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            let health = Arc::clone(&inner.health);
            let open = health.is_open();
            let wait = if open { pause.mul_f64(0.5 + fastrand::f64() / 2.0) } else { BEAT };
            pause = if open { (pause * 2).min(LATEST) } else { SOONEST };
            let gone = Arc::clone(&inner.gone);
            drop(inner);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = health.opened() => {}
                () = gone.notified() => return,
            }
            if !open && health.is_open() {
                // It has just opened: the first look comes after a pause.
                continue;
            }
            let Some(inner) = self.inner.upgrade() else { return };
            if health.is_open() {
                // Whatever was wrong may be with the connection.
                self.link.cut();
            }
            match self.beat(&inner).await {
                Ok(()) => {
                    if health.is_open() || !health.is_well() {
                        health.well_again();
                    }
                    if inner.fallback.is_in_use() {
                        self.debit(&inner);
                    }
                    self.renew(&inner);
                }
                Err(trouble) => {
                    self.link.cut();
                    health.failed(&trouble);
                }
            }
        }
    }

    /// Says that this node is alive, learns who else is, and agrees on the secret.
    pub(crate) async fn beat(&self, inner: &Inner) -> Result<(), Trouble> {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("script/alive.lua")).arg(2);
        command.arg(format!("{}:nodes", self.prefix)).arg(format!("{}:secret", self.prefix));
        command.arg(format!("{:016x}", self.node)).arg(ALIVE).arg(inner.secret.offer());
        let answer = match tokio::time::timeout(PATIENCE, self.link.send(&command)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(Trouble::TimedOut),
        };
        let Value::Array(answer) = answer else { return Err(Trouble::Protocol("no list".to_owned())) };
        let [Value::Int(nodes), Value::BulkString(secret)] = &answer[..] else {
            return Err(Trouble::Protocol("not two values".to_owned()));
        };
        let mut spoilt = None;
        match inner.secret.seen(secret) {
            Known::Same => {}
            Known::Differs(why) => tracing::warn!(target: "tollgate::redis", "{why}"),
            Known::Spoilt => spoilt = Some("secret"),
        }
        match u64::try_from(*nodes) {
            Ok(nodes) => {
                if inner.fallback.set_nodes(nodes) {
                    inner.limits.all().iter().for_each(|limit| inner.fallback.set(limit));
                }
            }
            Err(_) => spoilt = Some("nodes"),
        }
        self.tell_spoilt(inner, spoilt)
    }

    /// A key of the fleet itself holds what is not ours. What is known goes on: decisions do not need that key.
    fn tell_spoilt(&self, inner: &Inner, spoilt: Option<&str>) -> Result<(), Trouble> {
        let was_told = self.spoilt.swap(spoilt.is_some(), Relaxed);
        let Some(key) = spoilt else { return Ok(()) };
        let trouble = Trouble::BadKey(format!("{}:{key}", self.prefix));
        if !was_told {
            inner.health.count(&trouble);
            tracing::warn!(target: "tollgate::redis", "{trouble}");
        }
        if inner.secret.get().is_some() { Ok(()) } else { Err(trouble) }
    }

    /// Which version it is; none if it does not say.
    pub(crate) async fn version(&self) -> Result<Option<(u64, u64)>, Trouble> {
        let mut command = redis::cmd("INFO");
        command.arg("server");
        let text = match tokio::time::timeout(PATIENCE, self.link.send(&command)).await {
            Ok(Ok(Value::BulkString(text))) => text,
            Ok(Err(trouble @ Trouble::Unreachable(_))) => return Err(trouble),
            Err(_) => return Err(Trouble::TimedOut),
            Ok(_) => return Ok(None),
        };
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let mut numbers =
            line.into_iter().flat_map(|line| line.trim().split('.')).map_while(|number| number.parse().ok());
        Ok(numbers.next().zip(numbers.next()))
    }

    /// Charges what was spent here while the server was away.
    fn debit(&self, inner: &Inner) {
        let limits = inner.limits.all();
        let spent = inner.fallback.over(&limits);
        let Some(secret) = inner.secret.get().filter(|_| !spent.is_empty()) else { return };
        let debits = spent.iter().filter_map(|spent| {
            let limit = limits.get(spent.limit as usize)?;
            let key = secret.name(&limit.stem, &spent.key);
            Some(Amendment { key, limit: limit.form, what: Amend::ChargeMore(spent.tokens) })
        });
        inner.health.counts.debited.fetch_add(spent.iter().map(|spent| spent.tokens).sum(), Relaxed);
        tracing::info!(target: "tollgate::redis", keys = spent.len(), "charged what was spent without Redis");
        send(inner, debits);
    }

    fn renew(&mut self, inner: &Inner) {
        if self.renewed.elapsed() < RENEWAL - BEAT / 2 {
            return;
        }
        self.renewed = Instant::now();
        send(inner, inner.permits.renewals(PERMIT_LIVES).into_iter());
    }
}

/// Hands amendments in, each where its key is asked about.
fn send(inner: &Inner, amendments: impl Iterator<Item = Amendment>) {
    let mut lanes: Vec<Vec<Amendment>> = vec![Vec::new(); inner.lanes.len()];
    for amendment in amendments {
        lanes[inner.lane_of(&amendment.key)].push(amendment);
    }
    for (lane, amendments) in inner.lanes.iter().zip(lanes) {
        for piece in amendments.chunks(PIECE) {
            // Nobody waits for it; if it is lost it was not counted for long.
            drop(lane.amend_later(piece.to_vec(), PATIENCE));
        }
    }
}
