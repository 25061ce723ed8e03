//! A batch in calls: what goes together, and who is told what of the answer.

use crate::batched_connection::{Job, ReplySender, Work};
use crate::reconnecting::ScriptRequest;
use crate::script::amend::{self, Amendment};
use crate::script::decide;
use crate::script::{InvalidReplyError, Scripts};
use crate::store_error::StoreError;
use redis::Value;

/// What goes in one call: jobs of a batch.
pub(crate) struct ScriptCall {
    pub(crate) decides: bool,
    slot: u16,
    asking: bool,
    alone: bool,
    pub(crate) jobs: Vec<usize>,
}

/// A batch in as few calls as can be. What goes back goes first, so that it can be taken.
pub(crate) fn pieces(batch: &[Job]) -> Vec<ScriptCall> {
    let mut pieces: Vec<ScriptCall> = Vec::new();
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
            let same = |piece: &&mut ScriptCall| {
                (piece.decides, piece.slot, piece.asking) == (decides, slot, asking)
                    && !piece.alone
                    && !alone
            };
            match pieces.iter_mut().find(same) {
                Some(piece) => piece.jobs.push(at),
                None => pieces.push(ScriptCall {
                    decides,
                    slot,
                    asking,
                    alone,
                    jobs: vec![at],
                }),
            }
        }
    }
    pieces
}

impl ScriptCall {
    /// Its jobs, where they are.
    pub(crate) fn jobs_of<'j>(&self, batch: &'j mut [Job]) -> impl Iterator<Item = &'j mut Job> {
        // They are in the order of the batch.
        let mut own = self.jobs.iter().copied().peekable();
        batch
            .iter_mut()
            .enumerate()
            .filter_map(move |(at, job)| own.next_if_eq(&at).map(|_| job))
    }

    pub(crate) fn call<'s>(&self, batch: &[Job], scripts: &'s Scripts) -> ScriptRequest<'s> {
        let jobs = || self.jobs.iter().map(|at| &batch[*at].work);
        let asking = self.asking;
        if self.decides {
            let questions = jobs().filter_map(|work| match work {
                Work::Decide(questions, _) => Some(questions),
                Work::Amend(..) => None,
            });
            return ScriptRequest {
                call: decide::encode(questions),
                script: &scripts.decide,
                again: true,
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
        // A refund that arrives twice gives too much.
        let again = amendments().all(Amendment::may_arrive_twice);
        ScriptRequest {
            call: amend::encode(amendments()),
            script: &scripts.amend,
            again,
            asking,
        }
    }
}

/// Tells everyone in a piece what it came to; an error if it came to none.
pub(crate) fn tell_decided<'j>(
    answer: Result<Value, StoreError>,
    jobs: impl Iterator<Item = &'j mut Job>,
) -> Result<(), StoreError> {
    let mut asked: Vec<_> = jobs
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

/// The same of corrections.
pub(crate) fn tell_amended<'j>(
    answer: Result<Value, StoreError>,
    jobs: impl Iterator<Item = &'j mut Job>,
) -> Result<(), StoreError> {
    let came = answer.and_then(|reply| amend::decode(reply).map_err(unreadable));
    let mut at = 0;
    for job in jobs {
        if let Work::Amend(amendments, told) = &mut job.work {
            let from = at;
            at += amendments.len();
            let own = came
                .as_ref()
                .map(|came| came.get(from..at).unwrap_or_default().to_vec());
            tell(told, own.map_err(StoreError::clone));
        }
    }
    came.map(drop)
}

/// Tells it, if that has not happened. Who does not listen any more has gone elsewhere.
pub(crate) fn tell<T>(to: &mut ReplySender<T>, what: Result<T, StoreError>) {
    if let Some(to) = to.take() {
        drop(to.send(what));
    }
}

fn unreadable(_: InvalidReplyError) -> StoreError {
    StoreError::Protocol("its answer to our script is not ours".to_owned())
}
