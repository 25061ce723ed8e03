//! What goes on beside the decisions: verdicts that are held are renewed, and a service that was in trouble is looked at until
//! it is well again.

use crate::limits::Registered;
use crate::link::{Link, Server};
use crate::queue::{Limited, Work};
use crate::store::Inner;
use crate::trouble::Trouble;
use crate::wire::{Answer, Answers, Call, Job, VERDICTS_LIVE};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tollgate::Ask;

const BEAT: Duration = Duration::from_secs(1);
const RENEWAL: Duration = VERDICTS_LIVE.checked_div(3).unwrap();
/// How long a look may take: longer than a decision, short enough to find the service within two seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at a service that is in trouble.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(1);
/// So many keys are debited at a time.
const PIECE: usize = 128;

pub(crate) struct Keeper {
    inner: Weak<Inner>,
    link: Link,
    renewed: Instant,
}

impl Keeper {
    pub(crate) fn new(inner: &Arc<Inner>, server: Arc<Server>) -> Self {
        Self { inner: Arc::downgrade(inner), link: Link::new(server), renewed: Instant::now() }
    }

    /// Runs until the store is gone.
    pub(crate) async fn run(mut self) {
        let mut pause = SOONEST;
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            let health = Arc::clone(&inner.health);
            let open = health.is_open();
            // Clients that lost it together do not come back together.
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
            let declined = health.was_declined();
            if !health.is_well() || inner.fallback.is_in_use() && !declined {
                match self.look().await {
                    Ok(()) => {
                        health.well_again();
                        debit(&inner).await;
                    }
                    Err(trouble) => {
                        health.failed(&trouble);
                        continue;
                    }
                }
            }
            self.renew(&inner);
        }
    }

    /// Whether the service takes our calls.
    pub(crate) async fn look(&self) -> Result<(), Trouble> {
        let nothing = Call::begin([].into_iter());
        // Whatever was wrong may be with the connection.
        self.link.cut();
        let answer = match tokio::time::timeout(PATIENCE, self.link.call(nothing, true)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(Trouble::TimedOut),
        };
        match Answers::read(&answer) {
            Ok(answers) if answers.is_empty() => Ok(()),
            _ => Err(Trouble::Protocol("its answer cannot be read".to_owned())),
        }
    }

    fn renew(&mut self, inner: &Inner) {
        let is_due = self.renewed.elapsed() >= RENEWAL;
        for lane in &inner.lanes {
            let renewals = if is_due { lane.verdicts.renewals() } else { Vec::new() };
            for job in &renewals {
                // Nobody waits for it. If it is lost the next one comes in time.
                drop(lane.hand_in(Work::of(job, Limited::new()), PATIENCE));
            }
            if renewals.is_empty() && lane.verdicts.has_forgotten() {
                drop(lane.hand_in(Work::of(&Job::Renew(Vec::new()), Limited::new()), PATIENCE));
            }
        }
        if is_due {
            self.renewed = Instant::now();
        }
    }
}

/// Charges what was spent here while the service was away, as far as it is there.
async fn debit(inner: &Arc<Inner>) {
    let limits = inner.limits.all();
    let spent = inner.fallback.over(&limits);
    if spent.is_empty() {
        return;
    }
    let keys = spent.len();
    let mut spent = spent.into_iter();
    loop {
        let mut piece = tokio::task::JoinSet::new();
        for spent in spent.by_ref().take(PIECE) {
            let (Some(limit), inner) = (limits.get(spent.limit as usize).cloned(), Arc::clone(inner)) else { continue };
            piece.spawn(async move { debit_key(&inner, &limit, &spent.key, spent.tokens).await });
        }
        if piece.is_empty() {
            break;
        }
        while let Some(charged) = piece.join_next().await {
            inner.health.counts.debited.fetch_add(charged.unwrap_or(0), Relaxed);
        }
    }
    tracing::info!(target: "tollgate::remote", keys, "charged what was spent without tollgate");
}

/// How much was charged. What others have used meanwhile is not there any more.
async fn debit_key(inner: &Inner, limit: &Arc<Registered>, key: &[u8], tokens: u64) -> u64 {
    let limits = Limited::from_iter([Arc::clone(limit)]);
    let mut cost = tokens;
    // Once as much as was spent, once as much as is left.
    for _ in 0..2 {
        let ask = Ask::new(&limit.handle, key).cost(cost);
        let bytes = Job::decide(&[ask], None);
        let work = Work { bytes, limits: limits.clone(), decides: true, may_arrive_twice: true };
        let lane = &inner.lanes[inner.lane_of(&ask)];
        match lane.run(work, PATIENCE).await {
            Ok(Answer::Told(told)) => match told.decisions.first() {
                Some(decision) if decision.is_allowed() => return cost,
                Some(decision) => cost = cost.min(decision.remaining()),
                None => return 0,
            },
            _ => return 0,
        }
        if cost == 0 {
            return 0;
        }
    }
    0
}
