//! The log sampler when it suppresses an event, beside a filter that always rejects.

use super::Group;
use crate::harness::{self, Contestant};
use crate::report::{Findings, Ratio, Row, object, table};
use ratekeeper_tracing::Sampler;
use serde_json::json;
use std::hint::black_box;
use tracing::{Dispatch, debug};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{filter, fmt, registry};

pub(super) const GROUP: Group = Group {
    name: "sampler",
    about: "ns of a debug! event that is suppressed, 1 thread; in brackets the sampler / a filter that always rejects",
    run,
};

fn run(group: &'static str) -> Findings {
    let sink = || fmt::layer().with_writer(std::io::sink);
    let sampler = Sampler::default();
    let rows =
        [
            (
                "for one layer",
                Dispatch::new(registry().with(Sampler::default().layer(sink()))),
                Dispatch::new(
                    registry().with(sink().with_filter(filter::dynamic_filter_fn(|meta, _| {
                        black_box(meta.is_span())
                    }))),
                ),
            ),
            (
                "for all layers",
                Dispatch::new(
                    registry()
                        .with(sampler.reporting(sink()))
                        .with(sampler.clone()),
                ),
                Dispatch::new(registry().with(sink()).with(filter::dynamic_filter_fn(
                    |meta, _| black_box(meta.is_span()),
                ))),
            ),
        ];
    let mut found = Findings::default();
    let mut lines = Vec::new();
    for (row, sampled, rejected) in rows {
        // The same event for each, from a callsite of its own; every thousandth is shown.
        let contestants = [
            event("the sampler", &sampled, || debug!("again")),
            event("a filter that always rejects", &rejected, || {
                debug!("again");
            }),
        ];
        let nanos = harness::one_thread(&contestants);
        lines.push(vec![
            row.into(),
            format!("{:.1}", nanos[0]),
            format!("{:.1} ({:.2})", nanos[1], nanos[0] / nanos[1]),
        ]);
        for (at, contestant) in contestants.iter().enumerate() {
            found.rows.push(Row {
                group,
                row: format!("debug! suppressed {row}, 1 thread"),
                competitor: contestant.name.clone(),
                value: nanos[at],
                unit: "ns",
                ratio_to: Some(Ratio {
                    competitor: contestants[1 - at].name.clone(),
                    ratio: nanos[at] / nanos[1 - at],
                }),
                params: object(json!({ "threads": 1, "statistic": "best" })),
            });
        }
    }
    println!(
        "{}\n",
        table(
            &["", "the sampler", "a filter that always rejects"],
            lines.into_iter()
        )
    );
    found
}

fn event(competitor: &str, to: &Dispatch, event: impl Fn() + Clone + Sync + 'static) -> Contestant {
    let to = to.clone();
    let around = move |events: &mut dyn FnMut()| tracing::dispatcher::with_default(&to, events);
    Contestant::inside(competitor, around, move || {
        event();
        true
    })
}
