//! `ratekeeper top`: once, and in a real terminal.

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

fn asked() -> Server {
    let server = Server::with_config(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"2/d\"\n\
         [[policy]]\nname = \"watched\"\nkey = []\nlimit = \"4/d\"\naction = \"shadow\"\n",
    );
    for user in ["someone", "someone", "someone", "bob", "eve", "joe"] {
        server.check(&json!({"subject": {"user": user}}).to_string());
    }
    server
}

/// The numbers in a line of text that begins with this.
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
fn once_it_prints_the_numbers_of_the_figures() {
    let server = asked();
    let output = top(&server, &["--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && !text.contains('\u{1b}'),
        "{text}"
    );
    let figure = |name: &str| server.figure(name);
    let of = |policy: &str, outcome: &str| {
        figure(&format!(
            "ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"
        ))
    };
    let totals = numbers(&text, "requests ");
    assert_eq!(
        totals[..3],
        ["total", "allowed", "blocked"].map(|name| figure(&format!("ratelimit_requests_{name}"))),
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
            figure(&format!("ratekeeper_keys{{policy=\"{policy}\"}}")),
            "{text}"
        );
        let told = figure(&format!("ratelimit_current_usage{{policy=\"{policy}\"}}"));
        assert_eq!(
            usage,
            if policy == "watched" {
                100.0 * told
            } else {
                told
            },
            "{text}"
        );
    }
    assert_eq!(
        numbers(&text, "store memory")[0],
        figure("ratekeeper_keys{policy=\"user\"}") + figure("ratekeeper_keys{policy=\"watched\"}")
    );
    assert!(!text.contains("someone"), "{text}");
}

#[test]
fn once_as_json_it_is_what_the_listener_says() {
    let server = asked();
    let told: Value =
        serde_json::from_slice(&top(&server, &["--once", "--format", "json"]).stdout).unwrap();
    assert_eq!(told["top"], server.admin("GET", "/admin/top").json());
    assert_eq!(
        told["status"]["totals"],
        server.admin("GET", "/admin/status").json()["totals"]
    );
    assert_eq!(told["status"]["totals"]["requests"], json!(6));
}

#[test]
fn what_it_cannot_do_is_one_sentence_and_code_2() {
    let server = asked();
    let (code, said) = crate::support::told(&top(&server, &[]));
    assert_eq!(
        (code, &*said),
        (
            Some(2),
            "ratekeeper: standard input and output are not a terminal; use --once to print the statistics as text\n"
        )
    );
    let gone = Command::new(env!("CARGO_BIN_EXE_ratekeeper"))
        .args(["top", "--once", "--url", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let (code, said) = crate::support::told(&gone);
    assert!(
        code == Some(2)
            && said.starts_with("ratekeeper: cannot connect to http://127.0.0.1:1: ")
            && said.lines().count() == 1,
        "{said}"
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
    let (code, said) = crate::support::told(&other);
    assert!(
        code == Some(2) && said.contains("/admin/status returned 404: "),
        "{said}"
    );
}

/// `ratekeeper top` in a terminal that `script` makes, of 100 columns and 30 lines; what comes on
/// it goes into a file.
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

    /// Waits for its end, and sees that the terminal is as it was before.
    #[track_caller]
    fn restored(mut self) {
        assert!(self.script.wait().unwrap().success());
        let settings =
            |name: &str| fs::read_to_string(format!("{}.{name}", self.process.display())).unwrap();
        assert_eq!(settings("before"), settings("after"));
        // Onto the other screen, and back; the cursor is shown again.
        assert!(
            self.shows("\u{1b}[?1049h") && self.shows("\u{1b}[?1049l") && self.shows("\u{1b}[?25h")
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // What a failed test left running ends with its terminal.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn q_quits_and_the_terminal_is_as_it_was() {
    let server = asked();
    let mut terminal = Terminal::start(&server);
    eventually("it draws the policies", || terminal.shows("watched"));
    terminal.press("?");
    // Its frame: of what is inside, that is not drawn which was there already.
    eventually("it draws the help", || terminal.shows("help ──"));
    terminal.press("q");
    terminal.restored();
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_it_was() {
    for signal in ["TERM", "INT"] {
        let server = asked();
        let terminal = Terminal::start(&server);
        eventually("it draws the policies", || terminal.shows("watched"));
        let process = fs::read_to_string(&terminal.process)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        send_signal(signal, process);
        terminal.restored();
    }
}

#[test]
fn a_service_that_goes_is_said_and_found_again() {
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
    // The line with the keys takes its place again: it is drawn for the second time.
    let keys = |terminal: &Terminal| {
        String::from_utf8_lossy(&fs::read(&terminal.shown).unwrap())
            .matches("pause")
            .count()
    };
    eventually("it is back", || keys(&terminal) >= 2);
    terminal.press("q");
    terminal.restored();
    drop(server);
}
