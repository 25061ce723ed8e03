//! Where jobs are handed in and wait for their lane.

use crate::limits::Registered;
use crate::trouble::Trouble;
use crate::verdicts::Verdicts;
use crate::wire::{self, Answer};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};

/// So many jobs a call: enough to share what a call costs, few enough not to hold the service up.
const MOST_JOBS: usize = 128;
/// So many bytes a call; the rest is for what is given up with it.
const MOST_BYTES: usize = wire::LARGEST - (64 << 10);
/// More than a limit takes beside its name and text.
const LIMIT_BYTES: usize = 64;

pub(crate) type Limited = SmallVec<[Arc<Registered>; 8]>;

/// What is to be done, as it is sent.
pub(crate) struct Work {
    pub(crate) bytes: Vec<u8>,
    pub(crate) limits: Limited,
    pub(crate) decides: bool,
    pub(crate) may_arrive_twice: bool,
}

impl Work {
    /// A correction.
    pub(crate) fn of(job: &wire::Job<'_>, limits: Limited) -> Self {
        let mut bytes = Vec::new();
        job.write(&mut bytes);
        let may_arrive_twice = !matches!(job, wire::Job::Settle { .. } | wire::Job::Grant { .. });
        Self { bytes, limits, decides: false, may_arrive_twice }
    }

    /// At most so many bytes of a call.
    fn size(&self) -> usize {
        self.bytes.len() + self.limits.iter().map(|limit| limit.text_bytes() + LIMIT_BYTES).sum::<usize>()
    }
}

/// Something to do, and until when somebody waits for it.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) deadline: Instant,
    /// Whether the service is given all the time it may take, so that not to answer is its failure.
    pub(crate) is_patient: bool,
    /// Whoever is to be told, until that has happened.
    told: Option<oneshot::Sender<Result<Answer, Trouble>>>,
    _place: Place,
}

impl Job {
    /// Whether it is still to be done. A correction is, whoever waits for it.
    pub(crate) fn is_waiting(&self) -> bool {
        self.told.as_ref().is_some_and(|told| !self.work.decides || !told.is_closed())
    }

    /// Tells it, if that has not happened. Who does not listen any more has gone elsewhere.
    pub(crate) fn tell(&mut self, what: Result<Answer, Trouble>) {
        if let Some(told) = self.told.take() {
            drop(told.send(what));
        }
    }
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

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct Entrance {
    jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// So many may wait. Beyond that the service is too slow for the load, and callers are told at once.
    most_waiting: usize,
    alarm: Arc<Alarm>,
    /// How long the service may take.
    timeout: Duration,
    pub(crate) verdicts: Arc<Verdicts>,
}

impl Entrance {
    pub(crate) fn new(timeout: Duration, most_waiting: usize, verdicts: Arc<Verdicts>) -> (Self, Queue, Arc<Alarm>) {
        let (jobs, incoming) = mpsc::unbounded_channel();
        let alarm = Arc::new(Alarm { epoch: Instant::now(), at: AtomicU64::new(0), ring: Notify::new() });
        let entrance =
            Self { jobs, waiting: Arc::default(), most_waiting, alarm: Arc::clone(&alarm), timeout, verdicts };
        (entrance, Queue { incoming, waiting: VecDeque::new() }, alarm)
    }

    /// Hands work in; who does not care what comes of it need not wait.
    pub(crate) fn hand_in(
        &self,
        work: Work,
        timeout: Duration,
    ) -> Result<oneshot::Receiver<Result<Answer, Trouble>>, Trouble> {
        if work.size() > MOST_BYTES {
            return Err(Trouble::TooLarge);
        }
        let place = Place::take(&self.waiting, self.most_waiting).ok_or(Trouble::QueueFull)?;
        let (sender, receiver) = oneshot::channel();
        let (deadline, is_patient) = (Instant::now() + timeout, timeout >= self.timeout);
        let (told, _place) = (Some(sender), place);
        let job = Job { work, deadline, is_patient, told, _place };
        self.jobs.send(job).map_err(|_| Trouble::Broken)?;
        self.alarm.ring_if_before(deadline);
        Ok(receiver)
    }

    /// Hands work in and waits for what comes of it.
    pub(crate) async fn run(&self, work: Work, timeout: Duration) -> Result<Answer, Trouble> {
        self.hand_in(work, timeout)?.await.unwrap_or(Err(Trouble::Broken))
    }
}

/// Until when a lane that is busy does not look at what was handed in. Who has less time than that wakes it.
pub(crate) struct Alarm {
    epoch: Instant,
    /// In nanoseconds since then; 0 while it looks anyway.
    at: AtomicU64,
    pub(crate) ring: Notify,
}

impl Alarm {
    pub(crate) fn set(&self, at: Option<Instant>) {
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

/// What waits, oldest first.
pub(crate) struct Queue {
    incoming: mpsc::UnboundedReceiver<Job>,
    pub(crate) waiting: VecDeque<Job>,
}

impl Queue {
    /// Everything that was handed in, so that it can be looked through; the earliest deadline among it.
    pub(crate) fn take_in(&mut self) -> Option<Instant> {
        let mut earliest = None;
        while let Ok(job) = self.incoming.try_recv() {
            earliest = Some(earliest.map_or(job.deadline, |earliest: Instant| earliest.min(job.deadline)));
            self.waiting.push_back(job);
        }
        earliest
    }

    /// The next batch: whatever is there, up to so much, and at least one job. None once all who could hand in are gone.
    pub(crate) async fn next(&mut self) -> Option<Vec<Job>> {
        self.take_in();
        self.waiting.retain(Job::is_waiting);
        if self.waiting.is_empty() {
            self.waiting.push_back(self.incoming.recv().await?);
            self.take_in();
        }
        let (mut jobs, mut bytes) = (0, 0);
        let fits = |job: &&Job| {
            (jobs, bytes) = (jobs + 1, bytes + job.work.size());
            jobs <= MOST_JOBS && bytes <= MOST_BYTES
        };
        let jobs = self.waiting.iter().take_while(fits).count().max(1);
        Some(self.waiting.drain(..jobs).collect())
    }
}
