//! References between the files of this repository: every link, path and property number that one
//! of them names exists.
//!
//! Checked are links and anchors in Markdown; paths and file names in Markdown, in the comments of
//! Rust, Lua and TOML files, in the Makefile and in scripts; the numbers of properties (`TB1`, `P7`
//! …), which docs/spec defines; the names of tests that Markdown cites; and the functions of the
//! chains in ARCHITECTURE.md.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

/// Directories whose files are generated.
const GENERATED: [&str; 5] = [
    "target",
    "corpus",
    "artifacts",
    "node_modules",
    "__pycache__",
];

/// A token that begins with one of these and a slash is a path from the root or from a crate.
const DIRECTORIES: [&str; 8] = [
    "bench", "crates", "docs", "examples", "fuzz", "scripts", "src", "tests",
];

/// A token with one of these extensions is the end of a path.
const EXTENSIONS: [&str; 3] = ["lua", "md", "rs"];

/// The prefixes of property numbers.
const PROPERTIES: [&str; 8] = ["FW", "L", "LQ", "P", "RB", "SC", "SL", "TB"];

/// This file, which names files that do not exist.
const ITSELF: &str = "crates/ratekeeper-testkit/tests/references.rs";

/// The files of a repository.
struct Tree {
    /// The text of each file that is checked, by its path from the root.
    texts: Vec<(String, String)>,
    /// Every path and every end of a path: of `a/b/c.rs` also `b/c.rs` and `c.rs`.
    ends: HashSet<String>,
    /// The paths alone.
    paths: HashSet<String>,
}

impl Tree {
    fn read(root: &Path) -> Self {
        let mut tree = Self {
            texts: Vec::new(),
            ends: HashSet::new(),
            paths: HashSet::new(),
        };
        tree.visit(root, "");
        assert!(!tree.texts.is_empty(), "{} is empty", root.display());
        tree
    }

    fn visit(&mut self, directory: &Path, prefix: &str) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with('.') {
                continue;
            }
            let path = format!("{prefix}{name}");
            let ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
            self.ends.extend(ends.map(str::to_owned));
            self.ends.insert(path.clone());
            self.paths.insert(path.clone());
            if GENERATED.contains(&&*name) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                self.visit(&entry.path(), &format!("{path}/"));
            } else if is_checked(&path) {
                let text = fs::read_to_string(entry.path());
                self.texts.extend(text.map(|text| (path, text)));
            }
        }
    }

    /// Every reference to a target that does not exist.
    fn findings(&self) -> Vec<String> {
        let anchors: HashMap<&str, HashSet<String>> = self
            .texts
            .iter()
            .filter(|(path, _)| path.ends_with(".md"))
            .map(|(path, text)| (path.as_str(), anchors(&without_code(text))))
            .collect();
        let defined: BTreeSet<&str> = self
            .texts
            .iter()
            .filter(|(path, _)| path.starts_with("docs/spec/"))
            .flat_map(|(_, text)| text.lines())
            .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
            .collect();
        let code = self.texts.iter().filter(|(path, _)| path.ends_with(".rs"));
        let known: HashSet<&str> = code.flat_map(|(_, text)| words(text)).collect();
        let mut findings = Vec::new();
        for (path, text) in &self.texts {
            if path.ends_with(".md") {
                for (line, target) in links(&without_code(text)) {
                    if let Some(wrong) = self.check_link(path, &target, &anchors) {
                        findings.push(format!("{path}:{line}: {wrong}"));
                    }
                }
            }
            for (number, line) in (1..).zip(text.lines()) {
                let missing = |token: &str| format!("{path}:{number}: there is no {token}");
                findings.extend(self.missing_paths(path, line).iter().map(|t| missing(t)));
                if path.ends_with(".rs") {
                    let cited = words(comment(line)).filter(|word| is_property(word));
                    findings.extend(cited.filter(|word| !defined.contains(word)).map(missing));
                } else if path.ends_with(".md") {
                    let cited = line.split('`').skip(1).step_by(2);
                    let tests = cited.filter(|name| is_test(name) && !known.contains(name));
                    findings.extend(tests.map(missing));
                }
            }
        }
        findings
    }

    /// The steps of the chains in ARCHITECTURE.md, each `path/file.rs: function` or a function of
    /// the file before it, whose function is not in that file.
    fn missing_steps(&self) -> Vec<String> {
        let architecture = self
            .texts
            .iter()
            .find(|(path, _)| path == "ARCHITECTURE.md");
        let Some((_, text)) = architecture else {
            return vec!["there is no ARCHITECTURE.md".to_owned()];
        };
        let chains = text
            .split("\n## ")
            .find(|part| part.starts_with("The life of a call"));
        // Beginning with the first chain, which stands in bold.
        let chains = chains.and_then(|part| Some(&part[part.find("\n**")?..]));
        let mut file = "";
        let mut missing = Vec::new();
        for span in chains.unwrap_or_default().split('`').skip(1).step_by(2) {
            let function = match span.split_once(": ") {
                Some((path, function)) => {
                    file = path;
                    function
                }
                None => span,
            };
            let is_function = function
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            let names_it = |text: &str| text.contains(&format!("fn {function}"));
            let is_there = |(path, text): &(String, String)| {
                (path == file || path.ends_with(&format!("/{file}"))) && names_it(text)
            };
            if is_function && !file.is_empty() && !self.texts.iter().any(is_there) {
                missing.push(format!(
                    "ARCHITECTURE.md: {file} has no function {function}"
                ));
            }
        }
        missing
    }

    fn check_link(
        &self,
        from: &str,
        target: &str,
        anchors: &HashMap<&str, HashSet<String>>,
    ) -> Option<String> {
        let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
        if is_elsewhere {
            return None;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = match file {
            "" => from.to_owned(),
            _ => match resolved(from, file) {
                Some(path) if self.paths.contains(&path) || path.is_empty() => path,
                _ => return Some(format!("the link {target} leads nowhere")),
            },
        };
        let anchors = anchors.get(path.as_str())?;
        let is_there = anchor.is_empty() || anchors.contains(anchor);
        (!is_there).then(|| format!("{path} has no heading #{anchor}"))
    }

    /// The paths that a line names and that do not exist.
    fn missing_paths(&self, path: &str, line: &str) -> Vec<String> {
        // In code only the docs are named by their paths, as in messages.
        let comment = commented(path, line);
        let in_code = tokens(&line[..line.len() - comment.len()])
            .into_iter()
            .filter(|token| token.starts_with("docs/"));
        let found = in_code.chain(tokens(comment));
        found
            .flat_map(|token| expanded(&token))
            .filter(|token| is_path(token) && !self.has(token))
            .collect()
    }

    fn has(&self, token: &str) -> bool {
        // Of a pattern, the directory before its first star.
        let exact = match token.split_once('*') {
            None => token,
            Some((before, _)) => before
                .rsplit_once('/')
                .map_or("", |(directory, _)| directory),
        };
        let exact = exact.trim_start_matches("./").trim_start_matches("../");
        exact.is_empty() || self.ends.contains(exact)
    }
}

/// Whether a file is read: text written by hand.
fn is_checked(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_script = path.starts_with("scripts/") && extension.is_empty();
    if path == ITSELF {
        return false;
    }
    is_script
        || ["lua", "md", "py", "rs", "sh", "toml", "yaml", "yml"].contains(&extension)
        || ["Caddyfile", "Dockerfile", "Makefile"].contains(&name)
}

/// The part of a line that is a comment, or all of it in a language where everything counts.
fn commented<'a>(path: &str, line: &'a str) -> &'a str {
    let extension = path.rsplit('.').next().unwrap_or(path);
    match extension {
        "rs" => comment(line),
        "lua" => line.find("--").map_or("", |at| &line[at..]),
        "py" => line.find('#').map_or("", |at| &line[at..]),
        _ => line,
    }
}

/// The comment at the end of a line of Rust.
fn comment(line: &str) -> &str {
    let mut slashes = line.match_indices("//").map(|(at, _)| at);
    // Those of `https://` are none.
    let at = slashes.find(|at| !line[..*at].ends_with(':'));
    at.map_or("", |at| &line[at..])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !(char.is_alphanumeric() || char == '_'))
}

fn is_property(word: &str) -> bool {
    let digits = word.trim_start_matches(|char: char| char.is_ascii_uppercase());
    let (prefix, digits) = word.split_at(word.len() - digits.len());
    let is_number = digits.len() == 1 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number && PROPERTIES.contains(&prefix)
}

/// Whether a name is long enough to be that of a test.
fn is_test(name: &str) -> bool {
    let is_snake = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    name.bytes().all(is_snake) && name.matches('_').count() >= 4
}

/// Candidates for paths: runs of the characters of paths, with braces and what is between them.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut token, mut depth) = (Vec::new(), String::new(), 0);
    for char in text.chars().chain([' ']) {
        match char {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth > 0 => {}
            // A placeholder, part of an unknown name.
            '<' | '>' | '$' | '…' | '%' => {
                token.push('\0');
                continue;
            }
            _ if char.is_ascii_alphanumeric() || "_./-*".contains(char) => {}
            _ => {
                tokens.push(std::mem::take(&mut token));
                depth = 0;
                continue;
            }
        }
        token.push(char);
    }
    tokens.retain(|token| !token.contains('\0'));
    for token in &mut tokens {
        // The end of a sentence, the end of a directory.
        token.truncate(token.trim_end_matches(['.', '-', '/']).len());
    }
    tokens.retain(|token| !token.is_empty());
    tokens
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn expanded(token: &str) -> Vec<String> {
    let parts = token
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        None => vec![token.to_owned()],
        Some((before, (inside, after))) => inside
            .split(',')
            .flat_map(|one| expanded(&format!("{before}{one}{after}")))
            .collect(),
    }
}

/// Whether a token is meant as a path of this repository.
fn is_path(token: &str) -> bool {
    if token.starts_with('/') || token.contains("//") {
        return false;
    }
    let path = token.trim_start_matches("./").trim_start_matches("../");
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_file = name.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty() && !stem.contains('.') && EXTENSIONS.contains(&extension)
    });
    is_file || (DIRECTORIES.contains(&first) && !rest.is_empty())
}

/// A path from the directory of `from`, converted to one from the root; `None` if it leads out of
/// it.
fn resolved(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Markdown with everything between fences and backticks made unreadable, line by line.
fn without_code(text: &str) -> String {
    let (mut fenced, mut inline) = (false, false);
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if line.trim().is_empty() || line.starts_with('#') {
            inline = false;
        }
        for char in line.chars() {
            match char {
                _ if fenced => out.push('x'),
                '`' => inline = !inline,
                // A heading is named by its code too.
                '(' | ')' | '[' | ']' if inline => {
                    if line.starts_with('#') {
                        out.push(char);
                    } else {
                        out.push('x');
                    }
                }
                _ => out.push(char),
            }
        }
        out.push('\n');
    }
    out
}

/// The targets of links, with the lines that they end on.
fn links(text: &str) -> Vec<(usize, String)> {
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let inline = text.match_indices("](").filter_map(|(at, _)| {
        let (target, _) = text[at + 2..].split_once(')')?;
        let target = target.split_whitespace().next()?;
        Some((line(at), target.to_owned()))
    });
    let by_name = (1..).zip(text.lines()).filter_map(|(number, line)| {
        let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some((number, target.trim().to_owned()))
    });
    inline.chain(by_name).collect()
}

/// The anchors of a page, as GitHub makes them of its headings.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let headings = text.lines().filter_map(|line| {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        (1..=6)
            .contains(&level)
            .then(|| heading.strip_prefix(' '))?
    });
    for heading in headings {
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|char| char.is_alphanumeric() || " -_".contains(*char))
            .map(|char| if char == ' ' { '-' } else { char })
            .collect();
        let twins = (1..).map(|number| format!("{slug}-{number}"));
        let mut names = std::iter::once(slug.clone()).chain(twins);
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

#[test]
fn every_link_path_and_property_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let findings = Tree::read(&root).findings();
    let count = findings.len();
    assert!(count == 0, "{count} wrong:\n{}", findings.join("\n"));
}

#[test]
fn every_step_of_a_chain_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let missing = Tree::read(&root).missing_steps();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_step_that_does_not_exist_is_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
    write("call.rs", "fn first() {}\nfn second() {}\n");
    let page = |chain: &str| {
        format!("# Map\n\n## The life of a call\n\n**A call**: {chain}\n\n## Where\n")
    };
    write("ARCHITECTURE.md", &page("`call.rs: first` → `second`"));
    assert_eq!(Tree::read(root.path()).missing_steps(), [""; 0]);
    write("ARCHITECTURE.md", &page("`call.rs: first` → `third`"));
    assert_eq!(
        Tree::read(root.path()).missing_steps(),
        ["ARCHITECTURE.md: call.rs has no function third"]
    );
}

#[test]
fn exactly_the_planted_mistakes_are_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "docs/page.md",
        "# A page, of `two` parts\n\n## Part\n\n## Part\n\n[up](#a-page-of-two-parts) [down](#part-1)\n\
         [source](../src/lib.rs#L7) [web](https://example.com/no.md) `[code](gone.txt)`\n\n\
         ```text\n[fenced](lost.txt)\n```\n",
    );
    write("docs/spec/all.md", "| | property |\n| TB1 | holds |\n");
    write(
        "src/lib.rs",
        "//! TB1 and docs/page.md, src/{lib,lib}.rs, docs/*.md, docs/<name>.md\nconst X: &str = \"tests/made_up\";\n",
    );
    assert_eq!(Tree::read(root.path()).findings(), [""; 0]);

    write(
        "docs/wrong.md",
        "[a](gone.md)\n[b](page.md#nothing) ![c](../../outside.png)\n\n[d]: lost.md\n`no_such_test_was_written`\n",
    );
    write(
        "src/wrong.rs",
        "/// TB2, by ALGORITHMS.md and tests/lost\nconst Y: &str = \"see docs/lost\";\n",
    );
    write("Makefile", "all: scripts/lost\n");
    let mut findings = Tree::read(root.path()).findings();
    findings.sort();
    assert_eq!(
        findings,
        [
            "Makefile:1: there is no scripts/lost",
            "docs/wrong.md:1: the link gone.md leads nowhere",
            "docs/wrong.md:1: there is no gone.md",
            "docs/wrong.md:2: docs/page.md has no heading #nothing",
            "docs/wrong.md:2: the link ../../outside.png leads nowhere",
            "docs/wrong.md:4: the link lost.md leads nowhere",
            "docs/wrong.md:4: there is no lost.md",
            "docs/wrong.md:5: there is no no_such_test_was_written",
            "src/wrong.rs:1: there is no ALGORITHMS.md",
            "src/wrong.rs:1: there is no TB2",
            "src/wrong.rs:1: there is no tests/lost",
            "src/wrong.rs:2: there is no docs/lost",
        ]
    );
}
