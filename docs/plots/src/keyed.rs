//! The plot of the cost of keyed decisions: drawn from results that were measured once and
//! committed, since a measurement comes out differently every time. `cargo run --release
//! --manifest-path bench/Cargo.toml -- keyed --save` renews them.

use crate::svg::{ADMITTED, Anchor, GRID, INK, LINES, MUTED, Svg};
use serde::Deserialize;

const BENCH_RESULTS: &str = include_str!("../keyed.json");

#[derive(Deserialize)]
struct BenchResults {
    machine: String,
    /// Whether it had its cores for itself.
    quiet: bool,
    nanos: Vec<Bar>,
    bytes: Vec<Bar>,
}

#[derive(Deserialize)]
struct Bar {
    keys: u64,
    kind: String,
    who: String,
    value: f64,
}

/// Who is drawn, under which name, in which colour.
const WHO: [(&str, &str, &str); 2] = [
    ("ratekeeper", "ratekeeper", ADMITTED),
    ("governor", "governor", LINES[2]),
];

const WIDTH: f64 = 880.0;
const TOP: f64 = 128.0;
const HEIGHT: f64 = 210.0;
const GAP: f64 = 14.0;
/// Width of a bar and its gap.
const BAR: f64 = 27.0;

pub(crate) fn plot() -> String {
    let results: BenchResults = serde_json::from_str(BENCH_RESULTS).expect("the bench wrote it");
    let mut svg = Svg::new(WIDTH, TOP + HEIGHT + 52.0);
    svg.title(20.0, 32.0, 18, "What one of many keys costs");
    let BenchResults { machine, quiet, .. } = &results;
    let busy = if *quiet { "" } else { ", which was busy" };
    let note = format!("one thread, keys in random order, all on one clock; {machine}{busy}");
    svg.note(20.0, 54.0, Anchor::Start, &note);
    let mut x = 20.0;
    for (_, name, color) in WHO {
        svg.rect(x, 68.0, 12.0, 12.0, color);
        svg.note(x + 18.0, 78.0, Anchor::Start, name);
        x += 130.0;
    }
    let of = |kind: &str| {
        results
            .nanos
            .iter()
            .filter(|bar| bar.kind == kind)
            .collect::<Vec<_>>()
    };
    let x = panel(
        &mut svg,
        20.0,
        "ns a decision, u64 keys",
        &of("u64"),
        |bar| many(bar.keys),
    );
    let x = panel(
        &mut svg,
        x,
        "ns a decision, “user:N”",
        &of("String"),
        |bar| many(bar.keys),
    );
    let bytes: Vec<_> = results.bytes.iter().collect();
    panel(&mut svg, x, "bytes a key", &bytes, |bar| {
        format!("{} {}", many(bar.keys), bar.kind)
    });
    svg.finish("Nanoseconds a decision and bytes a key: ratekeeper beside its peers")
}

/// Bars in groups by their label, under a scale of their own; where the next panel begins.
fn panel(svg: &mut Svg, x: f64, title: &str, bars: &[&Bar], label: impl Fn(&Bar) -> String) -> f64 {
    let drawn = |bar: &&&Bar| WHO.iter().any(|(who, ..)| *who == bar.who);
    let bars: Vec<&&Bar> = bars.iter().filter(drawn).collect();
    let top = bars.iter().map(|bar| bar.value).fold(1.0, f64::max);
    let mut labels: Vec<String> = Vec::new();
    for bar in &bars {
        if !labels.contains(&label(bar)) {
            labels.push(label(bar));
        }
    }
    svg.title(x, TOP - 22.0, 13, title);
    let mut at = x;
    for name in labels {
        let start = at;
        for (who, _, color) in WHO {
            let Some(bar) = bars.iter().find(|bar| bar.who == who && label(bar) == name) else {
                continue;
            };
            let height = bar.value / top * HEIGHT;
            svg.rect(at + 1.0, TOP + HEIGHT - height, BAR - 2.0, height, color);
            let style = format!(
                r#"fill="{}""#,
                if who == "ratekeeper" { INK } else { MUTED }
            );
            svg.text(
                at + BAR / 2.0,
                TOP + HEIGHT - height - 4.0,
                10,
                Anchor::Middle,
                &style,
                &format!("{:.0}", bar.value),
            );
            at += BAR;
        }
        svg.note(
            (start + at) / 2.0,
            TOP + HEIGHT + 18.0,
            Anchor::Middle,
            &name,
        );
        at += GAP;
    }
    svg.line(
        [x, TOP + HEIGHT],
        [at - GAP, TOP + HEIGHT],
        &format!(r#"stroke="{GRID}""#),
    );
    at + GAP
}

fn many(keys: u64) -> String {
    if keys < 1_000_000 {
        format!("{} K", keys / 1_000)
    } else {
        format!("{} M", keys / 1_000_000)
    }
}
