//! File watcher: reports when a file changes, whether it is written in place, replaced, or reached
//! by a symlink that changes.

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Debounce: changes with shorter pauses between them are reported as one.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The longest debounce, for a directory that changes all the time.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// How long a file may be empty or missing before that is reported: while it is written in place or
/// replaced, it may be for a moment.
const EMPTY_FILE_GRACE: Duration = Duration::from_secs(1);
/// How often the file is read without a notification, which some file systems do not send.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The most symlinks that are followed, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Watches a file, or the YAML files of a directory, until it is dropped.
///
/// Create it before the file is read, so that no change in between is missed.
#[derive(Debug)]
pub struct FileWatcher {
    sender: Sender<Signal>,
    thread: Option<JoinHandle<()>>,
}

/// A message to the thread.
enum Signal {
    Changed,
    Stop,
}

impl FileWatcher {
    /// Calls `on_change`, on a thread of its own, whenever the content of the file changes, when it
    /// can no longer be read, and when it can be read again.
    ///
    /// Touching the file, or changing files beside it, is not a change. A pipe or a device is never
    /// read, because that would consume its content.
    pub fn new(
        path: impl Into<PathBuf>,
        on_change: impl FnMut() + Send + 'static,
    ) -> notify::Result<Self> {
        let path = std::path::absolute(path.into())?;
        let (sender, receiver) = channel();
        let changed = sender.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading is not a change, and our own reads would wake us forever.
            let is_read = event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_)));
            if !is_read {
                let _ = changed.send(Signal::Changed);
            }
        })?;
        let directories = directories(&path);
        for directory in &directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        let seen = ContentHash::of(&path);
        let mut watch_thread = WatchThread {
            path,
            watcher,
            directories,
            seen,
            receiver,
            on_change,
        };
        let thread = std::thread::Builder::new()
            .name("ratekeeper-watch".to_owned())
            .spawn(move || watch_thread.run())?;
        Ok(Self {
            sender,
            thread: Some(thread),
        })
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        let _ = self.sender.send(Signal::Stop);
        // If `on_change` drops it, it runs on that thread, which cannot join itself.
        let thread = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct WatchThread<F> {
    path: PathBuf,
    watcher: RecommendedWatcher,
    directories: BTreeSet<PathBuf>,
    seen: Option<ContentHash>,
    receiver: Receiver<Signal>,
    on_change: F,
}

/// The hash and length of a file's content, to detect changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ContentHash {
    hash: u64,
    len: usize,
}

impl ContentHash {
    /// `None` if the file does not exist or cannot be read.
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

/// The files of a directory that end in .yaml or .yml, in the order of their names.
///
/// Hidden files are left out: in a Kubernetes volume they are the targets of links.
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

impl<F: FnMut()> WatchThread<F> {
    fn run(&mut self) {
        loop {
            match self.receiver.recv_timeout(POLL_INTERVAL) {
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Signal::Changed) if !self.debounce(DEBOUNCE) => return,
                Ok(Signal::Changed) | Err(RecvTimeoutError::Timeout) => {}
            }
            // Watch first, then read: a change in between wakes us again.
            self.update_directories();
            let mut now = ContentHash::of(&self.path);
            let start = Instant::now();
            while now != self.seen
                && now.is_none_or(|now| now.len == 0)
                && start.elapsed() < EMPTY_FILE_GRACE
            {
                if !self.debounce(DEBOUNCE) {
                    return;
                }
                self.update_directories();
                now = ContentHash::of(&self.path);
            }
            if now != self.seen {
                self.seen = now;
                (self.on_change)();
            }
        }
    }

    /// Waits until nothing has changed for a while. False if the watcher was dropped.
    fn debounce(&self, quiet: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < MAX_DEBOUNCE {
            match self.receiver.recv_timeout(quiet) {
                Ok(Signal::Changed) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// Watches the directories that the path leads through now.
    fn update_directories(&mut self) {
        let directories = directories(&self.path);
        for gone in self.directories.difference(&directories) {
            let _ = self.watcher.unwatch(gone);
        }
        // A directory may have been replaced by one of the same name; watching one twice is
        // harmless.
        for directory in &directories {
            let _ = self.watcher.watch(directory, RecursiveMode::NonRecursive);
        }
        self.directories = directories;
    }
}

/// The directories in which a change can change the file: that of the file, and that of every
/// symlink on its path. If part of the path does not exist, the last directory that does.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut links = 0;
    let mut current = PathBuf::new();
    let mut remaining = reversed_components(path);
    while let Some(component) = remaining.pop() {
        let next = current.join(&component);
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() && links < MAX_SYMLINKS => {
                links += 1;
                found.insert(current.clone());
                let Ok(target) = std::fs::read_link(&next) else {
                    break;
                };
                // The first component of an absolute target is the root.
                remaining.extend(reversed_components(&target));
            }
            Ok(metadata) if metadata.is_dir() => current = next,
            // The file, or a component that does not exist.
            _ => break,
        }
    }
    found.insert(current);
    found.remove(Path::new(""));
    found
}

/// The components of a path, the last one first.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let mut components = path
        .components()
        .filter(|component| *component != Component::CurDir)
        .map(|component| component.as_os_str().to_owned())
        .collect::<Vec<_>>();
    components.reverse();
    components
}
