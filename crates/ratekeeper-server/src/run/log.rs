//! The log on standard error: text or JSON lines; repeated lines are sampled.
//!
//! Keys of callers are never logged.

use crate::config::{LogConfig, LogFormat};
use ratekeeper_tracing::{Rules, Sampler, Sampling};
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, fmt};

/// Target of lines that are never sampled because each differs, such as the problems of a file.
pub(crate) const EACH: &str = "ratekeeper::each";

/// Target of the operators' changes.
pub(crate) const AUDIT: &str = "ratekeeper::audit";

/// Lines of one place in the code that are logged before sampling starts.
const MAX_BURST: u32 = 10;

/// Interval between lines of one place in the code once sampling has started.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

/// The sampler, if sampling is on.
static SAMPLER: OnceLock<Sampler> = OnceLock::new();

/// Starts logging in this process.
pub(crate) fn to_stderr(config: &LogConfig) {
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let configured = || Targets::new().with_default(config.level.parse::<Level>().ok());
    let (filter, error) = match directives.parse::<Targets>() {
        Ok(filter) if !directives.is_empty() => (filter, None),
        Ok(_) => (configured(), None),
        Err(error) => (configured(), Some(error)),
    };
    let format = format_layer(config.format, io::stderr);
    let layer = if config.sample {
        SAMPLER
            .get_or_init(|| Sampler::new(rules()))
            .layer(format)
            .boxed()
    } else {
        format
    };
    tracing_subscriber::registry()
        .with(layer)
        .with(filter)
        .init();
    if let Some(error) = error {
        tracing::warn!(
            "RUST_LOG is ignored: {error}; write it as in RUST_LOG=debug or \
             RUST_LOG=ratekeeper=debug"
        );
    }
}

/// Number of suppressed lines so far.
pub(crate) fn suppressed() -> u64 {
    SAMPLER
        .get()
        .map_or(0, |sampler| sampler.stats().suppressed())
}

fn rules() -> Rules {
    let sampling = || Sampling::Sometimes {
        first: MAX_BURST,
        every: 0,
        interval: SAMPLE_INTERVAL,
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
        .fold(Rules::new(), |rules, level| rules.level(level, sampling()));
    rules
        .target(EACH, Sampling::All)
        .target(AUDIT, Sampling::All)
}

fn format_layer<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
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
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// All lines that are logged while `run` runs.
    pub(crate) fn logged(run: impl FnOnce()) -> Vec<String> {
        let output = Output::default();
        let writer = output.clone();
        let layer = format_layer(LogFormat::Text, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), run);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn log_warning(number: u32) {
        tracing::warn!(number, "the upstream does not answer");
    }

    /// The log of 5,001 similar lines and of 40 lines that are not sampled.
    fn flood(format: LogFormat) -> Vec<String> {
        let output = Output::default();
        let clock = ManualClock::new();
        let writer = output.clone();
        let layer = Sampler::with_clock(rules(), clock.clone())
            .layer(format_layer(format, move || writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            (0..5_000).for_each(log_warning);
            clock.advance(SAMPLE_INTERVAL);
            log_warning(5_000);
            for problem in 0..20 {
                tracing::warn!(target: EACH, "problem {problem}");
                tracing::info!(target: AUDIT, "ban {problem}");
            }
        });
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn repeated_lines_are_sampled_with_the_number_suppressed() {
        let lines = flood(LogFormat::Text);
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
    fn json_lines_are_objects() {
        let lines: Vec<serde_json::Value> = flood(LogFormat::Json)
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
