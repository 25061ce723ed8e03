//! Concurrency and delaying limits at the gateway.

use crate::gateway;
use crate::service::{echo, head, service};
use crate::support::{Server, eventually};
use ratekeeper_testkit::RedisServer;
use std::io::{BufReader, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// A permit is held until the response has ended, not until it begins.
#[test]
fn a_permit_is_held_until_the_response_has_ended() {
    let (release, released) = channel::<()>();
    let released = std::sync::Arc::new(Mutex::new(released));
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
                .unwrap();
            released.lock().unwrap().recv().unwrap();
            stream.write_all(b"k").unwrap();
        }
    });
    let server = gateway(
        &[upstream],
        "[[policy]]\nname = \"one\"\nlimit = \"1 concurrent\"\n",
    );
    let mut first = server.connect();
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(server.request("GET", "/", "").status(), 429);
    release.send(()).unwrap();
    release.send(()).unwrap();
    eventually("the permit given back", || {
        server.request("GET", "/", "").status() == 200
    });
}

#[test]
fn requests_over_a_delaying_limit_wait_and_are_allowed() {
    let (upstream, _requests) = echo();
    let policy = "[[policy]]\nname = \"slow\"\nkey = \"ip\"\nlimit = \"10/s burst 1\"\naction = \"delay\"\nmax_delay = \"1m\"\n";
    let server = gateway(&[upstream], policy);
    assert!((0..5).all(|_| server.request("GET", "/", "").status() == 200));
    assert!(
        server.metric("ratekeeper_decisions_total{policy=\"slow\",outcome=\"delayed\"}") >= 1.0
    );
}

/// As many requests in flight as the limit allows, all the time: refunds arrive before the
/// responses.
#[test]
fn successes_are_refunded_before_the_client_has_its_response() {
    let redis = RedisServer::start();
    let url = redis.url();
    let redis_store = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"5s\"\n");
    for store in ["", &redis_store] {
        for algorithm in ["token_bucket", "sliding_log"] {
            let (upstream, _requests) = echo();
            let policy = format!(
                "name = \"failures\"\ncount = \"failures\"\nlimit = \"5/h\"\nalgorithm = \"{algorithm}\"\n"
            );
            let server = gateway(&[upstream], &format!("{store}[[policy]]\n{policy}"));
            let denied = denied_of_five_clients(&server);
            assert_eq!(denied, 0, "{algorithm} {store}");
        }
    }
}

/// How many of 500 requests on five connections were denied.
pub(crate) fn denied_of_five_clients(server: &Server) -> usize {
    let denied = |_| {
        let mut connection = server.connect();
        let statuses = (0..100).map(|_| {
            connection.send("GET", "/", "");
            connection.answer().status()
        });
        statuses.filter(|status| *status == 429).count()
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..5)
            .map(|number| scope.spawn(move || denied(number)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    })
}
