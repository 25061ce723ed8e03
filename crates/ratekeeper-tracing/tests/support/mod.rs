//! The output of the fmt layer, captured as lines.
#![allow(dead_code, reason = "each test file uses its part")]

use ratekeeper::ManualClock;
use ratekeeper_tracing::{Rules, Sampler};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing::subscriber::DefaultGuard;
use tracing_core::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, fmt, prelude::*};

/// Lines that were written.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// What was written since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
    }

    /// The number of lines that are not reports, and the sum of the numbers reported by the others.
    pub(crate) fn take_counts(&self) -> (usize, u64) {
        let lines = self.take();
        let reported = |line: &String| line.split("suppressed=").nth(1)?.parse::<u64>().ok();
        (
            lines.iter().filter(|line| reported(line).is_none()).count(),
            lines.iter().filter_map(reported).sum(),
        )
    }

    /// A fmt layer that writes here: level, target, fields.
    pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        fmt::layer()
            .with_writer(self.clone())
            .without_time()
            .with_ansi(false)
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A sampled fmt layer, in force on this thread until it is dropped.
pub(crate) struct Output {
    pub(crate) clock: ManualClock,
    pub(crate) sampler: Sampler<ManualClock>,
    pub(crate) lines: Lines,
    _in_force: DefaultGuard,
}

impl Output {
    pub(crate) fn new(rules: Rules) -> Self {
        Self::made_by(rules, |sampler, lines| {
            Box::new(sampler.layer(lines.layer()))
        })
    }

    pub(crate) fn made_by(
        rules: Rules,
        layer: impl FnOnce(&Sampler<ManualClock>, &Lines) -> Box<dyn Layer<Registry> + Send + Sync>,
    ) -> Self {
        let clock = ManualClock::new();
        let sampler = Sampler::with_clock(rules, clock.clone());
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry().with(layer(&sampler, &lines));
        let _in_force = subscriber.set_default();
        Self {
            clock,
            sampler,
            lines,
            _in_force,
        }
    }
}
