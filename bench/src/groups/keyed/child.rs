//! Measurements in a child process: the memory a key takes, and the slowest call.

use super::subject::{Competitor, Subject};
use crate::harness::thread_time;
use crate::keys::Key;
use crate::peers::keyed::ALWAYS_DENIED;
use ratekeeper::clock::FastClock;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The argument that makes the binary the child: then the measurement, the contestant, the kind of
/// key, and how many.
pub(crate) const CHILD: &str = "--keyed-apart";

#[derive(Clone, Copy)]
pub(super) enum Measurement {
    /// Bytes by which the resident memory grows.
    Bytes,
    /// Nanoseconds of processor time.
    Slowest,
}

impl Measurement {
    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Slowest => "slowest",
        }
    }
}

/// Runs a child that calls this many keys once each.
pub(super) fn measure<K: Key>(
    what: Measurement,
    competitor: Competitor,
    keys: u64,
) -> Result<f64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let args = [
        CHILD,
        what.name(),
        competitor.name(),
        K::NAME,
        &keys.to_string(),
    ];
    let run = Command::new(own)
        .args(args)
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&run.stdout);
    let failed = || format!("{}{}", text, String::from_utf8_lossy(&run.stderr));
    text.trim()
        .parse()
        .ok()
        .filter(|_| run.status.success())
        .ok_or_else(failed)
}

/// Runs the child.
pub(crate) fn run(what: &str, competitor: &str, kind: &str, keys: &str) -> ExitCode {
    let (Some(competitor), Ok(keys)) = (Competitor::called(competitor), keys.parse()) else {
        return ExitCode::from(2);
    };
    let figure = match (what, kind) {
        ("bytes", u64::NAME) => bytes::<u64>(competitor, keys),
        ("bytes", String::NAME) => bytes::<String>(competitor, keys),
        ("slowest", u64::NAME) => Ok(slowest::<u64>(competitor, keys)),
        ("slowest", String::NAME) => Ok(slowest::<String>(competitor, keys)),
        _ => return ExitCode::from(2),
    };
    match figure {
        Ok(figure) => println!("{figure}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The keys are written to one buffer, one after the other: their memory is not counted.
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

fn slowest<K: Key>(competitor: Competitor, keys: u64) -> u64 {
    let mut key = K::nth(u64::MAX);
    let subject = Subject::<K>::new(competitor, ALWAYS_DENIED, keys, FastClock);
    let mut slowest = Duration::ZERO;
    for n in 0..keys {
        key.set(n);
        let start = thread_time();
        subject.call(&key);
        slowest = slowest.max(thread_time() - start);
    }
    // The cost of reading the time.
    let reading = (0..1_000)
        .map(|_| thread_time())
        .map(|start| thread_time() - start)
        .min()
        .unwrap_or_default();
    slowest.saturating_sub(reading).as_nanos() as u64
}
