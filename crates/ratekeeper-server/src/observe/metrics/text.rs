//! Writer for the Prometheus text format 0.0.4.
//!
//! Written by hand instead of using `metrics` and `metrics-exporter-prometheus`: the counters are
//! already in the engine, and the histograms of that crate allocate on each record and cannot be
//! filled at scrape time.

use std::fmt::{self, Write};

/// The content type of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page under construction, family by family.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

/// The type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The samples of one name. HELP and TYPE are written with the first sample, so an empty family is
/// omitted.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
    help: &'a str,
    kind: Kind,
    has_head: bool,
}

/// Label names and values. Values are escaped; names are constants and are not.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The value of a sample: an exact count, or a number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value {
    Count(u64),
    Number(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl Page {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts a family. Each name may be used once.
    pub(crate) fn family<'a>(&'a mut self, name: &'a str, help: &'a str, kind: Kind) -> Family<'a> {
        Family {
            text: &mut self.text,
            name,
            help,
            kind,
            has_head: false,
        }
    }

    /// The text of the page.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Writes a counter or gauge sample. NaN is omitted.
    pub(crate) fn sample(&mut self, labels: Labels<'_>, value: impl Into<Value>) -> &mut Self {
        debug_assert_ne!(self.kind, Kind::Histogram, "{} has buckets", self.name);
        let value = value.into();
        if !matches!(value, Value::Number(number) if number.is_nan()) {
            self.write_head();
            self.line("", labels, None, value);
        }
        self
    }

    /// Writes a histogram from cumulative buckets: ascending upper bounds, each with the count at
    /// or below it. The `+Inf` bucket is written from `count`, even if `buckets` has it.
    pub(crate) fn histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: &[(f64, u64)],
        count: u64,
        sum: f64,
    ) -> &mut Self {
        debug_assert_eq!(self.kind, Kind::Histogram, "{} has no buckets", self.name);
        if sum.is_nan() {
            return self;
        }
        self.write_head();
        for &(bound, below) in buckets.iter().filter(|(bound, _)| bound.is_finite()) {
            self.line("_bucket", labels, Some(bound), below.into());
        }
        self.line("_bucket", labels, Some(f64::INFINITY), count.into());
        self.line("_sum", labels, None, sum.into());
        self.line("_count", labels, None, count.into());
        self
    }

    fn write_head(&mut self) {
        if !std::mem::replace(&mut self.has_head, true) {
            let Self { name, help, .. } = *self;
            let kind = match self.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let help = Escaped {
                text: help,
                quotes: false,
            };
            self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<f64>, value: Value) {
        let name = self.name;
        self.put(format_args!("{name}{suffix}"));
        let mut open = '{';
        for &(name, value) in labels {
            let value = Escaped {
                text: value,
                quotes: true,
            };
            self.put(format_args!("{open}{name}=\"{value}\""));
            open = ',';
        }
        if let Some(bound) = bound {
            self.put(format_args!("{open}le=\"{}\"", Value::Number(bound)));
            open = ',';
        }
        let close = if open == ',' { "}" } else { "" };
        self.put(format_args!("{close} {value}\n"));
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Number(number) if number.is_infinite() => {
                f.write_str(if number > 0.0 { "+Inf" } else { "-Inf" })
            }
            // Plain digits in a readable range, else an exponent.
            Self::Number(number) if number == 0.0 || (1e-4..1e15).contains(&number.abs()) => {
                write!(f, "{number}")
            }
            Self::Number(number) => write!(f, "{number:e}"),
        }
    }
}

/// Escaped text: line breaks and backslashes, and quotes in label values.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.text.split_inclusive(['\\', '\n', '"']) {
            match part.as_bytes().last() {
                Some(b'\n') => write!(f, "{}\\n", &part[..part.len() - 1])?,
                Some(b'\\') => write!(f, "{part}\\")?,
                Some(b'"') if self.quotes => write!(f, "{}\\\"", &part[..part.len() - 1])?,
                _ => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_family_has_help_type_and_a_line_for_each_sample() {
        let mut page = Page::new();
        page.family(
            "ratekeeper_decisions_total",
            "Decisions by policy.",
            Kind::Counter,
        )
        .sample(&[("policy", "login"), ("outcome", "allowed")], 12)
        .sample(&[("policy", "login"), ("outcome", "denied")], u64::MAX);
        page.family("ratekeeper_waiting", "Requests waiting.", Kind::Gauge)
            .sample(&[], 0.5);
        assert_eq!(
            page.into_text(),
            "# HELP ratekeeper_decisions_total Decisions by policy.\n\
             # TYPE ratekeeper_decisions_total counter\n\
             ratekeeper_decisions_total{policy=\"login\",outcome=\"allowed\"} 12\n\
             ratekeeper_decisions_total{policy=\"login\",outcome=\"denied\"} 18446744073709551615\n\
             # HELP ratekeeper_waiting Requests waiting.\n\
             # TYPE ratekeeper_waiting gauge\n\
             ratekeeper_waiting 0.5\n"
        );
    }

    #[test]
    fn a_histogram_ends_with_the_inf_bucket() {
        let expected = "# HELP took_seconds How long.\n\
             # TYPE took_seconds histogram\n\
             took_seconds_bucket{store=\"memory\",le=\"1e-7\"} 1\n\
             took_seconds_bucket{store=\"memory\",le=\"2.5e-7\"} 3\n\
             took_seconds_bucket{store=\"memory\",le=\"1\"} 4\n\
             took_seconds_bucket{store=\"memory\",le=\"+Inf\"} 5\n\
             took_seconds_sum{store=\"memory\"} 2.25\n\
             took_seconds_count{store=\"memory\"} 5\n";
        for end in [&[][..], &[(f64::INFINITY, 5)]] {
            let buckets = [&[(1e-7, 1), (2.5e-7, 3), (1.0, 4)], end].concat();
            let mut page = Page::new();
            page.family("took_seconds", "How long.", Kind::Histogram)
                .histogram(&[("store", "memory")], &buckets, 5, 2.25);
            assert_eq!(page.into_text(), expected);
        }
        let mut page = Page::new();
        page.family("x", "", Kind::Histogram)
            .histogram(&[], &[], 0, 0.0);
        assert_eq!(
            page.into_text(),
            "# HELP x \n# TYPE x histogram\nx_bucket{le=\"+Inf\"} 0\nx_sum 0\nx_count 0\n"
        );
    }

    #[test]
    fn values_and_help_are_escaped() {
        let mut page = Page::new();
        page.family("x", "a \"b\" \\ c\nd", Kind::Gauge)
            .sample(&[("policy", "a \"b\" \\ c\nd é,}")], 1);
        assert_eq!(
            page.into_text(),
            "# HELP x a \"b\" \\\\ c\\nd\n# TYPE x gauge\nx{policy=\"a \\\"b\\\" \\\\ c\\nd é,}\"} 1\n"
        );
    }

    #[test]
    fn a_family_without_a_sample_prints_nothing() {
        let mut page = Page::new();
        page.family("x", "Nothing.", Kind::Counter);
        page.family("y", "Not known.", Kind::Gauge)
            .sample(&[], f64::NAN);
        page.family("z", "Not known.", Kind::Histogram)
            .histogram(&[], &[(1.0, 1)], 1, f64::NAN);
        assert_eq!(page.into_text(), "");
    }

    #[test]
    fn numbers_parse_back_to_the_same_value() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.0001, "0.0001"),
            (0.00005, "5e-5"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e14, "100000000000000"),
            (1e15, "1e15"),
            (f64::MAX, "1.7976931348623157e308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
        ];
        for (number, text) in cases {
            assert_eq!(Value::Number(number).to_string(), text);
            assert_eq!(text.parse(), Ok(number));
        }
        assert_eq!(Value::Number(f64::INFINITY).to_string(), "+Inf");
        assert_eq!(Value::Number(f64::NEG_INFINITY).to_string(), "-Inf");
    }

    /// Runs `promtool check metrics` on a page: success, and its output.
    fn promtool(page: Page) -> (bool, String) {
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect(
                "promtool, which checks the pages, cannot be started: `make tools` installs it",
            );
        std::io::Write::write_all(
            &mut promtool.stdin.take().unwrap(),
            page.into_text().as_bytes(),
        )
        .unwrap();
        let output = promtool.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    #[test]
    fn promtool_accepts_the_page() {
        let mut page = Page::new();
        page.family(
            "ratekeeper_decisions_total",
            "Decisions \\ by\npolicy \"and\" outcome.",
            Kind::Counter,
        )
        .sample(
            &[("policy", "a \"b\" \\ c\nd é,}"), ("outcome", "allowed")],
            u64::MAX,
        )
        .sample(&[("policy", ""), ("outcome", "denied")], 0);
        page.family("ratekeeper_keys", "Keys by policy.", Kind::Gauge)
            .sample(&[("policy", "tiny")], f64::MIN_POSITIVE)
            .sample(&[("policy", "huge")], f64::MAX)
            .sample(&[("policy", "endless")], f64::INFINITY)
            .sample(&[("policy", "below")], f64::NEG_INFINITY)
            .sample(&[("policy", "unknown")], f64::NAN);
        page.family(
            "ratekeeper_decision_duration_seconds",
            "How long a decision took.",
            Kind::Histogram,
        )
        .histogram(
            &[("store", "memory")],
            &[(1e-7, 1), (2.5e-7, 3), (1.0, 4), (f64::INFINITY, 5)],
            5,
            2.25,
        )
        .histogram(
            &[("store", "redis")],
            &[(1e-7, 0), (2.5e-7, 0), (1.0, 0), (f64::INFINITY, 0)],
            0,
            0.0,
        );
        page.family("ratekeeper_nothing_total", "Not there.", Kind::Counter);
        assert_eq!(promtool(page), (true, String::new()));
    }

    #[test]
    fn promtool_reports_a_bad_name() {
        let mut page = Page::new();
        page.family(
            "ratelimit_requests_allowed",
            "A counter of another name.",
            Kind::Counter,
        )
        .sample(&[], 1);
        let (is_valid, output) = promtool(page);
        assert!(!is_valid && output.contains("_total"), "{output}");
    }
}
