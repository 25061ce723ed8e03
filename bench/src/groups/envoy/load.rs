//! h2load, and its requests.

use super::echo;
use crate::programs::{self, Process};
use crate::report::target;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(super) const CLIENTS: u32 = 8;
pub(super) const LENGTH: Duration = Duration::from_secs(2);
pub(super) const WARM_UP_CALLS: Duration = Duration::from_secs(1);

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A limit that is never reached.
const LIMITS: &str = "domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 1000000000 }
";

/// One descriptor of one entry in protobuf, after the five bytes that gRPC puts before a message.
fn request() -> Vec<u8> {
    let field =
        |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
    let entry = [field(1, b"remote_address"), field(2, b"203.0.113.7")].concat();
    let message = [field(1, b"edge"), field(2, &field(1, &entry))].concat();
    [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Competitor {
    Bare,
    Ratekeeper,
}

impl Competitor {
    pub(super) const ALL: [Self; 2] = [Self::Bare, Self::Ratekeeper];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare tonic service",
            Self::Ratekeeper => "ratekeeper",
        }
    }
}

/// A running server.
pub(super) struct Server {
    _process: Process,
    port: u16,
}

impl Server {
    pub(super) fn start(competitor: Competitor) -> Result<Self, String> {
        let mut command = match competitor {
            Competitor::Bare => programs::own(echo::CHILD)?,
            Competitor::Ratekeeper => {
                let limits = file("envoy-limits.yaml", LIMITS.as_bytes())?;
                let mut command = Command::new(programs::ratekeeper()?);
                command.args(["serve", "--envoy-config"]).arg(limits);
                for listener in ["GRPC", "HTTP", "ADMIN"] {
                    command.env(format!("RATEKEEPER_SERVER__{listener}"), "127.0.0.1:0");
                }
                command
            }
        };
        // The bare service prints only its port, the server prints its gRPC address.
        let (process, port) =
            Process::listening(&mut command, |line| line.rsplit("grpc://127.0.0.1:").next())?;
        Ok(Self {
            _process: process,
            port,
        })
    }
}

fn file(name: &str, content: &[u8]) -> Result<PathBuf, String> {
    let path = target().join(name);
    let written = fs::create_dir_all(target()).and_then(|()| fs::write(&path, content));
    written.map(|()| path).map_err(|error| error.to_string())
}

/// An installed h2load.
pub(super) struct H2load {
    body: PathBuf,
}

impl H2load {
    pub(super) fn find() -> Result<Self, String> {
        if Command::new("h2load").arg("--version").output().is_err() {
            return Err(
                "h2load is not installed (on Debian: apt-get install nghttp2-client, which make bench does)".into()
            );
        }
        Ok(Self {
            body: file("envoy-request.bin", &request())?,
        })
    }

    /// Returns the requests per second of that server, over connections that stay open.
    pub(super) fn load(
        &self,
        server: &Server,
        streams: u32,
        length: Duration,
    ) -> Result<f64, String> {
        let output = Command::new("h2load")
            .args([
                "-c",
                &CLIENTS.to_string(),
                "-m",
                &streams.to_string(),
                "-D",
                &length.as_secs().to_string(),
            ])
            .args([
                "-H",
                "content-type: application/grpc",
                "-H",
                "te: trailers",
                "-d",
            ])
            .arg(&self.body)
            .arg(format!("http://127.0.0.1:{}{PATH}", server.port))
            .output()
            .map_err(|error| format!("h2load: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.lines().find_map(|line| {
            let (_, rest) = line.strip_prefix("finished in ")?.split_once(", ")?;
            rest.split_once(" req/s")?.0.parse::<f64>().ok()
        });
        let failed =
            !text.contains(" 0 failed, 0 errored, 0 timeout") || !text.contains(" 0 4xx, 0 5xx");
        match rate.filter(|rate| *rate > 0.0 && !failed) {
            Some(rate) => Ok(rate),
            None => Err(format!(
                "unexpected output of h2load:\n{text}{}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}
