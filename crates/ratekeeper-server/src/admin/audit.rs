//! What operators did, and what they tried: kept for a while, logged, and appended to a file where
//! one is named. Somebody who tries again and again pushes out nothing that was done, and fills no
//! disk.

use crate::run::log;
use ratekeeper::{Limit, Limiter};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// How many are kept in memory: of what was done, and of what was refused.
pub(crate) const KEPT: usize = 1_000;

/// So many refusals are written to the log and the file; others are kept and counted.
static REFUSALS: LazyLock<Limiter> =
    LazyLock::new(|| Limiter::new(Limit::per_second(10).burst(200)));

/// One thing that was done, or tried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    /// The address that asked.
    pub(crate) who: String,
    pub(crate) action: String,
    pub(crate) policy: Option<String>,
    /// By its fingerprint, or as it is where `[stats] keys` says so.
    pub(crate) key: Option<String>,
    pub(crate) detail: Option<String>,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Done,
    /// It was not allowed, or made no sense.
    Refused,
    /// It was to be done, and something was in the way.
    Failed,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[derive(Default)]
pub(crate) struct Audit {
    kept: Mutex<AuditLog>,
    file: OnceLock<PathBuf>,
    /// Entries that could not be written, or were too many refusals.
    lost: AtomicU64,
}

/// The oldest first, each with its number.
#[derive(Default)]
struct AuditLog {
    next: u64,
    done: VecDeque<(u64, Entry)>,
    refused: VecDeque<(u64, Entry)>,
}

impl Audit {
    /// Appends to a file from now on; an error if that cannot be.
    pub(crate) fn write_to(&self, file: &Path) -> io::Result<()> {
        open(file)?;
        // It is said once.
        let _ = self.file.set(file.to_owned());
        Ok(())
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    pub(crate) fn add(&self, entry: Entry) {
        match entry.outcome == Outcome::Refused && REFUSALS.check().is_denied() {
            true => _ = self.lost.fetch_add(1, Relaxed),
            false => self.write(&entry),
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let number = kept.next;
        kept.next += 1;
        let list = if entry.outcome == Outcome::Refused {
            &mut kept.refused
        } else {
            &mut kept.done
        };
        if list.len() == KEPT {
            list.pop_front();
        }
        list.push_back((number, entry));
    }

    fn write(&self, entry: &Entry) {
        let Entry {
            who,
            action,
            policy,
            key,
            detail,
            outcome,
            ..
        } = entry;
        tracing::info!(
            target: log::AUDIT,
            who,
            action,
            policy,
            key,
            detail,
            "operator: {action} {}",
            outcome.name()
        );
        if let Some(file) = self.file.get()
            && let Err(error) = append(file, entry)
        {
            self.lost.fetch_add(1, Relaxed);
            tracing::error!(
                "the audit log {} was not written: {error}; what was done is in this log and in GET /admin/audit",
                file.display()
            );
        }
    }

    /// The newest first.
    pub(crate) fn newest(&self, many: usize) -> Vec<Entry> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&(u64, Entry)> = kept.done.iter().chain(&kept.refused).collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter()
            .take(many)
            .map(|(_, entry)| entry.clone())
            .collect()
    }
}

/// Opened for each entry, there being few: a file that was moved away is begun anew.
fn open(file: &Path) -> io::Result<File> {
    // It tells what operators do, and is for them.
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file)
}

fn append(file: &Path, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    // In one piece: lines of two processes do not mix.
    open(file)?.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_the_newest_first() {
        let audit = Audit::default();
        let entry = |at_ms| Entry {
            at_ms,
            who: "127.0.0.1".to_owned(),
            action: "reload".to_owned(),
            policy: None,
            key: None,
            detail: None,
            outcome: Outcome::Done,
        };
        (0..KEPT as u64 + 7).for_each(|at_ms| audit.add(entry(at_ms)));
        (0..KEPT as u64 * 2).for_each(|at_ms| {
            audit.add(Entry {
                outcome: Outcome::Refused,
                ..entry(at_ms)
            });
        });
        let all = audit.newest(KEPT * 3);
        assert_eq!(all.len(), 2 * KEPT);
        let newest: Vec<Entry> = all
            .into_iter()
            .filter(|entry| entry.outcome == Outcome::Done)
            .collect();
        assert_eq!(newest.len(), KEPT);
        assert_eq!(
            (newest[0].at_ms, newest[KEPT - 1].at_ms),
            (KEPT as u64 + 6, 7)
        );
        assert_eq!(audit.newest(1)[0].at_ms, 2 * KEPT as u64 - 1);
        assert!(audit.lost() > 0);
    }
}
