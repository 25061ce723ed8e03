//! Lines through points, and what they are called.

use super::Way;
use crate::plots::legend;
use crate::svg::{Frame, Svg};
use std::fmt::Write;

/// A line through (x, y).
pub(super) fn line(
    svg: &mut Svg,
    frame: Frame,
    points: impl IntoIterator<Item = (u64, u64)>,
    color: &str,
) {
    let mut path = String::new();
    let mut last: Option<(f64, f64)> = None;
    for (x, y) in points {
        let point = (frame.at(x), frame.level(y));
        // A point for each pixel is enough.
        if last.is_some_and(|last| (point.0 - last.0).abs() < 0.5 && (point.1 - last.1).abs() < 0.5)
        {
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
}

/// The names of the lines, from the left on.
pub(super) fn names(svg: &mut Svg, y: f64, ways: &[Way]) {
    let mut x = 20.0;
    for way in ways {
        let name = way.name();
        legend(svg, x, y, &[(way.color(), 0.0, &name)]);
        x += 44.0 + 7.0 * name.len() as f64;
    }
}
