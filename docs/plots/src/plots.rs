//! The plots of docs/algorithms.md and docs/choosing-numbers.md.

use crate::experiments::{self, BUDGET, HERD_FROM, HERD_TO, Herd, SERVES, SLICE, Series, TIMEOUT};
use crate::fleet;
use crate::keyed;
use crate::measure::{ALGORITHMS, limit};
use crate::overload;
use crate::svg::{ADMITTED, Anchor, Frame, LINES, MUTED, OFFERED, OVER, Svg};
use crate::traffic::{self, LENGTH, MILLI, N, SECOND, admitted, most_in_any_window, window_counts};
use ratekeeper::Algorithm;
use std::fmt::Write;

/// All plots: file names and SVG text.
pub(crate) fn all() -> Vec<(String, String)> {
    let mut plots: Vec<_> = ALGORITHMS
        .into_iter()
        .map(|algorithm| (format!("{algorithm}.svg"), one(algorithm)))
        .collect();
    plots.push(("overview.svg".into(), overview()));
    plots.push(("burst.svg".into(), burst()));
    plots.push(("queue.svg".into(), queue()));
    plots.push(("herd.svg".into(), herd()));
    plots.push(("keyed.svg".into(), keyed::plot()));
    plots.push(("fleet.svg".into(), fleet::plot()));
    plots.extend(overload::plots());
    plots
}

const WIDTH: f64 = 880.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 70.0;

/// The most offered in a slice, and a little air above 2N.
const MOST_OFFERED: u64 = 32;
const MOST_IN_WINDOW: u64 = 44;

fn seconds(from: u64, to: u64, step: u64) -> Vec<(u64, String)> {
    (from / SECOND..=to / SECOND)
        .step_by(step as usize)
        .map(|s| (s * SECOND, format!("{s} s")))
        .collect()
}

fn values(values: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
    values
        .into_iter()
        .map(|value| (value, value.to_string()))
        .collect()
}

fn slices(times: &[u64]) -> Vec<u64> {
    let mut slices = vec![0; (LENGTH / SLICE) as usize];
    for at in times {
        if let Some(slice) = slices.get_mut((at / SLICE) as usize) {
            *slice += 1;
        }
    }
    slices
}

/// Offered and admitted in each slice.
fn calls_panel(svg: &mut Svg, frame: Frame, inset: f64, offered: &[u64], admitted: &[u64]) {
    frame.bars(svg, SLICE, &slices(offered), inset, OFFERED);
    frame.bars(
        svg,
        SLICE,
        &slices(admitted),
        inset + frame.width / 1000.0,
        ADMITTED,
    );
}

/// What was admitted in the window that ends at each instant; what is above N in red.
fn window_panel(svg: &mut Svg, frame: Frame, admitted: &[u64]) {
    let counts = window_counts(admitted);
    svg.path(
        &frame.area(&counts, 0),
        &format!(r#"fill="{ADMITTED}" fill-opacity="0.16""#),
    );
    svg.path(
        &frame.area(&counts, N),
        &format!(r#"fill="{OVER}" fill-opacity="0.45""#),
    );
    svg.path(
        &frame.staircase(&counts, 0),
        &format!(r#"fill="none" stroke="{ADMITTED}" stroke-width="1.5""#),
    );
}

fn title_of(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::TokenBucket => format!("{algorithm} (gcra, leaky_bucket)"),
        _ => algorithm.to_string(),
    }
}

/// Swatches and names, from `x` on.
pub(crate) fn legend(svg: &mut Svg, mut x: f64, y: f64, entries: &[(&str, f64, &str)]) {
    for (color, width, name) in entries {
        svg.rect(x, y - 10.0, 12.0, 12.0, color);
        svg.note(x + 18.0, y, Anchor::Start, name);
        x += width;
    }
}

fn one(algorithm: Algorithm) -> String {
    let offered = traffic::bursty();
    let passed = admitted(limit(algorithm), &offered);
    let mut svg = Svg::new(WIDTH, 430.0);
    svg.title(20.0, 32.0, 18, &title_of(algorithm));
    let acts = if algorithm == Algorithm::Pacing {
        "allowed, at its start"
    } else {
        "allowed"
    };
    legend(
        &mut svg,
        540.0,
        32.0,
        &[(OFFERED, 80.0, "offered"), (ADMITTED, 0.0, acts)],
    );
    let (all, some, most) = (offered.len(), passed.len(), most_in_any_window(&passed));
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        &format!(
            "“{}”: {some} of {all} calls allowed, at most {most} of them within 1 s",
            limit(algorithm)
        ),
    );

    let frame = Frame {
        x: LEFT,
        y: 88.0,
        width: WIDTH - LEFT - RIGHT,
        height: 130.0,
        from: 0,
        to: LENGTH,
        top: MOST_OFFERED,
    };
    let times = seconds(0, LENGTH, 1);
    svg.note(20.0, 80.0, Anchor::Start, "calls per 100 ms");
    frame.axes(&mut svg, &times, false, &values([0, 10, 20, 30]));
    calls_panel(&mut svg, frame, 0.8, &offered, &passed);

    svg.note(20.0, 246.0, Anchor::Start, "allowed within the last second");
    let frame = Frame {
        y: 254.0,
        height: 136.0,
        top: MOST_IN_WINDOW,
        ..frame
    };
    frame.axes(&mut svg, &times, true, &values([0, 10, 20, 30, 40]));
    window_panel(&mut svg, frame, &passed);
    frame.mark(&mut svg, N, OVER, "N = 20");
    frame.mark(&mut svg, 2 * N, MUTED, "2N = 40");
    svg.finish(&format!("What {algorithm} allows of bursty traffic"))
}

fn overview() -> String {
    let offered = traffic::bursty();
    let (cell_width, cell_height) = (450.0, 186.0);
    let mut svg = Svg::new(2.0 * cell_width + 10.0, 4.0 * cell_height + 14.0);
    let times = seconds(0, LENGTH, 1);
    for (i, algorithm) in [None].into_iter().chain(ALGORITHMS.map(Some)).enumerate() {
        let (x, y) = (
            (i % 2) as f64 * cell_width + 5.0,
            (i / 2) as f64 * cell_height + 5.0,
        );
        let frame = Frame {
            x: x + 34.0,
            y: y + 34.0,
            width: cell_width - 54.0,
            height: 54.0,
            from: 0,
            to: LENGTH,
            top: MOST_OFFERED,
        };
        let below = Frame {
            y: frame.bottom() + 12.0,
            height: 56.0,
            top: MOST_IN_WINDOW,
            ..frame
        };
        let Some(algorithm) = algorithm else {
            svg.title(x + 14.0, y + 24.0, 14, "the same traffic for all");
            frame.axes(&mut svg, &times, true, &values([0, 30]));
            frame.bars(&mut svg, SLICE, &slices(&offered), 0.4, OFFERED);
            let y = frame.bottom() + 36.0;
            legend(
                &mut svg,
                x + 34.0,
                y,
                &[
                    (OFFERED, 100.0, "offered"),
                    (ADMITTED, 0.0, "allowed, per 100 ms"),
                ],
            );
            legend(
                &mut svg,
                x + 34.0,
                y + 20.0,
                &[("#d9e4f8", 0.0, "allowed within the last second")],
            );
            legend(
                &mut svg,
                x + 34.0,
                y + 40.0,
                &[("#e88a90", 0.0, "more than N = 20 of them")],
            );
            continue;
        };
        let passed = admitted(limit(algorithm), &offered);
        svg.title(x + 14.0, y + 24.0, 14, algorithm.name());
        let (some, most) = (passed.len(), most_in_any_window(&passed));
        svg.note(
            frame.right(),
            y + 24.0,
            Anchor::End,
            &format!("{some} allowed, at most {most} in 1 s"),
        );
        frame.axes(&mut svg, &times, false, &values([0, 30]));
        calls_panel(&mut svg, frame, 0.4, &offered, &passed);
        below.axes(&mut svg, &times, true, &values([0, 20, 40]));
        window_panel(&mut svg, below, &passed);
        let y = below.level(N);
        let dashed = format!(r#"stroke="{OVER}" stroke-dasharray="5 3""#);
        svg.line([below.x, y], [below.right(), y], &dashed);
    }
    svg.finish("What each algorithm allows of the same bursty traffic")
}

/// Waits as lines, one for each series; `mark` is a wait that matters.
fn waits(
    title: &str,
    note: &str,
    frame: Frame,
    step: u64,
    labels: &[(u64, String)],
    series: &[Series],
    mark: (u64, &str),
) -> String {
    let mut svg = Svg::new(WIDTH, frame.bottom() + 34.0);
    svg.title(20.0, 32.0, 18, title);
    svg.note(20.0, 54.0, Anchor::Start, note);
    frame.axes(&mut svg, &seconds(frame.from, frame.to, step), true, labels);
    let mut x = 20.0;
    for (series, color) in series.iter().zip(LINES) {
        let mut path = String::new();
        let mut last = None;
        for (came, wait) in &series.waits {
            // A point for each pixel is enough.
            let point = (frame.at(*came), frame.level(*wait));
            if last.is_some_and(|(x, y): (f64, f64)| {
                (point.0 - x).abs() < 0.5 && (point.1 - y).abs() < 0.5
            }) {
                continue;
            }
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if last.is_none() { 'M' } else { 'L' },
                point.0,
                point.1
            );
            last = Some(point);
        }
        svg.path(
            &path,
            &format!(r#"fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round""#),
        );
        let (some, all) = (series.waits.len(), series.offered);
        legend(
            &mut svg,
            x,
            80.0,
            &[(
                color,
                0.0,
                &format!("“{}”: {some} of {all} allowed", series.name),
            )],
        );
        x += 285.0;
    }
    frame.mark(&mut svg, mark.0, OVER, mark.1);
    svg.finish(title)
}

fn burst() -> String {
    let frame = Frame {
        x: LEFT + 16.0,
        y: 100.0,
        width: WIDTH - LEFT - RIGHT - 26.0,
        height: 200.0,
        from: 0,
        to: 10 * SECOND,
        top: 800 * MILLI,
    };
    let labels: Vec<_> = (0..=4)
        .map(|n| (n * 200 * MILLI, format!("{} ms", n * 200)))
        .collect();
    let note = format!("the server does {SERVES} a second; 20 a second and bursts of 60 come in");
    waits(
        "How long allowed calls wait at the server",
        &note,
        frame,
        1,
        &labels,
        &experiments::bursts(),
        (BUDGET, "accepted"),
    )
}

fn queue() -> String {
    let frame = Frame {
        x: LEFT,
        y: 100.0,
        width: WIDTH - LEFT - RIGHT - 10.0,
        height: 200.0,
        from: 0,
        to: 30 * SECOND,
        top: 11 * SECOND,
    };
    let labels: Vec<_> = (0..=5)
        .map(|n| (n * 2 * SECOND, format!("{} s", n * 2)))
        .collect();
    let note = "pacing at 20 a second while 30 a second come in";
    waits(
        "How long allowed calls wait in the queue",
        note,
        frame,
        5,
        &labels,
        &experiments::queues(),
        (TIMEOUT, "caller left"),
    )
}

fn herd() -> String {
    let mut svg = Svg::new(WIDTH, 524.0);
    svg.title(
        20.0,
        32.0,
        18,
        "100 clients, each “10/10s”, that retry at their Retry-After",
    );
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        "calls that reach the service per 100 ms; each panel has its own scale",
    );
    let shown = Herd::ALL
        .iter()
        .filter(|herd| herd.started_within == 10 * SECOND);
    for (i, herd) in shown.enumerate() {
        let counts = herd.run();
        let peak = counts.iter().copied().max().unwrap_or(1);
        let y = 92.0 + 110.0 * i as f64;
        let frame = Frame {
            x: LEFT,
            y,
            width: WIDTH - LEFT - 20.0,
            height: 62.0,
            from: HERD_FROM,
            to: HERD_TO,
            top: peak,
        };
        svg.text(
            LEFT,
            y - 8.0,
            13,
            Anchor::Start,
            r##"fill="#1f2328" font-weight="600""##,
            &herd.name(),
        );
        svg.note(frame.right(), y - 8.0, Anchor::End, &format!("peak {peak}"));
        frame.axes(
            &mut svg,
            &seconds(HERD_FROM, HERD_TO, 5),
            i == 3,
            &values([0, peak]),
        );
        frame.bars(&mut svg, SLICE, &counts, 0.2, ADMITTED);
    }
    svg.finish("Calls that reach a service from 100 clients that retry at their Retry-After")
}
