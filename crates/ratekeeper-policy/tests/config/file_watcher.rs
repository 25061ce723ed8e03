//! The file watcher with real files, changed as editors and Kubernetes change them.

use ratekeeper_policy::config::FileWatcher;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A timeout that is far longer than any machine needs.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Watched {
    directory: tempfile::TempDir,
    changes: Receiver<String>,
    _watch: FileWatcher,
}

/// Watches `name` in a prepared directory; each change is sent as the content of the file.
fn watch(name: &str, prepare: impl FnOnce(&Path)) -> Watched {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let path = directory.path().join(name);
    let (sender, changes) = channel();
    let read = path.clone();
    let watch = FileWatcher::new(path, move || {
        let _ = sender.send(fs::read_to_string(&read).unwrap_or_default());
    });
    Watched {
        directory,
        changes,
        _watch: watch.unwrap(),
    }
}

impl Watched {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until this content is reported; earlier contents may be reported before it.
    #[track_caller]
    fn sees(&self, text: &str) {
        while self
            .changes
            .recv_timeout(TIMEOUT)
            .unwrap_or_else(|_| panic!("{text:?} was never seen"))
            != text
        {}
    }
}

fn rename_over(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join("new"), text).unwrap();
    fs::rename(directory.join("new"), directory.join(name)).unwrap();
}

#[test]
fn written_in_place() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    for text in ["2", "3", "and a longer one"] {
        fs::write(watched.path("a.toml"), text).unwrap();
        watched.sees(text);
    }
}

#[test]
fn emptied_for_good() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    fs::write(watched.path("a.toml"), "").unwrap();
    watched.sees("");
    fs::write(watched.path("a.toml"), "2").unwrap();
    watched.sees("2");
}

#[test]
fn replaced_by_an_editor() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    for text in ["2", "3", "4"] {
        rename_over(watched.directory.path(), "a.toml", text);
        watched.sees(text);
    }
}

#[test]
fn deleted_and_back() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    fs::remove_file(watched.path("a.toml")).unwrap();
    fs::write(watched.path("a.toml"), "2").unwrap();
    watched.sees("2");
}

#[test]
fn deletion_and_return_are_reported() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    fs::remove_file(watched.path("a.toml")).unwrap();
    watched.sees("");
    fs::write(watched.path("a.toml"), "1").unwrap();
    watched.sees("1");
    // A directory is not a file either.
    fs::remove_file(watched.path("a.toml")).unwrap();
    fs::create_dir(watched.path("a.toml")).unwrap();
    watched.sees("");
}

#[test]
fn not_there_yet() {
    let watched = watch("later/a.toml", |_| {});
    fs::create_dir(watched.path("later")).unwrap();
    fs::write(watched.path("later/a.toml"), "1").unwrap();
    watched.sees("1");
    fs::remove_dir_all(watched.path("later")).unwrap();
    fs::create_dir(watched.path("later")).unwrap();
    fs::write(watched.path("later/a.toml"), "2").unwrap();
    watched.sees("2");
}

#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Updates a ConfigMap as the kubelet does: `..data` is a link to a directory and is replaced
    /// by a rename.
    fn swap(directory: &Path, version: &str, text: &str) {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("a.toml"), text).unwrap();
        let old = fs::read_link(directory.join("..data")).ok();
        symlink(version, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(directory.join(old)).unwrap();
        }
    }

    #[test]
    fn swapped_by_kubernetes() {
        let watched = watch("a.toml", |directory| {
            swap(directory, "..v1", "1");
            symlink("..data/a.toml", directory.join("a.toml")).unwrap();
        });
        for (version, text) in [("..v2", "2"), ("..v3", "3"), ("..v4", "4")] {
            swap(watched.directory.path(), version, text);
            watched.sees(text);
        }
    }

    #[test]
    fn a_link_to_elsewhere() {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("one"), "1").unwrap();
        fs::write(elsewhere.path().join("two"), "2").unwrap();
        let watched = watch("a.toml", |directory| {
            symlink(elsewhere.path().join("one"), directory.join("a.toml")).unwrap();
        });
        // What it points to changes,
        fs::write(elsewhere.path().join("one"), "1b").unwrap();
        watched.sees("1b");
        rename_over(elsewhere.path(), "one", "1c");
        watched.sees("1c");
        // it points to something else,
        symlink(elsewhere.path().join("two"), watched.path("tmp")).unwrap();
        fs::rename(watched.path("tmp"), watched.path("a.toml")).unwrap();
        watched.sees("2");
        // and that changes.
        fs::write(elsewhere.path().join("two"), "2b").unwrap();
        watched.sees("2b");
    }

    #[test]
    fn a_directory_that_is_a_link() {
        let watched = watch("current/a.toml", |directory| {
            for version in ["1", "2"] {
                fs::create_dir(directory.join(version)).unwrap();
                fs::write(directory.join(version).join("a.toml"), version).unwrap();
            }
            symlink("1", directory.join("current")).unwrap();
        });
        symlink("2", watched.path("tmp")).unwrap();
        fs::rename(watched.path("tmp"), watched.path("current")).unwrap();
        watched.sees("2");
    }
}

#[test]
fn touching_it_or_its_neighbours_is_not_a_change() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    fs::write(watched.path("b.toml"), "2").unwrap();
    rename_over(watched.directory.path(), "a.toml", "1");
    fs::write(watched.path("a.toml"), "1").unwrap();
    // The next change is the first that is reported.
    rename_over(watched.directory.path(), "a.toml", "2");
    assert_eq!(watched.changes.recv_timeout(TIMEOUT).as_deref(), Ok("2"));
}

#[test]
fn dropping_the_watcher_stops_its_thread() {
    let watched = watch("a.toml", |directory| {
        fs::write(directory.join("a.toml"), "1").unwrap();
    });
    let Watched {
        directory,
        changes,
        _watch,
    } = watched;
    drop(_watch);
    // The thread has ended and dropped the callback, with the sender.
    assert!(changes.recv().is_err());
    drop(directory);
}
