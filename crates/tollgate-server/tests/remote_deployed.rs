//! Clients of the service where it runs in earnest: on Redis with others of its kind, behind a proxy that speaks TLS.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Server, directory, eventually};
use tollgate::{Ask, Limit, Source, Store};
use tollgate_remote::{ConnectError, RemoteStore, Trouble};
use tollgate_testkit::RedisServer;

/// Long enough for a busy machine to answer in, so that nothing falls back without a reason.
const LONG: Duration = Duration::from_secs(20);

/// Clients of two nodes that share a Redis hold one limit, settle what they charged, and give their permits back.
#[tokio::test]
async fn clients_of_several_nodes_on_one_redis() {
    let redis = RedisServer::start();
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        redis.url()
    );
    let nodes = [Server::with_config(&config), Server::with_config(&config)];
    let mut clients = Vec::new();
    for node in &nodes {
        let store = RemoteStore::builder(format!("http://{}", node.address)).timeout(LONG).connect().await.unwrap();
        let limit = store.limit("limit", Limit::per_day(10)).unwrap();
        let slots = store.concurrency("slots", 1).unwrap();
        clients.push((store, limit, slots));
    }
    let [(ours, limit, slots), (theirs, their_limit, their_slots)] = &clients[..] else { unreachable!() };
    // Twenty at once, on both: the calls of a batch are one round trip to Redis, and exact.
    let asked = (0..20).map(|turn| {
        let (store, limit, _) = clients[turn % 2].clone();
        tokio::spawn(async move { store.decide(&[Ask::new(&limit, "k")]).await.is_allowed() })
    });
    let mut admitted = 0;
    for passed in asked.collect::<Vec<_>>() {
        admitted += u64::from(passed.await.unwrap());
    }
    assert_eq!(admitted, 10);

    ours.settle(ours.decide(&[Ask::new(limit, "settled").cost(9)]).await, &[2]).await;
    let verdict = theirs.decide(&[Ask::new(their_limit, "settled")]).await;
    assert_eq!(verdict.statuses().next().unwrap().decision().remaining(), 7);

    let held = ours.decide(&[Ask::new(slots, "k")]).await;
    assert!(held.is_allowed() && held.source() == Source::Remote);
    assert!(!theirs.decide(&[Ask::new(their_slots, "k")]).await.is_allowed());
    drop(held);
    let start = Instant::now();
    while !theirs.decide(&[Ask::new(their_slots, "k")]).await.is_allowed() {
        assert!(start.elapsed() < LONG, "it is not back");
    }
    // A node that has lost its Redis says so, and does with each limit what its client chose.
    drop(redis);
    let start = Instant::now();
    while ours.decide(&[Ask::new(limit, "k")]).await.source() != Source::LocalShare {
        assert!(start.elapsed() < 2 * LONG, "it still decides");
    }
    assert!(ours.is_well());
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes an authority, and a certificate for localhost from it.
fn certify(place: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split_whitespace()).current_dir(place).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 9 -subj /CN=tests"));
    openssl(&format!("req {NEW_KEY} -keyout server.key -out server.csr -subj /CN=localhost"));
    fs::write(place.join("ext"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl("x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 9 -extfile ext");
}

#[tokio::test]
async fn behind_an_nginx_that_speaks_tls() {
    let server = Server::start();
    let place = directory(&[]);
    certify(&place);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (own, address) = (place.display(), server.address);
    let config = format!(
        "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\nevents {{}}\nhttp {{ access_log off; \
         client_body_temp_path {own}; proxy_temp_path {own}; fastcgi_temp_path {own}; uwsgi_temp_path {own}; scgi_temp_path {own};\n\
         server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {own}/server.pem; ssl_certificate_key {own}/server.key;\n\
         location /limits/ {{ proxy_pass http://{address}/; }} }} }}"
    );
    fs::write(place.join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(place.join("nginx.conf")).arg("-e").arg(place.join("error.log"));
    let nginx = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _nginx = Running(nginx);
    eventually("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());

    let url = format!("https://localhost:{port}/limits");
    let store = RemoteStore::builder(&url).ca_file(place.join("ca.pem")).timeout(LONG).connect().await.unwrap();
    let limit = store.limit("limit", Limit::per_day(2)).unwrap();
    for passes in [true, true, false] {
        let verdict = store.decide(&[Ask::new(&limit, "k")]).await;
        assert_eq!((verdict.is_allowed(), verdict.source()), (passes, Source::Remote), "{:?}", store.status());
    }
    // Whom the system does not trust is not asked, and that is told.
    let stranger = RemoteStore::builder(&url).connect().await.unwrap();
    let trouble = stranger.status().trouble.unwrap().1;
    assert!(matches!(trouble, Trouble::Unreachable(_)), "{trouble}");
    assert!(trouble.to_string().contains("name a PEM file"), "{trouble}");
    for file in ["nginx.conf", "not there"] {
        let error = RemoteStore::builder(&url).ca_file(place.join(file)).connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Certificates(..)), "{error}");
    }
}
