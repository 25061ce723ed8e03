//! The memory a key takes, measured in a process of its own.

use super::subject::{Competitor, Subject};
use super::{HUGE, LARGE};
use crate::harness::is_quick;
use crate::keys::Key;
use crate::peers::keyed::ALWAYS_DENIED;
use ratekeeper::clock::FastClock;
use std::process::{Command, ExitCode};

/// The argument that makes the binary the child: then the contestant, the kind of key, and how
/// many.
pub(crate) const CHILD: &str = "--keyed-memory";

/// Number and kind of keys, and bytes a key in the order of [`Competitor::ALL`].
pub(super) type BytesPerKey = (u64, &'static str, [f64; 2]);

pub(super) fn bytes_per_key() -> Vec<BytesPerKey> {
    let mut measured = vec![(LARGE, String::NAME)];
    if !is_quick() {
        measured.push((HUGE, u64::NAME));
    }
    let bytes = |(keys, kind)| {
        let each = Competitor::ALL.map(|competitor| measure(competitor, kind, keys));
        Some((keys, kind, [each[0].clone().ok()?, each[1].clone().ok()?]))
    };
    measured.into_iter().filter_map(bytes).collect()
}

fn measure(competitor: Competitor, kind: &str, keys: u64) -> Result<f64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let run = Command::new(own)
        .args([CHILD, competitor.name(), kind, &keys.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&run.stdout);
    let bytes: Option<f64> = text.trim().parse().ok();
    let failed = || format!("{text}{}", String::from_utf8_lossy(&run.stderr));
    bytes.map(|bytes| bytes / keys as f64).ok_or_else(failed)
}

/// Runs the child.
pub(crate) fn child(competitor: &str, kind: &str, keys: &str) -> ExitCode {
    let (Some(competitor), Ok(keys)) = (Competitor::called(competitor), keys.parse()) else {
        return ExitCode::from(2);
    };
    let bytes = match kind {
        u64::NAME => bytes::<u64>(competitor, keys),
        String::NAME => bytes::<String>(competitor, keys),
        _ => return ExitCode::from(2),
    };
    match bytes {
        Ok(bytes) => println!("{bytes}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Bytes by which the resident memory grows. The keys are written to one buffer, one after the
/// other: their memory is not counted.
fn bytes<K: Key>(competitor: Competitor, keys: u64) -> Result<u64, String> {
    let mut key = K::nth(u64::MAX);
    let before = resident()?;
    let subject = Subject::<K>::new(competitor, ALWAYS_DENIED, keys, FastClock);
    for n in 0..keys {
        key.set(n);
        subject.call(&key);
    }
    Ok(resident()?.saturating_sub(before))
}

fn resident() -> Result<u64, String> {
    let text =
        std::fs::read_to_string("/proc/self/smaps_rollup").map_err(|error| error.to_string())?;
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("Rss:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| "no Rss in smaps_rollup".into())
}
