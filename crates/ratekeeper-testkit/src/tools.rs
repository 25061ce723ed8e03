//! Programs that tests need and a machine may lack: Go, Node, and the output of scripts/clients and
//! scripts/venv.
//!
//! On a developer's machine the test prints that it was skipped. On CI (`CI=true`), or with
//! `REQUIRE_ALL_TESTS` set, it fails: a skipped test proves nothing.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file that a script makes; `None` if it is missing and the test is to be skipped.
///
/// # Panics
/// If it is missing and must not be.
#[track_caller]
pub fn file(path: &Path, remedy: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path.to_owned());
    }
    skip(&format!("there is no {}; {remedy}", path.display()));
    None
}

/// A program on the `PATH`; `None` if it is missing and the test is to be skipped.
///
/// # Panics
/// If it is missing and must not be.
#[track_caller]
pub fn program(name: &str, remedy: &str) -> Option<Command> {
    let mut trial = Command::new(name);
    let trial = trial.arg("--version").stdin(Stdio::null());
    if trial
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
    {
        return Some(Command::new(name));
    }
    skip(&format!("there is no {name}; {remedy}"));
    None
}

/// Prints that a test was skipped, and why.
///
/// # Panics
/// If no test may be skipped.
#[track_caller]
pub fn skip(reason: &str) {
    let [ci, require_all] = ["CI", "REQUIRE_ALL_TESTS"].map(env::var_os);
    assert!(
        !is_required(ci.as_deref(), require_all.as_deref()),
        "{reason}; a test may not be skipped here, since CI or REQUIRE_ALL_TESTS is set"
    );
    eprintln!("skipped: {reason}");
}

/// Whether no test may be skipped, by the two variables.
fn is_required(ci: Option<&OsStr>, require_all: Option<&OsStr>) -> bool {
    let is_set = |value: Option<&OsStr>| {
        value.is_some_and(|value| !["", "0", "false"].map(OsStr::new).contains(&value))
    };
    is_set(ci) || is_set(require_all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn tests_may_be_skipped_unless_a_variable_is_set() {
        let required = |ci: Option<&str>, all: Option<&str>| {
            is_required(ci.map(OsStr::new), all.map(OsStr::new))
        };
        for (ci, all, expected) in [
            (None, None, false),
            (Some("true"), None, true),
            (Some("1"), None, true),
            (None, Some("1"), true),
            (Some("false"), Some("0"), false),
            (Some(""), Some(""), false),
        ] {
            assert_eq!(required(ci, all), expected, "{ci:?} {all:?}");
        }
    }

    /// In a separate process: the tests of this one share its environment.
    #[test]
    fn a_missing_program_skips_a_test_and_on_ci_fails_it() {
        const CHILD: &str = "RATEKEEPER_TESTKIT_CHILD";
        if env::var_os(CHILD).is_some() {
            assert!(program("ratekeeper-no-such-program", "install it").is_none());
            assert!(file(Path::new("/no/such/file"), "make it").is_none());
            return;
        }
        let ran = |variable: Option<&str>| {
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args(["a_missing_program_skips", "--nocapture"])
                .env(CHILD, "1")
                .env_remove("CI")
                .env_remove("REQUIRE_ALL_TESTS");
            if let Some(variable) = variable {
                command.env(variable, "true");
            }
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            (output.status.success(), text)
        };
        let (is_green, text) = ran(None);
        assert!(
            is_green
                && text.contains("skipped: there is no ratekeeper-no-such-program; install it"),
            "{text}"
        );
        for variable in ["CI", "REQUIRE_ALL_TESTS"] {
            let (is_green, text) = ran(Some(variable));
            assert!(
                !is_green && text.contains("there is no ratekeeper-no-such-program"),
                "{text}"
            );
        }
    }

    /// Without programs on the `PATH` that could install them.
    #[test]
    fn scripts_need_names_the_packages_of_node_and_go() {
        let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
        let tools = makefile
            .lines()
            .find_map(|line| line.trim().strip_prefix("@scripts/need "))
            .unwrap();
        let tools: Vec<&str> = tools.split_whitespace().collect();
        for tool in ["node", "npm", "go"] {
            assert!(tools.contains(&tool), "make tools does not ask for {tool}");
        }
        let place = tempfile::tempdir().unwrap();
        for program in ["env", "bash", "id"] {
            let from = ["/usr/bin", "/bin"].map(|directory| Path::new(directory).join(program));
            let from = from.iter().find(|path| path.exists()).unwrap();
            symlink(from, place.path().join(program)).unwrap();
        }
        let output = Command::new(root().join("scripts/need"))
            .args(["node", "npm", "go"])
            .env("PATH", place.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains("missing: nodejs npm golang."),
            "{text}"
        );
    }

    /// No test may skip by itself: it would pass on CI.
    #[test]
    fn no_test_is_skipped_in_silence() {
        let mut silent = Vec::new();
        let mut places = vec![root().join("crates")];
        while let Some(place) = places.pop() {
            for entry in fs::read_dir(&place).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    places.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs")
                    && path != root().join("crates/ratekeeper-testkit/src/tools.rs")
                    && fs::read_to_string(&path)
                        .unwrap()
                        .contains("println!(\"skipped: ")
                {
                    silent.push(path);
                }
            }
        }
        assert!(silent.is_empty(), "call tools::skip in {silent:?}");
    }
}
