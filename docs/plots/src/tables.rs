//! The measured tables, which stand in the pages between two comments.

use crate::experiments::{self, Herd, Series, TIMEOUT};
use crate::fleet;
use crate::measure::{ALGORITHMS, Measured, measure};
use crate::overload;
use crate::traffic::MILLI;
use ratekeeper::Algorithm;

/// A table by the name that a page asks for it with.
pub(crate) struct Table {
    name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) body: String,
}

impl Table {
    pub(crate) fn new(
        name: &'static str,
        title: &'static str,
        head: &[&str],
        rows: Vec<Vec<String>>,
    ) -> Self {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let head: Vec<String> = head.iter().map(ToString::to_string).collect();
        let rule = vec!["---".to_string(); head.len()];
        let body = [head, rule]
            .iter()
            .chain(&rows)
            .map(|cells| line(cells))
            .collect();
        Self { name, title, body }
    }

    /// The page with this table in its place, if it has one for it.
    pub(crate) fn put_into(&self, page: &str) -> String {
        let (open, close) = (
            format!("<!-- measured: {} -->\n", self.name),
            "<!-- end -->",
        );
        let Some((before, rest)) = page.split_once(&open) else {
            return page.to_string();
        };
        let Some((_, after)) = rest.split_once(close) else {
            return page.to_string();
        };
        format!("{before}{open}\n{}\n{close}{after}", self.body)
    }
}

pub(crate) fn all() -> Vec<Table> {
    let measured = ALGORITHMS.map(|algorithm| (algorithm, measure(algorithm)));
    let mut tables = vec![
        which(&measured),
        accuracy(&measured),
        retry_after(),
        bursts(),
        queues(),
        herds(),
        fleets(),
    ];
    tables.extend(overload::tables());
    tables
}

/// What it promises, what a decision works through, when to take it.
fn about(algorithm: Algorithm) -> [&'static str; 3] {
    match algorithm {
        Algorithm::TokenBucket => [
            "At most B + r·t in any time t, so up to B + N in one window; no waiting.",
            "O(1), one atomic word",
            "The default: an average rate, with bursts up to a size you choose.",
        ],
        Algorithm::Pacing => [
            "One start each interval, never sooner; no wait longer than M, the rest is denied.",
            "O(1), one atomic word",
            "A backend that cannot take bursts, and callers that can wait.",
        ],
        Algorithm::FixedWindow => [
            "At most N in each aligned window, so up to 2N at the edge of two windows, which does happen.",
            "O(1), one atomic word while the numbers fit, else a short lock",
            "Quotas by the clock: “1,000 a day, reset at midnight UTC”.",
        ],
        Algorithm::FixedWindowFirstHit => [
            "At most N from a caller's first call until W later, so up to 2N − 1 within W.",
            "O(1), a short lock",
            "The same quotas, with windows that start at each caller's first call.",
        ],
        Algorithm::SlidingWindow => [
            "About N in any window; below 2N in the worst case.",
            "O(1), one atomic word while the numbers fit, else a short lock",
            "A sliding window in little memory, where an estimate is enough.",
        ],
        Algorithm::SlidingWindowStrict => [
            "At most N in any window; a call counts for up to W·(1 + 1/10).",
            "O(1): 11 counters, a short lock",
            "A hard bound in fixed memory, where 10 % too strict is acceptable.",
        ],
        _ => [
            "At most N in any window, exactly.",
            "O(1) to deny, O(log N) when entries expire, O(cost) to allow; a short lock",
            "A hard and exact bound with a small N.",
        ],
    }
}

fn linked(algorithm: Algorithm) -> String {
    format!("[`{algorithm}`](#{algorithm})")
}

fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

fn which(measured: &[(Algorithm, Measured)]) -> Table {
    let row = |(algorithm, measured): &(Algorithm, Measured)| {
        let [promise, work, when] = about(*algorithm);
        let [small, large] = measured.bytes;
        let cells = [
            &linked(*algorithm),
            when,
            promise,
            work,
            &small.to_string(),
            &large.to_string(),
        ];
        cells.map(ToString::to_string).into()
    };
    Table::new(
        "which",
        "Which algorithm to choose",
        &[
            "name",
            "use it for",
            "guarantee",
            "cost of a decision",
            "bytes, `20/s`",
            "bytes, `10000/h`",
        ],
        measured.iter().map(row).collect(),
    )
}

fn accuracy(measured: &[(Algorithm, Measured)]) -> Table {
    let exact = measured.last().map_or(1, |(_, log)| log.admitted);
    let row = |(algorithm, m): &(Algorithm, Measured)| {
        let percent =
            |part: usize, whole: usize| format!("{:.1} %", 100.0 * part as f64 / whole as f64);
        vec![
            linked(*algorithm),
            m.worst.to_string(),
            m.in_the_plot.to_string(),
            percent(m.beyond, m.admitted),
            percent(m.admitted, exact),
            format!("{:.1}", m.under_overload),
        ]
    };
    Table::new(
        "accuracy",
        "Accuracy, N = 20 in W = 1 s",
        &[
            "name",
            "most in any 1 s: under attack",
            "in the plot",
            "share of allowed calls beyond N",
            "allowed in total, log = 100 %",
            "rate under overload",
        ],
        measured.iter().map(row).collect(),
    )
}

fn retry_after() -> Table {
    let row = |algorithm| {
        let (denied, pass) = experiments::told(algorithm);
        let after = denied.retry_after().unwrap_or_default();
        // As HTTP says it: whole seconds, rounded up, at least 1.
        let header = after.as_millis().div_ceil(1_000).max(1);
        vec![
            code(algorithm),
            format!("{after:?}"),
            header.to_string(),
            pass.to_string(),
        ]
    };
    Table::new(
        "retry_after",
        "Retry-After of the first denied call: 60/min, all at once at 15 s past the minute",
        &[
            "algorithm",
            "`retry_after()`",
            "Retry-After",
            "allowed then",
        ],
        ALGORITHMS.map(row).into(),
    )
}

fn share(part: usize, whole: usize) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole as f64)
}

fn millis(nanos: u64) -> String {
    format!("{} ms", nanos / MILLI)
}

fn bursts() -> Table {
    let row = |series: Series| {
        let denied = series.offered - series.waits.len();
        vec![
            code(&series.name),
            share(denied, series.offered),
            millis(series.longest()),
        ]
    };
    Table::new(
        "bursts",
        "Bursts of 60 on a server that does 80 a second",
        &["limit", "denied", "longest wait at the server"],
        experiments::bursts().into_iter().map(row).collect(),
    )
}

fn queues() -> Table {
    let row = |series: Series| {
        let late = series
            .waits
            .iter()
            .filter(|(_, wait)| *wait > TIMEOUT)
            .count();
        let in_time = series.waits.len() - late;
        vec![
            code(&series.name),
            series.waits.len().to_string(),
            millis(series.longest()),
            late.to_string(),
            in_time.to_string(),
        ]
    };
    Table::new(
        "queues",
        "30 a second for 30 s into 20 a second; callers leave after 2 s",
        &[
            "limit",
            "allowed",
            "longest wait",
            "started after the caller had left",
            "started in time",
        ],
        experiments::queues().into_iter().map(row).collect(),
    )
}

fn fleets() -> Table {
    let row = |(name, way): (&str, fleet::Way)| {
        let outcome = fleet::Outcome::of(way);
        let (calls, admitted) = (outcome.calls_a_second(), outcome.admitted.len());
        let each = outcome.asked as f64 / outcome.calls as f64;
        let cells = [
            calls.to_string(),
            format!("{each:.0}"),
            admitted.to_string(),
            outcome.beyond().to_string(),
        ];
        [name.to_string()]
            .into_iter()
            .chain(cells)
            .chain([format!("{:.3}", outcome.fairness())])
            .collect()
    };
    Table::new(
        "a fleet",
        "Four nodes, one key of 1000/s burst 2000, 1,000 calls a second to each for 8 s",
        &[
            "",
            "Redis calls a second",
            "decisions a call",
            "allowed",
            "most beyond burst + rate · time",
            "Jain's index",
        ],
        fleet::WAYS.map(row).into(),
    )
}

fn herds() -> Table {
    let row = |herd: &Herd| {
        let counts = herd.run();
        let started = format!("{} s", herd.started_within / (1_000 * MILLI));
        let peak = counts.iter().max().copied().unwrap_or(0);
        let all: u64 = counts.iter().sum();
        vec![
            herd.name(),
            started,
            format!("{:.1}", all as f64 / counts.len() as f64),
            peak.to_string(),
        ]
    };
    Table::new(
        "herds",
        "100 clients, each 10/10s, that retry at their Retry-After: calls that reach the service per 100 ms",
        &["algorithm", "clients start within", "mean", "peak"],
        Herd::ALL.iter().map(row).collect(),
    )
}
