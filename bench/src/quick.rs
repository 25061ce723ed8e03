//! `--quick`: ten rows that a user understands, in two minutes. Written to docs/benchmarks.md.

use crate::report::{Row, machine, table};
use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

/// The groups that have the rows.
pub(crate) const GROUPS: [&str; 8] = [
    "one-limiter",
    "keyed",
    "policies",
    "middleware",
    "redis",
    "envoy",
    "resp",
    "gateway",
];

const COMMAND: &str = "make bench-quick";

/// A row: what it says, the name of the group and of its row there, and whose values are beside
/// each other.
struct Line {
    text: &'static str,
    from: (&'static str, &'static str),
    ours: &'static str,
    theirs: &'static str,
}

const fn line(
    text: &'static str,
    from: (&'static str, &'static str),
    ours: &'static str,
    theirs: &'static str,
) -> Line {
    Line {
        text,
        from,
        ours,
        theirs,
    }
}

const LINES: [Line; 10] = [
    line(
        "one limiter, one thread",
        ("one-limiter", "check allowed, 1 thread"),
        "ratekeeper on FastClock",
        "governor on FastClock",
    ),
    line(
        "one limiter, two threads at once",
        ("one-limiter", "check allowed, 2 threads"),
        "ratekeeper on FastClock",
        "governor on FastClock",
    ),
    line(
        "a limit for each of 1,000 text keys",
        ("keyed", "1,000 String keys, uniform, allowed, 1 thread"),
        "ratekeeper",
        "governor",
    ),
    line(
        "a limit for each of 1 M text keys",
        ("keyed", "1 M String keys, uniform, allowed, 1 thread"),
        "ratekeeper",
        "governor",
    ),
    line(
        "memory for 1 M text keys",
        ("keyed", "resident memory, 1 M String keys"),
        "ratekeeper",
        "governor",
    ),
    line(
        "a request through an axum service with a limit by address",
        ("middleware", "a request, no socket"),
        "ratekeeper per_ip",
        "tower_governor",
    ),
    line(
        "exact decisions on one Redis",
        ("redis", "decisions a second"),
        "ratekeeper",
        "one EVALSHA a decision, pipelined",
    ),
    line(
        "Envoy's ShouldRateLimit over gRPC",
        ("envoy", "8 clients × 32"),
        "ratekeeper",
        "bare tonic service",
    ),
    line(
        "CL.THROTTLE over RESP, pipeline of 16",
        ("resp", "pipeline 16"),
        "ratekeeper CL.THROTTLE",
        "a bare responder",
    ),
    line(
        "requests of 1 KB through the gateway",
        ("gateway", "HTTP/1.1, requests/s"),
        "ratekeeper",
        "nginx",
    ),
];

/// Writes the page; returns its path.
pub(crate) fn write(rows: &[Row]) -> io::Result<PathBuf> {
    let lines = LINES.iter().map(|line| {
        let value = |competitor: &str| {
            rows.iter()
                .find(|row| (row.group, &*row.row) == line.from && row.competitor == competitor)
        };
        let text = |row: Option<&Row>| match row {
            Some(row) if row.value >= 1_000.0 => format!("{:.0} {}", row.value, row.unit),
            Some(row) => format!("{:.1} {}", row.value, row.unit),
            None => "not measured".into(),
        };
        let (ours, theirs) = (value(line.ours), value(line.theirs));
        let ratio = match (ours, theirs) {
            (Some(ours), Some(theirs)) => format!("{:.2}", ours.value / theirs.value),
            _ => "–".into(),
        };
        let theirs = format!("{}: {}", line.theirs, text(theirs));
        vec![line.text.into(), text(ours), theirs, ratio]
    });
    let table = table(&["", "ratekeeper", "beside it", "ratio"], lines);
    let page = format!(
        "# Benchmarks\n\n\
         `{COMMAND}` measures these ten rows in about two minutes and writes this page. Both of a row\n\
         take turns in the same run. Read the ratios: absolute values differ from machine to machine.\n\
         For `/s` more is better, otherwise less.\n\n\
         {}, on {}.\n\n{table}\n\n\
         How it is measured, and everything else: `make bench`, [bench/README.md](../bench/README.md).\n",
        today(),
        machine(),
    );
    let path = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/benchmarks.md"
    ));
    fs::write(&path, page)?;
    Ok(path)
}

fn today() -> String {
    let date = Command::new("date").arg("+%Y-%m-%d").output();
    let text = date.map(|date| String::from_utf8_lossy(&date.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "Undated".into())
}
