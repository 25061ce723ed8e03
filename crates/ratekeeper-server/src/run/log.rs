//! The log, on standard error: lines for people or objects for programs, and what is repeated
//! thinned out.
//!
//! Keys of callers are never logged.

use ratekeeper_policy::config::{LogConfig, LogFormat};
use ratekeeper_tracing::{Rules, Sampler, Sampling};
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// The target of what is said once for each of several things, such as problems of a file: each is
/// another one.
pub(crate) const EACH: &str = "ratekeeper::each";

/// The target of what operators do.
pub(crate) const AUDIT: &str = "ratekeeper::audit";

/// So many of one line of code are said at once, and then one in so long.
const FIRST: u32 = 10;
const THEN: Duration = Duration::from_secs(60);

/// What thins it out, if that is wanted.
static SAMPLER: OnceLock<Sampler> = OnceLock::new();

/// From now on, in this process.
pub(crate) fn to_stderr(config: &LogConfig) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let (filter, problem) = match EnvFilter::builder().parse(&wanted) {
        Ok(filter) if !wanted.is_empty() => (filter, None),
        Ok(_) => (EnvFilter::new(config.level), None),
        Err(error) => (EnvFilter::new(config.level), Some(error)),
    };
    let written = written(config.format, io::stderr);
    let layer = match config.sample {
        true => SAMPLER
            .get_or_init(|| Sampler::new(rules()))
            .layer(written)
            .boxed(),
        false => written,
    };
    tracing_subscriber::registry()
        .with(layer)
        .with(filter)
        .init();
    if let Some(error) = problem {
        tracing::warn!(
            "RUST_LOG is ignored: {error}; write it as in RUST_LOG=debug or RUST_LOG=ratekeeper=debug"
        );
    }
}

/// How many lines were left out so far.
pub(crate) fn suppressed() -> u64 {
    SAMPLER
        .get()
        .map_or(0, |sampler| sampler.stats().suppressed())
}

fn rules() -> Rules {
    let sometimes = || Sampling::Sometimes {
        first: FIRST,
        every: 0,
        interval: THEN,
    };
    let levels = [
        Level::ERROR,
        Level::WARN,
        Level::INFO,
        Level::DEBUG,
        Level::TRACE,
    ];
    let rules = levels
        .into_iter()
        .fold(Rules::new(), |rules, level| rules.level(level, sometimes()));
    rules
        .target(EACH, Sampling::All)
        .target(AUDIT, Sampling::All)
}

fn written<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_writer(writer).with_target(false);
    match format {
        LogFormat::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
        _ => layer.boxed(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ratekeeper::ManualClock;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are logged while this runs, all of them.
    pub(crate) fn logged(run: impl FnOnce()) -> Vec<String> {
        let written_to = Written::default();
        let writer = written_to.clone();
        let layer = written(LogFormat::Text, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), run);
        let text = String::from_utf8(written_to.0.lock().unwrap().clone()).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn complain(number: u32) {
        tracing::warn!(number, "the upstream does not answer");
    }

    /// Ten, then one a minute and how many there were in between; what is said once for each is
    /// said.
    fn flooded(format: LogFormat) -> Vec<String> {
        let (written_to, clock) = (Written::default(), ManualClock::new());
        let writer = written_to.clone();
        let layer = Sampler::with_clock(rules(), clock.clone())
            .layer(written(format, move || writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            (0..5_000).for_each(complain);
            clock.advance(THEN);
            complain(5_000);
            for problem in 0..20 {
                tracing::warn!(target: EACH, "problem {problem}");
                tracing::info!(target: AUDIT, "ban {problem}");
            }
        });
        let text = String::from_utf8(written_to.0.lock().unwrap().clone()).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_flood_is_ten_lines_and_then_one_a_minute_with_how_many_were_left_out() {
        let lines = flooded(LogFormat::Text);
        assert_eq!(lines.len(), 10 + 1 + 1 + 20 + 20, "{lines:#?}");
        assert!(
            lines[9].ends_with("WARN the upstream does not answer number=9"),
            "{}",
            lines[9]
        );
        assert!(
            lines[10].ends_with("number=5000") && lines[11].ends_with("suppressed=4990"),
            "{lines:#?}"
        );
        assert!(lines[50].ends_with("WARN problem 19") && lines[51].ends_with("INFO ban 19"));
    }

    #[test]
    fn for_programs_each_line_is_an_object() {
        let lines: Vec<serde_json::Value> = flooded(LogFormat::Json)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            (&lines[0]["level"], &lines[0]["message"]),
            (&"WARN".into(), &"the upstream does not answer".into())
        );
        assert_eq!(
            (&lines[0]["number"], &lines[11]["suppressed"]),
            (&0.into(), &4990.into())
        );
        assert!(lines.iter().all(|line| line["timestamp"].is_string()));
    }
}
