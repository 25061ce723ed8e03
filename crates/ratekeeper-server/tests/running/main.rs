//! Running it: TLS on every listener, Unix sockets, systemd, and what the pages on deployment ship.

#[path = "../support/authority.rs"]
mod authority;
mod bounds;
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

/// A server that says itself where it is; killed when dropped.
pub(crate) struct Started {
    child: Child,
    pub(crate) welcome: String,
}

impl Started {
    /// `ratekeeper serve` with that configuration alone.
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
        // What else it prints is for nobody, and must not stop it.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Self { child, welcome }
    }

    /// What stands behind some words of what it printed, up to a space, a comma or a slash.
    #[track_caller]
    pub(crate) fn behind(&self, words: &str) -> String {
        let rest = self
            .welcome
            .split_once(words)
            .unwrap_or_else(|| panic!("no {words} in {}", self.welcome))
            .1;
        rest.split([' ', ',', '/', '\n']).next().unwrap().to_owned()
    }

    /// The port there.
    #[track_caller]
    pub(crate) fn port(&self, words: &str) -> u16 {
        self.behind(words)
            .rsplit(':')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        send_signal(name, self.child.id());
    }

    /// Waits for the end: how it ended and what it logged.
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

impl Drop for Started {
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

/// Without what other tests say in the environment.
pub(crate) fn plain() -> Command {
    let mut command = ratekeeper();
    command
        .env_remove("RATEKEEPER_SERVER__ADMIN")
        .env_remove("RATEKEEPER_SERVER__RESP");
    command
}

/// What a program prints, and whether it ended well.
pub(crate) fn ran(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

pub(crate) fn curl(arguments: &[&str]) -> (bool, String) {
    ran("curl", &[&["-sS", "--max-time", "60"], arguments].concat())
}

/// A directory of its own, with a path that is short enough for sockets.
pub(crate) struct Place(PathBuf);

impl Place {
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

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The question of a client of gRPC whether all is well, in a file; the answer has the bytes 8 and
/// 1 in it.
pub(crate) fn health_question(place: &Place) -> String {
    let file = place.file("question");
    fs::write(&file, [0; 5]).unwrap();
    file
}

pub(crate) const HEALTH: &str = "/grpc.health.v1.Health/Check";

pub(crate) const ENVOY: &str = "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: second\n    requests_per_unit: 1\n";
