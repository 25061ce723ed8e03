//! The load of this machine, and of directory trees that imitate other machines.

use ratekeeper_load::LoadReader;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A temporary root directory, removed when it is dropped.
struct Root(PathBuf);

impl Root {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&root);
        let root = Self(root);
        for (path, text) in files {
            root.write(path, text);
        }
        root
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    750 kB\n";

#[test]
fn a_machine_without_cgroups_is_read_from_proc() {
    let root = Root::new(
        "proc",
        &[
            ("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n"),
            ("proc/meminfo", MEMINFO),
        ],
    );
    let reader = LoadReader::with_root(&root.0);
    root.write("proc/stat", "cpu  150 0 125 870 5 0 0 0 0 0\n");
    let load = reader.read();
    assert!(
        (load.cpu - 0.5).abs() < 1e-9,
        "75 of 150 ticks were not idle: {load:?}"
    );
    assert!((load.memory - 0.25).abs() < 1e-9, "{load:?}");
}

#[test]
fn a_container_is_measured_against_its_own_limits() {
    let own = "sys/fs/cgroup/box";
    let root = Root::new(
        "cgroup",
        &[("proc/self/cgroup", "0::/box\n"), ("proc/meminfo", MEMINFO)],
    );
    root.write(&format!("{own}/cpu.stat"), "usage_usec 0\nuser_usec 0\n");
    root.write(&format!("{own}/cpu.max"), "50000 100000\n");
    root.write(&format!("{own}/memory.max"), "1000\n");
    root.write(&format!("{own}/memory.current"), "900\n");
    root.write(
        &format!("{own}/memory.stat"),
        "anon 500\ninactive_file 100\n",
    );
    let reader = LoadReader::with_root(&root.0);
    root.write(&format!("{own}/cpu.stat"), "usage_usec 9000000000\n");
    let load = reader.read();
    assert_eq!(load.cpu, 1.0, "more than half a core could have done");
    assert!((load.memory - 0.8).abs() < 1e-9, "{load:?}");
}

#[test]
fn an_unreadable_load_is_nan() {
    let root = Root::new(
        "nothing",
        &[("proc/stat", "garbage"), ("proc/meminfo", "MemTotal: lots")],
    );
    let load = LoadReader::with_root(&root.0).read();
    assert!(load.cpu.is_nan() && load.memory.is_nan());
}

/// This test keeps a processor busy itself, so the load is above zero as soon as the kernel has
/// counted a tick of it.
#[cfg(target_os = "linux")]
#[test]
fn this_machine_has_a_load() {
    let reader = LoadReader::new();
    let start = std::time::Instant::now();
    let load = loop {
        let load = reader.read();
        if load.cpu > 0.0 {
            break load;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "a processor is busy, and its load is {load:?}"
        );
        std::hint::black_box((0..100_000_u64).sum::<u64>());
    };
    assert!(load.cpu <= 1.0, "{load:?}");
    assert!(
        load.memory > 0.0 && load.memory <= 1.0,
        "this process has memory: {load:?}"
    );
}
