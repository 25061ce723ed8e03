//! The audit of operator actions and attempts: in memory, in the log, and in a file if one is
//! configured. Rejected attempts have their own list and a rate limit, so that repeating them
//! neither displaces entries of actions nor fills the disk.

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

/// Entries in memory: of actions, and again of rejected attempts.
pub(crate) const MAX_ENTRIES: usize = 1_000;

/// Limits the rejected attempts that are written to the log and the file. Others are only in memory
/// and counted.
static REJECTION_LIMIT: LazyLock<Limiter> =
    LazyLock::new(|| Limiter::new(Limit::per_second(10).burst(200)));

/// An action or attempt.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    /// The address of the operator.
    pub(crate) who: String,
    pub(crate) action: String,
    pub(crate) policy: Option<String>,
    /// The fingerprint of the key, or its values with `[stats] keys = "plain"`.
    pub(crate) key: Option<String>,
    pub(crate) detail: Option<String>,
    pub(crate) outcome: AuditOutcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuditOutcome {
    Done,
    /// Not permitted, or invalid.
    Rejected,
    /// Valid, but an error prevented it.
    Failed,
}

impl AuditOutcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}

#[derive(Default)]
pub(crate) struct Audit {
    log: Mutex<AuditLog>,
    file: OnceLock<PathBuf>,
    /// Entries that could not be written, or were over the limit of rejected attempts.
    lost: AtomicU64,
}

/// Entries with their sequence numbers, oldest first.
#[derive(Default)]
struct AuditLog {
    next: u64,
    done: VecDeque<(u64, Entry)>,
    rejected: VecDeque<(u64, Entry)>,
}

impl Audit {
    /// Sets the file that entries are appended to. Fails if it cannot be opened.
    pub(crate) fn write_to(&self, file: &Path) -> io::Result<()> {
        open(file)?;
        // Called once.
        let _ = self.file.set(file.to_owned());
        Ok(())
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    pub(crate) fn add(&self, entry: Entry) {
        let is_rejected = entry.outcome == AuditOutcome::Rejected;
        if is_rejected && REJECTION_LIMIT.check().is_denied() {
            self.lost.fetch_add(1, Relaxed);
        } else {
            self.write(&entry);
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let number = log.next;
        log.next += 1;
        let list = if is_rejected {
            &mut log.rejected
        } else {
            &mut log.done
        };
        if list.len() == MAX_ENTRIES {
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
                "cannot write the audit log {}: {error}; entries are in this log and GET \
                 /admin/audit",
                file.display()
            );
        }
    }

    /// Up to `count` entries, newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Entry> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&(u64, Entry)> = log.done.iter().chain(&log.rejected).collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter()
            .take(count)
            .map(|(_, entry)| entry.clone())
            .collect()
    }
}

/// Opens the file for one entry, so that a file that was moved away is created again.
fn open(file: &Path) -> io::Result<File> {
    // Private to the user of the process.
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(file)
}

fn append(file: &Path, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    // One write for each line, so that lines of two processes do not mix.
    open(file)?.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_bounded_and_newest_first() {
        let audit = Audit::default();
        let entry = |at_ms| Entry {
            at_ms,
            who: "127.0.0.1".to_owned(),
            action: "reload".to_owned(),
            policy: None,
            key: None,
            detail: None,
            outcome: AuditOutcome::Done,
        };
        (0..MAX_ENTRIES as u64 + 7).for_each(|at_ms| audit.add(entry(at_ms)));
        (0..MAX_ENTRIES as u64 * 2).for_each(|at_ms| {
            audit.add(Entry {
                outcome: AuditOutcome::Rejected,
                ..entry(at_ms)
            });
        });
        let all = audit.newest(MAX_ENTRIES * 3);
        assert_eq!(all.len(), 2 * MAX_ENTRIES);
        let newest: Vec<Entry> = all
            .into_iter()
            .filter(|entry| entry.outcome == AuditOutcome::Done)
            .collect();
        assert_eq!(newest.len(), MAX_ENTRIES);
        assert_eq!(
            (newest[0].at_ms, newest[MAX_ENTRIES - 1].at_ms),
            (MAX_ENTRIES as u64 + 6, 7)
        );
        assert_eq!(audit.newest(1)[0].at_ms, 2 * MAX_ENTRIES as u64 - 1);
        assert!(audit.lost() > 0);
    }
}
