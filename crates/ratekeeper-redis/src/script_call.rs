//! Grouping a batch of jobs into script calls, and sending each job its part of the reply.

use crate::batched_connection::{Job, ReplySender, Work};
use crate::reconnecting::ScriptRequest;
use crate::script::amend::{self, Amendment};
use crate::script::decide;
use crate::script::{InvalidReplyError, Scripts};
use crate::store_error::StoreError;
use redis::Value;

/// The jobs of a batch that go to Redis in one script call.
pub(crate) struct ScriptCall {
    pub(crate) decides: bool,
    slot: u16,
    asking: bool,
    alone: bool,
    pub(crate) jobs: Vec<usize>,
}

/// Groups a batch into as few script calls as possible. Amendments go before decisions, so that
/// what they give back can be taken by the decisions.
pub(crate) fn script_calls(batch: &[Job]) -> Vec<ScriptCall> {
    let mut calls: Vec<ScriptCall> = Vec::new();
    for decides in [false, true] {
        for (at, job) in batch
            .iter()
            .enumerate()
            .filter(|(_, job)| job.decides() == decides)
        {
            let Job {
                slot,
                asking,
                alone,
                ..
            } = *job;
            let same = |call: &&mut ScriptCall| {
                (call.decides, call.slot, call.asking) == (decides, slot, asking)
                    && !call.alone
                    && !alone
            };
            match calls.iter_mut().find(same) {
                Some(call) => call.jobs.push(at),
                None => calls.push(ScriptCall {
                    decides,
                    slot,
                    asking,
                    alone,
                    jobs: vec![at],
                }),
            }
        }
    }
    calls
}

impl ScriptCall {
    /// The jobs of this call, from the batch.
    pub(crate) fn jobs_of<'j>(&self, batch: &'j mut [Job]) -> impl Iterator<Item = &'j mut Job> {
        // `self.jobs` is in the order of the batch.
        let mut own = self.jobs.iter().copied().peekable();
        batch
            .iter_mut()
            .enumerate()
            .filter_map(move |(at, job)| own.next_if_eq(&at).map(|_| job))
    }

    pub(crate) fn request<'s>(&self, batch: &[Job], scripts: &'s Scripts) -> ScriptRequest<'s> {
        let jobs = || self.jobs.iter().map(|at| &batch[*at].work);
        let asking = self.asking;
        if self.decides {
            let questions = jobs().filter_map(|work| match work {
                Work::Decide(questions, _) => Some(questions),
                Work::Amend(..) => None,
            });
            // A decision that is charged twice only makes the limit stricter.
            return ScriptRequest {
                call: decide::encode(questions),
                script: &scripts.decide,
                may_resend: true,
                asking,
            };
        }
        let amendments = || {
            let all = jobs().filter_map(|work| match work {
                Work::Amend(amendments, _) => Some(amendments),
                Work::Decide(..) => None,
            });
            all.flatten()
        };
        // A refund that is executed twice gives back too much.
        let may_resend = amendments().all(Amendment::is_idempotent);
        ScriptRequest {
            call: amend::encode(amendments()),
            script: &scripts.amend,
            may_resend,
            asking,
        }
    }
}

/// Sends each job of a decision call its answer. Returns the error if the call failed.
pub(crate) fn send_decisions<'j>(
    answer: Result<Value, StoreError>,
    jobs: impl Iterator<Item = &'j mut Job>,
) -> Result<(), StoreError> {
    let mut decisions: Vec<_> = jobs
        .filter_map(|job| match &mut job.work {
            Work::Decide(questions, sender) => Some((&*questions, sender)),
            Work::Amend(..) => None,
        })
        .collect();
    let questions = decisions.iter().map(|(questions, _)| *questions);
    match answer.and_then(|reply| decide::decode(questions, reply).map_err(invalid_reply)) {
        Ok(answers) => {
            for ((_, sender), answer) in decisions.iter_mut().zip(answers) {
                send_reply(sender, Ok(answer));
            }
            Ok(())
        }
        Err(error) => {
            for (_, sender) in decisions {
                send_reply(sender, Err(error.clone()));
            }
            Err(error)
        }
    }
}

/// Sends each job of an amendment call its outcomes. Returns the error if the call failed.
pub(crate) fn send_amendment_outcomes<'j>(
    answer: Result<Value, StoreError>,
    jobs: impl Iterator<Item = &'j mut Job>,
) -> Result<(), StoreError> {
    let outcomes = answer.and_then(|reply| amend::decode(reply).map_err(invalid_reply));
    let mut at = 0;
    for job in jobs {
        if let Work::Amend(amendments, sender) = &mut job.work {
            let from = at;
            at += amendments.len();
            let own = outcomes
                .as_ref()
                .map(|outcomes| outcomes.get(from..at).unwrap_or_default().to_vec());
            send_reply(sender, own.map_err(StoreError::clone));
        }
    }
    outcomes.map(drop)
}

/// Sends the reply unless one was sent already. The receiver may be gone: its caller timed out and
/// fell back.
pub(crate) fn send_reply<T>(sender: &mut ReplySender<T>, reply: Result<T, StoreError>) {
    if let Some(sender) = sender.take() {
        drop(sender.send(reply));
    }
}

fn invalid_reply(_: InvalidReplyError) -> StoreError {
    StoreError::Protocol("unexpected reply to a script".to_owned())
}
