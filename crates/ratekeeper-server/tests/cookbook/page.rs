//! The page: code blocks and lines, with line numbers.

use std::sync::LazyLock;

const NAME: &str = "docs/policies.md";

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies.md");
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
});

pub(crate) struct Page {
    pub(crate) blocks: Vec<Block>,
    /// Lines outside code, with their numbers.
    pub(crate) prose: Vec<(usize, &'static str)>,
}

/// A code block.
pub(crate) struct Block {
    pub(crate) language: &'static str,
    /// The number of the first line inside.
    pub(crate) line: usize,
    pub(crate) lines: Vec<&'static str>,
}

impl Block {
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &'static str)> {
        (self.line..).zip(self.lines.iter().copied())
    }
}

impl Page {
    pub(crate) fn read() -> Self {
        let mut blocks = Vec::new();
        let mut prose = Vec::new();
        let mut open: Option<Block> = None;
        for (line, text) in (1..).zip(TEXT.lines()) {
            match (text.strip_prefix("```"), open.take()) {
                (Some(language), None) => {
                    open = Some(Block {
                        language,
                        line: line + 1,
                        lines: Vec::new(),
                    });
                }
                (Some(_), Some(block)) => blocks.push(block),
                (None, Some(mut block)) => {
                    block.lines.push(text);
                    open = Some(block);
                }
                (None, None) => prose.push((line, text)),
            }
        }
        assert!(open.is_none(), "{NAME}: the last fence does not end");
        assert!(!blocks.is_empty(), "{NAME}: there is nothing to try");
        Self { blocks, prose }
    }

    /// An error in a line.
    pub(crate) fn at(&self, line: usize, what: &str) -> String {
        format!("{NAME}:{line}: {what}")
    }
}
