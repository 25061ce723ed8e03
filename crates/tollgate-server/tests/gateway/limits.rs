//! Permits and delays of policies hold at the gateway.

use crate::gateway;
use crate::service::{echo, head, service};
use crate::support::eventually;
use std::io::{BufReader, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// A permit lasts until the answer has ended, not until it begins.
#[test]
fn so_many_at_once_until_the_answer_has_ended() {
    let (release, held) = channel::<()>();
    let held = std::sync::Arc::new(Mutex::new(held));
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").unwrap();
            held.lock().unwrap().recv().unwrap();
            stream.write_all(b"k").unwrap();
        }
    });
    let server = gateway(&[upstream], "[[policy]]\nname = \"one\"\nlimit = \"1 concurrent\"\n");
    let mut first = server.connect();
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(server.request("GET", "/", "").status(), 429);
    release.send(()).unwrap();
    release.send(()).unwrap();
    eventually("the permit given back", || server.request("GET", "/", "").status() == 200);
}

#[test]
fn who_is_over_a_limit_that_delays_waits_and_passes() {
    let (upstream, _requests) = echo();
    let policy =
        "[[policy]]\nname = \"slow\"\nkey = \"ip\"\nlimit = \"10/s burst 1\"\naction = \"delay\"\nmax_delay = \"1m\"\n";
    let server = gateway(&[upstream], policy);
    assert!((0..5).all(|_| server.request("GET", "/", "").status() == 200));
    assert!(server.figure("tollgate_decisions_total{policy=\"slow\",outcome=\"delayed\"}") >= 1.0);
}

/// As many requests under way as the limit allows, all the time: what comes back is there before the answer is.
#[test]
fn successes_are_given_back_before_the_client_has_its_answer() {
    let (upstream, _requests) = echo();
    let policy = "name = \"failures\"\ncount = \"failures\"\nlimit = \"5/h\"\nalgorithm = \"sliding_log\"\n";
    let server = gateway(&[upstream], &format!("[[policy]]\n{policy}"));
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let mut connection = server.connect();
                for _ in 0..100 {
                    connection.send("GET", "/", "");
                    assert_eq!(connection.answer().status(), 200);
                }
            });
        }
    });
}
