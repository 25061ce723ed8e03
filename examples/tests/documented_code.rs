//! The Rust code in README.md and below docs is compiled: every page that has some is part of a
//! crate whose doctests are its code, or, for docs/policies.md, of a test that runs the same lines.

use std::fs;
use std::path::{Path, PathBuf};

/// Where pages are included from.
const INCLUDED_BY: [&str; 2] = ["examples/lib.rs", "docs/plots/src/lib.rs"];

/// `tests/cookbook` of ratekeeper-server runs the lines of this page, and compares them.
const COOKBOOK: &str = "docs/policies.md";

fn find_pages(directory: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

#[test]
fn the_rust_code_of_every_page_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md")];
    find_pages(&root.join("docs"), &mut pages);
    // Paths relative to the files that include them, from the root on.
    let included: Vec<PathBuf> = INCLUDED_BY
        .iter()
        .flat_map(|file| {
            let directory = root.join(file).parent().unwrap().to_owned();
            let text = fs::read_to_string(root.join(file)).unwrap();
            let paths = text
                .split("include_str!(\"")
                .skip(1)
                .map(|rest| directory.join(rest.split('"').next().unwrap()));
            paths.collect::<Vec<_>>()
        })
        .chain([root.join(COOKBOOK)])
        .map(|path| path.canonicalize().unwrap())
        .collect();
    let mut wrong = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut fences = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("```"));
        let languages: Vec<&str> = std::iter::from_fn(|| {
            let language = fences.next()?;
            fences.next();
            Some(language)
        })
        .filter(|language| language.split([',', ' ']).next() == Some("rust"))
        .collect();
        if languages.iter().any(|language| language.contains("ignore")) {
            wrong.push(format!(
                "{}: has code that is never compiled",
                page.display()
            ));
        }
        if !languages.is_empty() && !included.contains(&page.canonicalize().unwrap()) {
            wrong.push(format!(
                "{}: add it to examples/lib.rs, so that its code is compiled",
                page.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
