//! The report of a run: tables for people, rows for programs (target/bench.json), and whether the
//! goals are met.

use crate::harness::is_quick;
use crate::quick;
use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io;
use std::path::PathBuf;

/// One measured value. See bench/README.md for the fields.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) row: String,
    #[serde(rename = "who")]
    pub(crate) competitor: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) ratio_to: Option<Ratio>,
    pub(crate) params: Map<String, Value>,
}

/// This row's value divided by that of `competitor` in the same row of the same group.
#[derive(Serialize)]
pub(crate) struct Ratio {
    #[serde(rename = "who")]
    pub(crate) competitor: String,
    pub(crate) ratio: f64,
}

/// A performance goal, and its value in this run.
pub(crate) struct Goal {
    pub(crate) text: String,
    pub(crate) bound: Bound,
    /// `None` if the run could not measure it; `because` then gives the reason.
    pub(crate) measured: Option<f64>,
    pub(crate) because: &'static str,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// Compares the value as measured, not as printed.
    fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtMost(bound) => measured <= bound,
            Self::AtLeast(bound) => measured >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::AtLeast(bound) => format!("at least {bound}"),
        }
    }
}

/// The results of a group; the group prints its tables itself.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    pub(crate) goals: Vec<Goal>,
    /// The data of plots in the docs, by the name of the plot.
    pub(crate) plots: Vec<(&'static str, Value)>,
}

#[derive(Default)]
pub(crate) struct Report {
    found: Findings,
}

impl Report {
    pub(crate) fn add(&mut self, found: Findings) {
        self.found.rows.extend(found.rows);
        self.found.goals.extend(found.goals);
        self.found.plots.extend(found.plots);
    }

    pub(crate) fn print_goals(&self) {
        let header = ["goal", "bound", "measured", ""];
        let lines = self.found.goals.iter().map(|goal| {
            let (measured, met) = match goal.measured {
                Some(measured) if goal.bound.holds(measured) => (format!("{measured:.4}"), "met"),
                Some(measured) => (format!("{measured:.4}"), "MISSED"),
                None => ("–".into(), goal.because),
            };
            vec![goal.text.clone(), goal.bound.text(), measured, met.into()]
        });
        println!("## goals\n\n{}\n", table(&header, lines));
    }

    /// Writes the data of the plots to docs/plots, which is committed and from which they are
    /// drawn; returns the paths.
    pub(crate) fn save(&self) -> io::Result<Vec<PathBuf>> {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/plots"));
        let save = |(name, data): &(&str, Value)| {
            let path = folder.join(format!("{name}.json"));
            std::fs::write(&path, serde_json::to_string_pretty(data)? + "\n")?;
            Ok(path)
        };
        self.found.plots.iter().map(save).collect()
    }

    /// Writes docs/benchmarks.md, if that was asked for.
    pub(crate) fn write_quick(&self) -> io::Result<Vec<PathBuf>> {
        if !is_quick() {
            return Ok(Vec::new());
        }
        Ok(vec![quick::write(&self.found.rows)?])
    }

    /// Writes the rows, the goals among them; returns the path.
    pub(crate) fn write(mut self) -> io::Result<PathBuf> {
        for goal in &self.found.goals {
            let Some(value) = goal.measured else { continue };
            let params = json!({ "bound": goal.bound.text(), "met": goal.bound.holds(value) });
            self.found.rows.push(Row {
                group: "goals",
                row: goal.text.clone(),
                competitor: "ratekeeper".into(),
                value,
                unit: "ratio",
                ratio_to: None,
                params: object(params),
            });
        }
        let path = target().join("bench.json");
        std::fs::create_dir_all(target())?;
        std::fs::write(
            &path,
            serde_json::to_string_pretty(&self.found.rows)? + "\n",
        )?;
        Ok(path)
    }
}

/// The workspace's target directory, also if cargo uses another one.
pub(crate) fn target() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target"))
}

/// The processor, its cores and the operating system.
pub(crate) fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {cores} cores, {}",
        model.unwrap_or(std::env::consts::ARCH),
        std::env::consts::OS
    )
}

/// The map of a JSON object.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Formats lines under a header, the first column aligned to the left and the others to the right.
pub(crate) fn table(header: &[&str], lines: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header.to_vec());
    for line in lines {
        table.add_row(line);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
