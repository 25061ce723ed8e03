//! Stopping under load: no request that was sent goes without a response.

use crate::gateway;
use crate::service::{head, service};
use crate::support::eventually;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

#[test]
fn a_drain_under_load_loses_no_request() {
    let upstream = service(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            thread::sleep(std::time::Duration::from_millis(3));
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .is_err()
            {
                return;
            }
        }
    });
    let server = gateway(&[upstream], "drain_delay = \"300ms\"\n");
    let (address, answered, announced) = (server.address, AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    // Until connecting fails: a new connection whenever the last one ends.
                    while let Ok(mut stream) = TcpStream::connect(address) {
                        let mut reader = BufReader::new(stream.try_clone().unwrap());
                        loop {
                            if stream
                                .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                                .is_err()
                            {
                                return Err("not even asked");
                            }
                            let Some(head) = head(&mut reader) else {
                                return Err("no answer");
                            };
                            let mut body = [0; 2];
                            if reader.read_exact(&mut body).is_err()
                                || !head.starts_with("http/1.1 200 ")
                            {
                                return Err("half an answer");
                            }
                            answered.fetch_add(1, SeqCst);
                            if head.contains("connection: close") {
                                announced.fetch_add(1, SeqCst);
                                break;
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        eventually("load", || answered.load(SeqCst) > 200);
        assert_eq!(server.admin("GET", "/readyz").status(), 200);
        server.signal("TERM");
        // It announces the stop first, and goes on serving.
        eventually("not ready", || {
            server.admin("GET", "/readyz").status() == 503
        });
        let lost: Vec<_> = clients
            .into_iter()
            .filter_map(|client| client.join().unwrap().err())
            .collect();
        assert!(lost.is_empty(), "{lost:?} of {answered:?}");
    });
    assert!(announced.load(SeqCst) >= 16);
    let (status, log) = server.ended();
    assert!(
        status.code() == Some(0) && !log.contains("cut off"),
        "{log}"
    );
}

#[test]
fn requests_that_never_end_are_cut_off() {
    let upstream = service(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {}
    });
    let server = gateway(
        &[upstream],
        "drain_delay = \"1ms\"\ndrain_timeout = \"300ms\"\n",
    );
    let mut connection = server.connect();
    connection.send("GET", "/", "");
    eventually("a request under way", || {
        server.metric(&format!(
            "ratekeeper_upstream_requests_active{{upstream=\"http://{upstream}\"}}"
        )) == 1.0
    });
    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(status.code() == Some(0) && log.contains("cut off"), "{log}");
}

/// An unfinished head delays a stop no longer than any other.
#[test]
fn a_slow_loris_does_not_delay_a_stop() {
    let upstream = service(|_| {});
    let server = gateway(
        &[upstream],
        "drain_delay = \"1ms\"\ndrain_timeout = \"1h\"\nheader_timeout = \"300ms\"\n",
    );
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\nHost: ");
    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(
        status.code() == Some(0) && !log.contains("cut off"),
        "{log}"
    );
}

/// Over HTTP/2 a client takes part in closing the connection; one that does not read is not waited
/// for.
#[test]
fn an_idle_http2_client_that_does_not_read_does_not_delay_a_stop() {
    let (upstream, requests) = crate::service::echo();
    let server = gateway(
        &[upstream],
        "drain_delay = \"1ms\"\ndrain_timeout = \"10s\"\nkeep_alive = \"1h\"\n",
    );
    let mut connection = server.connect();
    connection.write_bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    // GET / of x, whose response is not read.
    connection.write_bytes(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01x");
    requests.recv().unwrap();
    let active = format!("ratekeeper_upstream_requests_active{{upstream=\"http://{upstream}\"}}");
    eventually("the answer", || server.metric(&active) == 0.0);
    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(
        status.code() == Some(0) && !log.contains("cut off"),
        "{log}"
    );
}
