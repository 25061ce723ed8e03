//! Natural batching: what is asked while a call is under way goes with the next one.
//!
//! A lane has one connection and one call under way. Idle, it sends what comes at once; busy, it
//! gathers. No timer decides.

use crate::cluster::ClusterRouter;
use crate::health::Health;
use crate::reconnecting::{ReconnectingConnection, ScriptRequest};
use crate::script::Scripts;
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, Questions};
use crate::script_call::{pieces, tell, tell_amended, tell_decided};
use crate::store_error::{Redirect, StoreError};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};

/// So many questions a call: enough to share what a call costs, few enough not to hold the server
/// up.
const MOST_QUESTIONS: usize = 128;
/// After so many calls without an answer another connection is tried.
const UNANSWERED: u32 = 2;

/// Something to do, and until when somebody waits for it.
pub(crate) struct Job {
    pub(crate) work: Work,
    deadline: Instant,
    /// Whether the server is given all the time it may take, so that not to answer is its failure.
    is_patient: bool,
    /// In a Cluster, where all keys of it are; only what is in one slot can be one call.
    pub(crate) slot: u16,
    /// How often it was sent elsewhere.
    pub(crate) redirected: u8,
    /// Whether the server is about to get its keys, and has not all of them yet.
    pub(crate) asking: bool,
    /// Whether it goes in a call of its own: of keys that are on the way only what is about one of
    /// them is answered.
    pub(crate) alone: bool,
    /// Whether nobody has asked for it: it is not counted.
    is_probe: bool,
    _place: QueueSlot,
}

/// A place among those that wait.
struct QueueSlot(Arc<AtomicUsize>);

impl QueueSlot {
    /// None if all are taken.
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        (taken.fetch_add(1, Relaxed) < most).then_some(place)
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// With whoever is to be told, until that has happened: what is under way comes back for all.
pub(crate) enum Work {
    Decide(Questions, ReplySender<Answer>),
    Amend(Vec<Amendment>, ReplySender<Vec<Option<u64>>>),
}

pub(crate) type ReplySender<T> = Option<oneshot::Sender<Result<T, StoreError>>>;
pub(crate) type ReplyReceiver<T> = oneshot::Receiver<Result<T, StoreError>>;

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct BatchHandle {
    jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// So many may wait. Beyond that the server is too slow for the load, and callers are told at
    /// once.
    most_waiting: usize,
    alarm: Arc<DeadlineAlarm>,
    /// How long the server may take.
    timeout: Duration,
}

/// Until when a lane that is busy does not look at what was handed in. Who has less time than that
/// wakes it.
struct DeadlineAlarm {
    epoch: Instant,
    /// In nanoseconds since then; 0 while it looks anyway.
    at: AtomicU64,
    ring: Notify,
}

impl DeadlineAlarm {
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

impl BatchHandle {
    pub(crate) fn decide(
        &self,
        questions: Questions,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Answer>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Decide(questions, Some(sender)), slot, timeout, false)?;
        Ok(receiver)
    }

    /// The same for a [probe](crate::probe), which notes itself what it comes to.
    pub(crate) fn probe(
        &self,
        questions: Questions,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Answer>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Decide(questions, Some(sender)), slot, timeout, true)?;
        Ok(receiver)
    }

    /// The same for an amendment.
    pub(crate) fn probe_amendment(
        &self,
        amendment: Amendment,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Vec<Option<u64>>>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(
            Work::Amend(vec![amendment], Some(sender)),
            slot,
            timeout,
            true,
        )?;
        Ok(receiver)
    }

    /// Hands it in; who does not care what comes of it need not wait.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Vec<Option<u64>>>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.hand_in(Work::Amend(amendments, Some(sender)), slot, timeout, false)?;
        Ok(receiver)
    }

    fn hand_in(
        &self,
        work: Work,
        slot: u16,
        timeout: Duration,
        is_probe: bool,
    ) -> Result<(), StoreError> {
        let place =
            QueueSlot::take(&self.waiting, self.most_waiting).ok_or(StoreError::QueueFull)?;
        let (deadline, is_patient) = (
            Instant::now() + timeout,
            is_probe || timeout >= self.timeout,
        );
        let (redirected, asking, alone) = (0, false, false);
        self.take_over(Job {
            work,
            deadline,
            is_patient,
            slot,
            redirected,
            asking,
            alone,
            is_probe,
            _place: place,
        })
    }

    /// Takes what was handed in elsewhere, and keeps its deadline.
    pub(crate) fn take_over(&self, job: Job) -> Result<(), StoreError> {
        let deadline = job.deadline;
        self.jobs.send(job).map_err(|_| StoreError::Broken)?;
        self.alarm.ring_if_before(deadline);
        Ok(())
    }
}

pub(crate) struct BatchedConnection {
    queue: Queue,
    alarm: Arc<DeadlineAlarm>,
    link: ReconnectingConnection,
    /// So many calls in a row were not answered on this connection.
    unanswered: u32,
    scripts: Arc<Scripts>,
    health: Arc<Health>,
    /// For tests: the time the scripts go by.
    time: Option<Arc<AtomicU64>>,
    /// In a Cluster: where to go with what the server does not have.
    elsewhere: Option<ClusterRouter>,
}

/// What waits, oldest first.
struct Queue {
    incoming: mpsc::UnboundedReceiver<Job>,
    waiting: VecDeque<Job>,
}

impl BatchedConnection {
    pub(crate) fn new(
        link: ReconnectingConnection,
        scripts: Arc<Scripts>,
        health: Arc<Health>,
        timeout: Duration,
        most_waiting: usize,
        time: Option<Arc<AtomicU64>>,
        elsewhere: Option<ClusterRouter>,
    ) -> (BatchHandle, Self) {
        let (jobs, incoming) = mpsc::unbounded_channel();
        let queue = Queue {
            incoming,
            waiting: VecDeque::new(),
        };
        let alarm = Arc::new(DeadlineAlarm {
            epoch: Instant::now(),
            at: AtomicU64::new(0),
            ring: Notify::new(),
        });
        (
            BatchHandle {
                jobs,
                waiting: Arc::default(),
                most_waiting,
                alarm: Arc::clone(&alarm),
                timeout,
            },
            Self {
                queue,
                alarm,
                link,
                unanswered: 0,
                scripts,
                health,
                time,
                elsewhere,
            },
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
        let Self {
            queue,
            alarm,
            link,
            unanswered,
            scripts,
            health,
            time,
            elsewhere,
        } = self;
        let pieces = pieces(&batch);
        let calls: Vec<ScriptRequest<'_>> = pieces
            .iter()
            .map(|piece| piece.call(&batch, scripts))
            .collect();
        let asking = link.run(&calls, time.as_ref().map(|time| time.load(Relaxed)));
        let ended = until_nobody_waits(asking, &mut batch, queue, alarm).await;
        alarm.set(None);
        let answers = match ended {
            Ok(answers) => answers,
            Err(BatchAbandoned {
                is_patient,
                is_unanswered,
            }) => {
                if is_patient {
                    health.failed(&StoreError::TimedOut);
                }
                *unanswered += u32::from(is_unanswered);
                // The server may be well, and the connection forgotten by something on the way.
                if *unanswered >= UNANSWERED {
                    *unanswered = 0;
                    link.cut();
                }
                return;
            }
        };
        *unanswered = 0;
        let (mut failed, mut counts, mut redirected) = (None, false, Vec::new());
        for (piece, answer) in pieces.into_iter().zip(answers) {
            let is_asked_for = piece.jobs.iter().any(|at| !batch[*at].is_probe);
            if is_asked_for && matches!(answer, Ok(_) | Err(StoreError::Refused { .. })) {
                health.counts.round_trips.fetch_add(1, Relaxed);
            }
            if elsewhere.is_some()
                && answer
                    .as_ref()
                    .is_err_and(|trouble| trouble.redirect().is_some())
            {
                redirected.push((piece, answer));
                continue;
            }
            let jobs = piece.jobs_of(&mut batch);
            let came = if piece.decides {
                tell_decided(answer, jobs)
            } else {
                tell_amended(answer, jobs)
            };
            if is_asked_for {
                counts = true;
                failed = failed.or(came.err());
            }
        }
        match failed {
            Some(trouble) => health.failed(&trouble),
            None if counts => health.worked(),
            None => {}
        }
        let (false, Some(elsewhere)) = (redirected.is_empty(), elsewhere) else {
            return;
        };
        let mut batch: Vec<Option<Job>> = batch.into_iter().map(Some).collect();
        for (piece, answer) in &redirected {
            let Some(redirect) = answer.as_ref().err().and_then(StoreError::redirect) else {
                continue;
            };
            let alone = redirect == Redirect::Later && piece.jobs.len() > 1;
            for mut job in piece
                .jobs
                .iter()
                .filter_map(|at| batch[*at].take())
                .filter(Job::is_waiting)
            {
                job.alone = alone || job.alone;
                elsewhere.send(job, redirect, alone);
            }
        }
    }
}

/// Nobody in a batch waits any more.
struct BatchAbandoned {
    /// Somebody did as long as the server may take.
    is_patient: bool,
    /// Somebody did long enough to doubt the connection.
    is_unanswered: bool,
}

/// Waits for the server as long as anybody in the batch does.
async fn until_nobody_waits<T>(
    asking: impl Future<Output = T>,
    batch: &mut [Job],
    queue: &mut Queue,
    alarm: &DeadlineAlarm,
) -> Result<T, BatchAbandoned> {
    let mut asking = pin!(asking);
    let (mut is_patient, mut is_unanswered) = (false, false);
    while batch.iter().any(Job::is_waiting) {
        let waiting = batch
            .iter()
            .chain(&queue.waiting)
            .filter(|job| job.is_waiting());
        let mut next = waiting
            .map(|job| job.deadline)
            .min()
            .unwrap_or_else(Instant::now);
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
        for job in batch
            .iter_mut()
            .filter(|job| job.deadline <= now && job.is_waiting())
        {
            is_patient |= job.is_patient && !job.is_probe;
            is_unanswered |= job.is_patient;
            job.fail(&StoreError::TimedOut);
        }
        for job in queue.waiting.iter_mut().filter(|job| job.deadline <= now) {
            job.fail(&StoreError::TimedOut);
        }
        queue.waiting.retain(Job::is_waiting);
    }
    Err(BatchAbandoned {
        is_patient,
        is_unanswered,
    })
}

impl Job {
    pub(crate) fn decides(&self) -> bool {
        matches!(self.work, Work::Decide(..))
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

    pub(crate) fn fail(&mut self, trouble: &StoreError) {
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
    /// Everything that was handed in, so that it can be looked through; the earliest deadline among
    /// it.
    fn take_in(&mut self) -> Option<Instant> {
        let mut earliest = None;
        while let Ok(job) = self.incoming.try_recv() {
            earliest =
                Some(earliest.map_or(job.deadline, |earliest: Instant| earliest.min(job.deadline)));
            self.waiting.push_back(job);
        }
        earliest
    }

    /// The next batch: whatever is there, up to so many questions, and at least one job. None once
    /// all who could hand in are gone.
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
