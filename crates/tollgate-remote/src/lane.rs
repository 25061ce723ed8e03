//! Natural batching: what is asked while a call is under way goes with the next one.
//!
//! A lane has one connection and one call under way. Idle, it sends what comes at once; busy, it gathers. No timer decides.

use crate::health::Health;
use crate::limits::Registered;
use crate::link::Link;
use crate::queue::{Alarm, Entrance, Job, Queue};
use crate::trouble::Trouble;
use crate::verdicts::Verdicts;
use crate::wire::{self, Answer, Answers, Call, Name};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub(crate) struct Lane {
    queue: Queue,
    alarm: Arc<Alarm>,
    link: Link,
    health: Arc<Health>,
    verdicts: Arc<Verdicts>,
}

impl Lane {
    pub(crate) fn new(link: Link, health: Arc<Health>, timeout: Duration, most_waiting: usize) -> (Entrance, Self) {
        let verdicts = Arc::new(Verdicts::new());
        let (entrance, queue, alarm) = Entrance::new(timeout, most_waiting, Arc::clone(&verdicts));
        (entrance, Self { queue, alarm, link, health, verdicts })
    }

    /// Runs until nobody can hand in anything any more.
    pub(crate) async fn run(mut self) {
        let mut era = self.health.era();
        while let Some(mut batch) = self.queue.next().await {
            if self.health.era() != era {
                era = self.health.era();
                self.link.cut();
            }
            self.exchange(&mut batch).await;
        }
    }

    /// Sends a batch and tells everyone what came of it.
    async fn exchange(&mut self, batch: &mut [Job]) {
        let Self { queue, alarm, link, health, verdicts } = self;
        // What goes back goes first, so that it can be taken.
        batch.sort_by_key(|job| job.work.decides);
        let decisions = batch.iter().filter(|job| job.work.decides).count() as u64;
        // A refund that arrives twice gives too much.
        let again = batch.iter().all(|job| job.work.may_arrive_twice);
        let forgotten = verdicts.take_forgotten();
        let asking = link.call(encode(&forgotten, batch), again);
        let ended = until_nobody_waits(asking, batch, queue, alarm).await;
        alarm.set(None);
        let answer = match ended {
            Ok(answer) => answer,
            Err(GivenUp { is_patient }) => {
                verdicts.put_back(forgotten);
                if is_patient {
                    health.failed(&Trouble::TimedOut);
                }
                return;
            }
        };
        match answer.and_then(|answer| decode(&answer, batch.len())) {
            Ok(answers) => {
                health.counts.round_trips.fetch_add(1, Relaxed);
                health.counts.decisions.fetch_add(decisions, Relaxed);
                health.worked();
                for (job, answer) in batch.iter_mut().zip(answers) {
                    job.tell(match answer {
                        Answer::Refused(refusal) => Err(Trouble::Declined(refusal)),
                        answer => Ok(answer),
                    });
                }
            }
            Err(trouble) => {
                verdicts.put_back(forgotten);
                health.failed(&trouble);
                batch.iter_mut().for_each(|job| job.tell(Err(trouble.clone())));
            }
        }
    }
}

/// What is given up, then the jobs.
fn encode(forgotten: &[Name], batch: &[Job]) -> Vec<u8> {
    // Of two that say different things the later one holds.
    let mut limits: BTreeMap<u64, &Arc<Registered>> = BTreeMap::new();
    for limit in batch.iter().flat_map(|job| &job.work.limits) {
        let known = limits.entry(limit.handle.number()).or_insert(limit);
        if known.line().since < limit.line().since {
            *known = limit;
        }
    }
    let mut call = Call::begin(limits.values().map(|limit| limit.line()));
    wire::Job::GiveUp(forgotten.to_vec()).write(&mut call);
    batch.iter().for_each(|job| call.extend_from_slice(&job.work.bytes));
    call
}

fn decode(answer: &Bytes, jobs: usize) -> Result<Vec<Answer>, Trouble> {
    match Answers::read(answer) {
        // The first is about what is given up.
        Ok(mut answers) if answers.len() == jobs + 1 => Ok(answers.split_off(1)),
        _ => Err(Trouble::Protocol("its answer cannot be read".to_owned())),
    }
}

/// Nobody in a batch waits any more. `is_patient`: somebody did as long as the service may take.
struct GivenUp {
    is_patient: bool,
}

/// Waits for the service as long as anybody in the batch does.
async fn until_nobody_waits<T>(
    asking: impl Future<Output = T>,
    batch: &mut [Job],
    queue: &mut Queue,
    alarm: &Alarm,
) -> Result<T, GivenUp> {
    let mut asking = pin!(asking);
    let mut is_patient = false;
    while batch.iter().any(Job::is_waiting) {
        let waiting = batch.iter().chain(&queue.waiting).filter(|job| job.is_waiting());
        let mut next = waiting.map(|job| job.deadline).min().unwrap_or_else(Instant::now);
        alarm.set(Some(next));
        while let Some(earlier) = queue.take_in().filter(|deadline| *deadline < next) {
            next = earlier;
            alarm.set(Some(next));
        }
        tokio::select! {
            biased;
            answer = &mut asking => return Ok(answer),
            () = tokio::time::sleep_until(next.into()) => {}
            () = alarm.ring.notified() => continue,
        }
        queue.take_in();
        let now = Instant::now();
        for job in batch.iter_mut().filter(|job| job.deadline <= now && job.is_waiting()) {
            is_patient |= job.is_patient;
            job.tell(Err(Trouble::TimedOut));
        }
        for job in queue.waiting.iter_mut().filter(|job| job.deadline <= now) {
            job.tell(Err(Trouble::TimedOut));
        }
        queue.waiting.retain(Job::is_waiting);
    }
    Err(GivenUp { is_patient })
}
