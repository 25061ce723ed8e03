//! The gateways in front of an upstream, and checks that they are idle.

use crate::authority::Authority;
use crate::client::Target;
use crate::support::{Server, config_file, eventually, ratekeeper};
use crate::upstream::Upstream;
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Connections that are opened to reach every worker: the kernel spreads them.
const CONNECTIONS: usize = 24;

/// How long threads are watched. An idle one uses no processor time meanwhile, except for a tick or
/// two.
const OBSERVATION_TIME: Duration = Duration::from_millis(400);
const MAX_TICKS: u64 = 2;

/// How long a worker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Two gateways in front of an upstream: without TLS and with it.
pub(crate) struct Gateways {
    plain: Gateway,
    tls: Gateway,
    pub(crate) target: Target,
}

struct Gateway {
    server: Server,
    log: Option<JoinHandle<String>>,
}

impl Gateways {
    /// With more lines under `[gateway]`.
    pub(crate) fn start(upstream: &Upstream, authority: &Authority, more: &str) -> Self {
        let (cert, key) = authority.sign("localhost", 2100);
        let plain = Gateway::start(upstream, more);
        let tls = Gateway::start(
            upstream,
            &format!("{more}tls = {{ cert = {cert:?}, key = {key:?} }}\n"),
        );
        let target = Target {
            plain: plain.server.address,
            tls: tls.server.address,
            ca: authority.ca(),
        };
        Self { plain, tls, target }
    }

    /// Checks that nothing is in flight, every worker answers, and none spins.
    #[track_caller]
    pub(crate) fn assert_idle(&self) {
        for gateway in [&self.plain, &self.tls] {
            gateway.assert_idle();
        }
    }

    /// Stops them with a signal. Returns their logs.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        [self.plain, self.tls].map(Gateway::stop).concat()
    }
}

impl Gateway {
    fn start(upstream: &Upstream, more: &str) -> Self {
        let text = format!(
            "[gateway]\nupstreams = [\"{}\"]\ndrain_delay = \"1ms\"\n{}{more}\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n",
            upstream.url, upstream.config
        );
        let mut command = ratekeeper();
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
            .arg(config_file(&text));
        let mut server = Server::run(command);
        let log = Some(server.read_log());
        Self { server, log }
    }

    #[track_caller]
    fn assert_idle(&self) {
        eventually("the end of all requests to the upstream", || {
            self.active() == 0.0
        });
        let mut busy = Vec::new();
        eventually("a gateway that does nothing", || {
            let before = self.ticks();
            thread::sleep(OBSERVATION_TIME);
            let ticks = self.ticks();
            let spent = |name: &String| ticks[name] - before.get(name).unwrap_or(&ticks[name]);
            busy = ticks
                .keys()
                .filter(|name| spent(name) > MAX_TICKS)
                .cloned()
                .collect();
            busy.is_empty()
        });
        let mut connections: Vec<TcpStream> = (0..CONNECTIONS)
            .map(|_| TcpStream::connect(self.server.address).unwrap())
            .collect();
        for connection in &mut connections {
            connection.set_read_timeout(Some(TIMEOUT)).unwrap();
            // Neither HTTP nor TLS: the worker itself answers, with a 400 or an alert.
            connection
                .write_all(b"\x01\x02\x03\x04\x05\r\n\r\n")
                .unwrap();
        }
        for connection in &mut connections {
            assert!(
                connection.read(&mut [0]).is_ok_and(|read| read > 0),
                "a worker does not answer"
            );
        }
    }

    /// Requests in flight at the upstream.
    fn active(&self) -> f64 {
        let page = self.server.admin("GET", "/metrics").body;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("ratekeeper_upstream_requests_active{"));
        lines
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    }

    /// The processor time of each thread, by its number and name, in ticks of the kernel (10 ms on
    /// most machines).
    fn ticks(&self) -> HashMap<String, u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.id()))
            .unwrap()
            .map_while(Result::ok);
        let of_task = |stat: String| {
            // The name is in brackets and may contain any byte.
            let (name, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            Some((
                name.to_owned(),
                fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?,
            ))
        };
        // A thread that has ended has no time.
        tasks
            .filter_map(|task| of_task(fs::read_to_string(task.path().join("stat")).ok()?))
            .collect()
    }

    #[track_caller]
    fn stop(mut self) -> String {
        self.server.signal("TERM");
        let log = self.log.take().expect("it is read once");
        let status = self.server.wait();
        let log = log.join().unwrap();
        assert!(
            status.success() && !log.contains("panicked"),
            "{status}: {log}"
        );
        log
    }
}

/// A failed test prints its log.
impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(log) = self.log.take().filter(|_| thread::panicking()) {
            self.server.signal("KILL");
            eprintln!("a gateway logged:\n{}", log.join().unwrap_or_default());
        }
    }
}
