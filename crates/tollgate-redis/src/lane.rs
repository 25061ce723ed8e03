//! Natural batching: what is asked while a call is under way goes with the next one.
//!
//! A lane has one connection and one call under way. Idle, it sends what comes at once; busy, it gathers. No timer decides.

use crate::cluster::Elsewhere;
use crate::health::Health;
use crate::link::{Link, Sent};
use crate::script::amend::{self, Amendment};
use crate::script::decide::{self, Answer, Questions};
use crate::script::{Scripts, Unreadable};
use crate::trouble::{Redirect, Trouble};
use redis::Value;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};

/// So many questions a call: enough to share what a call costs, few enough not to hold the server up.
const MOST_QUESTIONS: usize = 128;
/// After so many calls without an answer another connection is tried.
const UNANSWERED: u32 = 2;

/// Something to do, and until when somebody waits for it.
pub(crate) struct Job {
    work: Work,
    deadline: Instant,
    /// Whether the server is given all the time it may take, so that not to answer is its failure.
    is_patient: bool,
    /// In a Cluster, where all keys of it are; only what is in one slot can be one call.
    slot: u16,
    /// How often it was sent elsewhere.
    pub(crate) redirected: u8,
    /// Whether the server is about to get its keys, and has not all of them yet.
    pub(crate) asking: bool,
    /// Whether it goes in a call of its own: of keys that are on the way only what is about one of them is answered.
    alone: bool,
    _place: Place,
}

/// A place among those that wait.
struct Place(Arc<AtomicUsize>);

impl Place {
    /// None if all are taken.
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        (taken.fetch_add(1, Relaxed) < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// With whoever is to be told, until that has happened: what is under way comes back for all.
enum Work {
    Decide(Questions, Tell<Answer>),
    Amend(Vec<Amendment>, Tell<Vec<Option<u64>>>),
}

type Tell<T> = Option<oneshot::Sender<Result<T, Trouble>>>;
pub(crate) type Told<T> = oneshot::Receiver<Result<T, Trouble>>;

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct Door {
    jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// So many may wait. Beyond that the server is too slow for the load, and callers are told at once.
    most_waiting: usize,
    alarm: Arc<Alarm>,
    /// How long the server may take.
    timeout: Duration,
}

/// Until when a lane that is busy does not look at what was handed in. Who has less time than that wakes it.
struct Alarm {
    epoch: Instant,
    /// In nanoseconds since then; 0 while it looks anyway.
    at: AtomicU64,
    ring: Notify,
}

impl Alarm {
    fn set(&self, at: Option<Instant>) {
        self.at.store(at.map_or(0, |at| self.nanos(at)), Relaxed);
        // Either the lane sees the job after this, or who hands it in sees the time.
        fence(SeqCst);
    }

    fn ring_if_before(&self, deadline: Instant) {
        fence(SeqCst);
        if self.nanos(deadline) < self.at.load(Relaxed) {
            self.ring.notify_one();
        }
    }

    fn nanos(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Door {
    pub(crate) fn decide(&self, questions: Questions, slot: u16, timeout: Duration) -> Result<Told<Answer>, Trouble> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Decide(questions, Some(sender)), slot, timeout)?;
        Ok(receiver)
    }

    /// Hands it in; who does not care what comes of it need not wait.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        slot: u16,
        timeout: Duration,
    ) -> Result<Told<Vec<Option<u64>>>, Trouble> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Amend(amendments, Some(sender)), slot, timeout)?;
        Ok(receiver)
    }

    fn hand_in(&self, work: Work, slot: u16, timeout: Duration) -> Result<(), Trouble> {
        let place = Place::take(&self.waiting, self.most_waiting).ok_or(Trouble::QueueFull)?;
        let (deadline, is_patient) = (Instant::now() + timeout, timeout >= self.timeout);
        let job = Job { work, deadline, is_patient, slot, redirected: 0, asking: false, alone: false, _place: place };
        self.take_over(job)
    }

    /// Takes what was handed in elsewhere, and keeps its deadline.
    pub(crate) fn take_over(&self, job: Job) -> Result<(), Trouble> {
        let deadline = job.deadline;
        self.jobs.send(job).map_err(|_| Trouble::Broken)?;
        self.alarm.ring_if_before(deadline);
        Ok(())
    }
}

pub(crate) struct Lane {
    queue: Queue,
    alarm: Arc<Alarm>,
    link: Link,
    /// So many calls in a row were not answered on this connection.
    unanswered: u32,
    scripts: Arc<Scripts>,
    health: Arc<Health>,
    /// For tests: the time the scripts go by.
    time: Option<Arc<AtomicU64>>,
    /// In a Cluster: where to go with what the server does not have.
    elsewhere: Option<Elsewhere>,
}

/// What waits, oldest first.
struct Queue {
    incoming: mpsc::UnboundedReceiver<Job>,
    waiting: VecDeque<Job>,
}

impl Lane {
    pub(crate) fn new(
        link: Link,
        scripts: Arc<Scripts>,
        health: Arc<Health>,
        timeout: Duration,
        most_waiting: usize,
        time: Option<Arc<AtomicU64>>,
        elsewhere: Option<Elsewhere>,
    ) -> (Door, Self) {
        let (jobs, incoming) = mpsc::unbounded_channel();
        let queue = Queue { incoming, waiting: VecDeque::new() };
        let alarm = Arc::new(Alarm { epoch: Instant::now(), at: AtomicU64::new(0), ring: Notify::new() });
        (
            Door { jobs, waiting: Arc::default(), most_waiting, alarm: Arc::clone(&alarm), timeout },
            Self { queue, alarm, link, unanswered: 0, scripts, health, time, elsewhere },
        )
    }

    /// Runs until nobody can hand in anything any more.
    pub(crate) async fn run(mut self) {
        let mut era = self.health.era();
        while let Some(batch) = self.queue.next().await {
            if self.health.era() != era {
                era = self.health.era();
                self.link.cut();
            }
            self.exchange(batch).await;
        }
    }

    /// Sends a batch and tells everyone what came of it.
    async fn exchange(&mut self, mut batch: Vec<Job>) {
        let Self { queue, alarm, link, unanswered, scripts, health, time, elsewhere } = self;
        let pieces = pieces(&batch);
        let calls: Vec<Sent<'_>> = pieces.iter().map(|piece| piece.call(&batch, scripts)).collect();
        let asking = link.run(&calls, time.as_ref().map(|time| time.load(Relaxed)));
        let ended = until_nobody_waits(asking, &mut batch, queue, alarm).await;
        alarm.set(None);
        let answers = match ended {
            Ok(answers) => answers,
            Err(GivenUp { is_patient }) => {
                if is_patient {
                    health.failed(&Trouble::TimedOut);
                    *unanswered += 1;
                }
                // The server may be well, and the connection forgotten by something on the way.
                if *unanswered >= UNANSWERED {
                    *unanswered = 0;
                    link.cut();
                }
                return;
            }
        };
        *unanswered = 0;
        let mut batch: Vec<Option<Job>> = batch.into_iter().map(Some).collect();
        let mut failed = None;
        for (piece, answer) in pieces.into_iter().zip(answers) {
            if matches!(answer, Ok(_) | Err(Trouble::Refused { .. })) {
                health.counts.round_trips.fetch_add(1, Relaxed);
            }
            let redirect = answer.as_ref().err().and_then(Trouble::redirect);
            if let (Some(redirect), Some(elsewhere)) = (redirect, &*elsewhere) {
                let alone = redirect == Redirect::Later && piece.jobs.len() > 1;
                for mut job in piece.jobs.into_iter().filter_map(|at| batch[at].take()).filter(Job::is_waiting) {
                    job.alone = alone || job.alone;
                    elsewhere.send(job, redirect, alone);
                }
                continue;
            }
            let jobs = piece.jobs.iter().filter_map(|at| batch[*at].take()).collect();
            let came = if piece.decides { tell_decided(answer, jobs) } else { tell_amended(answer, jobs) };
            failed = failed.or(came.err());
        }
        match failed {
            Some(trouble) => health.failed(&trouble),
            None => health.worked(),
        }
    }
}

/// What goes in one call: jobs of a batch.
struct Piece {
    decides: bool,
    slot: u16,
    asking: bool,
    alone: bool,
    jobs: Vec<usize>,
}

/// A batch in as few calls as can be. What goes back goes first, so that it can be taken.
fn pieces(batch: &[Job]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for decides in [false, true] {
        for (at, job) in batch.iter().enumerate().filter(|(_, job)| job.decides() == decides) {
            let Job { slot, asking, alone, .. } = *job;
            let same = |piece: &&mut Piece| {
                (piece.decides, piece.slot, piece.asking) == (decides, slot, asking) && !piece.alone && !alone
            };
            match pieces.iter_mut().find(same) {
                Some(piece) => piece.jobs.push(at),
                None => pieces.push(Piece { decides, slot, asking, alone, jobs: vec![at] }),
            }
        }
    }
    pieces
}

impl Piece {
    fn call<'s>(&self, batch: &[Job], scripts: &'s Scripts) -> Sent<'s> {
        let jobs = || self.jobs.iter().map(|at| &batch[*at].work);
        let asking = self.asking;
        if self.decides {
            let questions = jobs().filter_map(|work| match work {
                Work::Decide(questions, _) => Some(questions),
                Work::Amend(..) => None,
            });
            return Sent { call: decide::encode(questions), script: &scripts.decide, again: true, asking };
        }
        let amendments = || {
            let all = jobs().filter_map(|work| match work {
                Work::Amend(amendments, _) => Some(amendments),
                Work::Decide(..) => None,
            });
            all.flatten()
        };
        // A refund that arrives twice gives too much.
        let again = amendments().all(Amendment::may_arrive_twice);
        Sent { call: amend::encode(amendments()), script: &scripts.amend, again, asking }
    }
}

/// Nobody in a batch waits any more. `is_patient`: somebody did as long as the server may take.
struct GivenUp {
    is_patient: bool,
}

/// Waits for the server as long as anybody in the batch does.
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
            job.fail(&Trouble::TimedOut);
        }
        for job in queue.waiting.iter_mut().filter(|job| job.deadline <= now) {
            job.fail(&Trouble::TimedOut);
        }
        queue.waiting.retain(Job::is_waiting);
    }
    Err(GivenUp { is_patient })
}

fn tell_decided(answer: Result<Value, Trouble>, mut jobs: Vec<Job>) -> Result<(), Trouble> {
    let mut asked: Vec<_> = jobs
        .iter_mut()
        .filter_map(|job| match &mut job.work {
            Work::Decide(questions, told) => Some((&*questions, told)),
            Work::Amend(..) => None,
        })
        .collect();
    let questions = asked.iter().map(|(questions, _)| *questions);
    match answer.and_then(|reply| decide::decode(questions, reply).map_err(unreadable)) {
        Ok(answers) => {
            for ((_, told), answer) in asked.iter_mut().zip(answers) {
                tell(told, Ok(answer));
            }
            Ok(())
        }
        Err(trouble) => {
            for (_, told) in asked {
                tell(told, Err(trouble.clone()));
            }
            Err(trouble)
        }
    }
}

fn tell_amended(answer: Result<Value, Trouble>, mut jobs: Vec<Job>) -> Result<(), Trouble> {
    let came = answer.and_then(|reply| amend::decode(reply).map_err(unreadable));
    let mut at = 0;
    for job in &mut jobs {
        if let Work::Amend(amendments, told) = &mut job.work {
            let from = at;
            at += amendments.len();
            let own = came.as_ref().map(|came| came.get(from..at).unwrap_or_default().to_vec());
            tell(told, own.map_err(Trouble::clone));
        }
    }
    came.map(drop)
}

/// Tells it, if that has not happened. Who does not listen any more has gone elsewhere.
fn tell<T>(to: &mut Tell<T>, what: Result<T, Trouble>) {
    if let Some(to) = to.take() {
        drop(to.send(what));
    }
}

fn unreadable(_: Unreadable) -> Trouble {
    Trouble::Protocol("its answer to our script is not ours".to_owned())
}

impl Job {
    fn decides(&self) -> bool {
        matches!(self.work, Work::Decide(..))
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn is_late(&self) -> bool {
        self.deadline <= Instant::now()
    }

    fn is_waiting(&self) -> bool {
        match &self.work {
            Work::Decide(_, told) => told.as_ref().is_some_and(|told| !told.is_closed()),
            // Nobody needs to wait for it; it is done all the same.
            Work::Amend(_, told) => told.is_some(),
        }
    }

    pub(crate) fn fail(&mut self, trouble: &Trouble) {
        match &mut self.work {
            Work::Decide(_, told) => tell(told, Err(trouble.clone())),
            Work::Amend(_, told) => tell(told, Err(trouble.clone())),
        }
    }

    fn size(&self) -> usize {
        match &self.work {
            Work::Decide(questions, _) => questions.len(),
            Work::Amend(amendments, _) => amendments.len(),
        }
    }
}

impl Queue {
    /// Everything that was handed in, so that it can be looked through; the earliest deadline among it.
    fn take_in(&mut self) -> Option<Instant> {
        let mut earliest = None;
        while let Ok(job) = self.incoming.try_recv() {
            earliest = Some(earliest.map_or(job.deadline, |earliest: Instant| earliest.min(job.deadline)));
            self.waiting.push_back(job);
        }
        earliest
    }

    /// The next batch: whatever is there, up to so many questions, and at least one job. None once all who could hand in
    /// are gone.
    async fn next(&mut self) -> Option<Vec<Job>> {
        self.take_in();
        self.waiting.retain(Job::is_waiting);
        if self.waiting.is_empty() {
            self.waiting.push_back(self.incoming.recv().await?);
            self.take_in();
        }
        let mut size = 0;
        let fits = |job: &&Job| {
            size += job.size();
            size <= MOST_QUESTIONS
        };
        let jobs = self.waiting.iter().take_while(fits).count().max(1);
        Some(self.waiting.drain(..jobs).collect())
    }
}
