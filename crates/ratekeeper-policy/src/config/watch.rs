//! Tells when a file changes, however it is changed: written in place, replaced, or by a symlink on
//! the way to it.

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Changes that come together are one.
const QUIET: Duration = Duration::from_millis(50);
/// A directory that never gets quiet is looked at all the same.
const LONGEST: Duration = Duration::from_secs(1);
/// A file that is written in place is empty for a moment, one that is replaced may be gone for one;
/// what lasts is told.
const EMPTY: Duration = Duration::from_secs(1);
/// Some file systems tell of no changes.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// What the system follows too before it gives up.
const MOST_LINKS: usize = 40;

/// Watches a file, or the YAML files of a directory, until it is dropped.
///
/// Make it before the file is read: then no change is missed in between.
#[derive(Debug)]
pub struct Watch {
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

enum Wake {
    Changed,
    Stop,
}

impl Watch {
    /// Calls `on_change`, on a thread of its own, whenever the file has another content than
    /// before, when it can no longer be read, and when it can again. Touching it, or what lies
    /// beside it, is no change. What is no file, such as a pipe, is never read here: that would
    /// take its content away.
    pub fn new(
        path: impl Into<PathBuf>,
        on_change: impl FnMut() + Send + 'static,
    ) -> notify::Result<Self> {
        let path = std::path::absolute(path.into())?;
        let (wake, woken) = channel();
        let changed = wake.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading is no change, and our own reading would wake us for ever.
            let is_read = event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_)));
            if !is_read {
                let _ = changed.send(Wake::Changed);
            }
        })?;
        let directories = directories(&path);
        for directory in &directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        let seen = Content::of(&path);
        let mut watching = Watching {
            path,
            watcher,
            directories,
            seen,
            woken,
            on_change,
        };
        let thread = std::thread::Builder::new()
            .name("ratekeeper-watch".to_owned())
            .spawn(move || watching.run())?;
        Ok(Self {
            wake,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.wake.send(Wake::Stop);
        // Dropped by what it calls, it cannot wait for itself.
        let thread = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

struct Watching<F> {
    path: PathBuf,
    watcher: RecommendedWatcher,
    directories: BTreeSet<PathBuf>,
    seen: Option<Content>,
    woken: Receiver<Wake>,
    on_change: F,
}

/// What is remembered of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Content {
    hash: u64,
    len: usize,
}

impl Content {
    /// None if there is no such file, or it cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        let mut hasher = DefaultHasher::new();
        let mut len = 0;
        if metadata.is_dir() {
            for file in yaml_files(path).ok()? {
                hasher.write(file.as_os_str().as_encoded_bytes());
                let bytes = std::fs::read(file).ok()?;
                hasher.write_usize(bytes.len());
                hasher.write(&bytes);
                len += bytes.len();
            }
        } else if metadata.is_file() {
            let bytes = std::fs::read(path).ok()?;
            hasher.write(&bytes);
            len = bytes.len();
        } else {
            return None;
        }
        Some(Self {
            hash: hasher.finish(),
            len,
        })
    }
}

/// The files of a directory whose names end with .yaml or .yml, in the order of their names. Hidden
/// ones are left out: Kubernetes keeps its links there.
pub fn yaml_files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

impl<F: FnMut()> Watching<F> {
    fn run(&mut self) {
        loop {
            match self.woken.recv_timeout(LOOK_AGAIN) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Changed) if !self.settle(QUIET) => return,
                Ok(Wake::Changed) | Err(RecvTimeoutError::Timeout) => {}
            }
            // Watch first, read then: what changes in between wakes us again.
            self.follow();
            let (mut now, start) = (Content::of(&self.path), Instant::now());
            while now != self.seen && now.is_none_or(|now| now.len == 0) && start.elapsed() < EMPTY
            {
                if !self.settle(QUIET) {
                    return;
                }
                self.follow();
                now = Content::of(&self.path);
            }
            if now != self.seen {
                self.seen = now;
                (self.on_change)();
            }
        }
    }

    /// Waits until nothing happens for a while. False if it is time to stop.
    fn settle(&self, quiet: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < LONGEST {
            match self.woken.recv_timeout(quiet) {
                Ok(Wake::Changed) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// Watches where the file is now.
    fn follow(&mut self) {
        let directories = directories(&self.path);
        for gone in self.directories.difference(&directories) {
            let _ = self.watcher.unwatch(gone);
        }
        // A directory of the same name may be another one by now; to watch one twice does nothing.
        for directory in &directories {
            let _ = self.watcher.watch(directory, RecursiveMode::NonRecursive);
        }
        self.directories = directories;
    }
}

/// The directories in which a change can change the file: that of every symlink on the way, and
/// that of the file. Where the way ends early, the last one there is.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut links = 0;
    let mut at = PathBuf::new();
    let mut ahead = parts(path);
    while let Some(part) = ahead.pop() {
        let next = at.join(&part);
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() && links < MOST_LINKS => {
                links += 1;
                found.insert(at.clone());
                let Ok(target) = std::fs::read_link(&next) else {
                    break;
                };
                // An absolute target begins at the root, which its first part is.
                ahead.extend(parts(&target));
            }
            Ok(metadata) if metadata.is_dir() => at = next,
            // The file, or what is not there.
            _ => break,
        }
    }
    found.insert(at);
    found.remove(Path::new(""));
    found
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let mut parts = parts
        .map(|part| part.as_os_str().to_owned())
        .collect::<Vec<_>>();
    parts.reverse();
    parts
}
