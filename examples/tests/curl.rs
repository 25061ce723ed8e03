//! Runs the curl commands that the web examples print, and compares the statuses.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running example, on a free port.
struct Example {
    child: Child,
    /// Its output so far.
    lines: Vec<String>,
}

impl Example {
    fn run(name: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program(name))
            .arg("0")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let lines = output
            .take_while(|line| line != "Ctrl-C ends it.")
            .collect();
        Self { child, lines }
    }

    /// The printed curl commands.
    fn curls(&self) -> impl Iterator<Item = &str> {
        self.lines
            .iter()
            .map(String::as_str)
            .filter(|line| line.contains("curl "))
    }

    /// The address it listens on.
    fn address(&self) -> &str {
        let (_, rest) = self.curls().next().unwrap().split_once("http://").unwrap();
        rest.split_once('/').unwrap().0
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The example's program, which cargo builds before the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not there; `cargo test -p ratekeeper-examples` builds it",
        program.display()
    );
    program
}

/// The output of a shell command.
fn shell(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The statuses in the output of `curl -i`.
fn statuses(line: &str) -> String {
    let output = shell(line);
    let statuses = output
        .lines()
        .filter_map(|line| line.strip_prefix("HTTP/1.1 ")?.split(' ').next());
    statuses.collect::<Vec<_>>().join(" ")
}

/// Runs every printed command, and compares the statuses with those after the `#`.
fn check_curls(name: &str, example: &Example) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(name)
        .with_extension("rs");
    let source = std::fs::read_to_string(source).unwrap();
    assert!(example.curls().count() > 1);
    for line in example.curls() {
        let (command, expected) = line.split_once('#').unwrap();
        assert_eq!(statuses(command), expected.trim(), "{line}");
        // The comment at the top of the file has the same line.
        let commented = line.replace(example.address(), "127.0.0.1:3000");
        assert!(
            source.contains(&format!("//!     {commented}\n")),
            "{commented}"
        );
    }
}

#[test]
fn axum_routes() {
    let example = Example::run("axum_routes", &[]);
    check_curls("axum_routes", &example);
}

#[test]
fn hyper_plain() {
    let example = Example::run("hyper_plain", &[]);
    check_curls("hyper_plain", &example);
}

#[test]
fn login() {
    let example = Example::run("login", &[]);
    check_curls("login", &example);
}

#[test]
fn global_then_ip() {
    let example = Example::run("global_then_ip", &[]);
    check_curls("global_then_ip", &example);
}

/// The wait would be too long; and the outer limit has refunded the denials of the inner one.
#[test]
fn global_then_ip_answers_503() {
    let example = Example::run("global_then_ip", &["1/h burst 10"]);
    check_curls("global_then_ip", &example);
    let line = format!(
        "curl -i --interface 127.0.0.3 http://{}/",
        example.address()
    );
    assert_eq!(statuses(&line), "503");
}

/// Requests one after the other wait a quarter of a second at most.
#[test]
fn global_then_ip_waits() {
    let example = Example::run("global_then_ip", &["4/s burst 1"]);
    check_curls("global_then_ip", &example);
}

#[test]
fn tonic_service() {
    let example = Example::run("tonic_service", &[]);
    assert_eq!(
        example.lines[..3],
        ["1: SERVING", "2: SERVING", "3: SERVING"]
    );
    assert!(
        example.lines[3].starts_with("4: ResourceExhausted, retry after "),
        "{:?}",
        example.lines
    );
    let (command, expected) = example.curls().next().unwrap().split_once('#').unwrap();
    let answer = shell(command);
    assert!(
        answer.starts_with("HTTP/2 200") && answer.contains(expected.trim()),
        "{answer}"
    );
}
