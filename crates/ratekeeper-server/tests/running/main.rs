//! Running the server: TLS on every listener, Unix sockets, systemd, and the deployment files.

#[path = "../support/authority.rs"]
mod authority;
mod bounds;
#[allow(dead_code, unused_imports)]
#[path = "../../src/config/mod.rs"]
mod config;
mod deploy;
mod doctor;
mod nosniff;
mod notify;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod unix;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use support::{config_file, ratekeeper, send_signal};

/// A running server; killed when dropped.
pub(crate) struct RunningServer {
    child: Child,
    pub(crate) welcome: String,
}

impl RunningServer {
    /// Runs `ratekeeper serve` with that configuration alone.
    pub(crate) fn serve(config: &str) -> Self {
        Self::run(serve(config))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut welcome = String::new();
        while !welcome.contains("\nPolicies: ") {
            if out.read_line(&mut welcome).unwrap() == 0 {
                let mut log = String::new();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut log)
                    .unwrap();
                panic!("it ended after {welcome:?}: {log}");
            }
        }
        // The rest of its output is read, so that a full pipe does not block it.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Self { child, welcome }
    }

    /// The text printed after some words, up to a space, a comma or a slash.
    #[track_caller]
    pub(crate) fn text_after(&self, words: &str) -> String {
        let rest = self
            .welcome
            .split_once(words)
            .unwrap_or_else(|| panic!("no {words} in {}", self.welcome))
            .1;
        rest.split([' ', ',', '/', '\n']).next().unwrap().to_owned()
    }

    /// The port in the text printed after some words.
    #[track_caller]
    pub(crate) fn port(&self, words: &str) -> u16 {
        self.text_after(words)
            .rsplit(':')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        send_signal(name, self.child.id());
    }

    /// Waits for its end, and returns the exit status and the log.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ratekeeper serve` with that configuration alone.
pub(crate) fn serve(config: &str) -> Command {
    let mut command = plain();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(config));
    command
}

/// `ratekeeper` without the listeners that other tests set in the environment.
pub(crate) fn plain() -> Command {
    let mut command = ratekeeper();
    command
        .env_remove("RATEKEEPER_SERVER__ADMIN")
        .env_remove("RATEKEEPER_SERVER__RESP");
    command
}

/// Runs a program, and returns whether it succeeded and its output.
pub(crate) fn run_program(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

pub(crate) fn curl(arguments: &[&str]) -> (bool, String) {
    run_program("curl", &[&["-sS", "--max-time", "60"], arguments].concat())
}

/// A temporary directory with a path short enough for sockets.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ratekeeper-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file with the body of a gRPC health check; the response has the bytes 8 and 1 in it.
pub(crate) fn health_request(dir: &TempDir) -> String {
    let file = dir.file("request");
    fs::write(&file, [0; 5]).unwrap();
    file
}

pub(crate) const HEALTH: &str = "/grpc.health.v1.Health/Check";

pub(crate) const ENVOY: &str = "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: second\n    requests_per_unit: 1\n";
