//! A little SVG: text, lines, rectangles, and a frame with axes.

use std::fmt::{Display, Write};

pub(crate) const INK: &str = "#1f2328";
pub(crate) const MUTED: &str = "#59636e";
pub(crate) const GRID: &str = "#e4e8ec";
pub(crate) const OFFERED: &str = "#c4ccd4";
pub(crate) const ADMITTED: &str = "#2f6fdb";
pub(crate) const OVER: &str = "#d1242f";
/// The lines of a chart, told apart in grey too.
pub(crate) const LINES: [&str; 3] = ["#1a7f4b", ADMITTED, "#b35900"];

/// A drawing on a background of its own, so that it reads on light and dark pages.
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    fn push(&mut self, element: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    pub(crate) fn text(
        &mut self,
        x: f64,
        y: f64,
        size: u32,
        anchor: Anchor,
        style: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}"{anchor} {style}>{text}</text>"#
        ));
    }

    pub(crate) fn note(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.text(x, y, 12, anchor, &format!(r#"fill="{MUTED}""#), text);
    }

    pub(crate) fn title(&mut self, x: f64, y: f64, size: u32, text: &str) {
        self.text(
            x,
            y,
            size,
            Anchor::Start,
            &format!(r#"fill="{INK}" font-weight="600""#),
            text,
        );
    }

    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
    }

    pub(crate) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) {
        self.push(format_args!(
            r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" {style}/>"#
        ));
    }

    pub(crate) fn path(&mut self, path: &str, style: &str) {
        self.push(format_args!(r#"<path d="{path}" {style}/>"#));
    }

    pub(crate) fn finish(self, title: &str) -> String {
        let Self {
            body,
            width,
            height,
        } = self;
        let (inner_width, inner_height) = (width - 1.0, height - 1.0);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif" role="img">
<title>{title}</title>
<rect x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="8" fill="#ffffff" stroke="#d1d9e0"/>
{body}</svg>
"##
        )
    }
}

/// A rectangle with a scale: x from `from` to `to`, y from 0 to `top`.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) top: u64,
}

impl Frame {
    pub(crate) fn at(&self, time: u64) -> f64 {
        let time = time.clamp(self.from, self.to) - self.from;
        self.x + time as f64 / (self.to - self.from) as f64 * self.width
    }

    pub(crate) fn level(&self, value: u64) -> f64 {
        self.y + self.height - value.min(self.top) as f64 / self.top as f64 * self.height
    }

    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    /// Grid and labels: `times` under the frame if `labelled`, `values` on its left.
    pub(crate) fn axes(
        &self,
        svg: &mut Svg,
        times: &[(u64, String)],
        labelled: bool,
        values: &[(u64, String)],
    ) {
        let style = format!(r#"stroke="{GRID}""#);
        for (time, label) in times {
            let x = self.at(*time);
            svg.line([x, self.y], [x, self.bottom()], &style);
            if labelled {
                svg.note(x, self.bottom() + 16.0, Anchor::Middle, label);
            }
        }
        for (value, label) in values {
            let y = self.level(*value);
            svg.line([self.x, y], [self.right(), y], &style);
            svg.note(self.x - 6.0, y + 4.0, Anchor::End, label);
        }
    }

    /// A bar from the bottom for each slice of time; `inset` leaves air on both sides.
    pub(crate) fn bars(&self, svg: &mut Svg, slice: u64, counts: &[u64], inset: f64, fill: &str) {
        let mut path = String::new();
        let width = self.width * slice as f64 / (self.to - self.from) as f64 - 2.0 * inset;
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let x = self.at(self.from + i as u64 * slice) + inset;
            let _ = write!(
                path,
                "M{x:.1} {:.1}V{:.1}h{width:.1}V{:.1}z",
                self.bottom(),
                self.level(*count),
                self.bottom()
            );
        }
        svg.path(&path, &format!(r#"fill="{fill}""#));
    }

    /// A staircase through (time, value), each value from its time on; nothing below `floor`.
    pub(crate) fn staircase(&self, steps: &[(u64, u64)], floor: u64) -> String {
        let mut path = format!("M{:.1} {:.1}", self.x, self.level(floor));
        for (time, value) in steps.iter().filter(|(time, _)| *time <= self.to) {
            let _ = write!(
                path,
                "H{:.1}V{:.1}",
                self.at(*time),
                self.level((*value).max(floor))
            );
        }
        let _ = write!(path, "H{:.1}", self.right());
        path
    }

    /// The area under a staircase down to `floor`.
    pub(crate) fn area(&self, steps: &[(u64, u64)], floor: u64) -> String {
        format!("{}V{:.1}z", self.staircase(steps, floor), self.level(floor))
    }

    /// A dashed line at a value, named in the margin on the right.
    pub(crate) fn mark(&self, svg: &mut Svg, value: u64, color: &str, name: &str) {
        let y = self.level(value);
        svg.line(
            [self.x, y],
            [self.right(), y],
            &format!(r#"stroke="{color}" stroke-width="1.5" stroke-dasharray="6 4""#),
        );
        svg.text(
            self.right() + 6.0,
            y + 4.0,
            12,
            Anchor::Start,
            &format!(r#"fill="{color}""#),
            name,
        );
    }
}
