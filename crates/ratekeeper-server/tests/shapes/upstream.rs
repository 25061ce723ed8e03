//! The programs behind the gateway, from other projects: Go's net/http, Node's http and http2, and
//! nginx.

use crate::authority::Authority;
use crate::shape::{Shape, content};
use crate::support::directory;
use ratekeeper_testkit::{free_port, tools};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An upstream, and the protocol of the gateway to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    GoHttp1,
    GoHttp2,
    GoHttp2Tls,
    NodeHttp1,
    NodeHttp2,
    NginxFiles,
    NginxFilesHttp2,
    /// nginx as a reverse proxy in front of Go.
    NginxProxy,
}

impl Program {
    pub(crate) fn is_http2(self) -> bool {
        matches!(
            self,
            Self::GoHttp2 | Self::GoHttp2Tls | Self::NodeHttp2 | Self::NginxFilesHttp2
        )
    }

    /// Whether it can answer in this shape.
    pub(crate) fn knows(self, shape: &Shape) -> bool {
        let has = |name| shape.text(name).is_some();
        match self {
            Self::NginxFiles | Self::NginxFilesHttp2 => {
                let is_file = matches!(shape.text("framing"), Some("sized" | "chunked"))
                    && ![
                        "chunk", "pause", "trailers", "hints", "head", "events", "status", "flush",
                    ]
                    .into_iter()
                    .any(has);
                let is_unchanged = shape.status() == 304 && !has("etag");
                shape.upload.is_none() && (is_file || is_unchanged)
            }
            // It forwards neither trailers nor 103, and turns a body without a length into chunks.
            Self::NginxProxy => {
                !has("trailers")
                    && !has("hints")
                    && !shape.upload.is_some_and(|upload| upload.has_trailer)
            }
            Self::GoHttp1
            | Self::GoHttp2
            | Self::GoHttp2Tls
            | Self::NodeHttp1
            | Self::NodeHttp2 => true,
        }
    }
}

/// A running upstream. It ends with the test.
pub(crate) struct Upstream {
    /// Its URL, for the gateway.
    pub(crate) url: String,
    /// Lines under `[gateway]` that it needs.
    pub(crate) config: String,
    _children: Vec<RunningProcess>,
}

impl Upstream {
    /// Starts it, or returns `None`, with a message, if the machine has no Go or no Node.
    pub(crate) fn start(program: Program, authority: &Authority) -> Option<Self> {
        let http2 = if program.is_http2() {
            "http2 = true\n"
        } else {
            ""
        };
        let (url, children) = match program {
            Program::GoHttp1 | Program::GoHttp2 | Program::GoHttp2Tls => {
                let (addresses, child) = go(authority)?;
                let url = match program {
                    Program::GoHttp2Tls => {
                        format!("https://localhost:{}", addresses[2].rsplit_once(':')?.1)
                    }
                    _ => format!("http://{}", addresses[0]),
                };
                (url, vec![child])
            }
            Program::NodeHttp1 | Program::NodeHttp2 => {
                let (addresses, child) = node()?;
                (
                    format!("http://{}", addresses[usize::from(program.is_http2())]),
                    vec![child],
                )
            }
            Program::NginxFiles | Program::NginxFilesHttp2 => {
                let (address, child) =
                    nginx(if program.is_http2() { "http2" } else { "" }, &files());
                (format!("http://{address}"), vec![child])
            }
            Program::NginxProxy => {
                let (addresses, behind) = go(authority)?;
                let location = format!(
                    "location / {{ proxy_pass http://{}; proxy_http_version 1.1; proxy_set_header Connection ''; \
                     proxy_buffer_size 128k; proxy_buffers 8 128k; proxy_busy_buffers_size 256k; \
                     proxy_request_buffering off; }}",
                    addresses[0]
                );
                let (address, child) = nginx("", &location);
                (format!("http://{address}"), vec![child, behind])
            }
        };
        let config = format!("ca_file = {:?}\n{http2}", authority.ca());
        Some(Self {
            url,
            config,
            _children: children,
        })
    }
}

struct RunningProcess(Child);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that prints its addresses in one line, and ends when its input does.
fn addresses(mut command: Command) -> (Vec<String>, RunningProcess) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    (
        line.split_whitespace().map(str::to_owned).collect(),
        RunningProcess(child),
    )
}

fn go(authority: &Authority) -> Option<(Vec<String>, RunningProcess)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/go-upstream");
    let path = tools::file(&path, "scripts/clients makes it, with go")?;
    let (cert, key) = authority.sign("localhost", 2100);
    let mut command = Command::new(path);
    command.args([cert, key]);
    Some(addresses(command))
}

fn node() -> Option<(Vec<String>, RunningProcess)> {
    let mut command = tools::program("node", "install it (on Debian: apt-get install nodejs)")?;
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstreams/node/upstream.cjs"));
    Some(addresses(command))
}

/// Locations with a file of each size, once with a Content-Length and once chunked: server-side
/// includes remove the length.
fn files() -> String {
    let root = directory(&[]);
    for size in [
        0, 1, 16_383, 16_384, 16_385, 16_386, 16_387, 16_388, 16_389, 100_000, 5_000_000,
    ] {
        fs::write(root.join(format!("{size}.bin")), content(size)).unwrap();
    }
    let root = root.display();
    format!(
        "if_modified_since before;
         location = /shape {{
             if ($arg_status = 304) {{ rewrite ^ /files/sized/1.bin last; }}
             rewrite ^ /files/$arg_framing/$arg_size.bin last;
         }}
         location /files/sized/ {{ alias {root}/; }}
         location /files/chunked/ {{ ssi on; ssi_types *; alias {root}/; }}"
    )
}

fn nginx(listen: &str, locations: &str) -> (String, RunningProcess) {
    let address = format!("127.0.0.1:{}", free_port());
    let dir = directory(&[]);
    let config = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;
         events {{ worker_connections 1000; }}
         http {{
             access_log off; client_max_body_size 0; large_client_header_buffers 4 64k;
             client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
             uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
             server {{ listen {address} {listen}; {locations} }}
         }}",
        dir = dir.display()
    );
    let file: PathBuf = dir.join("nginx.conf");
    fs::write(&file, config).unwrap();
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(&file)
        .arg("-e")
        .arg(dir.join("error.log"))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let child = RunningProcess(command.spawn().expect("nginx; make tools installs it"));
    let start = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nginx does not listen; see {}",
            file.display()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    (address, child)
}
