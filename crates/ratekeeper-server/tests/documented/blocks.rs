//! The blocks of code in README.md and in the pages below docs.

use std::fs;
use std::path::{Path, PathBuf};
use toml::Table;

/// A block, fenced or indented.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The page and the line, as in `docs/policies.md:82`.
    pub(crate) location: String,
    pub(crate) language: String,
    pub(crate) text: String,
    /// The output shown below it: the next block of the page, if that is text.
    pub(crate) below: String,
}

impl Block {
    pub(crate) fn page(&self) -> &str {
        self.location.rsplit_once(':').unwrap().0
    }

    /// The output of `config check` shown below it, without the file name.
    pub(crate) fn expected_output(&self) -> Vec<&str> {
        let lines = self
            .below
            .lines()
            .filter_map(|line| line.strip_prefix("ratekeeper.toml:"));
        lines.collect()
    }

    /// The configuration of ratekeeper in it: TOML that is not Cargo's. `None` if it is anything
    /// else. A fragment of a policy, which begins without a table, gets the head of one.
    pub(crate) fn configuration(&self) -> Option<String> {
        const CARGO_TABLES: [&str; 7] = [
            "dependencies",
            "dev-dependencies",
            "features",
            "lints",
            "package",
            "profile",
            "workspace",
        ];
        if self.language != "toml" {
            return None;
        }
        let first = self
            .text
            .lines()
            .find(|line| !matches!(line.trim().chars().next(), None | Some('#')))?;
        let text = if first.trim_start().starts_with('[') {
            self.text.clone()
        } else {
            format!("{FRAGMENT}{}", self.text)
        };
        let is_cargo = |table: Table| CARGO_TABLES.iter().any(|name| table.contains_key(*name));
        (!text.parse().is_ok_and(is_cargo)).then_some(text)
    }

    /// The Envoy limits in it, or `None` if it has none.
    pub(crate) fn envoy_limits(&self) -> Option<&str> {
        let is_of_limits = |line: &str| line.starts_with("domain:");
        (matches!(&*self.language, "yaml" | "yml") && self.text.lines().any(is_of_limits))
            .then_some(&*self.text)
    }
}

/// The head for a fragment of a policy.
const FRAGMENT: &str = "[[policy]]\nname = \"example\"\n";

/// All blocks of all pages.
pub(crate) fn all() -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    find_pages(&root.join("docs"), &mut pages);
    pages.sort();
    let blocks = pages.iter().flat_map(|page| {
        let name = page.strip_prefix(&root).unwrap().display().to_string();
        of_page(&name, &fs::read_to_string(page).unwrap())
    });
    blocks.collect()
}

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

fn of_page(name: &str, page: &str) -> Vec<Block> {
    let lines: Vec<&str> = page.lines().collect();
    let mut blocks: Vec<Block> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let (start, indent) = (at, lines[at].len() - lines[at].trim_start().len());
        let is_after_a_gap = at == 0 || lines[at - 1].trim().is_empty();
        at += 1;
        let (language, text) = if let Some(language) = lines[start].trim_start().strip_prefix("```")
        {
            let end = (at..lines.len()).find(|end| lines[*end].trim() == "```");
            let end = end.unwrap_or_else(|| panic!("{name}:{}: a block does not end", start + 1));
            let inside = &lines[at..end];
            at = end + 1;
            (
                language
                    .split(|c: char| !c.is_alphanumeric())
                    .next()
                    .unwrap(),
                inside,
            )
        } else if indent >= 4 && is_after_a_gap && is_table(lines[start]) {
            let goes_on = |line: &&str| line.trim().is_empty() || line.starts_with("    ");
            let end = (at..lines.len()).find(|end| !goes_on(&lines[*end]));
            at = end.unwrap_or(lines.len());
            ("toml", &lines[start..at])
        } else {
            continue;
        };
        let dedent = |line: &&str| line.get(indent..).unwrap_or_default().to_owned() + "\n";
        let text: String = text.iter().map(dedent).collect();
        if let Some(last) = blocks
            .last_mut()
            .filter(|_| matches!(language, "text" | "" | "console"))
            && last.below.is_empty()
        {
            last.below = text.clone();
        }
        blocks.push(Block {
            location: format!("{name}:{}", start + 1),
            language: language.to_owned(),
            text,
            below: String::new(),
        });
    }
    blocks
}

/// Whether a line is the head of a table: `[store]` or `[[policy]]`, perhaps with a comment.
fn is_table(line: &str) -> bool {
    let head = line.split('#').next().unwrap_or_default().trim();
    let name = head
        .strip_prefix('[')
        .and_then(|head| head.strip_suffix(']'));
    name.is_some_and(|name| {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.' | '-'))
    })
}

#[test]
fn fenced_and_indented_blocks_are_found() {
    let page = "# A\n\n    [store]  # everywhere\n    kind = \"memory\"\n\nand\n\n    $ [x]\n\n\
                1. a list\n   ```toml\n   limit = \"1/s\"\n   ```\n```text\nratekeeper.toml:1:1: error: x\n```\n\
                ```toml\n[dependencies]\n```\n```yaml\ndomain: a\n```\n";
    let blocks = of_page("a.md", page);
    let found: Vec<_> = blocks
        .iter()
        .map(|block| (&*block.location, block.configuration()))
        .collect();
    assert_eq!(
        found,
        [
            (
                "a.md:3",
                Some("[store]  # everywhere\nkind = \"memory\"\n\n".to_owned())
            ),
            ("a.md:11", Some(format!("{FRAGMENT}limit = \"1/s\"\n"))),
            ("a.md:14", None),
            ("a.md:17", None),
            ("a.md:20", None),
        ]
    );
    assert_eq!(blocks[1].expected_output(), ["1:1: error: x"]);
    assert_eq!(blocks[4].envoy_limits(), Some("domain: a\n"));
}
