//! `ratekeeper top`: `--once`, and in a real terminal.

use crate::support::{Server, config_file, eventually, ratekeeper, send_signal};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn top(server: &Server, args: &[&str]) -> Output {
    let url = format!("http://{}", server.admin);
    Command::new(env!("CARGO_BIN_EXE_ratekeeper"))
        .args(["top", "--url", &url])
        .args(args)
        .output()
        .unwrap()
}

fn server_with_traffic() -> Server {
    let server = Server::with_config(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"2/d\"\n\
         [[policy]]\nname = \"watched\"\nkey = []\nlimit = \"4/d\"\naction = \"shadow\"\n",
    );
    for user in ["someone", "someone", "someone", "bob", "eve", "joe"] {
        server.check(&json!({"subject": {"user": user}}).to_string());
    }
    server
}

/// The numbers in the line that starts with a text.
fn numbers(text: &str, begins: &str) -> Vec<f64> {
    let line = text
        .lines()
        .find(|line| line.starts_with(begins))
        .unwrap_or_else(|| panic!("no {begins} in {text}"));
    let words = line.split(|c: char| c.is_whitespace() || c == '(' || c == ')');
    words
        .filter_map(|word| {
            word.trim_end_matches([',', '%'])
                .replace(',', "")
                .parse()
                .ok()
        })
        .collect()
}

#[test]
fn once_prints_the_numbers_of_the_metrics() {
    let server = server_with_traffic();
    let output = top(&server, &["--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && !text.contains('\u{1b}'),
        "{text}"
    );
    let metric = |name: &str| server.metric(name);
    let of = |policy: &str, outcome: &str| {
        metric(&format!(
            "ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"
        ))
    };
    let totals = numbers(&text, "requests ");
    assert_eq!(
        totals[..3],
        ["total", "allowed", "blocked"].map(|name| metric(&format!("ratelimit_requests_{name}"))),
        "{text}"
    );
    for policy in ["user", "watched"] {
        let [allowed, delayed, denied, _, shadow, keys, usage] =
            numbers(&text, &format!("{policy} "))[..]
        else {
            panic!("{text}")
        };
        assert_eq!(
            [allowed, delayed, denied, shadow],
            ["allowed", "delayed", "denied", "shadow_denied"].map(|outcome| of(policy, outcome)),
            "{text}"
        );
        assert_eq!(
            keys,
            metric(&format!("ratekeeper_keys{{policy=\"{policy}\"}}")),
            "{text}"
        );
        let current = metric(&format!("ratelimit_current_usage{{policy=\"{policy}\"}}"));
        assert_eq!(
            usage,
            if policy == "watched" {
                100.0 * current
            } else {
                current
            },
            "{text}"
        );
    }
    assert_eq!(
        numbers(&text, "store memory")[0],
        metric("ratekeeper_keys{policy=\"user\"}") + metric("ratekeeper_keys{policy=\"watched\"}")
    );
    assert!(!text.contains("someone"), "{text}");
}

#[test]
fn once_as_json_prints_the_admin_api_responses() {
    let server = server_with_traffic();
    let output: Value =
        serde_json::from_slice(&top(&server, &["--once", "--format", "json"]).stdout).unwrap();
    assert_eq!(output["top"], server.admin("GET", "/admin/top").json());
    assert_eq!(
        output["status"]["totals"],
        server.admin("GET", "/admin/status").json()["totals"]
    );
    assert_eq!(output["status"]["totals"]["requests"], json!(6));
}

#[test]
fn an_error_is_one_sentence_and_exit_code_2() {
    let server = server_with_traffic();
    let (code, message) = crate::support::exit_output(&top(&server, &[]));
    assert_eq!(
        (code, &*message),
        (
            Some(2),
            "ratekeeper: standard input and output are not a terminal; use --once to print the statistics as text\n"
        )
    );
    let gone = Command::new(env!("CARGO_BIN_EXE_ratekeeper"))
        .args(["top", "--once", "--url", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let (code, message) = crate::support::exit_output(&gone);
    assert!(
        code == Some(2)
            && message.starts_with("ratekeeper: cannot connect to http://127.0.0.1:1: ")
            && message.lines().count() == 1,
        "{message}"
    );
    // An HTTP listener that is no admin listener.
    let other = Command::new(env!("CARGO_BIN_EXE_ratekeeper"))
        .args([
            "top",
            "--once",
            "--url",
            &format!("http://{}", server.address),
        ])
        .output()
        .unwrap();
    let (code, message) = crate::support::exit_output(&other);
    assert!(
        code == Some(2) && message.contains("/admin/status returned 404: "),
        "{message}"
    );
}

/// `ratekeeper top` in a terminal of `script`, 100 columns by 30 lines, with the output in a file.
struct Terminal {
    script: Child,
    shown: PathBuf,
    process: PathBuf,
}

impl Terminal {
    fn start(server: &Server) -> Self {
        let (shown, process) = (
            config_file("").with_extension("shown"),
            config_file("").with_extension("process"),
        );
        let command = format!(
            "stty cols 100 rows 30; stty -a > {0}.before; \
             sh -c 'echo $$ > {0}; exec {1} top --interval 0.1 --url http://{2}'; code=$?; stty -a > {0}.after; exit $code",
            process.display(),
            env!("CARGO_BIN_EXE_ratekeeper"),
            server.admin
        );
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-f", "-c", &command]).arg(&shown);
        script
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            script: script
                .spawn()
                .expect("script, of util-linux or bsdutils, cannot be started"),
            shown,
            process,
        }
    }

    fn shows(&self, text: &str) -> bool {
        String::from_utf8_lossy(&fs::read(&self.shown).unwrap_or_default()).contains(text)
    }

    fn press(&mut self, keys: &str) {
        self.script
            .stdin
            .as_mut()
            .unwrap()
            .write_all(keys.as_bytes())
            .unwrap();
    }

    /// Waits for its end, and checks that the terminal is restored.
    #[track_caller]
    fn assert_restored(mut self) {
        assert!(self.script.wait().unwrap().success());
        let settings =
            |name: &str| fs::read_to_string(format!("{}.{name}", self.process.display())).unwrap();
        assert_eq!(settings("before"), settings("after"));
        // The alternate screen was left, and the cursor shown.
        assert!(
            self.shows("\u{1b}[?1049h") && self.shows("\u{1b}[?1049l") && self.shows("\u{1b}[?25h")
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A process left by a failed test ends with its terminal.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn q_quits_and_restores_the_terminal() {
    let server = server_with_traffic();
    let mut terminal = Terminal::start(&server);
    eventually("it draws the policies", || terminal.shows("watched"));
    terminal.press("?");
    // Its frame: unchanged cells inside are not drawn again.
    eventually("it draws the help", || terminal.shows("help ──"));
    terminal.press("q");
    terminal.assert_restored();
}

#[test]
fn a_signal_ends_it_and_restores_the_terminal() {
    for signal in ["TERM", "INT"] {
        let server = server_with_traffic();
        let terminal = Terminal::start(&server);
        eventually("it draws the policies", || terminal.shows("watched"));
        let process = fs::read_to_string(&terminal.process)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        send_signal(signal, process);
        terminal.assert_restored();
    }
}

#[test]
fn a_lost_service_is_shown_and_reconnected() {
    let listening = |port: u16| {
        let mut command = ratekeeper();
        command
            .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
            .env("RATEKEEPER_SERVER__ADMIN", format!("127.0.0.1:{port}"));
        Server::run(command)
    };
    let server = listening(0);
    let port = server.admin.port();
    let mut terminal = Terminal::start(&server);
    eventually("it draws the policies", || terminal.shows("default"));
    drop(server);
    eventually("it says so", || terminal.shows("cannot connect to"));
    let server = listening(port);
    // The line with the keys is drawn for the second time.
    let keys = |terminal: &Terminal| {
        String::from_utf8_lossy(&fs::read(&terminal.shown).unwrap())
            .matches("pause")
            .count()
    };
    eventually("it is back", || keys(&terminal) >= 2);
    terminal.press("q");
    terminal.assert_restored();
    drop(server);
}
