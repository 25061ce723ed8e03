//! Each fault of the proxy, as a client of a real server sees it.

use ratekeeper_testkit::{Connection, Fault, FaultProxy, RedisServer, Reply};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// How long to wait for a reply that must not come.
const SHORT: Duration = Duration::from_millis(50);

fn start() -> (RedisServer, FaultProxy) {
    let redis = RedisServer::start();
    let proxy = FaultProxy::to(redis.port());
    (redis, proxy)
}

/// A connection that has reached the server.
fn connect(proxy: &FaultProxy) -> Connection {
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    assert_eq!(
        connection.command(&["PING"]).unwrap(),
        Reply::Simple("PONG".into())
    );
    connection
}

/// The kind of failure of one INCR.
fn failure(connection: &mut Connection) -> ErrorKind {
    connection.command(&["INCR", "n"]).unwrap_err().kind()
}

fn no_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn closed(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < give_up, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_a_fault_bytes_pass_and_are_counted() {
    let (_redis, proxy) = start();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    assert_eq!(
        connection.command(&["PING"]).unwrap(),
        Reply::Simple("PONG".into())
    );
    assert_eq!(proxy.bytes_to_server(), "*1\r\n$4\r\nPING\r\n".len() as u64);
    assert_eq!(proxy.bytes_to_client(), "+PONG\r\n".len() as u64);
    let big = "x".repeat(1 << 20);
    connection.command(&["SET", "big", &big]).unwrap();
    assert_eq!(
        connection.command(&["GET", "big"]).unwrap(),
        Reply::Bulk(big.into_bytes())
    );
    let _second = Connection::tcp(proxy.port()).unwrap();
    until("both are open", || {
        proxy.connections() == 2 && proxy.accepted() == 2
    });
    drop(connection);
    until("one is closed", || proxy.connections() == 1);
}

#[test]
fn dropped_replies_were_decided() {
    let (redis, proxy) = start();
    let mut connection = connect(&proxy);
    proxy.set(Fault::DropReplies);
    connection.set_timeout(SHORT).unwrap();
    assert!(no_answer(failure(&mut connection)));
    until("the reply is lost", || {
        proxy.bytes_swallowed() == ":1\r\n".len() as u64
    });
    assert_eq!(redis.command(&["GET", "n"]).int(), Some(1));
    proxy.set(Fault::None);
    assert!(
        closed(failure(&mut connection)),
        "a connection that lost a reply must not go on with the next"
    );
    connect(&proxy);
}

#[test]
fn dropped_requests_were_not_decided() {
    let (redis, proxy) = start();
    let mut connection = connect(&proxy);
    proxy.set(Fault::DropRequests);
    connection.set_timeout(SHORT).unwrap();
    assert!(no_answer(failure(&mut connection)));
    assert_eq!(redis.command(&["GET", "n"]), Reply::Nil);
}

#[test]
fn a_connection_that_lost_nothing_goes_on() {
    let (_redis, proxy) = start();
    let mut connection = connect(&proxy);
    proxy.set(Fault::DropReplies);
    proxy.set(Fault::None);
    assert_eq!(connection.command(&["INCR", "n"]).unwrap(), Reply::Int(1));
}

#[test]
fn cut_means_old_and_new_connections_are_closed() {
    let (_redis, proxy) = start();
    let mut connection = connect(&proxy);
    proxy.set(Fault::Cut);
    assert_eq!(proxy.connections(), 0);
    assert!(closed(failure(&mut connection)));
    assert!(closed(failure(&mut Connection::tcp(proxy.port()).unwrap())));
    proxy.set(Fault::None);
    assert_eq!(
        Connection::tcp(proxy.port())
            .unwrap()
            .command(&["INCR", "n"])
            .unwrap(),
        Reply::Int(1)
    );
}

#[test]
fn replies_are_late_by_the_delay_and_not_by_its_multiple() {
    const DELAY: Duration = Duration::from_millis(100);
    let (_redis, proxy) = start();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    proxy.set(Fault::Delay(DELAY));
    let began = Instant::now();
    for _ in 0..40 {
        connection.send(&["INCR", "n"]).unwrap();
        std::thread::sleep(Duration::from_millis(1)); // each its own packet
    }
    let replies: Vec<_> = (0..40).map(|_| connection.read().unwrap()).collect();
    let took = began.elapsed();
    assert_eq!(replies, (1..=40).map(Reply::Int).collect::<Vec<_>>());
    assert!(took >= DELAY, "{took:?}");
    assert!(took < 30 * DELAY, "each waited for those before: {took:?}");
}

#[test]
fn a_delayed_request_arrives_after_its_client_has_left() {
    let (redis, proxy) = start();
    let mut connection = connect(&proxy);
    proxy.set(Fault::DelayRequests(Duration::from_millis(100)));
    connection.send(&["INCR", "n"]).unwrap();
    drop(connection);
    until("it arrives", || {
        redis.command(&["GET", "n"]).int() == Some(1)
    });
}

#[test]
fn garbage_is_not_a_reply() {
    let (redis, proxy) = start();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    proxy.set(Fault::Garble);
    assert_eq!(failure(&mut connection), ErrorKind::InvalidData);
    assert_eq!(redis.command(&["GET", "n"]).int(), Some(1));
}

#[test]
fn half_a_reply_ends_the_connection() {
    let (_redis, proxy) = start();
    let mut connection = Connection::tcp(proxy.port()).unwrap();
    proxy.set(Fault::HalfReply);
    connection.send(&["ECHO", "0123456789"]).unwrap();
    let half = "$10\r\n0123456789\r\n".len() as u64 / 2;
    until("half of it arrives", || proxy.bytes_to_client() == half);
    connection.set_timeout(SHORT).unwrap();
    assert!(no_answer(connection.read().unwrap_err().kind()));
    assert_eq!(proxy.bytes_to_client(), half);
}

#[test]
fn a_server_that_is_killed_closes_its_connections() {
    let (redis, proxy) = start();
    let mut connection = connect(&proxy);
    redis.kill();
    assert!(closed(failure(&mut connection)));
    assert!(closed(failure(&mut Connection::tcp(proxy.port()).unwrap())));
    redis.restart();
    assert_eq!(
        Connection::tcp(proxy.port())
            .unwrap()
            .command(&["INCR", "n"])
            .unwrap(),
        Reply::Int(1)
    );
}

#[test]
fn dropping_the_proxy_ends_all_threads_and_connections() {
    let (redis, proxy) = start();
    let port = proxy.port();
    let mut connections: Vec<_> = (0..5).map(|_| connect(&proxy)).collect();
    // A write that is never read must not block it.
    redis.stop_signal();
    proxy.set(Fault::Delay(Duration::from_secs(60)));
    for connection in &mut connections {
        connection
            .send(&["SET", "big", &"x".repeat(1 << 17)])
            .unwrap();
    }
    drop(proxy);
    for mut connection in connections {
        assert!(closed(failure(&mut connection)));
    }
    // Another test may use it for a while.
    until("its port is free", || {
        std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
    });
}
