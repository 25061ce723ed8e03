//! Several upstreams: a dead one, an unhealthy one, balancing by key.

use crate::gateway;
use crate::service::{named_echo, service};
use crate::support::{Server, directory, eventually};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A real nginx that returns its name; killed when dropped.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) at: SocketAddr,
}

impl Nginx {
    pub(crate) fn start(name: &str, at: Option<SocketAddr>) -> Self {
        let at = at.unwrap_or_else(|| {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
        });
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off;\n\
             client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n\
             server {{ listen {at}; location / {{ return 200 \"{name}\"; }} }} }}\n"
        );
        let prefix = directory(&[("nginx.conf", &text)]);
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(&prefix)
            .args(["-c", "nginx.conf"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        eventually("nginx listening", || TcpStream::connect(at).is_ok());
        Self { child, at }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(server: &Server) -> (u16, String) {
    let answer = server.request("GET", "/", "");
    (answer.status(), answer.body)
}

/// Connecting to a dead upstream fails at once, so nothing was sent and the next one is tried.
/// After twenty failures its breaker opens, and when it is back, a probe finds it.
#[test]
fn a_killed_upstream_trips_its_breaker_and_the_others_take_over() {
    let (mut one, two) = (Nginx::start("one", None), Nginx::start("two", None));
    let server = gateway(&[one.at, two.at], "balance = \"round_robin\"\n");
    let mut names: Vec<String> = (0..4).map(|_| ask(&server).1).collect();
    names.sort();
    assert_eq!(names, ["one", "one", "two", "two"]);
    one.kill();
    for _ in 0..60 {
        assert_eq!(ask(&server), (200, "two".to_owned()));
    }
    let of_one =
        |name: &str, label: &str| format!("{name}{{upstream=\"http://{}\"{label}}}", one.at);
    let state = |at, state: &str| {
        server.metric(&format!(
            "ratekeeper_breaker_state{{name=\"http://{at}\",state=\"{state}\"}}"
        ))
    };
    assert_eq!((state(one.at, "open"), state(one.at, "closed")), (1.0, 0.0));
    assert_eq!((state(two.at, "open"), state(two.at, "closed")), (0.0, 1.0));
    let failed = server.metric(&of_one(
        "ratekeeper_upstream_requests_total",
        ",outcome=\"failed\"",
    ));
    for _ in 0..20 {
        assert_eq!(ask(&server).0, 200);
    }
    // An upstream with an open breaker gets no requests.
    assert_eq!(
        server.metric(&of_one(
            "ratekeeper_upstream_requests_total",
            ",outcome=\"failed\""
        )),
        failed
    );
    let back = Nginx::start("one again", Some(one.at));
    eventually("the upstream found again", || ask(&server).1 == "one again");
    drop((back, two));
}

#[test]
fn an_unhealthy_upstream_is_skipped_until_it_recovers() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let ill = Arc::new(AtomicBool::new(true));
    let (one, _one) = named_echo("one ");
    let says = Arc::clone(&ill);
    let two = service(move |mut stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = crate::service::head(&mut reader) {
            let status = if head.starts_with("get /healthz ") && says.load(SeqCst) {
                500
            } else {
                200
            };
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 3\r\n\r\ntwo");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let more = "balance = \"round_robin\"\nhealth_path = \"/healthz\"\nhealth_interval = \"20ms\"\nbreaker = false\n";
    let server = gateway(&[one, two], more);
    let up = format!("ratekeeper_upstream_up{{upstream=\"http://{two}\"}}");
    eventually("the ill one found", || server.metric(&up) == 0.0);
    assert!((0..10).all(|_| ask(&server).1.starts_with("one ")));
    ill.store(false, SeqCst);
    eventually("the well one found", || server.metric(&up) == 1.0);
    assert!((0..10).any(|_| ask(&server).1 == "two"));
}

#[test]
fn a_key_stays_with_its_upstream() {
    let (one, _one) = named_echo("one ");
    let (two, _two) = named_echo("two ");
    let server = gateway(
        &[one, two],
        "balance = \"by_key\"\nbalance_by = \"header:x-tenant\"\n",
    );
    let of = |tenant: usize| {
        let mut connection = server.connect();
        connection.write(&format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Tenant: {tenant}\r\n\r\n"
        ));
        connection.answer().body[..3].to_owned()
    };
    let first: Vec<String> = (0..32).map(of).collect();
    assert_eq!(first, (0..32).map(of).collect::<Vec<_>>());
    assert!(
        first.contains(&"one".to_owned()) && first.contains(&"two".to_owned()),
        "{first:?}"
    );
}

#[test]
fn without_any_upstream_it_is_502_then_503_until_the_breaker_probes() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let server = gateway(&[gone], "[[policy]]\nname = \"all\"\nlimit = \"30/d\"\n");
    for _ in 0..20 {
        server.request("GET", "/", "").problem(502, "bad_upstream");
    }
    for _ in 0..40 {
        let answer = server.request("GET", "/", "");
        answer.problem(503, "unavailable");
        assert!(
            answer
                .header("retry-after")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                >= 1
        );
    }
    // Requests that never reached an upstream were refunded: the limit is 30.
}
