//! Natural batching: what is asked while a call is under way goes with the next one.
//!
//! A lane has one connection and one call under way. Idle, it sends what comes at once; busy, it gathers. No timer decides.

use crate::health::Health;
use crate::link::Link;
use crate::script::amend::{self, Amendment};
use crate::script::decide::{self, Answer, Questions};
use crate::script::{Scripts, Unreadable};
use crate::trouble::Trouble;
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

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct Entrance {
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

impl Entrance {
    pub(crate) async fn decide(&self, questions: Questions, timeout: Duration) -> Result<Answer, Trouble> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Decide(questions, Some(sender)), timeout)?;
        receiver.await.unwrap_or(Err(Trouble::Broken))
    }

    pub(crate) async fn amend(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<Vec<Option<u64>>, Trouble> {
        self.amend_later(amendments, timeout)?.await.unwrap_or(Err(Trouble::Broken))
    }

    /// Hands it in; who does not care what comes of it need not wait.
    #[expect(clippy::type_complexity, reason = "what a channel is told by")]
    pub(crate) fn amend_later(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<oneshot::Receiver<Result<Vec<Option<u64>>, Trouble>>, Trouble> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Amend(amendments, Some(sender)), timeout)?;
        Ok(receiver)
    }

    fn hand_in(&self, work: Work, timeout: Duration) -> Result<(), Trouble> {
        let place = Place::take(&self.waiting, self.most_waiting).ok_or(Trouble::QueueFull)?;
        let (deadline, is_patient) = (Instant::now() + timeout, timeout >= self.timeout);
        self.jobs.send(Job { work, deadline, is_patient, _place: place }).map_err(|_| Trouble::Broken)?;
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
    ) -> (Entrance, Self) {
        let (jobs, incoming) = mpsc::unbounded_channel();
        let queue = Queue { incoming, waiting: VecDeque::new() };
        let alarm = Arc::new(Alarm { epoch: Instant::now(), at: AtomicU64::new(0), ring: Notify::new() });
        (
            Entrance { jobs, waiting: Arc::default(), most_waiting, alarm: Arc::clone(&alarm), timeout },
            Self { queue, alarm, link, unanswered: 0, scripts, health, time },
        )
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
        let Self { queue, alarm, link, unanswered, scripts, health, time } = self;
        let time = time.as_ref().map(|time| time.load(Relaxed));
        let questions = || {
            batch.iter().filter_map(|job| match &job.work {
                Work::Decide(questions, _) => Some(questions),
                Work::Amend(..) => None,
            })
        };
        let amendments = || {
            batch.iter().filter_map(|job| match &job.work {
                Work::Amend(amendments, _) => Some(amendments),
                Work::Decide(..) => None,
            })
        };
        let decide = questions().next().is_some().then(|| decide::encode(questions()));
        let amend = amendments().next().is_some().then(|| amend::encode(amendments().flatten()));
        let counted = questions().count() as u64;
        let link = &*link;
        let decided = async {
            match &decide {
                Some(call) => Some(link.run(call, &scripts.decide, time, true).await),
                None => None,
            }
        };
        // A refund that arrives twice gives too much.
        let again = amendments().flatten().all(Amendment::may_arrive_twice);
        let amended = async {
            match &amend {
                Some(call) => Some(link.run(call, &scripts.amend, time, again).await),
                None => None,
            }
        };
        // What goes back goes first, so that it can be taken.
        let both = async {
            let (amended, decided) = tokio::join!(biased; amended, decided);
            (decided, amended)
        };
        let ended = until_nobody_waits(both, batch, queue, alarm).await;
        alarm.set(None);
        let (decided, amended) = match ended {
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
        for result in [&decided, &amended].into_iter().flatten() {
            if matches!(result, Ok(_) | Err(Trouble::Refused { .. })) {
                health.counts.round_trips.fetch_add(1, Relaxed);
            }
            match result {
                Ok(_) => health.worked(),
                Err(trouble) => health.failed(trouble),
            }
        }
        if matches!(decided, Some(Ok(_))) {
            health.counts.decisions.fetch_add(counted, Relaxed);
        }
        tell_decided(decided, batch, health);
        tell_amended(amended, batch);
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

fn tell_decided(result: Option<Result<Value, Trouble>>, batch: &mut [Job], health: &Health) {
    let Some(result) = result else { return };
    let mut asked: Vec<_> = batch
        .iter_mut()
        .filter_map(|job| match &mut job.work {
            Work::Decide(questions, told) => Some((&*questions, told)),
            Work::Amend(..) => None,
        })
        .collect();
    match result
        .and_then(|reply| decide::decode(asked.iter().map(|(questions, _)| *questions), reply).map_err(unreadable))
    {
        Ok(answers) => {
            for ((_, told), answer) in asked.iter_mut().zip(answers) {
                tell(told, Ok(answer));
            }
        }
        Err(trouble) => {
            if matches!(trouble, Trouble::Protocol(_)) {
                health.failed(&trouble);
            }
            for (_, told) in asked {
                tell(told, Err(trouble.clone()));
            }
        }
    }
}

fn tell_amended(result: Option<Result<Value, Trouble>>, batch: &mut [Job]) {
    let Some(result) = result else { return };
    let came = result.and_then(|reply| amend::decode(reply).map_err(unreadable));
    let mut at = 0;
    for job in batch {
        if let Work::Amend(amendments, told) = &mut job.work {
            let from = at;
            at += amendments.len();
            let own = came.clone().map(|came| came.get(from..at).unwrap_or_default().to_vec());
            tell(told, own);
        }
    }
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
    fn is_waiting(&self) -> bool {
        match &self.work {
            Work::Decide(_, told) => told.as_ref().is_some_and(|told| !told.is_closed()),
            // Nobody needs to wait for it; it is done all the same.
            Work::Amend(_, told) => told.is_some(),
        }
    }

    fn fail(&mut self, trouble: &Trouble) {
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
