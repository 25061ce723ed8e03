//! Runs the real binary on a free port; a client that connects to it.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod envoy;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far longer than anything here takes, so that a test that hangs fails.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn ratekeeper() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    // Free ports: tests run in parallel.
    command
        .env_remove("RUST_LOG")
        .env("RATEKEEPER_SERVER__ADMIN", "127.0.0.1:0")
        .stdin(Stdio::null());
    command.env("RATEKEEPER_SERVER__RESP", "off");
    command
}

/// Writes a new config file.
pub(crate) fn config_file(text: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "ratekeeper-{}-{}.toml",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, text).unwrap();
    file
}

/// Creates a new directory with these files.
pub(crate) fn directory(files: &[(&str, &str)]) -> PathBuf {
    let directory = config_file("").with_extension("d");
    // A process that had the same id may have left one.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
    directory
}

/// `ratekeeper serve` on free ports, with these Envoy limits.
pub(crate) fn for_envoy(limits: &Path) -> Command {
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
        .env("RATEKEEPER_SERVER__GRPC", "127.0.0.1:0");
    command.args(["serve", "--envoy-config"]).arg(limits);
    command
}

/// Creates a named pipe.
pub(crate) fn pipe() -> PathBuf {
    let pipe = config_file("").with_extension("pipe");
    // A process that had the same id may have left one.
    let _ = fs::remove_file(&pipe);
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    pipe
}

/// Runs `ratekeeper serve` with an invalid configuration. Returns its exit code and its output.
#[track_caller]
pub(crate) fn failed_start(config: &str) -> (Option<i32>, String) {
    let mut command = ratekeeper();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(config));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A server that starts prints a text, and would run forever.
    if child.stdout.as_mut().unwrap().read(&mut [0]).unwrap() > 0 {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("it started with {config:?}");
    }
    exit_output(&child.wait_with_output().unwrap())
}

/// Waits until the condition is true; fails after [`TIMEOUT`].
#[track_caller]
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < TIMEOUT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A service that answers 200 and keeps connections alive.
pub(crate) fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nservice";
                while reader.read_line(&mut line).unwrap_or(0) > 0 {
                    if line == "\r\n" && stream.write_all(answer).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

/// The exit code and the standard error.
pub(crate) fn exit_output(output: &Output) -> (Option<i32>, String) {
    (
        output.status.code(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    )
}

pub(crate) fn send_signal(name: &str, process: u32) {
    let sent = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{name} {process}"))
        .status()
        .unwrap();
    assert!(sent.success());
}

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
    /// The address for Envoy, if Envoy limits are configured.
    pub(crate) grpc: Option<SocketAddr>,
    /// The address of the admin listener.
    pub(crate) admin: SocketAddr,
    /// The text printed at the start.
    pub(crate) welcome: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with_config("[server]\nhttp = \"127.0.0.1:0\"\n")
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let mut command = ratekeeper();
        command
            .arg("serve")
            .arg("--config")
            .arg(config_file(config));
        Self::run(command)
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut welcome = String::new();
        // The text ends with the third line to try, or with the upstreams of a gateway.
        while welcome.matches("curl").count() < 3 && !welcome.contains("Upstream: ") {
            assert!(
                out.read_line(&mut welcome).unwrap() > 0,
                "the server ended after {welcome:?}"
            );
        }
        let address = welcome
            .lines()
            .next()
            .and_then(|line| line.rsplit_once("://"))
            .unwrap()
            .1;
        let page = welcome
            .lines()
            .find_map(|line| line.strip_prefix("Live page: http://"));
        let admin = page
            .and_then(|url| url.split('/').next())
            .unwrap_or(address);
        let grpc = welcome
            .lines()
            .find_map(|line| line.split_once("grpc://")?.1.parse().ok());
        Self {
            address: address.parse().unwrap(),
            grpc,
            admin: admin.parse().unwrap(),
            child,
            out,
            welcome,
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its memory in bytes: a line of its status, such as `VmRSS:` or `VmHWM:`.
    pub(crate) fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let kib = status.lines().find_map(|text| {
            text.strip_prefix(line)?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        });
        kib.unwrap_or_else(|| panic!("no {line} in {status}")) * 1024
    }

    pub(crate) fn signal(&self, name: &str) {
        send_signal(name, self.child.id());
    }

    /// Stops all its threads until it gets the signal CONT.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let is_stopped = |task: fs::DirEntry| {
            // The state follows the name, which is in brackets. A thread that has ended has no file.
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ")
                .next()
                .is_none_or(|rest| rest.is_empty() || rest.starts_with(['T', 't']))
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        while !fs::read_dir(&tasks)
            .unwrap()
            .map_while(Result::ok)
            .all(is_stopped)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads its log while it is written, so that a long one does not block the server;
    /// [`ended`](Self::ended) then returns no log.
    pub(crate) fn read_log(&mut self) -> JoinHandle<String> {
        let mut pipe = self.child.stderr.take().unwrap();
        std::thread::spawn(move || {
            let mut log = String::new();
            pipe.read_to_string(&mut log).unwrap();
            log
        })
    }

    /// The address for RESP.
    pub(crate) fn resp(&self) -> SocketAddr {
        let line = self
            .welcome
            .lines()
            .find_map(|line| line.strip_prefix("RESP: "))
            .unwrap();
        line.split(',').next().unwrap().parse().unwrap()
    }

    /// Waits for its exit while its log is [read](Self::read_log).
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Waits for its exit. Returns its status and its log.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut log).unwrap();
        }
        (self.child.wait().unwrap(), log)
    }

    pub(crate) fn connect(&self) -> Connection {
        Self::connect_to(self.address)
    }

    pub(crate) fn connect_to(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// Whether connections are still accepted.
    pub(crate) fn accepts(&self) -> bool {
        TcpStream::connect(self.address).is_ok()
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut connection = self.connect();
        connection.send(method, path, body);
        connection.answer()
    }

    /// Sends a request to the admin listener.
    pub(crate) fn admin(&self, method: &str, path: &str) -> Answer {
        let mut connection = Self::connect_to(self.admin);
        connection.send(method, path, "");
        connection.answer()
    }

    /// The value of a metric, by its name and labels as in `/metrics`.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.admin("GET", "/metrics").body;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}"))
            .parse()
            .unwrap()
    }

    pub(crate) fn check(&self, body: &str) -> Answer {
        self.request("POST", "/v1/check", body)
    }

    pub(crate) fn throttle(&self, body: &str) -> Answer {
        self.request("POST", "/v1/throttle", body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test may leave it running; it may also have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A keep-alive connection.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn write(&mut self, text: &str) {
        self.write_bytes(text.as_bytes());
    }

    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Another handle for writing.
    pub(crate) fn writer(&self) -> TcpStream {
        self.0.get_ref().try_clone().unwrap()
    }

    /// Shuts down writing.
    pub(crate) fn end(&mut self) {
        self.0.get_mut().shutdown(Shutdown::Write).unwrap();
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        self.write(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
    }

    /// Reads a line.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(
            self.0.read_line(&mut line).unwrap() > 0,
            "the connection ended"
        );
        line
    }

    /// Reads up to the empty line that ends a head.
    pub(crate) fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                self.0.read_line(&mut head).unwrap() > 0,
                "the connection ended after {head:?}"
            );
        }
        head
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.head();
        let mut answer = Answer {
            head,
            body: String::new(),
        };
        let mut body = vec![
            0;
            answer
                .header("content-length")
                .map_or(0, |length| length.parse().unwrap())
        ];
        self.0.read_exact(&mut body).unwrap();
        answer.body = String::from_utf8(body).unwrap();
        answer
    }

    /// Reads everything until the server closes.
    pub(crate) fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }

    /// Waits until the server closes or resets, whatever it sends until then.
    #[track_caller]
    pub(crate) fn gone(mut self) {
        match self.0.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("expected the end, not {error}"),
        }
    }

    /// Waits until the server closes or resets the connection without sending anything.
    #[track_caller]
    pub(crate) fn closed(mut self) {
        match self.0.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("expected the end, not {other:?}"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The detail of a problem document with this status and code; checks its other fields.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let body = self.json();
        assert_eq!(
            (self.status(), &body["code"]),
            (status, &Value::from(code)),
            "{self:?}"
        );
        assert_eq!(
            (&body["type"], &body["status"]),
            (&Value::from("about:blank"), &Value::from(status))
        );
        assert!(!body["title"].as_str().unwrap().is_empty());
        body["detail"].as_str().unwrap().to_owned()
    }
}
