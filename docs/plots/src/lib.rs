//! The plots and the measured tables of the docs.
//!
//! Everything runs on a manual clock and a generator with a fixed seed, so the same files come out
//! on every machine; the plot of many keys is drawn from committed results of the bench.
//! [`files`] makes them; a test compares them with what is committed.

mod experiments;
mod fleet;
mod keyed;
mod measure;
mod overload;
mod plots;
mod svg;
mod tables;
mod traffic;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The code in the page is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../algorithms.md")]
mod algorithms {}

/// The code in the page is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../choosing-numbers.md")]
mod choosing_numbers {}

/// The code in the page is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../overload.md")]
mod overload_page {}

/// The folder `docs`.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file this program makes: the plots, and the pages with their tables brought up to date.
pub fn files() -> io::Result<Vec<(PathBuf, String)>> {
    let mut files: Vec<_> = plots::all()
        .into_iter()
        .map(|(name, svg)| (docs().join("img").join(name), svg))
        .collect();
    let tables = tables::all();
    for page in [
        "algorithms.md",
        "choosing-numbers.md",
        "distributed.md",
        "overload.md",
    ] {
        let path = docs().join(page);
        let text = fs::read_to_string(&path)?;
        let filled = tables
            .iter()
            .fold(text, |text, table| table.put_into(&text));
        files.push((path, filled));
    }
    Ok(files)
}

/// What was measured, for people.
pub fn report() -> String {
    tables::all()
        .iter()
        .map(|table| format!("{}\n\n{}\n", table.title, table.body))
        .collect()
}
