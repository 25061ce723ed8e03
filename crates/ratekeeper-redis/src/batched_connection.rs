//! A connection with natural batching: jobs that arrive while a call is in flight go with the next
//! call.
//!
//! Each connection has one call in flight. An idle connection sends a job at once, a busy one
//! queues jobs. There is no batching timer.

use crate::cluster::ClusterRouter;
use crate::health::Health;
use crate::reconnecting::{ReconnectingConnection, ScriptRequest};
use crate::script::Scripts;
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, Questions};
use crate::script_call::{script_calls, send_amendment_outcomes, send_decisions, send_reply};
use crate::store_error::{Redirect, StoreError};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};

/// Questions in one script call: enough to share the cost of a call, few enough not to block the
/// server.
const MAX_BATCH_QUESTIONS: usize = 128;
/// Consecutive calls without an answer after which the connection is replaced.
const MAX_UNANSWERED: u32 = 2;

/// A queued decision or amendment, with its deadline.
pub(crate) struct Job {
    pub(crate) work: Work,
    deadline: Instant,
    /// Whether the caller gave the server its full timeout, so that a missing answer counts as a
    /// failure of the server.
    has_full_timeout: bool,
    /// The Cluster slot of all keys of the job. A script call may only touch keys of one slot.
    pub(crate) slot: u16,
    /// How many times a Cluster node redirected the job.
    pub(crate) redirects: u8,
    /// Whether to send `ASKING` first: the node is importing the slot and does not have all of its
    /// keys yet.
    pub(crate) asking: bool,
    /// Whether the job needs a call of its own: while a slot migrates, a node only answers calls
    /// about a single key.
    pub(crate) alone: bool,
    /// Whether this is a probe and not a caller's request. Probes are not counted.
    is_probe: bool,
    _queue_slot: QueueSlot,
}

/// An occupied slot of the bounded queue, freed on drop.
struct QueueSlot(Arc<AtomicUsize>);

impl QueueSlot {
    /// Takes a slot; `None` if `max` are taken.
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let queue_slot = Self(Arc::clone(taken));
        (taken.fetch_add(1, Relaxed) < max).then_some(queue_slot)
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a job does, and the sender of its reply until the reply was sent.
pub(crate) enum Work {
    Decide(Questions, ReplySender<Answer>),
    Amend(Vec<Amendment>, ReplySender<Vec<Option<u64>>>),
}

/// The sender of a reply; `None` once the reply was sent.
pub(crate) type ReplySender<T> = Option<oneshot::Sender<Result<T, StoreError>>>;
/// The receiver of a reply.
pub(crate) type ReplyReceiver<T> = oneshot::Receiver<Result<T, StoreError>>;

/// A handle that queues jobs for one [`BatchedConnection`].
#[derive(Clone)]
pub(crate) struct BatchHandle {
    jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// Jobs that may be queued. Beyond this Redis is too slow for the load, and callers get
    /// [`StoreError::QueueFull`] at once.
    max_waiting: usize,
    alarm: Arc<DeadlineAlarm>,
    /// The timeout of an answer of the server.
    timeout: Duration,
}

/// The time until which a busy connection does not look at newly queued jobs. A job with an earlier
/// deadline wakes it.
struct DeadlineAlarm {
    epoch: Instant,
    /// In nanoseconds since `epoch`; 0 while the connection is awake anyway.
    at: AtomicU64,
    notify: Notify,
}

impl DeadlineAlarm {
    fn set(&self, at: Option<Instant>) {
        self.at.store(at.map_or(0, |at| self.nanos(at)), Relaxed);
        // Either the connection sees the job after this fence, or the sender of the job sees the
        // new time.
        fence(SeqCst);
    }

    fn notify_if_before(&self, deadline: Instant) {
        fence(SeqCst);
        if self.nanos(deadline) < self.at.load(Relaxed) {
            self.notify.notify_one();
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
        self.enqueue(Work::Decide(questions, Some(sender)), slot, timeout, false)?;
        Ok(receiver)
    }

    /// Queues the decision of a [probe](crate::probe), which records its own outcome in the health.
    pub(crate) fn probe(
        &self,
        questions: Questions,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Answer>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(Work::Decide(questions, Some(sender)), slot, timeout, true)?;
        Ok(receiver)
    }

    /// Queues an amendment of a probe.
    pub(crate) fn probe_amendment(
        &self,
        amendment: Amendment,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Vec<Option<u64>>>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(
            Work::Amend(vec![amendment], Some(sender)),
            slot,
            timeout,
            true,
        )?;
        Ok(receiver)
    }

    /// Queues amendments. The receiver may be dropped if the outcome does not matter.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        slot: u16,
        timeout: Duration,
    ) -> Result<ReplyReceiver<Vec<Option<u64>>>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(Work::Amend(amendments, Some(sender)), slot, timeout, false)?;
        Ok(receiver)
    }

    fn enqueue(
        &self,
        work: Work,
        slot: u16,
        timeout: Duration,
        is_probe: bool,
    ) -> Result<(), StoreError> {
        let queue_slot =
            QueueSlot::take(&self.waiting, self.max_waiting).ok_or(StoreError::QueueFull)?;
        let deadline = Instant::now() + timeout;
        let has_full_timeout = is_probe || timeout >= self.timeout;
        self.enqueue_job(Job {
            work,
            deadline,
            has_full_timeout,
            slot,
            redirects: 0,
            asking: false,
            alone: false,
            is_probe,
            _queue_slot: queue_slot,
        })
    }

    /// Queues a job that another connection received, and keeps its deadline.
    pub(crate) fn enqueue_job(&self, job: Job) -> Result<(), StoreError> {
        let deadline = job.deadline;
        self.jobs.send(job).map_err(|_| StoreError::Broken)?;
        self.alarm.notify_if_before(deadline);
        Ok(())
    }
}

/// A connection that sends queued jobs in batches.
pub(crate) struct BatchedConnection {
    queue: Queue,
    alarm: Arc<DeadlineAlarm>,
    connection: ReconnectingConnection,
    /// Consecutive calls on this connection that were not answered.
    unanswered: u32,
    scripts: Arc<Scripts>,
    health: Arc<Health>,
    /// For tests: the time that the scripts use.
    time: Option<Arc<AtomicU64>>,
    /// In a Cluster: forwards jobs whose slot this server does not have.
    router: Option<ClusterRouter>,
}

/// Jobs that wait to be sent, oldest first.
struct Queue {
    incoming: mpsc::UnboundedReceiver<Job>,
    waiting: VecDeque<Job>,
}

impl BatchedConnection {
    pub(crate) fn new(
        connection: ReconnectingConnection,
        scripts: Arc<Scripts>,
        health: Arc<Health>,
        timeout: Duration,
        max_waiting: usize,
        time: Option<Arc<AtomicU64>>,
        router: Option<ClusterRouter>,
    ) -> (BatchHandle, Self) {
        let (jobs, incoming) = mpsc::unbounded_channel();
        let queue = Queue {
            incoming,
            waiting: VecDeque::new(),
        };
        let alarm = Arc::new(DeadlineAlarm {
            epoch: Instant::now(),
            at: AtomicU64::new(0),
            notify: Notify::new(),
        });
        (
            BatchHandle {
                jobs,
                waiting: Arc::default(),
                max_waiting,
                alarm: Arc::clone(&alarm),
                timeout,
            },
            Self {
                queue,
                alarm,
                connection,
                unanswered: 0,
                scripts,
                health,
                time,
                router,
            },
        )
    }

    /// Runs until all handles are dropped.
    pub(crate) async fn run(mut self) {
        let mut generation = self.health.generation();
        while let Some(batch) = self.queue.next().await {
            if self.health.generation() != generation {
                generation = self.health.generation();
                self.connection.disconnect();
            }
            self.run_batch(batch).await;
        }
    }

    /// Sends a batch, and sends each job its reply.
    async fn run_batch(&mut self, mut batch: Vec<Job>) {
        let Self {
            queue,
            alarm,
            connection,
            unanswered,
            scripts,
            health,
            time,
            router,
        } = self;
        let calls = script_calls(&batch);
        let requests: Vec<ScriptRequest<'_>> = calls
            .iter()
            .map(|call| call.request(&batch, scripts))
            .collect();
        let answers = connection.run(&requests, time.as_ref().map(|time| time.load(Relaxed)));
        let ended = run_until_abandoned(answers, &mut batch, queue, alarm).await;
        alarm.set(None);
        let answers = match ended {
            Ok(answers) => answers,
            Err(BatchAbandoned {
                has_full_timeout,
                is_unanswered,
            }) => {
                if has_full_timeout {
                    health.record_failure(&StoreError::TimedOut);
                }
                *unanswered += u32::from(is_unanswered);
                // The server may be fine, and the connection dropped silently by something in
                // between, such as a firewall.
                if *unanswered >= MAX_UNANSWERED {
                    *unanswered = 0;
                    connection.disconnect();
                }
                return;
            }
        };
        *unanswered = 0;
        let mut failed = None;
        let mut any_counted = false;
        let mut redirected = Vec::new();
        for (call, answer) in calls.into_iter().zip(answers) {
            let is_counted = call.jobs.iter().any(|at| !batch[*at].is_probe);
            if is_counted && matches!(answer, Ok(_) | Err(StoreError::Refused { .. })) {
                health.counts.round_trips.fetch_add(1, Relaxed);
            }
            if router.is_some()
                && answer
                    .as_ref()
                    .is_err_and(|error| error.redirect().is_some())
            {
                redirected.push((call, answer));
                continue;
            }
            let jobs = call.jobs_of(&mut batch);
            let outcome = if call.decides {
                send_decisions(answer, jobs)
            } else {
                send_amendment_outcomes(answer, jobs)
            };
            if is_counted {
                any_counted = true;
                failed = failed.or(outcome.err());
            }
        }
        match failed {
            Some(error) => health.record_failure(&error),
            None if any_counted => health.record_success(),
            None => {}
        }
        let (false, Some(router)) = (redirected.is_empty(), router) else {
            return;
        };
        let mut batch: Vec<Option<Job>> = batch.into_iter().map(Some).collect();
        for (call, answer) in &redirected {
            let Some(redirect) = answer.as_ref().err().and_then(StoreError::redirect) else {
                continue;
            };
            let alone = redirect == Redirect::TryAgain && call.jobs.len() > 1;
            for mut job in call
                .jobs
                .iter()
                .filter_map(|at| batch[*at].take())
                .filter(Job::is_waiting)
            {
                job.alone = alone || job.alone;
                router.send(job, redirect, alone);
            }
        }
    }
}

/// The call was abandoned because every caller of the batch has timed out.
struct BatchAbandoned {
    /// At least one caller waited for the server's full timeout.
    has_full_timeout: bool,
    /// At least one job, probes included, waited long enough to doubt the connection.
    is_unanswered: bool,
}

/// Awaits the answers while any caller of the batch waits for them.
async fn run_until_abandoned<T>(
    asking: impl Future<Output = T>,
    batch: &mut [Job],
    queue: &mut Queue,
    alarm: &DeadlineAlarm,
) -> Result<T, BatchAbandoned> {
    let mut asking = pin!(asking);
    let mut has_full_timeout = false;
    let mut is_unanswered = false;
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
        while let Some(earlier) = queue.drain_incoming().filter(|deadline| *deadline < next) {
            next = earlier;
            alarm.set(Some(next));
        }
        tokio::select! {
            biased;
            answer = &mut asking => return Ok(answer),
            () = tokio::time::sleep_until(next.into()) => {}
            () = alarm.notify.notified() => continue,
        }
        queue.drain_incoming();
        let now = Instant::now();
        for job in batch
            .iter_mut()
            .filter(|job| job.deadline <= now && job.is_waiting())
        {
            has_full_timeout |= job.has_full_timeout && !job.is_probe;
            is_unanswered |= job.has_full_timeout;
            job.fail(&StoreError::TimedOut);
        }
        for job in queue.waiting.iter_mut().filter(|job| job.deadline <= now) {
            job.fail(&StoreError::TimedOut);
        }
        queue.waiting.retain(Job::is_waiting);
    }
    Err(BatchAbandoned {
        has_full_timeout,
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
            Work::Decide(_, reply) => reply.as_ref().is_some_and(|reply| !reply.is_closed()),
            // An amendment is sent even if its caller does not wait for it.
            Work::Amend(_, reply) => reply.is_some(),
        }
    }

    pub(crate) fn fail(&mut self, error: &StoreError) {
        match &mut self.work {
            Work::Decide(_, reply) => send_reply(reply, Err(error.clone())),
            Work::Amend(_, reply) => send_reply(reply, Err(error.clone())),
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
    /// Moves all incoming jobs to the queue and returns the earliest of their deadlines.
    fn drain_incoming(&mut self) -> Option<Instant> {
        let mut earliest = None;
        while let Ok(job) = self.incoming.try_recv() {
            earliest =
                Some(earliest.map_or(job.deadline, |earliest: Instant| earliest.min(job.deadline)));
            self.waiting.push_back(job);
        }
        earliest
    }

    /// The next batch: the oldest queued jobs with up to [`MAX_BATCH_QUESTIONS`] questions, and at
    /// least one job. `None` once all handles are dropped.
    async fn next(&mut self) -> Option<Vec<Job>> {
        self.drain_incoming();
        self.waiting.retain(Job::is_waiting);
        if self.waiting.is_empty() {
            self.waiting.push_back(self.incoming.recv().await?);
            self.drain_incoming();
        }
        let mut size = 0;
        let fits = |job: &&Job| {
            size += job.size();
            size <= MAX_BATCH_QUESTIONS
        };
        let jobs = self.waiting.iter().take_while(fits).count().max(1);
        Some(self.waiting.drain(..jobs).collect())
    }
}
